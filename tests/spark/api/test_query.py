"""Whole queries, from two streams of files to the sum of what was emitted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source, weights
from tests.sweeps import some_of
from zset_join.core.errors import BadInputError, OptionError, SinkError, StateError
from zset_join.expressions import left, right
from zset_join.sinks.parquet_changelog import read_changelog
from zset_join.sinks.unfit_values import UnfitRows, text_with_nul, unfit_values
from zset_join.spark import ChangeStream, JoinedStream, JoinQuery, appends, changes
from zset_join.spark.rows.schemas import spark_schema
from zset_join.tools.dead_letters import read_letters

Run = Callable[..., JoinQuery]


def upserts(orders: Source) -> ChangeStream:
    return changes(
        orders.stream(),
        name="orders",
        keys=["order_id"],
        sequence_by="ts",
        apply_as_deletes="op = 'd'",
        except_column_list=["op", "ts"],
    )


def names(customers: Source) -> ChangeStream:
    return changes(customers.stream(), name="customers", keys=["customer_id"], except_column_list=["ts"])


def join_of(orders: Source, customers: Source, how: str = "left") -> JoinedStream:
    return upserts(orders).join(names(customers), on="customer_id", how=how)


def test_a_left_join_follows_inserts_updates_key_moves_and_deletes(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1), ("i", 3, None, "cap", 1))
    customers.add((10, "Ann", 1))
    orders.add(("u", 1, 20, "pen", 2), ("d", 2, None, None, 2), ("u", 3, 10, "cap", 2))
    customers.add((20, "Bob", 1), (10, "Anna", 2))
    sink = Collected()

    query = run(join_of(orders, customers), sink)

    assert sink.names == ["customer_id", "order_id", "item", "name"]
    assert weights(sink.epochs[0]) == {(10, 1, "pen", "Ann"): 1, (20, 2, "ink", None): 1, (None, 3, "cap", None): 1}
    assert sink.total() == {(20, 1, "pen", "Bob"): 1, (10, 3, "cap", "Anna"): 1}
    assert query.verify(actual_df=emitted(query, sink)).equal


def test_a_moved_row_is_verified_where_one_bucket_has_a_snapshot_and_the_other_a_log(
    orders: Source, customers: Source, run: Run
) -> None:
    output, bases = Collected(), set()
    for epoch, shift in enumerate((0, 1, 1, 1)):
        orders.add(*(("u", number, 10 * (1 + (number + shift) % 5), "pen", shift) for number in range(12) if epoch < 2))
        customers.add((10 * (1 + epoch), f"name {epoch}", epoch))

        query = run(join_of(orders, customers), output, buckets=3, snapshotAfterBytes=0)
        report = query.verify(actual_df=emitted(query, output))

        assert report.equal, f"after epoch {epoch}: {report}"
        assert report.expected_rows == 12
        bases |= set(report.basis.values())
    assert "snapshot and log" in bases


def test_a_row_is_explained_from_the_log(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1))
    customers.add((10, "Ann", 1), (20, "Bob", 1))
    orders.add(("u", 1, 20, "pen", 3), ("u", 1, 10, "old", 2))
    customers.add()
    sink = Collected()

    query = run(join_of(orders, customers), sink)
    history = query.explain_row({"order_id": 1})

    rows = [[(tuple(row.values()), weight) for row, weight in event.emitted] for event in history.events]
    assert rows == [[((10, 1, "pen", "Ann"), 1)], [((10, 1, "pen", "Ann"), -1), ((20, 1, "pen", "Bob"), 1)]]
    assert [change.stream for change in history.events[0].changes] == ["orders", "customers"]
    assert history.is_complete
    with pytest.raises(OptionError, match="the output has no column"):
        query.explain_row({"ts": 1})


HOWS = ["inner", "leftouter", "right_outer", "full", "semi", "left_anti"]
"""All of them run on `make soak`: what a type does is the same in process, where the laws are."""


def emitted(query: JoinQuery, sink: Collected) -> DataFrame:
    rows = [(*row, weight) for epoch in sink.epochs for row, weight in epoch]
    placed = query._runner.query
    return placed.session.createDataFrame(rows, spark_schema(placed.output.schema).add("_weight", "long"))


@pytest.mark.parametrize("how", some_of(HOWS, short=["full", "semi"]))
def test_every_join_type_equals_sparks_batch_join(orders: Source, customers: Source, run: Run, how: str) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 10, "ink", 1), ("i", 3, 30, "cap", 1), ("i", 4, None, "nib", 1))
    customers.add((10, "Ann", 1), (20, "Bob", 1))
    orders.add(("u", 2, 20, "ink", 2), ("d", 3, None, None, 2), ("i", 5, 40, "box", 2))
    customers.add((10, "Anna", 2), (40, "Dan", 2), (50, "Eve", 2))
    sink = Collected()

    query = run(join_of(orders, customers, how), sink)

    report = query.verify(actual_df=emitted(query, sink))
    assert report.equal, str(report)
    assert report.basis == {"orders": "log", "customers": "log"}
    assert report.expected_rows > 0


@pytest.mark.long
def test_a_condition_over_both_rows_is_part_of_on(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "a", 1), ("i", 2, 10, "c", 1))
    customers.add((10, "b", 1))
    sink = Collected()
    joined = upserts(orders).join(names(customers), on="customer_id", how="full", condition=left("item") < right("name"))

    query = run(joined, sink)

    assert sink.total() == {(10, 1, "a", "b"): 1, (10, 2, "c", None): 1}
    assert query.verify(actual_df=emitted(query, sink)).equal


def test_null_safe_keys_match_each_other(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, None, "pen", 1))
    customers.add((10, "Ann", 1))
    nobody = changes(customers.stream(), name="customers", keys=["name"], except_column_list=["ts"])
    customers.add((None, "nobody", 1))
    sink = Collected()

    run(upserts(orders).join(nobody, on=[("customer_id", "customer_id")], null_safe=True), sink)

    assert sink.total() == {(1, None, "pen", None, "nobody"): 1}


def test_keys_of_different_width_meet_in_one_bucket(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 11, "ink", 1), ("i", 3, 12, "cap", 1))
    customers.add((10, "Ann", 1), (11, "Bob", 1), (12, "Cid", 1))
    narrow = customers.stream().selectExpr("cast(customer_id as smallint) as id", "name")
    sink = Collected()

    run(upserts(orders).join(appends(narrow, name="customers"), on=[("customer_id", "id")]), sink, buckets=4)

    assert sink.total() == {
        (1, 10, "pen", 10, "Ann"): 1,
        (2, 11, "ink", 11, "Bob"): 1,
        (3, 12, "cap", 12, "Cid"): 1,
    }


@pytest.mark.long
def test_weights_of_a_changelog_multiply(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("", 1, 10, "pen", 2), ("", 1, 11, "ink", 1))
    customers.add((10, "Ann", 3))
    orders.add(("", 1, 11, "ink", -1))
    ledger = changes(orders.stream().drop("op"), name="ledger", weight_column="ts")
    people = changes(customers.stream(), name="people", weight_column="ts")
    sink = Collected()

    query = run(ledger.join(people, on="customer_id", how="left"), sink)

    assert sink.total() == {(10, 1, "pen", "Ann"): 6}
    assert query.verify(actual_df=emitted(query, sink)).equal


def test_row_kinds_without_a_key_carry_the_old_row(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("+I", 1, 10, "pen", 1))
    orders.add(("-U", 1, 10, "pen", 1), ("+U", 1, 10, "ink", 1))
    customers.add((10, "Ann", 1))
    kinds = changes(orders.stream().drop("ts"), name="kinds", row_kind_column="op")
    sink = Collected()

    run(kinds.join(names(customers), on="customer_id"), sink)

    assert sink.total() == {(10, 1, "ink", "Ann"): 1}


def test_a_restarted_query_goes_on_where_it_stopped(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    first = run(join_of(orders, customers), sink)

    orders.add(("u", 1, 20, "pen", 2))
    customers.add((20, "Bob", 1))
    second = run(join_of(orders, customers), sink)

    assert first.id == second.id
    assert [weights(epoch) for epoch in sink.epochs] == [
        {(10, 1, "pen", "Ann"): 1},
        {(10, 1, "pen", "Ann"): -1, (20, 1, "pen", "Bob"): 1},
    ]


def test_a_query_whose_local_state_is_lost_goes_on_from_the_checkpoint(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    run(join_of(orders, customers), sink)

    customers.add((10, "Anna", 2), (20, "Bob", 2))
    run(join_of(orders, customers), sink, localStateDir=str(tmp_path / "another host"))

    assert sink.total() == {(10, 1, "pen", "Anna"): 1, (20, 2, "ink", "Bob"): 1}


def test_a_snapshot_takes_the_place_of_the_log(orders: Source, customers: Source, run: Run, tmp_path: Path) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("u", 1, 10, "ink", 2)).add(("u", 1, 10, "cap", 3)).add(("u", 1, 10, "nib", 4))
    customers.add((10, "Ann", 1))
    sink = Collected()
    run(join_of(orders, customers), sink, buckets=1, snapshotAfterBytes=1)

    orders.add(("u", 1, 10, "box", 5))
    query = run(join_of(orders, customers), sink, snapshotAfterBytes=1, localStateDir=str(tmp_path / "another host"))

    assert list((tmp_path / "checkpoint" / "zset" / "snapshot").glob("join-0/*.parquet"))
    assert sink.total() == {(10, 1, "box", "Ann"): 1}
    report = query.verify(actual_df=emitted(query, sink))
    assert report.basis == {"orders": "snapshot and log", "customers": "snapshot and log"}
    assert report.equal, str(report)


def test_a_function_that_fails_sees_the_same_delta_again(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("u", 1, 20, "pen", 2))
    customers.add((10, "Ann", 1))
    seen: list[tuple[int, dict[Any, int]]] = []

    def collect(delta: DataFrame, epoch: int) -> None:
        seen.append((epoch, weights(((*row[:-1],), row[-1]) for row in delta.collect())))
        if len(seen) == 2:
            raise OSError("the disk of the user is full")

    with pytest.raises(Exception, match="the disk of the user is full"):
        run(join_of(orders, customers), collect)
    run(join_of(orders, customers), collect)

    expected = {(10, 1, "pen", "Ann"): -1, (20, 1, "pen", None): 1}
    assert seen == [(0, {(10, 1, "pen", "Ann"): 1}), (1, expected), (1, expected)]


def test_a_worker_that_is_killed_between_epochs_takes_no_state_with_it(
    spark: SparkSession, orders: Source, customers: Source, run: Run
) -> None:
    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    run(join_of(orders, customers), sink)
    workers = spark.range(0, 4, 1, 4).mapInArrow(name_of_worker, "pid long").collect()

    [os.kill(row.pid, signal.SIGKILL) for row in {*workers}]
    orders.add(("u", 1, 20, "pen", 2))
    run(join_of(orders, customers), sink)

    assert sink.total() == {(20, 1, "pen", None): 1}


def name_of_worker(batches: Any) -> Any:
    import pyarrow as pa

    assert TaskContext.get() is not None
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})


def test_bad_input_stops_the_query_and_names_stream_key_epoch_and_cure(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("i", None, 10, "ink", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()

    with pytest.raises(BadInputError, match=r'"orders", epoch 1.*\(1 such row in this epoch(.|\n)*quarantine'):
        run(join_of(orders, customers), sink)

    assert len(sink.epochs) == 1


def test_a_query_stopped_by_bad_input_goes_on_with_quarantine(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("i", None, 10, "ink", 1), ("i", 2, 10, "cap", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    with pytest.raises(BadInputError):
        run(join_of(orders, customers), sink)

    run(join_of(orders, customers), sink, onBadInput="quarantine")

    assert sink.total() == {(10, 1, "pen", "Ann"): 1, (10, 2, "cap", "Ann"): 1}


def test_an_answer_that_was_lost_before_the_output_had_it_is_given_again(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("u", 1, 20, "pen", 2))
    customers.add((10, "Ann", 1))
    sink = Collected()
    sink.fails_in = 1
    with pytest.raises(Exception, match="the output failed in epoch 1"):
        run(join_of(orders, customers), sink)
    parts = list((tmp_path / "checkpoint" / "zset" / "delta").glob("*/*1-*"))
    [part.unlink() for part in parts]

    sink.fails_in = -1
    run(join_of(orders, customers), sink)

    assert parts
    assert sink.total() == {(20, 1, "pen", None): 1}


def test_an_undecodable_operation_stops_the_query(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("+I", 1, 10, "pen", 1), ("what", 2, 10, "ink", 1))
    kinds = changes(orders.stream().drop("ts"), name="kinds", row_kind_column="op")
    customers.add((10, "Ann", 1))
    query = run(kinds.join(names(customers), on="customer_id"), Collected(), wait=False)

    with pytest.raises(BadInputError, match=r'"kinds".*epoch 0.*\'what\' is none of'):
        query.awaitTermination()

    assert isinstance(query.exception(), BadInputError)
    assert not query.isActive


def test_quarantined_rows_are_kept_with_their_reason_and_the_rest_proceeds(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("+I", 1, 10, "pen", 1), ("what", 2, 10, "ink", 1), (None, 3, 10, "cap", 1), ("-D", 4, 10, "nib", 1))
    customers.add((10, "Ann", 1), (None, "nobody", 1))
    kinds = changes(orders.stream().drop("ts"), name="kinds", row_kind_column="op")
    sink = Collected()

    query = run(kinds.join(names(customers), on="customer_id"), sink, on_bad_input="quarantine")

    assert sink.total() == {(10, 1, "pen", "Ann"): 1}
    progress = query.recentProgress[0]["join"]
    assert progress["rows_in"] == {"kinds": 4, "customers": 2}
    assert progress["quarantined"] == {"kinds": 3, "customers": 1}
    (directory,) = (tmp_path / "checkpoint" / "quarantine").iterdir()
    rows = pq.read_table(directory).to_pylist()
    assert directory.name == "epoch=0"
    assert sorted((row["stream"], (row["kinds"] or row["customers"])["customer_id"]) for row in rows) == [
        ("customers", None),
        ("kinds", 10),
        ("kinds", 10),
        ("kinds", 10),
    ]
    assert all(row["code"] and row["reason"] for row in rows)


class WithoutNul(Collected):
    """Take no text with U+0000, as PostgreSQL does."""

    def __repr__(self) -> str:
        return "WithoutNul()"

    def unfit(self, rows: pa.RecordBatch) -> list[UnfitRows]:
        return [*text_with_nul(rows), *unfit_values(rows)]


def test_a_row_that_an_output_can_never_hold_is_refused_before_the_commit_or_put_aside(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 10, "i\0nk", 1), ("i", 3, 20, "cap", 1))
    customers.add((10, "Ann", 1), (20, "no UTF-8", 1))
    broken = customers.stream().withColumn("name", F.expr("if(customer_id = 20, cast(X'FF' AS string), name)")).drop("ts")
    view = upserts(orders).join(changes(broken, name="customers", keys=["customer_id"]), on="customer_id")
    sink, log = WithoutNul(), tmp_path / "log"

    with pytest.raises(SinkError, match=r'WithoutNul.*"item" is .i.x00nk.'):
        run(view, sink)
    assert sink.epochs == []
    writer = view.writeStream.toSink(sink).toParquet(log).options(onBadInput="quarantine").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    assert sink.total() == {(10, 1, "pen", "Ann"): 1}
    assert sorted(read_changelog(log).column("order_id").to_pylist()) == [1, 2]
    letters = read_letters(str(tmp_path / "checkpoint")).to_pylist()
    assert sorted((letter["stream"], letter["code"], letter["weight"]) for letter in letters) == [
        (f"Parquet changelog {log} (weight)", "SINK_VALUE", 1),
        ("WithoutNul()", "SINK_VALUE", 1),
        ("WithoutNul()", "SINK_VALUE", 1),
    ]
    assert any("i\\u0000nk" in letter["row"] for letter in letters)


@pytest.mark.long
def test_quarantine_works_where_rows_are_routed(orders: Source, customers: Source, run: Run, tmp_path: Path) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", None, 10, "ink", 1), ("i", 2, 10, "cap", None))
    customers.add((10, "Ann", 1))
    sink = Collected()

    query = run(join_of(orders, customers), sink, onBadInput="quarantine", deadLetterPath=str(tmp_path / "dead"))

    assert sink.total() == {(10, 1, "pen", "Ann"): 1}
    assert query.recentProgress[0]["join"]["quarantined"] == {"orders": 2, "customers": 0}
    assert len(pq.read_table(tmp_path / "dead" / "epoch=0")) == 2


def test_a_checkpoint_of_another_join_is_refused_at_start(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    run(join_of(orders, customers), Collected())

    with pytest.raises(StateError, match="how was 'left' and is 'inner'"):
        run(join_of(orders, customers, "inner"), Collected())


def test_a_checkpoint_whose_spark_files_were_replaced_is_refused(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    run(join_of(orders, customers), sink)
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    (tmp_path / "checkpoint" / ".metadata.crc").unlink(missing_ok=True)

    with pytest.raises(StateError, match="Spark's own files there were removed"):
        run(join_of(orders, customers), sink)


def test_progress_tells_rows_state_and_times(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("u", 1, 20, "pen", 2))
    customers.add((10, "Ann", 1))

    query = run(join_of(orders, customers), Collected())

    progress = query.lastProgress
    assert progress is not None
    assert progress["numInputRows"] == 1
    assert progress["join"]["rows_in"] == {"orders": 1, "customers": 0}
    assert (progress["join"]["delta_rows"], progress["join"]["retractions"]) == (2, 1)
    assert progress["join"]["log_bytes"] > 0
    assert progress["join"]["state"]["right_rows"] == 1
    assert progress["join"]["seconds"]["total"] > 0


def test_a_running_query_has_the_handle_pyspark_users_know(
    orders: Source, customers: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    writer = join_of(orders, customers).writeStream.queryName("handle").toSink(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="1 second").start()

    query.processAllAvailable()
    assert (query.name, query.isActive, query.exception()) == ("handle", True, None)
    assert query.awaitTermination(0.01) is False
    assert "message" in query.status
    query.explain()
    assert "in 2 buckets" in capsys.readouterr().out
    query.stop()

    assert not query.isActive
    assert len(sink.epochs) == 1


def test_jobs_and_log_lines_name_query_epoch_and_stages(
    orders: Source, customers: Source, run: Run, caplog: pytest.LogCaptureFixture, spark: SparkSession
) -> None:
    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    seen: list[str | None] = []

    with caplog.at_level("INFO", logger="zset_join.epochs"):
        run(join_of(orders, customers), lambda _, __: seen.append(spark.sparkContext.getLocalProperty("spark.job.description")))

    jobs: Any = spark._jsparkSession.sparkContext().statusStore().jobsList(None)  # type: ignore[attr-defined]
    told = [jobs.apply(at).description() for at in range(jobs.size())]
    assert "orders_left_customers epoch 0: route, join" in [one.get() for one in told if one.isDefined()]
    assert "epoch 0" not in str(seen)
    (line,) = caplog.messages
    assert line.startswith("orders_left_customers epoch 0: 1 rows of orders, 1 rows of customers in, 1 out, 0 of them retr")
