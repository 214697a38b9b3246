"""Epochs on the driver: the answers of executors, once, across failures; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source, weights
from tests.sweeps import some_of
from zset_join.core.errors import OptionError, ResourceError, StateError
from zset_join.expressions import col
from zset_join.sinks.parquet_changelog import read_changelog
from zset_join.spark import JoinedStream, JoinQuery, appends, changes, writeStream

Run = Callable[..., JoinQuery]


def _joined(orders: Source, customers: Source) -> JoinedStream:
    left = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", apply_as_deletes="op = 'd'")
    right = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts")
    return left.where("item <> 'ink'").join(right.select("customer_id", F.upper("name").alias("name")), on="customer_id")


def _filled(orders: Source, customers: Source) -> None:
    orders.add((None, 1, 10, "pen", 1), (None, 2, 11, "cup", 1), (None, 3, 10, "ink", 1))
    orders.add((None, 1, 10, "ink", 2), ("d", 2, 11, "cup", 2), (None, 3, 10, "mug", 2))
    orders.add((None, 4, 11, "hat", 3))
    customers.add((10, "Ann", 1))
    customers.add((11, "Bob", 1), (10, "Anna", 2))


def test_a_batch_that_spark_gives_again_is_not_applied_again_and_one_over_other_input_is_refused(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    _filled(orders, customers)
    sink = Collected()
    run(_joined(orders, customers), sink, execution="driver", driverThreads=2)
    before = list(sink.epochs)
    last = len(before) - 1
    for path in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
        path.unlink()  # Spark has no record that the epoch is done

    query = run(_joined(orders, customers), sink, execution="driver", driverThreads=3)
    for folder in ("commits", "offsets"):
        for path in (tmp_path / "checkpoint" / folder).glob(f"*{last}*"):
            path.unlink()
    orders.add((None, 9, 10, "late", 9))
    with pytest.raises(StateError) as refused:
        run(_joined(orders, customers), sink, execution="driver")

    assert sink.epochs == before
    assert [entry["replayed"] for entry in query._runner.progress.entries] == [True]
    assert refused.value.code == "EPOCH_REPLANNED"


def test_outputs_are_files_tables_and_functions(orders: Source, customers: Source, tmp_path: Path) -> None:
    _filled(orders, customers)
    seen: list[tuple[int, Any]] = []

    def function(rows: DataFrame, epoch: int) -> None:
        seen.extend((epoch, tuple(row)) for row in rows.collect())

    writer = _joined(orders, customers).writeStream.option("checkpointLocation", str(tmp_path / "cp"))
    writer = writer.option("execution", "driver").toDuckDB(tmp_path / "v.duckdb", "v").to("parquet", path=tmp_path / "log")
    query = writer.foreachBatch(function).trigger(availableNow=True).start()
    query.awaitTermination()
    given = len(seen)
    writer.start().awaitTermination()  # nothing is new
    assert len(seen) == given

    lines = read_changelog(str(tmp_path / "log")).to_pylist()
    in_log = weights((tuple(line[name] for name in query.schema.names), line["_weight"]) for line in lines)
    in_function = weights((row[:-1], row[-1]) for _, row in seen)
    with duckdb.connect(str(tmp_path / "v.duckdb")) as database:
        in_view = weights((row, 1) for row in database.execute("FROM v").fetchall())
    assert in_log == in_function == in_view != {}


def with_plan(rows: Any) -> Any:
    return rows.where(col("order_id") != 8).select("order_id", "customer_id", col("item").alias("thing"))


def with_spark(rows: Any) -> Any:
    return rows.where("order_id <> 8").selectExpr("order_id", "customer_id", "item || '' AS thing")


@pytest.mark.parametrize(
    ("mode", "steps"), some_of({"driver": ("driver", with_spark), "executors": ("executors", with_plan)}, short=["driver"])
)
def test_steps_and_unions_before_the_first_stage_hold_for_a_baseline_too(
    orders: Source, customers: Source, run: Run, mode: str, steps: Callable[[Any], Any]
) -> None:
    names = ["order_id", "customer_id", "item"]
    old = orders.spark.createDataFrame([(8, 10, "cap"), (9, 10, "old")], orders.stream().select(*names).schema)

    def view(**given: Any) -> JoinedStream:
        one, more = (appends(orders.stream().select(*names), name=name, **has) for name, has in (("a", {}), ("b", given)))
        people = changes(customers.stream(), name="customers", keys="customer_id")
        return steps(one).union(steps(more)).join(people, on="customer_id").select("order_id", "thing", "name")

    customers.add((10, "Ann", 1))
    orders.add((None, 1, 10, "pen", 1))
    sink = Collected()
    run(view(baseline=old, after_baseline="true"), sink, execution=mode)
    assert sink.total() == {(1, "pen", "Ann"): 2, (9, "old", "Ann"): 1}
    orders.add((None, 2, 10, "mug", 1))
    run(view(), sink, execution=mode)

    assert sink.total() == {(1, "pen", "Ann"): 2, (9, "old", "Ann"): 1, (2, "mug", "Ann"): 2}


def test_several_views_are_one_query_with_outputs_of_their_own(orders: Source, customers: Source, tmp_path: Path) -> None:
    _filled(orders, customers)
    joined = _joined(orders, customers)
    views = {"rows": joined.select("order_id", "name"), "counts": joined.groupBy("name").count()}
    path = str(tmp_path / "v.duckdb")
    options = {"checkpointLocation": str(tmp_path / "cp"), "retainInputLog": True}
    writer = writeStream(views).options(**options).trigger(availableNow=True)
    writer = writer.view("rows").toDuckDB(path, "r").view("counts").toDuckDB(path, "c")

    query = writer.option("execution", "driver").start()
    query.awaitTermination()

    with duckdb.connect(path) as database:
        assert database.execute("FROM r ORDER BY 1").fetchall() == [(3, "ANNA"), (4, "BOB")]
        assert database.execute("FROM c ORDER BY 1").fetchall() == [("ANNA", 1), ("BOB", 1)]
    assert set(query._runner.progress.entries[-1]["views"]) == {"rows", "counts"}
    with writer.attach() as stored:
        assert stored.verify().equal
        assert stored.explain_row({"name": "BOB"}, view="counts").events


def test_limits_of_the_driver_refuse_an_epoch_which_the_next_start_takes_whole(
    orders: Source, customers: Source, run: Run
) -> None:
    _filled(orders, customers)
    sink = Collected()

    with pytest.raises(ResourceError, match=r"maxFilesPerTrigger.*maxOffsetsPerTrigger") as large:
        run(_joined(orders, customers), sink, execution="driver", maxDeltaBytes=1)
    assert large.value.code == "DELTA_TOO_LARGE"
    assert not sink.epochs

    with pytest.raises(StateError, match="driverMemory") as outgrown:
        run(_joined(orders, customers), sink, execution="driver", driverMemory=1)
    assert (outgrown.value.code, outgrown.value.facts["epoch"], len(sink.epochs)) == ("DRIVER_STATE_TOO_LARGE", 0, 0)
    with pytest.raises(StateError, match="driverMemory") as outgrown:
        run(_joined(orders, customers), sink, execution="driver", driverMemory=10_000)
    assert (outgrown.value.code, outgrown.value.facts["epoch"], len(sink.epochs)) == ("DRIVER_STATE_TOO_LARGE", 0, 1)
    run(_joined(orders, customers), sink, execution="driver")
    assert sorted((row[0], row[2]) for row in sink.total()) == [(10, 3), (11, 4)]


def test_auto_takes_the_driver_where_it_can_and_the_checkpoint_keeps_the_place(
    orders: Source, customers: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def explained(view: JoinedStream, **options: Any) -> str:
        view.writeStream.options(execution="auto", **options).explain()
        return capsys.readouterr().out

    joined = _joined(orders, customers)
    reported = "Runs on the driver (it is new, and nothing in it needs executors; expected 0 bytes of state, by the files of "
    assert reported + "orders, customers): budget 5 bytes" in explained(joined, driverMemory=5)
    assert "Runs on the driver" not in explained(joined, buckets=2)
    _filled(orders, customers)
    sizes = [4 * file.stat().st_size for one in (orders, customers) for file in one.directory.glob("*.parquet")]
    assert f"expected {sum(sizes):,} bytes" in explained(joined, driverMemory=sum(sizes))
    assert "Runs on the driver" not in explained(joined, driverMemory=sum(sizes) - 1)
    place = str(tmp_path / "cp")
    writer = joined.writeStream.options(checkpointLocation=place, execution="executors", buckets=1)
    writer.trigger(availableNow=True).to(Collected()).start().awaitTermination()
    assert "Runs on the driver" not in explained(joined, checkpointLocation=place)


def test_a_query_that_keeps_its_inputs_is_verified_and_explained_across_restarts(
    orders: Source, customers: Source, tmp_path: Path
) -> None:
    _filled(orders, customers)
    view, log = str(tmp_path / "view.duckdb"), str(tmp_path / "log")

    def writer() -> Any:
        many = _joined(orders, customers).writeStream.toDuckDB(view, "joined").to("parquet", path=log, form="row_kind")
        kept = many.option("execution", "driver").option("retainInputLog", True)
        return kept.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)

    writer().start().awaitTermination()
    orders.add((None, 5, 10, "bag", 4))
    with pytest.raises(StateError, match=r"QUERY_CHANGED.*keeps_inputs was True and is False"):
        writer().option("retainInputLog", False).start().awaitTermination()
    writer().start().awaitTermination()

    with writer().attach() as stored:
        report = stored.verify()
        assert report.equal
        assert (report.expected_rows, report.actual_rows, len(report.outputs)) == (3, 3, 2)
        history = stored.explain_row({"order_id": 3})
        assert history.is_complete
        assert {change.stream for event in history.events for change in event.changes} == {"orders", "customers"}
        with pytest.raises(OptionError, match="takes no sample"):
            stored.verify(sample=0.5)
    with duckdb.connect(view) as connection:
        ((schema, table),) = connection.execute(
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE schema_name <> 'main'"
        ).fetchall()
        connection.execute(f'DELETE FROM "{schema}"."{table}" WHERE rowid = (SELECT min(rowid) FROM "{schema}"."{table}")')
    with writer().attach() as stored:
        wrong = stored.verify()
        assert (wrong.equal, wrong.different_rows, len(wrong.differing)) == (False, 1, 1)
