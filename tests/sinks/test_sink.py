"""What holds for every sink: the contract of `zset_join.sinks.sink`, as laws.

A new sink joins by one line in `under_test.MAKERS`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from faults.sinks import SERVED, SINKS
from tests.sinks.under_test import (
    MAKERS,
    OUTPUT,
    SCHEMA,
    Crash,
    CrashAt,
    contents,
    history,
    positions,
    sinks_of_the_product,
    summed,
)
from tests.sweeps import some_of
from zset_join.changelog import ChangelogForm, encoded_schema, format_named
from zset_join.core.epochs import ChainLink, accepts_argument
from zset_join.core.errors import PlanError, SinkError, ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.pipeline import FunctionSink
from zset_join.sinks import json_lines, postgres_sql
from zset_join.sinks.duckdb_file import quote
from zset_join.sinks.printed import PrintSink
from zset_join.sinks.record_texts import RECORD_FORMS
from zset_join.sinks.sink import DIGESTS_KEPT, ChainedSink, Sink, is_replay
from zset_join.storage.operations import observe
from zset_join.zset import ZSet

ROWS = ZSet.of({"k": [1, 2], "v": ["a", "b"], "x": [0.5, None]}, schema=SCHEMA)
LINKS = [ChainLink("d0"), ChainLink("d1", "d0"), ChainLink("d2", "d1")]
Make = Callable[[], Any]


OTHER_FORMS = ("parquet-feed", "delta-row-kind", "delta-feed", "csv-row-kind", "csv-feed")
"""Sinks that write the rows of an epoch in another form than one of the same class: what they hold is looked at on every push,
the protocol, which their class has, by `make soak`."""
every_form = pytest.mark.parametrize("make", MAKERS, indirect=True)


@pytest.fixture(params=some_of(list(MAKERS), short=[name for name in MAKERS if name not in OTHER_FORMS]))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Give what makes the sink under test; made again, it is the same output."""
    made: list[Any] = []

    def make_one() -> Any:
        made.append(MAKERS[request.param].make(tmp_path))
        return made[-1]

    yield make_one
    [sink.close() for sink in made]


@pytest.fixture
def sink(make: Make) -> Any:
    """Give the sink under test, not yet opened."""
    return make()


HOOKED = [name for name, under_test in MAKERS.items() if under_test.has_hook]


@pytest.fixture(params=some_of(HOOKED, short=[name for name in HOOKED if name not in OTHER_FORMS]))
def crashing(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path], Sink]:
    """Give what makes a sink whose files are ours, in a directory."""
    return MAKERS[request.param].make


# -- content ----------------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("seed", some_of({str(seed): seed for seed in range(3)}, short="0"))
def test_after_every_epoch_a_sink_holds_the_sum_of_all_answers(sink: Any, seed: int) -> None:
    answers = history(seed)
    sink.open(OUTPUT, "query")

    held = [(sink.write(epoch, chunks), contents(sink))[1] for epoch, chunks in enumerate(answers)]

    assert held == [summed(answers[: epoch + 1]) for epoch in range(len(answers))]


@pytest.mark.parametrize("seed", some_of({str(seed): seed for seed in range(3)}, short="0"))
def test_every_epoch_counts_once_however_often_it_is_written(sink: Any, seed: int) -> None:
    answers = history(seed)
    sink.open(OUTPUT, "query")

    progress = [sink.write(epoch, answers[epoch]).replayed for epoch in (0, 0, 1, 0, 1, 2, 2, 3, 4, 3, 4)]

    assert progress == [False, True, False, True, True, False, True, False, False, True, True]
    assert contents(sink) == summed(answers)


@pytest.mark.parametrize("seed", some_of({str(seed): seed for seed in range(3)}, short="0"))
def test_a_sink_made_again_for_every_epoch_continues_after_the_last_one(make: Make, seed: int) -> None:
    answers = history(seed)

    def written(epoch: int) -> Any:
        sink = make()
        sink.open(OUTPUT, "query")
        assert sink.last_epoch() == (epoch - 1 if epoch else None)
        sink.write(epoch, answers[epoch])
        held = contents(sink)
        sink.close()
        return held

    assert [written(epoch) for epoch in range(len(answers))][-1] == summed(answers)


def test_two_sinks_that_are_given_the_same_epochs_leave_each_once(make: Make) -> None:
    answers = history(7)
    first, second = make(), make()
    first.open(OUTPUT, "query")
    second.open(OUTPUT, "query")

    progress = [sink.write(epoch, chunks).replayed for epoch, chunks in enumerate(answers) for sink in (first, second)]

    assert progress == [False, True] * len(answers)
    assert contents(second) == contents(first) == summed(answers)


def test_a_sink_that_is_overtaken_while_it_writes_leaves_the_epoch_once(make: Make) -> None:
    answers = history(5, epochs=3)
    slow, fast = make(), make()
    slow.open(OUTPUT, "query")
    fast.open(OUTPUT, "query")

    def chunks(epoch: int) -> Iterator[ZSet]:
        yield answers[epoch][0]
        fast.write(epoch, answers[epoch])
        yield answers[epoch][1]

    progress = [slow.write(epoch, chunks(epoch)).replayed for epoch in range(3)]

    assert progress == [True, True, True]
    assert contents(slow) == contents(fast) == summed(answers)


def test_small_epochs_by_the_dozen_add_up(sink: Any) -> None:
    answers = history(11, epochs=40, keys=30)
    sink.open(OUTPUT, "query")

    [sink.write(epoch, chunks) for epoch, chunks in enumerate(answers)]

    assert contents(sink) == summed(answers)


HOSTILE_NAMES = [
    'a"b',
    'x"; DROP TABLE victim; --',
    "it's",
    "select",
    "weight",
    "c0",
    "a.b",
    "a b,;{}()=\t\n",
    "`tick`",
    "%20",
    "__hive_default_partition__",
    "epoch=1",
    "naïve 名前 😀",
    "x" * 1000,
]


def test_a_column_may_have_any_name(sink: Any) -> None:
    schema = pa.schema([(name, pa.string()) for name in HOSTILE_NAMES])
    rows = ZSet.of({name: ["a", "b"] for name in HOSTILE_NAMES}, schema=schema)
    sink.open(Relation(name="answer", schema=schema, primary_key=(HOSTILE_NAMES[1],), mode="changelog"), "query")

    sink.write(0, [rows])
    sink.write(1, [ZSet(rows.rows.slice(0, 1), -rows.weights[:1])])

    assert contents(sink, schema) == {("b",) * len(HOSTILE_NAMES): 1}


# Every word that a sink, a layout, a form of a changelog or a reader of one gives a meaning of its own.
RESERVED_NAMES = [
    "epoch",
    "EPOCH",
    "_epoch",
    "_weight",
    "_row_kind",
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
    "_deleted",
    "_metadata",
    "_file",
    "_zset_weight",
    "_zset_hash",
    "_zset_nulls",
    "_zset_join_epochs",
    "_tp_delta",
    "_query",
    "key",
    "value",
    "before",
    "after",
    "op",
    "rowid",
    "rownum",
    "row_hash",
    "key_hash",
    "base_row",
    "delta_row",
    "candidate",
    "matched",
    "held",
    "net",
    "filename",
    "file_row_number",
]


def test_every_word_that_the_product_adds_to_rows_is_among_the_reserved_names() -> None:
    bare = pa.schema({"k": pa.int64()})
    forms = [*RECORD_FORMS.values(), *(format_named(name) for name in get_args(ChangelogForm))]
    added = {name for form in forms for name in encoded_schema(bare, form).names} - {"k"}

    assert added >= {"_weight", "_row_kind", "_change_type"}
    assert (added | set(postgres_sql.RESERVED) | {json_lines._WEIGHT}) - set(RESERVED_NAMES) == set()


NAMES_OF_A_PUSH = ("epoch", "_weight", "_row_kind", "_change_type", "_metadata", "key", "op", "rowid", "filename")


@every_form
@pytest.mark.parametrize("name", some_of(RESERVED_NAMES, short=NAMES_OF_A_PUSH))
def test_a_column_with_a_reserved_name_is_kept_for_every_reader_or_refused_before_anything_is_made(
    sink: Any, name: str, tmp_path: Path
) -> None:
    schema = pa.schema({"k": pa.int64(), name: pa.string()})
    rows = ZSet.of({"k": [1, 2], name: ["a", "b"]}, schema=schema)
    output = Relation(name="answer", schema=schema, primary_key=("k",), mode="changelog")
    refused = refusal(sink, output)
    if refused is not None:
        assert (name in str(refused), refused.code in ("SINK_COLUMNS", "DUPLICATE_COLUMN")) == (True, True)
        sink.open(OUTPUT, "query")
        return

    sink.write(0, [rows])
    sink.write(1, [ZSet(rows.rows.slice(0, 1), -rows.weights[:1])])
    sink.close()

    assert shown_to_others(tmp_path, name) <= {"a", "b"}


def refusal(sink: Any, output: Relation) -> ZsetJoinError | None:
    """Return a sink's complaint about an output; None where it takes it."""
    try:
        sink.open(output, "query")
    except (SinkError, PlanError) as refused:
        return refused
    return None


def shown_to_others(place: Path, name: str) -> set[Any]:
    """Return what readers that follow Hive partitions, and DuckDB, show in a column."""
    found: set[Any] = set()
    for path in place.glob("log/epoch=*"):
        found |= set(pq.read_table(place / "log", columns=[name]).column(name).to_pylist()) if path else set()
        files = f"{place}/log/epoch=*/*.parquet"
        found |= {
            row[0]
            for row in duckdb.sql(f"SELECT {quote(name)} FROM read_parquet('{files}', hive_partitioning=true)").fetchall()
        }
    if (place / "table").exists():
        found |= set(DeltaTable(place / "table").to_pyarrow_table().column(name).to_pylist())
    for path in place.glob("rows/epoch-*"):
        readers = {".json": "read_json", ".csv": "read_csv", ".parquet": "read_parquet"}
        found |= {row[0] for row in duckdb.sql(f"SELECT {quote(name)} FROM {readers[path.suffix]}('{path}')").fetchall()}
    for path in place.glob("lines/*.jsonl"):
        values = [json.loads(line)["value"] for line in path.read_text().splitlines()]
        rows = [json.loads(value) for value in values if value is not None]
        found |= {row[name] for line in rows for row in (line, line.get("before"), line.get("after")) if is_row(row, name)}
    if (place / "views.duckdb").exists():
        with duckdb.connect(str(place / "views.duckdb"), read_only=True) as connection:
            found |= {row[0] for row in connection.sql(f"SELECT {quote(name)} FROM view").fetchall()}
    return found


def is_row(found: Any, name: str) -> bool:
    """Return whether something in an envelope, or the envelope itself, is a row of two columns."""
    return isinstance(found, dict) and {"k", name} <= set(found)


# -- crashes ----------------------------------------------------------------------------------------------------------


def crashed(make_in: Callable[[Path], Any], place: Path, position: int, *, after: bool) -> tuple[Any, Any, Any]:
    """Crash at one place of epoch 1, continue with a new sink, and return its position, what it held then, and in the end."""
    answers = history(3, epochs=3)
    place.mkdir()
    before = make_in(place)
    before.open(OUTPUT, "query")
    before.write(0, answers[0])
    with pytest.raises(Crash), observe(CrashAt(position, after=after)):
        before.write(1, answers[1])
    sink = make_in(place)
    sink.open(OUTPUT, "query")
    was_at, held = sink.last_epoch(), contents(sink)
    sink.write(1, answers[1])
    sink.write(2, answers[2])
    return was_at, held, contents(sink)


def operations_of_an_epoch(make_in: Callable[[Path], Any], place: Path) -> int:
    """Count the file operations of an epoch."""
    answers = history(3, epochs=3)
    place.mkdir()
    sink = make_in(place)
    sink.open(OUTPUT, "query")
    sink.write(0, answers[0])
    with observe(counting := CrashAt(-1)):
        sink.write(1, answers[1])
    return counting.seen


def test_a_crash_before_or_after_any_file_operation_leaves_an_epoch_whole_or_not_at_all(
    crashing: Callable[[Path], Sink], tmp_path: Path
) -> None:
    answers = history(3, epochs=3)
    legal = {None: {}, 0: summed(answers[:1]), 1: summed(answers[:2])}
    count = operations_of_an_epoch(crashing, tmp_path / "counted")

    outcomes = [
        crashed(crashing, tmp_path / f"{position}-{after}", position, after=after) for position, after in positions(count)
    ]

    assert count >= 2
    assert {was_at for was_at, _, _ in outcomes} == {0, 1}
    assert [held for _, held, _ in outcomes] == [legal[was_at] for was_at, _, _ in outcomes]
    assert [end for _, _, end in outcomes] == [summed(answers)] * len(outcomes)


def crashed_in_open(make_in: Callable[[Path], Any], place: Path, position: int) -> Any:
    """Crash while the output is made, open it again, and return what it holds after one epoch."""
    place.mkdir()
    with observe(CrashAt(position)), contextlib.suppress(Crash):
        make_in(place).open(OUTPUT, "query")
    sink = make_in(place)
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS])
    return contents(sink)


def test_a_crash_while_the_output_is_made_is_not_in_the_way(crashing: Callable[[Path], Sink], tmp_path: Path) -> None:
    held = [crashed_in_open(crashing, tmp_path / f"{position}", position) for position in range(12)]

    assert held == [summed([[ROWS]])] * 12


# -- the protocol -----------------------------------------------------------------------------------------------------


def test_every_sink_fulfils_the_protocol(sink: Any) -> None:
    assert isinstance(sink, Sink)
    assert isinstance(sink, ChainedSink)


def test_every_sink_of_the_product_has_the_chain_of_epochs_and_is_searched() -> None:
    keeps_no_rows = {FunctionSink, PrintSink}
    found = sinks_of_the_product()

    assert found == {kind.sink for kind in SINKS.values()} | set(SERVED) | keeps_no_rows
    assert [one for one in found - keeps_no_rows if not hasattr(one, "has") or not accepts_argument(one.write, "link")] == []
    assert {type(made.make(Path("never-opened"))) for made in MAKERS.values()} == {kind.sink for kind in SINKS.values()}


def test_a_new_sink_holds_no_epoch(sink: Any) -> None:
    sink.open(OUTPUT, "query")

    assert sink.last_epoch() is None


def test_a_written_epoch_is_the_last_epoch(sink: Any) -> None:
    sink.open(OUTPUT, "query")

    progress = sink.write(0, [ROWS])

    assert (progress.epoch, progress.rows, progress.retractions, sink.last_epoch()) == (0, 2, 0, 0)


def test_progress_counts_retractions(sink: Any) -> None:
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS])

    progress = sink.write(1, [-ROWS])

    assert (progress.rows, progress.retractions, progress.replayed) == (2, 2, False)


def test_an_empty_epoch_counts(sink: Any) -> None:
    sink.open(OUTPUT, "query")

    sink.write(0, [])

    assert sink.last_epoch() == 0


def test_a_replayed_epoch_writes_nothing(sink: Any) -> None:
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS])

    again = sink.write(0, [ROWS])

    assert (again.rows, again.replayed, sink.last_epoch()) == (0, True, 0)


def test_a_sink_opened_again_has_its_last_epoch(sink: Any) -> None:
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS])
    sink.write(1, [])
    sink.close()

    sink.open(OUTPUT, "query")

    assert sink.last_epoch() == 1


def test_another_query_is_refused(sink: Any) -> None:
    sink.open(OUTPUT, "query")
    sink.close()

    with pytest.raises(SinkError, match='belongs to query "query"') as caught:
        sink.open(OUTPUT, "another")

    assert caught.value.code == "SINK_QUERY_ID"


def test_other_columns_are_refused(sink: Any) -> None:
    sink.open(OUTPUT, "query")
    sink.close()
    other = Relation(name="answer", schema=SCHEMA.set(1, pa.field("v", pa.int64())), primary_key=("k",), mode="changelog")

    with pytest.raises(SinkError, match=r"v: (int64|long)") as caught:
        sink.open(other, "query")

    assert caught.value.code == "SINK_SCHEMA"


def test_a_chunk_with_other_columns_is_refused_and_the_epoch_with_it(sink: Any) -> None:
    sink.open(OUTPUT, "query")

    with pytest.raises(SinkError, match="epoch 0"):
        sink.write(0, [ROWS, ZSet.of({"k": [1], "other": ["a"]})])

    assert sink.last_epoch() is None


def test_chunks_that_fail_leave_the_sink_as_it_was(sink: Any) -> None:
    def chunks() -> Iterator[ZSet]:
        yield ROWS
        raise RuntimeError("the operator failed")

    sink.open(OUTPUT, "query")

    with pytest.raises(RuntimeError, match="the operator failed"):
        sink.write(0, chunks())

    assert (sink.last_epoch(), sink.write(0, [ROWS]).rows) == (None, 2)


def test_a_hole_between_epochs_is_refused(sink: Any) -> None:
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS])

    with pytest.raises(SinkError, match="ends with epoch 0 and was given epoch 2") as caught:
        sink.write(2, [])

    assert caught.value.code == "SINK_EPOCH_GAP"


def test_a_new_sink_in_the_middle_of_a_query_is_refused(sink: Any) -> None:
    sink.open(OUTPUT, "query")

    with pytest.raises(SinkError, match="holds no epoch yet and was given epoch 12"):
        sink.write(12, [ROWS])


def test_a_closed_sink_refuses(sink: Any) -> None:
    sink.open(OUTPUT, "query")
    sink.close()

    with pytest.raises(SinkError, match="call open first"):
        sink.write(0, [])


def test_closing_twice_is_allowed(sink: Any) -> None:
    sink.open(OUTPUT, "query")
    sink.close()

    sink.close()


def test_upserts_without_whole_rows_are_refused(sink: Any) -> None:
    upserts = Relation(name="orders", schema=SCHEMA, primary_key=("k",), mode="upsert")

    with pytest.raises(SinkError, match='relation "orders" in upsert mode'):
        sink.open(upserts, "query")


def test_an_epoch_below_the_last_one_is_a_replay() -> None:
    assert is_replay("view", 7, 3)


# -- the chain of epochs ------------------------------------------------------------------------------------------------


def test_an_epoch_of_the_same_number_from_another_chain_is_refused(make: Make) -> None:
    answers = history(2, epochs=3)
    sink = make()
    sink.open(OUTPUT, "query")
    [sink.write(epoch, answers[epoch], link=LINKS[epoch]) for epoch in range(3)]
    sink.close()
    again = make()
    again.open(OUTPUT, "query")

    assert again.write(2, answers[2], link=LINKS[2]).replayed
    with pytest.raises(SinkError, match="epoch 1 is another one than the checkpoint's epoch 1") as caught:
        again.write(1, answers[1], link=ChainLink("other", "d0"))

    assert caught.value.code == "SINK_OTHER_CHAIN"
    assert contents(again) == summed(answers)


def test_an_epoch_that_follows_another_one_than_the_last_is_refused(sink: Any) -> None:
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS], link=LINKS[0])

    with pytest.raises(SinkError, match="zset-join backup") as caught:
        sink.write(1, [ROWS], link=ChainLink("d1", "other"))

    assert (caught.value.code, sink.last_epoch()) == ("SINK_OTHER_CHAIN", 0)


def test_epochs_without_a_digest_are_compared_by_number_until_there_are_digests(sink: Any) -> None:
    answers = history(4, epochs=3)
    sink.open(OUTPUT, "query")
    sink.write(0, answers[0])

    assert sink.write(0, answers[0], link=LINKS[0]).replayed
    assert not sink.write(1, answers[1], link=ChainLink("d1")).replayed
    assert sink.write(1, answers[1], link=ChainLink("d1")).replayed
    with pytest.raises(SinkError, match="another one"):
        sink.has(1, ChainLink("other"))


def test_a_sink_overtaken_by_another_chain_while_it_writes_raises(make: Make) -> None:
    answers = history(5, epochs=1)
    slow, fast = make(), make()
    slow.open(OUTPUT, "query")
    fast.open(OUTPUT, "query")

    def chunks() -> Iterator[ZSet]:
        fast.write(0, answers[0], link=ChainLink("other"))
        yield answers[0][0]

    with pytest.raises(SinkError, match="another one"):
        slow.write(0, chunks(), link=LINKS[0])


OF_EACH_KIND = ("duckdb-keyed", "parquet-weight", "delta-bag", "json-lines-upsert", "csv-weight", "rows-parquet")
"""One sink of every class: the others differ in how they write rows, not in how they keep epochs."""


@pytest.mark.parametrize("make", some_of(list(MAKERS), short=OF_EACH_KIND), indirect=True)
def test_the_digests_of_a_hundred_epochs_are_kept(make: Make) -> None:
    sink = make()
    sink.open(OUTPUT, "query")
    [sink.write(epoch, [], link=ChainLink(f"d{epoch}", f"d{epoch - 1}")) for epoch in range(DIGESTS_KEPT + 1)]

    assert sink.has(1, LINKS[1])
    with pytest.raises(SinkError, match="another one"):
        sink.has(1, ChainLink("other"))
