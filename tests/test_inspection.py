"""The state of a query as SQL sees it, at its last committed epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.checkpoint.conftest import no_driver_stays  # noqa: F401 - a fixture of every test
from tests.checkpoint.query_by_hand import LEFT, RIGHT, QueryByHand, left_rows, right_rows
from zset_join.checkpoint.bucket import BucketState
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.reading import read_committed
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.shapes.aggregate import AggregateCall
from zset_join.stages import AggregateStage, JoinStage, Stage, StageOptions
from zset_join.storage.operations import Operation, observe
from zset_join.tools import inspection
from zset_join.tools.inspection import open_state
from zset_join.zset import ZSet

JOIN = JoinStage(left=LEFT, right=RIGHT, how="full")


def plan_of(**stages: Stage) -> dict[str, Any]:
    """Return what a query writes down of its stages."""
    return {"stages": [{"name": name.replace("_", "-"), "stage": stage.to_json()} for name, stage in stages.items()]}


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def query(location: str, tmp_path: Path) -> Iterator[QueryByHand]:
    query = QueryByHand(location, tmp_path / "local", plan=plan_of(join=JOIN), snapshot_after_bytes=1_500)
    yield query
    query.stop()


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Any]:
    return connection.sql(sql).fetchall()


def test_the_views_show_snapshots_and_the_epochs_after_them(query: QueryByHand, location: str) -> None:
    held: dict[int, tuple[int, int | None, str]] = {}
    prices: dict[tuple[int, float], int] = {}
    kinds = set()
    for epoch in range(12):
        changed = [(number, number % 4 if number % 3 else None, f"note {epoch}") for number in range(epoch, 20, 5)]
        query.run(left_rows(*changed), right_rows((epoch % 3, 0.5), (epoch % 3, 0.5)))
        held |= {row[0]: row for row in changed}
        prices[epoch % 3, 0.5] = prices.get((epoch % 3, 0.5), 0) + 2
        committed = read_committed(location)
        assert committed is not None
        kinds |= {(history.snapshot is not None, bool(history.logs)) for history in committed.histories.values()}

        with open_state(location) as state:
            assert sorted(rows(state, "SELECT id, k, note FROM join_left"), key=repr) == sorted(held.values(), key=repr)
            assert {(k, p): w for k, p, w in rows(state, "SELECT k, price, _zset_weight FROM join_right")} == prices
            assert rows(state, "SELECT DISTINCT epoch, buckets, query_id FROM about") == [(epoch, 2, "q")]

    assert {(False, True), (True, True)} <= kinds


def test_every_row_has_its_bucket_and_its_weight(query: QueryByHand, location: str) -> None:
    query.run(left_rows((1, 4, "a"), (2, 5, "b")), right_rows((5, 1.0), (5, 1.0)))

    with open_state(location) as state:
        left = rows(state, "SELECT id, _zset_weight, _zset_bucket FROM join_left ORDER BY id")
        right = rows(state, "SELECT * FROM join_right")
        about = rows(state, 'SELECT view, stage, side, stream, "rows" FROM about ORDER BY view')

    assert left == [(1, 1, 0), (2, 1, 1)]
    assert right == [(5, 1.0, 2, 1)]
    assert about == [("join_left", "join", "left", "left", 2), ("join_right", "join", "right", "right", 1)]


def committed(location: str, local: Path, stage: JoinStage, *epochs: Sequence[ZSet]) -> None:
    """Run epochs of a query with one bucket."""
    build, plan = partial(stage.build, StageOptions()), plan_of(join=stage)
    opened = Checkpoint(location, query_id="q", buckets=1, description={}, plan=plan, local_state_dir=str(local))
    for epoch, deltas in enumerate(epochs):
        tick = Tick(epoch, 1_000_000 * epoch)
        with BucketState(opened.stage("join", tick), 0, build) as held:
            log = held.log(deltas)
        history = opened.histories.get("join/0", BucketHistory())
        assert log is not None
        histories = {"join/0": history.with_log(log)}
        opened.commit(CommitRecord(query_id="q", epoch=epoch, processing_time_us=tick.processing_time_us, histories=histories))


def test_keys_whose_deletion_is_remembered_are_apart(location: str, tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64(), "weight": pa.string(), "s": pa.int64()})
    keyed = Relation(name="x", schema=schema, join_key=("id",), primary_key=("id",), sequence_by=("s",), mode="upsert")
    stage = JoinStage(left=keyed, right=RIGHT)
    came = ZSet.of({"id": [1, 2], "weight": ["a", "b"], "s": [1, 1]}, schema=schema)
    gone = ZSet.of({"id": [1], "weight": [None], "s": [2]}, [-1], schema=schema)
    committed(location, tmp_path / "local", stage, (came, right_rows()), (gone, right_rows()))

    with open_state(location) as state:
        live = rows(state, "SELECT * FROM join_left")
        deleted = rows(state, "SELECT id, _zset_watermark FROM join_left_deleted")
        others = rows(state, "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY view_name")

    assert live == [(2, "b", 1, 1, 0)]
    assert deleted == [(1, 1_000_000)]
    assert others == [("join_left",), ("join_left_deleted",), ("join_right",)]


def test_a_condition_over_both_rows_changes_nothing_that_is_remembered(location: str, tmp_path: Path) -> None:
    stage = replace(JOIN, residual=left("id") < right("price"))
    epoch = (left_rows((1, 4, "a"), (9, 4, "b")), right_rows((4, 5.0)))
    committed(location, tmp_path / "local", stage, epoch, epoch)

    with open_state(location) as state:
        found = rows(state, "SELECT id FROM join_left ORDER BY id"), rows(state, "SELECT * FROM join_right")

    assert found == ([(1,), (9,)], [(4, 5.0, 2, 0)])


SALES = Relation(
    name="sales",
    schema=pa.schema({"shop": pa.string(), "item": pa.string(), "price": pa.int64(), "note": pa.string()}),
    mode="changelog",
)
GROUPINGS: dict[str, tuple[tuple[str, ...], tuple[AggregateCall, ...]]] = {
    "sums": (("shop",), (AggregateCall("count"), AggregateCall("sum", "price"), AggregateCall("avg", "price"))),
    "single values": (
        ("shop", "item"),
        (
            AggregateCall("max", "price"),
            AggregateCall("count_distinct", "note"),
            AggregateCall("collect_list", "price"),
            AggregateCall("min_by", ("note", "price")),
            AggregateCall("min", "item", name="first"),
        ),
    ),
    "distinct": (("item", "note"), ()),
    "all rows": ((), (AggregateCall("count"), AggregateCall("min", "price"))),
}


def grouped_epochs(location: str, local: Path, stage: AggregateStage, epochs: Sequence[ZSet], **options: Any) -> dict[Any, int]:
    """Run an aggregate as a stage with one bucket; return the sum of its answers."""
    build, reduction = partial(stage.build, StageOptions()), stage.inputs[0].reduce
    assert reduction is not None
    plan = plan_of(join=JOIN, aggregate_1=stage)
    opened = Checkpoint(location, query_id="q", buckets=1, description={}, plan=plan, local_state_dir=str(local), **options)
    total: dict[Any, int] = {}
    for epoch, delta in enumerate(epochs):
        tick = Tick(epoch, 0)
        deltas = [reduction.reduce(delta)]
        with BucketState(opened.stage("aggregate-1", tick), 0, build) as held:
            for row, weight in (row for chunk in held.operator.answer(tick, deltas) for row in chunk.to_pylist()):
                total[repr(row)] = total.get(repr(row), 0) + weight
            log = held.log(deltas)
        history = opened.histories.get("aggregate-1/0", BucketHistory())
        history = history if held.snapshot is None else history.with_snapshot(held.snapshot)
        histories = {"aggregate-1/0": history if log is None else history.with_log(log)}
        opened.commit(CommitRecord(query_id="q", epoch=epoch, processing_time_us=0, histories=histories))
    return {row: weight for row, weight in total.items() if weight}


def sales(*rows: tuple[str | None, str, int | None, str | None], gone: int = 0) -> ZSet:
    """Return a delta; the last rows of it are retracted."""
    columns = dict(zip(SALES.schema.names, zip(*rows, strict=True), strict=True))
    return ZSet.of(
        {name: list(values) for name, values in columns.items()}, [1] * (len(rows) - gone) + [-1] * gone, schema=SALES.schema
    )


@pytest.mark.parametrize("options", [{"retain_input_log": True}, {"snapshot_after_bytes": 0}], ids=["log", "snapshots"])
@pytest.mark.parametrize(("keys", "calls"), GROUPINGS.values(), ids=GROUPINGS.keys())
def test_groups_are_shown_as_they_were_answered_last(
    location: str,
    tmp_path: Path,
    keys: tuple[str, ...],
    calls: tuple[AggregateCall, ...],
    options: dict[str, Any],
) -> None:
    stage = AggregateStage(source=SALES, group_by=keys, calls=calls)
    first = sales(("A", "pen", 3, "x"), ("A", "pen", 4, None), (None, "ink", None, "y"), ("B", "cap", 9, "z"))
    second = sales(("A", "pen", 1, "w"), ("A", "ink", 2, "x"), ("B", "cap", 9, "z"), gone=1)
    third = sales(("C", "pen", 5, "y"), ("A", "pen", 4, None), gone=1)

    answered = grouped_epochs(location, tmp_path / "local", stage, [first, second, third], **options)

    with open_state(location) as state:
        shown = rows(state, "SELECT * EXCLUDE (_zset_rows, _zset_bucket) FROM aggregate_1")
        about = rows(state, "SELECT stage, side, stream, \"rows\" FROM about WHERE view = 'aggregate_1'")
        (counted,) = rows(state, "SELECT sum(_zset_rows), max(_zset_bucket) FROM aggregate_1")
    assert {repr(row): 1 for row in shown} == answered
    assert about == [("aggregate-1", None, "sales", len(answered))]
    assert counted == (5, 0)


def test_the_row_of_all_rows_is_there_before_any_row_has_come(location: str, tmp_path: Path) -> None:
    stage = AggregateStage(source=SALES, group_by=(), calls=(AggregateCall("count"), AggregateCall("max", "price")))
    answered = grouped_epochs(location, tmp_path / "local", stage, [ZSet.empty(SALES.schema)])

    with open_state(location) as state:
        shown = rows(state, "SELECT * FROM aggregate_1")

    assert answered == {repr(shown[0][:2]): 1}
    assert shown == [(0, None, 0, 0)]


@pytest.fixture
def state(query: QueryByHand, location: str) -> Iterator[duckdb.DuckDBPyConnection]:
    query.run(left_rows((1, 4, "a")), right_rows((4, 1.0)))
    with open_state(location) as opened:
        yield opened


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE main.mine AS SELECT 1",
        "DROP VIEW main.join_left",
        "DELETE FROM held.join_left",
        "COPY main.join_left TO 'stolen.csv'",
        "SELECT * FROM read_text('/etc/passwd')",
        "ATTACH 'other.duckdb'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '1GB'",
    ],
)
def test_nothing_can_be_changed_and_nothing_else_be_reached(
    state: duckdb.DuckDBPyConnection, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(duckdb.Error):
        state.execute(statement)

    assert rows(state, "SELECT count(*) FROM join_left") == [(1,)]


def test_variables_of_python_are_no_tables(state: duckdb.DuckDBPyConnection) -> None:
    secret = pa.table({"a": [1]})

    with pytest.raises(duckdb.CatalogException, match="secret"):
        state.execute("SELECT * FROM secret")

    assert secret.num_rows == 1


def test_the_rows_leave_no_file_behind(query: QueryByHand, location: str, tmp_path: Path) -> None:
    query.run(left_rows((1, 4, "a")), right_rows())
    (tmp_path / "scratch").mkdir()

    with open_state(location, temporary_directory=tmp_path / "scratch") as state:
        left_over = list((tmp_path / "scratch").iterdir())
        found = rows(state.cursor(), "SELECT note FROM join_left")

    assert left_over == []
    assert found == [("a",)]


def test_a_query_that_clears_files_away_meanwhile_is_read_at_its_newest_epoch(query: QueryByHand, location: str) -> None:
    query.run(left_rows(*((n, n, "x" * 200) for n in range(20))), right_rows())
    went_on: list[bool] = []

    def go_on_at_the_first_log(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind == "read" and "/log/" in operation.path and not went_on:
            went_on.append(True)
            with observe(lambda _operation, act: act()):
                for epoch in range(1, 7):
                    query.run(left_rows(*((n, n, f"{epoch}" * 200) for n in range(20))), right_rows())
        return act()

    with observe(go_on_at_the_first_log), open_state(location) as state:
        notes = rows(state, "SELECT DISTINCT note FROM join_left")
        epochs = rows(state, "SELECT DISTINCT epoch FROM about")

    assert (notes, epochs) == ([("6" * 200,)], [(6,)])
    assert went_on == [True]


def test_a_query_that_is_always_faster_is_reported(query: QueryByHand, location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query.run(left_rows((1, 4, "a")), right_rows())
    for log in Path(location).glob("zset/log/join-0/*"):
        log.unlink()
    monkeypatch.setattr(inspection, "_has_moved_on", lambda *_: True)

    with pytest.raises(StateError, match="cleared files away 5 times") as refused:
        open_state(location)

    assert refused.value.code == "STATE_MOVES_ON"


def test_a_damaged_file_is_named(query: QueryByHand, location: str) -> None:
    query.run(left_rows((1, 4, "a")), right_rows())
    log = next(Path(location).glob("zset/log/join-0/*"))
    log.write_bytes(log.read_bytes()[:-1] + b"\x7f")

    with pytest.raises(StateError, match="checksum") as refused:
        open_state(location)

    assert (refused.value.code, refused.value.facts["file"]) == ("DAMAGED_FILE", str(log))


def test_a_place_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no checkpoint of a query") as refused:
        open_state(tmp_path)

    assert refused.value.code == "NO_CHECKPOINT"


def test_a_checkpoint_without_an_epoch_is_refused(query: QueryByHand, location: str) -> None:
    with pytest.raises(StateError, match="no epoch is committed") as refused:
        open_state(location)

    assert refused.value.code == "NOTHING_COMMITTED"


def test_columns_that_differ_by_case_are_refused(location: str) -> None:
    schema = pa.schema({"a": pa.int64(), "A": pa.int64()})
    twice = JoinStage(left=Relation(name="twice", schema=schema, join_key=("a",)), right=RIGHT)
    checkpoint = Checkpoint(location, query_id="q", buckets=2, description={}, plan=plan_of(join=twice))
    checkpoint.commit(CommitRecord(query_id="q", epoch=0, processing_time_us=None))

    with pytest.raises(StateError, match="differ only by case") as refused:
        open_state(location)

    assert refused.value.code == "STATE_COLUMNS"
