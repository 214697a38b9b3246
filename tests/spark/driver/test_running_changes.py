"""A query on the driver that runs is compared with another one and changed to it; its handle, outputs and batch ids
continue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import functions as SF  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from tests.spark.driver.test_changed_queries import _sums
from tests.spark.driver.test_driver_epochs import _filled, _joined
from zset_join.core.errors import OptionError, PlanError, SinkError, StateError
from zset_join.evolution.changed_columns import ChangeTerms
from zset_join.lookup import ArrowSource
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.outputs import PipelineOutputs
from zset_join.runners.local.stopped import undo_of_directory
from zset_join.runners.spark.api.changing_query import ChangingQuery
from zset_join.runners.spark.api.writer import JoinStreamWriter
from zset_join.runners.spark.driver.served_handle import refuse_unsent
from zset_join.spark import JoinedStream, JoinQuery, changes, writeStream
from zset_join.spark import functions as F  # noqa: N812 - PySpark's own habit


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Any]:
    """Give a function that starts a query which continues until the end of the test."""
    started: list[JoinQuery] = []

    def start(view: Any, sink: Any = None, **options: Any) -> JoinQuery:
        writer = view.writeStream.options(
            checkpointLocation=str(tmp_path / "checkpoint"),
            localStateDir=str(tmp_path / "local"),
            execution="driver",
            **options,
        )
        writer = writer.toDuckDB(tmp_path / "out.duckdb", "v") if sink is None else writer.to(sink)
        started.append(writer.start())
        started[-1].processAllAvailable()
        return started[-1]

    yield start
    for query in started:
        query.stop()


def _stored(tmp_path: Path) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(tmp_path / "out.duckdb")) as connection:
        return sorted(connection.sql("SELECT name, n FROM v").fetchall())


def test_a_running_query_is_compared_and_changed_and_goes_on(
    orders: Source, customers: Source, running: Any, tmp_path: Path
) -> None:
    _filled(orders, customers)
    before, after = (_sums(orders, customers, at_least=at) for at in (0, 4))
    query = running(before)
    first, batches = _stored(tmp_path), query.lastProgress["batchId"] + 1
    waited: list[Any] = []
    waiter = threading.Thread(target=lambda: waited.append(query.awaitTermination()))
    waiter.start()

    differs = query.diff(after)
    run = query.runId
    changed = query.evolve(after)
    second = _stored(tmp_path)
    orders.add((None, 5, 10, "bag", 4))
    query.processAllAvailable()
    progress = query.lastProgress

    assert (differs.epoch, differs.taken, changed.taken) == (batches - 1, None, batches)
    assert list(differs.lines()) == list(changed.lines())
    assert (first, second, _stored(tmp_path)) == ([("ANNA", 1), ("BOB", 1)], [("BOB", 1)], [("ANNA", 1), ("BOB", 1)])
    assert query.runId != run
    assert progress["batchId"] == batches
    assert (progress["join"]["epoch"], progress["join"]["batch"]) == (batches + 1, batches)
    assert waited == []
    back = query.evolve(before)
    assert len(back.kept) == 1
    assert _stored(tmp_path) == [("ANNA", 2), ("BOB", 1)]
    left = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", apply_as_deletes="op = 'd'")
    right = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts")
    turned = right.select("customer_id", SF.upper("name").alias("name")).join(left.where("item <> 'ink'"), on="customer_id")
    query.evolve(turned.groupBy("name").agg(F.count().alias("n")))
    orders.add((None, 6, 10, "box", 5))
    customers.add((11, "Rob", 3))
    query.processAllAvailable()
    assert _stored(tmp_path) == [("ANNA", 3), ("ROB", 1)]  # streams in another order are those that Spark's files name
    query.stop()
    waiter.join(30)
    assert waited == [None]


def _priced(orders: Source, customers: Source, *, has_prices: bool) -> Any:
    """Return per name how many orders there are, or the sum of their prices."""
    left = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", apply_as_deletes="op = 'd'")
    right = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts")
    article = "article" if has_prices else "item"
    joined = left.join(right.select("customer_id", "name"), on="customer_id").where(f"{article} <> 'ink'")
    return joined.groupBy("name").agg((F.sum("price") if has_prices else F.count()).alias("n"))


def test_a_stream_gets_a_column_and_another_name_for_one_and_loses_both(
    orders: Source, customers: Source, running: Any, tmp_path: Path
) -> None:
    """Rows from before have the default; rows of later batches the new columns, also of the program that starts afterwards."""
    _filled(orders, customers)
    priced = copy(orders)
    renamed = [field.with_name("article") if field.name == "item" else field for field in orders.schema]
    priced.schema = pa.schema([*renamed, pa.field("price", pa.int64())])
    query = running(_priced(orders, customers, has_prices=False))
    first = _stored(tmp_path)
    words: Any = {"renamed": {"orders": {"item": "article"}}, "defaults": {"orders": {"price": 5}}}
    query.evolve(_priced(priced, customers, has_prices=True), **words)
    second = _stored(tmp_path)
    priced.add((None, 5, 10, "bag", 4, 70))
    query.processAllAvailable()
    third = _stored(tmp_path)
    query.undo()
    fourth = _stored(tmp_path)
    query.evolve(_priced(priced, customers, has_prices=True), **words)
    query.stop()
    priced.add((None, 6, 11, "bag", 4, 80))
    running(_priced(priced, customers, has_prices=True)).stop()

    assert (first, second) == ([("Anna", 1), ("Bob", 1)], [("Anna", 5), ("Bob", 5)])
    assert (third, fourth) == ([("Anna", 75), ("Bob", 5)], [("Anna", 2), ("Bob", 1)])
    assert _stored(tmp_path) == [("Anna", 10), ("Bob", 85)]


def test_what_is_refused_leaves_the_query_running_as_it_was(
    orders: Source, customers: Source, running: Any, tmp_path: Path
) -> None:
    _filled(orders, customers)
    query = running(_sums(orders, customers, at_least=0))
    run = query.runId
    alone = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", apply_as_deletes="op = 'd'")
    wider = _joined(orders, customers).groupBy("name").agg(F.count().alias("n"), F.max("order_id").alias("last"))
    with pytest.raises(StateError, match="EVOLVE_STREAM"):
        query.evolve(alone)
    large = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", apply_as_deletes="op = 'd'")
    names = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts")
    other = large.where("item <> 'mug'").join(names.select("customer_id", SF.upper("name").alias("name")), on="customer_id")
    with pytest.raises(StateError, match=r'EVOLVE_STREAM.*"orders" before the first stage'):
        query.evolve(other.groupBy("name").agg(F.count().alias("n")))
    with pytest.raises(SinkError, match="EVOLVE_OUTPUT"):
        query.evolve(_joined(orders, customers).groupBy("name").agg(F.count().alias("many")))
    with pytest.raises(OptionError, match="ARGUMENT"):
        query.evolve(7)
    orders.add((None, 5, 10, "bag", 4))
    query.processAllAvailable()

    assert query.runId == run
    assert _stored(tmp_path) == [("ANNA", 2), ("BOB", 1)]
    query.evolve(wider)
    with duckdb.connect(str(tmp_path / "out.duckdb")) as connection:
        assert sorted(connection.sql("SELECT name, n, last FROM v").fetchall()) == [("ANNA", 2, 5), ("BOB", 1, 4)]
    query.evolve(wider.writeStream.toDuckDB(tmp_path / "wider.duckdb", "v"))
    with duckdb.connect(str(tmp_path / "wider.duckdb")) as connection:
        assert sorted(connection.sql("SELECT name, n, last FROM v").fetchall()) == [("ANNA", 2, 5), ("BOB", 1, 4)]
    sizes = ArrowSource(name="sizes", table=pa.table({"name": ["BOB"], "size": ["big"]}))
    sized = _joined(orders, customers).lookup_join(sizes, on="name").groupBy("name")
    looked_up = sized.agg(F.count().alias("n"), F.max("order_id").alias("last"))
    with pytest.raises(StateError, match="EVOLVE_BY_TIME"):
        query.evolve(looked_up)
    differs, changed = query.diff(looked_up, as_now=True), query.evolve(looked_up, as_now=True)
    orders.add((None, 6, 11, "bag", 5))
    query.processAllAvailable()
    assert list(differs.lines()) == list(changed.lines())
    with duckdb.connect(str(tmp_path / "wider.duckdb")) as connection:
        assert connection.sql("SELECT name, n, last FROM v").fetchall() == [("BOB", 2, 6)]
    query.stop()
    with pytest.raises(StateError, match="QUERY_STOPPED"):
        query.evolve(wider)


def test_a_change_that_fails_anywhere_leaves_the_old_query_or_the_new_one(
    orders: Source, customers: Source, running: Any, tmp_path: Path
) -> None:
    _filled(orders, customers)
    before, after = (_sums(orders, customers, at_least=at) for at in (0, 4))
    query, failure = running(before), OSError("it fails here")
    with mock.patch.object(PipelineDirectory, "change", side_effect=failure), pytest.raises(OSError, match="it fails here"):
        query.evolve(after)
    orders.add((None, 5, 10, "bag", 4))
    query.processAllAvailable()
    assert _stored(tmp_path) == [("ANNA", 2), ("BOB", 1)]

    for owner, method, effects, old, new, rows in (
        (PipelineOutputs, "settle", [None, failure], before, after, [("ANNA", 1), ("BOB", 1)]),
        (JoinStreamWriter, "start_behind_change", failure, after, before, [("ANNA", 2), ("BOB", 1)]),
    ):
        with mock.patch.object(owner, method, side_effect=effects), pytest.raises(OSError, match="it fails here"):
            query.evolve(new)
        assert not query.isActive
        assert isinstance(query._runner.error, OSError)
        with pytest.raises(StateError, match="QUERY_CHANGED"):
            running(old)
        query = running(new)
        assert _stored(tmp_path) == rows


def test_questions_behind_a_change_are_about_the_new_query(
    orders: Source, customers: Source, running: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _filled(orders, customers)
    before, after = (_sums(orders, customers, at_least=at) for at in (0, 4))
    query = running(before, retainInputLog=True)
    query.evolve(after)
    orders.add((None, 5, 10, "bag", 4))
    query.processAllAvailable()

    query.explain()
    printed = capsys.readouterr().out
    report, history = query.verify(), query.explain_row({"name": "ANNA"})
    with query.console(diff=before) as console:
        shown = console._watched.diff()
        described = console._watched.overview()["described"]

    assert "order_id" in printed
    assert (report.equal, report.expected_rows) == (True, 2)
    assert "bag" in str(history)
    assert shown["views"][0]["counts"] == {"added": 0, "removed": 0, "changed": 1}
    assert shown["views"][0]["pairs"] == [[{"name": "ANNA", "n": 1}, {"name": "ANNA", "n": 2}]]
    assert any("order_id" in line for line in described)


def test_the_writer_that_runs_and_a_query_of_another_session_are_refused() -> None:
    """Neither needs Spark: what is refused is refused before the query is planned."""

    class Writer:
        def __init__(self, session: object) -> None:
            self.session = session

        @property
        def planned(self) -> Any:
            raise AssertionError

        @property
        def chosen_sinks(self) -> Any:
            raise AssertionError

        def changed_to(self, _: Any) -> Any:
            raise AssertionError

    session = object()
    mine: Any = Writer(session)
    query = ChangingQuery(mine, mock.Mock())

    for other in (mine, Writer(object())):
        with pytest.raises(PlanError, match="EVOLVE_SESSION"):
            query.changed(other, ChangeTerms())
    with pytest.raises(AssertionError):
        query.changed(Writer(session), ChangeTerms())


def test_over_spark_connect_no_stream_is_read_again() -> None:
    given = {"terms": ChangeTerms(reread={"orders": [{}]})}
    for verb in ("evolve", "diff"):
        with pytest.raises(OptionError, match=r"NOT_FROM_HERE.*--reread"):
            refuse_unsent(verb, given)


def test_a_change_is_undone_while_the_query_runs_and_behind_a_restart_and_stopped(
    orders: Source, customers: Source, running: Any, tmp_path: Path
) -> None:
    _filled(orders, customers)
    before, after = (_sums(orders, customers, at_least=at) for at in (0, 4))
    query = running(before, undoEpochs=1)
    with pytest.raises(StateError, match="NOTHING_TO_UNDO"):
        query.undo()
    query.evolve(after)
    back = query.undo()
    assert _stored(tmp_path) == [("ANNA", 1), ("BOB", 1)]
    assert len(back.kept) == 1
    assert query.isActive

    query.stop()
    query = running(before, undoEpochs=1)
    assert query.undo().taken == back.taken + 1
    assert _stored(tmp_path) == [("BOB", 1)]
    orders.add((None, 5, 10, "bag", 4))
    query.processAllAvailable()
    assert _stored(tmp_path) == [("ANNA", 1), ("BOB", 1)]
    query.stop()
    assert undo_of_directory(tmp_path / "checkpoint").taken == back.taken + 3
    query = running(before, undoEpochs=1)
    assert _stored(tmp_path) == [("ANNA", 2), ("BOB", 1)]
    for name in ("ink", "cup"):
        orders.add((None, 6, 11, name, 5))
        query.processAllAvailable()
    with pytest.raises(StateError, match="UNDO_GONE"):
        query.undo()
    assert query.isActive


def test_a_view_that_was_added_is_undone(orders: Source, customers: Source, running: Any, tmp_path: Path) -> None:
    _filled(orders, customers)
    joined = _joined(orders, customers)
    first, second = (joined.where(f"order_id >= {at}").groupBy("name").agg(F.count().alias("n")) for at in (0, 4))
    writer = writeStream({"v": first}).options(checkpointLocation=str(tmp_path / "cp"), execution="driver")
    query = writer.view("v").toDuckDB(tmp_path / "out.duckdb", "v").start()
    query.processAllAvailable()
    query.evolve(writeStream({"v": first, "w": second}).view("w").toDuckDB(tmp_path / "out.duckdb", "w"))
    assert query.undo().views["w"].status == "dropped"
    orders.add((None, 5, 10, "bag", 4))
    query.processAllAvailable()
    query.stop()
    assert _stored(tmp_path) == [("ANNA", 2), ("BOB", 1)]
    with duckdb.connect(str(tmp_path / "out.duckdb")) as connection:
        assert connection.sql("SELECT name, n FROM w").fetchall() == [("BOB", 1)]


_NOW = [
    (None, 1, 10, "ink", 2),
    ("d", 2, 11, "cup", 2),
    (None, 3, 10, "mug", 2),
    (None, 4, 11, "hat", 3),
    (None, 5, 10, "bag", 4),
]
"""The newest rows of the orders that `_filled` and the test give."""


def test_a_query_that_stores_what_it_needs_answers_the_same_and_refuses_what_it_left_out(
    orders: Source, customers: Source, running: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def view(*columns: str) -> JoinedStream:
        names = changes(customers.stream(), name="customers", keys=["customer_id"])
        return changes(orders.stream(), name="orders", keys=["order_id"]).join(names, on="customer_id").select(*columns)

    _filled(orders, customers)
    sink, needed = Collected(), {"execution": "driver", "keepState": "Needed"}
    view("order_id", "name").writeStream.options(**needed).explain()
    query = running(view("order_id", "name"), sink, keepState="needed")

    assert "not kept, since nothing reads them: op, item, ts" in capsys.readouterr().out
    with pytest.raises(StateError, match=r"EVOLVE_DROPPED.*'item'"):
        query.evolve(view("order_id", "name", "item"))
    query.evolve(view("order_id", "name").where("order_id > 1"))
    orders.add((None, 5, 10, "bag", 4))
    query.processAllAvailable()
    assert dict(sink.epochs[-1]) == {(5, "Anna"): 1}
    again = [dict(zip(orders.schema.names, row, strict=True)) for row in _NOW]
    without_bags = changes(orders.stream(), name="orders", keys=["order_id"]).join(
        changes(customers.stream(), name="customers", keys=["customer_id"]), on="customer_id"
    )
    without_bags = without_bags.where("item <> 'bag'").select("order_id", "name")
    for refused in (query.diff, query.evolve):
        with pytest.raises(StateError, match=r"EVOLVE_REREAD.*1 are gone"):
            refused(without_bags, reread={"orders": again[:-1]})
    assert query.diff(without_bags, reread={"orders": again}).views.keys() == {"orders_inner_customers"}
    query.evolve(without_bags, reread={"orders": lambda: again})
    assert dict(sink.epochs[-1]) == {(1, "Anna"): 1, (5, "Anna"): -1}
