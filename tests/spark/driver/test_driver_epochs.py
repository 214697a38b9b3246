"""Epochs on the driver: the answers of executors, once, across failures; and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source, weights
from zset_join.checkpoint.reading import stored_query_id
from zset_join.core.errors import OptionError, ResourceError, StateError
from zset_join.core.options import QueryOptions
from zset_join.expressions import col
from zset_join.runners.spark.driver.chosen_sink import ChosenSink
from zset_join.runners.spark.driver.epochs import DriverEpochs
from zset_join.runners.spark.driver.starting import driver_epochs, streamed_rows
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


def test_the_driver_answers_what_executors_answer(orders: Source, customers: Source, run: Run, tmp_path: Path) -> None:
    _filled(orders, customers)
    joined = _joined(orders, customers)
    on_driver, on_executors = Collected(), Collected()

    run(joined, on_driver, execution="driver")
    run(joined, on_executors, checkpointLocation=str(tmp_path / "other"), buckets=2)

    assert on_driver.total() == on_executors.total() != {}
    assert [weights(one) for one in on_driver.epochs] == [weights(one) for one in on_executors.epochs]


def test_a_restart_goes_on_with_the_next_epoch_and_gives_outputs_what_they_lack(
    orders: Source, customers: Source, run: Run
) -> None:
    _filled(orders, customers)
    sink = Collected()
    sink.fails_in = 1
    with pytest.raises(StreamingQueryException, match="failed in epoch 1"):
        run(_joined(orders, customers), sink, execution="driver")

    sink.fails_in = -1
    orders.add((None, 5, 10, "bag", 4))
    query = run(_joined(orders, customers), sink, execution="driver")

    assert sorted((row[0], row[2]) for row in sink.total()) == [(10, 3), (10, 5), (11, 4)]
    assert len(sink.epochs) == query._runner.progress.entries[-1]["epoch"] + 1


def test_a_restart_may_have_another_number_of_threads(orders: Source, customers: Source, run: Run) -> None:
    left = changes(orders.stream(), name="orders", keys=["order_id"])
    joined = left.join(changes(customers.stream(), name="customers", keys=["customer_id"]), on="customer_id", how="left")
    sink = Collected()
    orders.add(*((None, number, number % 3, "pen", 1) for number in range(9)))
    customers.add((0, "Ann", 1), (1, "Bob", 1))
    run(joined.select("order_id", "name"), sink, execution="driver", driverThreads=2)

    orders.add(*((None, number, 1 - number % 3, "pen", 2) for number in range(1, 9, 2)))
    run(joined.select("order_id", "name"), sink, execution="driver", driverThreads=3)
    orders.add((None, 0, 1, "pen", 3))
    run(joined.select("order_id", "name"), sink, execution="driver")

    names = {0: "Bob", 1: "Ann", 2: None, 3: "Bob", 4: "Bob", 5: None, 6: "Ann", 7: "Ann", 8: None}
    assert sink.total() == dict.fromkeys(names.items(), 1)


def test_a_batch_that_spark_gives_again_is_not_applied_again(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    _filled(orders, customers)
    sink = Collected()
    run(_joined(orders, customers), sink, execution="driver")
    before = list(sink.epochs)
    last = len(before) - 1
    for path in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
        path.unlink()  # Spark has no record that the epoch is done

    query = run(_joined(orders, customers), sink, execution="driver")

    assert sink.epochs == before
    assert [entry["replayed"] for entry in query._runner.progress.entries] == [True]


def test_a_batch_of_the_same_number_over_other_input_is_refused(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    _filled(orders, customers)
    sink = Collected()
    run(_joined(orders, customers), sink, execution="driver")
    last = len(sink.epochs) - 1
    for folder in ("commits", "offsets"):
        for path in (tmp_path / "checkpoint" / folder).glob(f"*{last}*"):
            path.unlink()
    orders.add((None, 9, 10, "late", 9))

    with pytest.raises(StateError) as refused:
        run(_joined(orders, customers), sink, execution="driver", wait=True)

    assert refused.value.code == "EPOCH_REPLANNED"


@pytest.mark.parametrize("modes", [("driver", "executors"), ("executors", "driver")])
def test_a_checkpoint_of_the_other_mode_is_refused(orders: Source, customers: Source, run: Run, modes: tuple[str, str]) -> None:
    _filled(orders, customers)
    run(_joined(orders, customers), Collected(), execution=modes[0])

    with pytest.raises(StateError, match=rf'Start it with option."execution", "{modes[0]}"') as refused:
        run(_joined(orders, customers), Collected(), execution=modes[1])

    assert refused.value.code == "EXECUTION_CHANGED"


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


def test_what_spark_calls_can_be_pickled_and_opens_the_checkpoint_by_itself(
    orders: Source, customers: Source, tmp_path: Path
) -> None:
    _filled(orders, customers)
    query, place = _joined(orders, customers)._on_driver("all"), str(tmp_path / "cp")
    options = QueryOptions.from_options({"checkpointLocation": place, "execution": "driver"})
    sinks = {query.plan.name: [ChosenSink(None, "duckdb", {"path": str(tmp_path / "v.duckdb"), "table": "v"})]}
    written = driver_epochs(query, options, sinks, name="q", more={})
    epochs: DriverEpochs = pickle.loads(cloudpickle.dumps(written))

    stream = streamed_rows(query, written).writeStream.option("checkpointLocation", place).foreachBatch(epochs)
    stream.trigger(availableNow=True).start().awaitTermination()
    epochs.close()

    with duckdb.connect(str(tmp_path / "v.duckdb")) as database:
        assert sorted(row[0] for row in database.execute("SELECT order_id FROM v").fetchall()) == [3, 4]
    assert stored_query_id(place) == json.loads((tmp_path / "cp" / "metadata").read_text())["id"]


def test_a_baseline_comes_before_the_first_batch_and_need_not_be_given_again(orders: Source, run: Run) -> None:
    schema = orders.stream().schema
    first = orders.spark.createDataFrame([(None, 1, 10, "pen", 0), (None, 2, 11, "cup", 0)], schema)
    sink = Collected()

    def view(**given: Any) -> JoinedStream:
        stream = changes(
            orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", apply_as_deletes="op = 'd'", **given
        )
        return stream.select("order_id", "item")

    run(view(baseline=first), sink, execution="driver")
    assert sink.total() == {(1, "pen"): 1, (2, "cup"): 1}
    orders.add(("d", 1, 10, "pen", 1), (None, 2, 11, "mug", 1))
    run(view(), sink, execution="driver")

    assert sink.total() == {(2, "mug"): 1}


def with_plan(rows: Any) -> Any:
    return rows.where(col("order_id") != 8).select("order_id", "customer_id", col("item").alias("thing"))


def with_spark(rows: Any) -> Any:
    return rows.where("order_id <> 8").selectExpr("order_id", "customer_id", "item || '' AS thing")


@pytest.mark.parametrize(("mode", "steps"), [("driver", with_spark), ("executors", with_plan)])
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
    writer = writeStream(views).options(checkpointLocation=str(tmp_path / "cp")).trigger(availableNow=True)
    writer = writer.view("rows").toDuckDB(path, "r").view("counts").toDuckDB(path, "c")
    with pytest.raises(OptionError, match=r'Add .option."execution", "driver"'):
        writer.start()

    query = writer.option("execution", "driver").start()
    query.awaitTermination()

    with duckdb.connect(path) as database:
        assert database.execute("FROM r ORDER BY 1").fetchall() == [(3, "ANNA"), (4, "BOB")]
        assert database.execute("FROM c ORDER BY 1").fetchall() == [("ANNA", 1), ("BOB", 1)]
    assert set(query._runner.progress.entries[-1]["views"]) == {"rows", "counts"}


def test_limits_of_the_driver_refuse_before_and_behind_an_epoch(orders: Source, customers: Source, run: Run) -> None:
    _filled(orders, customers)
    sink = Collected()

    with pytest.raises(ResourceError, match="maxFilesPerTrigger") as large:
        run(_joined(orders, customers), sink, execution="driver", maxDeltaBytes=1)
    assert large.value.code == "DELTA_TOO_LARGE"
    assert not sink.epochs

    with pytest.raises(StateError, match="driverMemory") as outgrown:
        run(_joined(orders, customers), sink, execution="driver", driverMemory=1)
    assert (outgrown.value.code, outgrown.value.facts["epoch"], len(sink.epochs)) == ("DRIVER_STATE_TOO_LARGE", 0, 0)
    with pytest.raises(StateError, match="driverMemory") as outgrown:
        run(_joined(orders, customers), sink, execution="driver", driverMemory=10_000)
    assert (outgrown.value.code, outgrown.value.facts["epoch"], len(sink.epochs)) == ("DRIVER_STATE_TOO_LARGE", 0, 1)


def test_an_epoch_that_is_refused_is_taken_whole_by_the_next_start(orders: Source, customers: Source, run: Run) -> None:
    context: Any = orders.spark.sparkContext
    sink, settings = Collected(), context._jsc.sc().conf()
    orders.add((None, 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    run(_joined(orders, customers), sink, execution="driver")
    taken = len(sink.epochs)
    orders.add((None, 2, 10, "cup", 2))

    with pytest.raises(ResourceError, match=r"maxFilesPerTrigger.*maxOffsetsPerTrigger") as large:
        run(_joined(orders, customers), sink, execution="driver", maxDeltaBytes=1)
    settings.set("spark.driver.maxResultSize", "1")
    try:
        with pytest.raises(ResourceError, match=r"spark\.driver\.maxResultSize") as not_brought:
            run(_joined(orders, customers), sink, execution="driver")
    finally:
        settings.remove("spark.driver.maxResultSize")
    assert (large.value.code, not_brought.value.code, len(sink.epochs)) == ("DELTA_TOO_LARGE", "DELTA_TOO_LARGE", taken)

    run(_joined(orders, customers), sink, execution="driver")
    assert (len(sink.epochs), sum(sink.total().values())) == (taken + 1, 2)


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
    assert "Runs on the driver" not in explained(joined.where("soundex(name) = hash(name)"))
    _filled(orders, customers)
    sizes = [4 * file.stat().st_size for one in (orders, customers) for file in one.directory.glob("*.parquet")]
    assert f"expected {sum(sizes):,} bytes" in explained(joined, driverMemory=sum(sizes))
    assert "Runs on the driver" not in explained(joined, driverMemory=sum(sizes) - 1)
    place = str(tmp_path / "cp")
    writer = joined.writeStream.options(checkpointLocation=place, execution="executors", buckets=1)
    writer.trigger(availableNow=True).to(Collected()).start().awaitTermination()
    assert "Runs on the driver" not in explained(joined, checkpointLocation=place)


def test_a_selection_without_the_key_retracts_the_old_row(orders: Source, run: Run) -> None:
    orders.add((None, 1, 10, "pen", 1), (None, 2, 11, "cup", 1))
    orders.add((None, 1, 10, "cup", 2), (None, 2, 11, "hat", 2), (None, 2, 11, "old", 1))
    stream = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", apply_as_deletes="op = 'd'")
    sink = Collected()

    run(stream.where("item <> 'cup'").select(F.upper("item").alias("item")), sink, execution="driver")

    assert [weights(one) for one in sink.epochs] == [{("PEN",): 1}, {("PEN",): -1, ("HAT",): 1}]


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
