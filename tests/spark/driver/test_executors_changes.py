"""The checkpoint of a query on executors is compared with another query, while it runs and stopped."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from copy import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import Run, names, upserts
from tests.spark.conftest import Collected, Source
from tests.spark.tools.test_rescaling import final_tables, first, late_and_new, moves_and_deletes, read_files
from tests.sql.test_killed_sessions import Killed, killed_at
from tests.sweeps import some_of
from zset_join import cli
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.reading import changed_plan_of, read_committed
from zset_join.core.errors import SinkError, StateError
from zset_join.runners.any_mode import evolve_wherever, undo_wherever
from zset_join.runners.spark.driver.executors_state import _rows_held, diff_of_executors
from zset_join.sinks.parquet_changelog import ParquetChangelogSink, read_changelog
from zset_join.spark import JoinQuery

Rows = set[tuple[Any, ...]]


def counted(orders: Source, customers: Source, *, key: str = "name", least: int = 0, how: str = "inner") -> Any:
    """Return how many orders there are of each name, or item, from some order on; executors read the orders first."""
    joined = names(customers).join(upserts(orders), on="customer_id", how=how)
    return joined.where(f"order_id >= {least}").groupBy(key).agg(F.count("*").alias("n"), F.max("order_id").alias("last"))


def counted_now(orders: Source, customers: Source, *, key: str = "name", least: int = 0, how: str = "inner") -> Rows:
    """Return the same by Spark's own batch query over everything that arrived."""
    left, right = final_tables(orders, customers)
    joined = left.join(right, on="customer_id", how=how).where(f"order_id >= {least}")
    return {tuple(row) for row in joined.groupBy(key).agg(F.count("*"), F.max("order_id")).collect()}


def rows_of(delta: Any) -> Rows:
    return {tuple(row.values()) for row in delta.rows.to_pylist()}


def test_a_difference_is_that_of_two_batch_queries(
    orders: Source, customers: Source, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    view = partial(counted, orders, customers)
    first(orders, customers)
    moves_and_deletes(orders, customers)
    sink, location = Collected(), str(tmp_path / "checkpoint")
    query = run(view(), sink, wait=False, execution="executors", buckets=2)
    query.processAllAvailable()
    before, after = counted_now(orders, customers), counted_now(orders, customers, key="item", least=2)
    running = query.diff(view(key="item", least=2))
    query.stop()
    late_and_new(orders, customers)
    run(view(), sink, execution="executors", buckets=2)
    later = counted_now(orders, customers), counted_now(orders, customers, key="item", least=2)
    monkeypatch.setattr(cli, "_other_query", lambda *_: view(key="item", least=2).writeStream)
    code = cli.main(["diff", location, "shop:view"])
    stopped = diff_of_executors(location, view(key="item", least=2).writeStream.planned)

    for diff, (old, new) in ((running, (before, after)), (stopped, later)):
        (found,) = diff.views.values()
        assert rows_of(found.removed) == old
        assert rows_of(found.added) == new
        assert "join-0" in diff.kept
        assert next(iter(diff.rebuilt)).startswith("aggregate")
    assert before != later[0]
    assert (code, running.epoch != stopped.epoch) == (1, True)
    assert str(stopped) in capsys.readouterr().out
    assert set((tmp_path / "checkpoint" / "zset" / "leases").glob("*")) == set()


def test_rows_of_every_kind_of_stage_are_counted_for_a_refusal() -> None:
    counts = {
        "state": {"left_rows": 1, "right_rows": 2, "left_bytes": 900},
        "joins": {"join-2": {"right_rows": 4}},
        "aggregates": {"aggregate-3": {"groups": 8}},
        "stages": {"deduplicate-4": {"rows_rows": 16, "rejected": 500}},
    }

    assert _rows_held(SimpleNamespace(progress=counts)) == 31  # type: ignore[arg-type]
    assert _rows_held(SimpleNamespace(progress={})) is None  # type: ignore[arg-type]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Give a function that starts a query on executors which continues until the end of the test."""
    started: list[JoinQuery] = []

    def one(view: Any, sink: Any, **options: Any) -> JoinQuery:
        places = {"checkpointLocation": str(tmp_path / "checkpoint"), "localStateDir": str(tmp_path / "local")}
        writer = view.writeStream.options(**{**places, "execution": "executors", "buckets": 2, **options}).to(sink)
        started.append(writer.start())
        started[-1].processAllAvailable()
        return started[-1]

    yield one
    for query in started:
        query.stop()


def test_a_running_query_is_changed_and_goes_on(orders: Source, customers: Source, start: Any, tmp_path: Path) -> None:
    view = partial(counted, orders, customers)
    first(orders, customers)
    moves_and_deletes(orders, customers)
    sink = Collected()
    query = start(view(), sink)
    batches = query.lastProgress["batchId"] + 1
    held = histories(tmp_path)
    changed = query.evolve(view(least=2))
    kept = histories(tmp_path)
    between = set(sink.total()), counted_now(orders, customers, least=2)
    late_and_new(orders, customers)
    query.processAllAvailable()
    progress = query.lastProgress
    after = set(sink.total()), counted_now(orders, customers, least=2)
    query.undo()
    back = set(sink.total()), counted_now(orders, customers)
    query.stop()
    moves_and_deletes(orders, customers)
    start(view(), sink)

    assert changed.taken == batches
    assert between[0] == between[1] != back[1]
    assert after[0] == after[1] != between[1]
    assert back[0] == back[1]
    assert (progress["join"]["epoch"] - progress["join"]["batch"]) == 1
    assert set(sink.total()) == counted_now(orders, customers)
    assert set(sink.total().values()) == {1}
    assert {key: one for key, one in held.items() if not key.startswith("aggregate")} == {
        key: one for key, one in kept.items() if not key.startswith("aggregate")
    }
    assert {key for key in kept if key.startswith("aggregate")} == {"aggregate-1/0", "aggregate-1/1"}


def histories(place: Path) -> dict[str, Any]:
    """Return the histories of the state of a checkpoint."""
    committed = read_committed(str(place / "checkpoint"))
    assert committed is not None
    return dict(committed.histories)


def labelled(orders: Source, customers: Source, *, key: str) -> Any:
    """Return how many orders there are of each name, or item, under one name of the column."""
    joined = upserts(orders).join(names(customers), on="customer_id")
    return joined.select("order_id", F.col(key).alias("label")).groupBy("label").agg(F.count("*").alias("n"))


def labelled_now(orders: Source, customers: Source, *, key: str) -> Rows:
    """Return the same by Spark's own batch query over everything that arrived."""
    left, right = final_tables(orders, customers)
    return {tuple(row) for row in left.join(right, on="customer_id").groupBy(key).agg(F.count("*")).collect()}


def test_groups_by_another_key_lie_in_the_buckets_of_that_key(orders: Source, customers: Source, start: Any) -> None:
    view = partial(labelled, orders, customers)
    first(orders, customers)
    moves_and_deletes(orders, customers)
    sink = Collected()
    query = start(view(key="name"), sink)
    times = {key: ts for _, key, _, _, ts in read_files(orders)}  # the newest file is the last one
    again = [{**row.asDict(), "__sequence_0": times[row.order_id]} for row in final_tables(orders, customers)[0].collect()]
    for refused in (query.diff, query.evolve):
        with pytest.raises(StateError, match=r"EVOLVE_REREAD.*1 are gone"):
            refused(view(key="item"), reread={"orders": [row for row in again if row["order_id"] != 3]})
    query.evolve(view(key="item"), reread={"orders": again})
    between = set(sink.total()), labelled_now(orders, customers, key="item")
    late_and_new(orders, customers)
    query.processAllAvailable()
    after = set(sink.total()), labelled_now(orders, customers, key="item")
    query.stop()
    moves_and_deletes(orders, customers)
    start(view(key="item"), sink)

    assert between[0] == between[1] != after[1]
    assert after[0] == after[1]
    assert set(sink.total()) == labelled_now(orders, customers, key="item")
    assert set(sink.total().values()) == {1}


def described_rows(orders: Source, customers: Source, *, least: int = 0, has_more: bool = False) -> Any:
    """Return how many orders there are of each name, from some order on; or also the last one, and customers are read first."""
    aggregates = [F.count("*").alias("n"), *([F.max("order_id").alias("last")] if has_more else [])]
    one_name = names(customers).groupBy("customer_id").agg(F.max("name").alias("name"))
    ways = (
        upserts(orders).join(names(customers), on="customer_id", how="right"),
        one_name.join(upserts(orders), on="customer_id"),
    )
    joined = ways[has_more].where(f"order_id >= {least}")
    return joined.groupBy("name").agg(*aggregates)


def table_of(path: Path) -> Rows:
    with duckdb.connect(str(path), read_only=True) as database:
        return set(database.execute("SELECT * FROM v").fetchall())


def failing(*_: Any, **__: Any) -> Any:
    raise SinkError("no space left on the device", code="SINK_IO")


def test_the_command_changes_a_stopped_checkpoint_and_undoes_it(
    orders: Source, customers: Source, tmp_path: Path, monkeypatch: Any
) -> None:
    """Kept stages keep their files, outputs get columns, tables and changelogs the difference."""
    view = partial(described_rows, orders, customers)
    place, table, log = tmp_path / "checkpoint", tmp_path / "view.duckdb", tmp_path / "log"

    def run(query: Any) -> None:
        writer = query.writeStream.options(checkpointLocation=str(place), execution="executors", buckets=2)
        started = writer.toDuckDB(table, "v", hold_seconds=0).to("parquet", path=log).start()
        started.processAllAvailable()
        started.stop()

    def changed(query: Any) -> int:
        monkeypatch.setattr(cli, "_other_query", lambda *_: query.writeStream)
        return cli.main(["evolve", str(place), "shop:view"])

    first(orders, customers)
    moves_and_deletes(orders, customers)
    run(view())
    held = histories(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(Checkpoint, "commit", failing)
        assert changed(view(least=2)) == 1
    assert histories(tmp_path) == held
    assert changed(view(least=2)) == 0
    kept = histories(tmp_path)
    with pytest.raises(StateError, match="QUERY_CHANGED"):
        run(view())
    assert cli.main(["undo", str(place)]) == 1  # outputs lack the change
    run(view(least=2))
    assert cli.main(["undo", str(place)]) == 0
    run(view())
    assert changed(view(least=2, has_more=True)) == 0
    with monkeypatch.context() as broken:
        broken.setattr(ParquetChangelogSink, "write", failing)
        with pytest.raises(SinkError, match="no space"):
            run(view(least=2, has_more=True))
    run(view(least=2, has_more=True))
    between = table_of(table), counted_now(orders, customers, least=2)
    late_and_new(orders, customers)
    run(view(least=2, has_more=True))

    assert between[0] == between[1]
    assert table_of(table) == counted_now(orders, customers, least=2) != between[1]
    changes = read_changelog(log)
    rows = {name: changes.column(name).to_pylist() for name in ("name", "n", "last", "_weight")}
    total = Counter[Any]()
    for *row, weight in zip(*rows.values(), strict=True):
        total[tuple(row)] += weight
    assert {row for row, weight in total.items() if weight} == table_of(table)
    assert {key: one for key, one in held.items() if key.startswith("join")} == {
        key: one for key, one in kept.items() if key.startswith("join")
    }


def test_outputs_of_a_running_query_get_columns_or_are_new(orders: Source, customers: Source, tmp_path: Path) -> None:
    view, table, other = partial(described_rows, orders, customers), tmp_path / "view.duckdb", tmp_path / "other.duckdb"
    first(orders, customers)
    places = {"checkpointLocation": str(tmp_path / "checkpoint"), "execution": "executors", "buckets": 1}
    query = view().writeStream.options(**places).toDuckDB(table, "v", hold_seconds=0).start()
    try:
        query.processAllAvailable()
        with pytest.raises(SinkError, match="EVOLVE_OUTPUT"):
            query.evolve(labelled(orders, customers, key="name"))
        with pytest.raises(SinkError, match="EVOLVE_OUTPUT"):
            query.evolve(view(least=2).writeStream.toDuckDB(table, "v", hold_seconds=0))
        query.evolve(view(has_more=True))
        wide = table_of(table), counted_now(orders, customers)
        query.evolve(labelled(orders, customers, key="item").writeStream.toDuckDB(other, "v", hold_seconds=0))
        begun = table_of(other), labelled_now(orders, customers, key="item")
        late_and_new(orders, customers)
        query.processAllAvailable()
    finally:
        query.stop()

    assert wide[0] == wide[1] == table_of(table)
    assert begun[0] == begun[1] != table_of(other)
    assert table_of(other) == labelled_now(orders, customers, key="item")


@pytest.mark.parametrize("part", some_of([str(one) for one in range(10)], short=["9"]))
def test_a_change_by_command_that_is_killed_at_any_file_leaves_the_old_or_the_new_query(
    orders: Source, customers: Source, tmp_path: Path, part: str
) -> None:
    """And it continues from there: what was killed before it counted is done by the same command."""
    before = described_rows(orders, customers).writeStream
    after = described_rows(orders, customers, least=2, has_more=True).writeStream
    first(orders, customers)
    moves_and_deletes(orders, customers)
    places = {"checkpointLocation": str(tmp_path / "old"), "execution": "executors", "buckets": 1}
    query = before.options(**places).toDuckDB(tmp_path / "view.duckdb", "v", hold_seconds=0).start()
    query.processAllAvailable()
    query.stop()

    def evolved(place: Path) -> None:
        evolve_wherever(str(place), after)

    def undone(place: Path) -> None:
        undo_wherever(str(place), failing, new_tables=["w"])

    def differs(place: Path, other: Any) -> int:
        views = diff_of_executors(str(place), other.planned).views.values()
        return sum(len(view.removed) + len(view.added) for view in views)

    evolved(Path(shutil.copytree(tmp_path / "old", tmp_path / "new")))
    (plan,) = (tmp_path / "new" / "zset" / "plans").glob("*.json")
    plan.with_suffix(".given").write_bytes(b"{}")  # as a start does
    for change, start, old, new in ((evolved, "old", before, after), (undone, "new", after, before)):
        with killed_at(None) as files:
            change(Path(shutil.copytree(tmp_path / start, tmp_path / f"{start}-whole")))
        for number in range(int(part), files["files"], 10):
            place = Path(shutil.copytree(tmp_path / start, tmp_path / f"{start}-{number}"))
            with pytest.raises(Killed), killed_at(number):
                change(place)
            is_old = not differs(place, old)
            assert is_old != (not differs(place, new))
            if is_old:
                change(place)
            assert not differs(place, new)


def paid(orders: Source, customers: Source, *, has_prices: bool) -> Any:
    """Return how many orders there are of each name, or the sum of their prices."""
    joined = names(customers).join(upserts(orders), on="customer_id")  # executors read the orders first
    joined = joined.where(f"{'article' if has_prices else 'item'} <> 'item 3'")
    return joined.groupBy("name").agg((F.sum("price") if has_prices else F.count("*")).alias("n"))


def paid_now(orders: Source, customers: Source, *, has_prices: bool, least_price: int = 0) -> Rows:
    """Return the same as plain Python makes it of the files; rows without a price that was kept have 5."""
    rows: dict[int, Any] = {}
    for op, key, customer, item, ts, *more in read_files(orders):
        if key not in rows or ts >= rows[key][0]:
            rows[key] = (ts, op, customer, item, *(more or [5]))
    people, found = {key: name for key, name, _ in read_files(customers)}, Counter[str]()
    for _, op, customer, item, price in rows.values():
        if op != "d" and customer in people and item != "item 3":
            found[people[customer]] += 1 if not has_prices else price if price >= least_price else 5
    return set(found.items())


def test_a_stream_gets_a_column_and_another_name_for_one_and_loses_both(
    orders: Source, customers: Source, start: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """While it runs and by the command, and both are undone; a change that is older than its delete stays out."""
    first(orders, customers)
    moves_and_deletes(orders, customers)
    priced = copy(orders)
    renamed = [field.with_name("article") if field.name == "item" else field for field in orders.schema]
    priced.schema = pa.schema([*renamed, pa.field("price", pa.int64())])
    old, new = (partial(paid, one, customers, has_prices=has) for one, has in ((orders, False), (priced, True)))
    place, sink = str(tmp_path / "checkpoint"), Collected()
    query = start(old(), sink)
    words: Any = {"renamed": {"orders": {"item": "article"}}, "defaults": {"orders": {"price": 5}}}
    expected, found = [paid_now(orders, customers, has_prices=has) for has in (False, True)], [sink.total()]
    with pytest.raises(StateError, match="EVOLVE_COLUMN"):
        query.evolve(new(), renamed={"orders": {"itme": "article"}})
    query.evolve(new(), **words)
    found.append(sink.total())
    priced.add(*(("u", n, 8, "item 3" if n % 4 else "other", 40, n) for n in range(0, 20, 2)), ("d", 3, None, None, 40, 1))
    priced.add(*(("u", n, 8, "late", 15, 1_000) for n in range(1, 40, 6)))
    customers.add((8, "eight", 3))
    query.processAllAvailable()
    found.append(sink.total())
    expected += [paid_now(priced, customers, has_prices=has) for has in (True, False)]
    noted = read_committed(place)
    assert noted is not None
    assert noted.last is not None
    changed = changed_plan_of(noted.files.folder, noted.last)
    query.undo()
    found.append(sink.total())
    query.stop()
    assert changed is not None
    assert [changed.sources[one["slot"]]["relation"]["name"] for one in changed.columns] == ["orders"]

    monkeypatch.setattr(cli, "_other_query", lambda *_: new().writeStream)
    options = ["--rename", "orders.item=article", "--default", "orders.price=5"]
    assert cli.main(["evolve", place, "shop:view", *options]) == 0
    start(new(), sink).stop()
    assert cli.main(["undo", place]) == 0
    start(old(), sink).stop()
    assert cli.main(["evolve", place, "shop:view", *options]) == 0
    priced.add(("u", 7, 8, "last", 50, 100))
    start(new(), sink)
    found.append(sink.total())
    expected.append(paid_now(priced, customers, has_prices=True, least_price=100))

    for number, one in enumerate(found):
        assert (number, set(one), set(one.values())) == (number, expected[number], {1})
