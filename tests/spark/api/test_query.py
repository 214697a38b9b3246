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

from tests.spark.conftest import Collected, Source, upserts, weights
from zset_join.core.errors import BadInputError, OptionError, SinkError, StateError
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.sinks.parquet_changelog import read_changelog
from zset_join.sinks.unfit_values import UnfitRows, text_with_nul, unfit_values
from zset_join.spark import ChangeStream, JoinedStream, JoinQuery, appends, changes
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F
from zset_join.tools.dead_letters import read_letters

Run = Callable[..., JoinQuery]


def names(customers: Source) -> ChangeStream:
    return changes(customers.stream(), name="customers", keys=["customer_id"], except_column_list=["ts"])


def join_of(orders: Source, customers: Source, how: str = "left") -> JoinedStream:
    return upserts(orders).join(names(customers), on="customer_id", how=how)


def test_a_left_join_follows_inserts_updates_key_moves_and_deletes_and_explains_a_row(
    orders: Source, customers: Source, run: Run
) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1), ("i", 3, None, "cap", 1))
    customers.add((10, "Ann", 1))
    orders.add(("u", 1, 20, "pen", 3), ("u", 1, 10, "old", 2), ("d", 2, None, None, 2), ("u", 3, 10, "cap", 2))
    customers.add((20, "Bob", 1), (10, "Anna", 2))
    sink = Collected()

    query = run(join_of(orders, customers), sink)

    assert sink.names == ["customer_id", "order_id", "item", "name"]
    assert weights(sink.epochs[0]) == {(10, 1, "pen", "Ann"): 1, (20, 2, "ink", None): 1, (None, 3, "cap", None): 1}
    assert sink.total() == {(20, 1, "pen", "Bob"): 1, (10, 3, "cap", "Anna"): 1}
    report = query.verify(actual_df=emitted(query, sink))
    assert report.equal, str(report)
    assert report.basis == {"orders": "log", "customers": "log"}
    history = query.explain_row({"order_id": 1})
    rows = [[(tuple(row.values()), weight) for row, weight in event.emitted] for event in history.events]
    assert rows == [[((10, 1, "pen", "Ann"), 1)], [((10, 1, "pen", "Ann"), -1), ((20, 1, "pen", "Bob"), 1)]]
    assert [change.stream for change in history.events[0].changes] == ["orders", "customers"]
    assert history.is_complete
    with pytest.raises(OptionError, match="its columns are"):
        query.explain_row({"ts": 1})


def test_a_moved_row_is_verified_where_one_bucket_has_a_snapshot_and_the_other_a_log(
    orders: Source, customers: Source, run: Run
) -> None:
    output, bases = Collected(), set()
    for epoch, shift in enumerate((0, 1, 1)):
        orders.add(*(("u", number, 10 * (1 + (number + shift) % 5), "pen", shift) for number in range(12) if epoch < 2))
        customers.add((10 * (1 + epoch), f"name {epoch}", epoch))

        query = run(join_of(orders, customers), output, buckets=3, snapshotAfterBytes=0)
        report = query.verify(actual_df=emitted(query, output))

        assert report.equal, f"after epoch {epoch}: {report}"
        assert report.expected_rows == 12
        bases |= set(report.basis.values())
    assert "snapshot and log" in bases


def emitted(query: JoinQuery, sink: Collected) -> DataFrame:
    rows = [(*row, weight) for epoch in sink.epochs for row, weight in epoch]
    placed = query._runner.query
    return placed.session.createDataFrame(rows, spark_schema(placed.output.schema).add("_weight", "long"))


def test_row_kinds_meet_narrower_keys_and_null_where_null_is_a_value(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("+I", 1, None, "pen", 1), ("+I", 2, 11, "ink", 1), ("+I", 3, 12, "cap", 1))
    orders.add(("-U", 3, 12, "cap", 1), ("+U", 3, 12, "nib", 1))
    customers.add((None, "nobody", 1), (11, "Bob", 1), (12, "Cid", 1))
    kinds = changes(orders.stream().drop("ts"), name="kinds", row_kind_column="op")
    narrow = customers.stream().selectExpr("cast(customer_id as smallint) as id", "name")
    sink = Collected()

    run(kinds.join(appends(narrow, name="people"), on=[("customer_id", "id")], null_safe=True), sink, buckets=4)

    assert sink.total() == {(1, None, "pen", None, "nobody"): 1, (2, 11, "ink", 11, "Bob"): 1, (3, 12, "nib", 12, "Cid"): 1}


def test_a_query_goes_on_where_it_stopped_also_with_new_workers_and_on_another_host(
    spark: SparkSession, orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    first = run(join_of(orders, customers), sink)
    workers = spark.range(0, 4, 1, 4).mapInArrow(name_of_worker, "pid long").collect()

    [os.kill(row.pid, signal.SIGKILL) for row in {*workers}]
    orders.add(("u", 1, 20, "pen", 2))
    customers.add((20, "Bob", 1))
    second = run(join_of(orders, customers), sink)
    customers.add((10, "Anna", 2), (20, "Bobby", 2))
    run(join_of(orders, customers), sink, localStateDir=str(tmp_path / "another host"))

    assert first.id == second.id
    assert [weights(epoch) for epoch in sink.epochs] == [
        {(10, 1, "pen", "Ann"): 1, (20, 2, "ink", None): 1},
        {(10, 1, "pen", "Ann"): -1, (20, 1, "pen", "Bob"): 1, (20, 2, "ink", None): -1, (20, 2, "ink", "Bob"): 1},
        {
            (20, number, item, name): 1 if name == "Bobby" else -1
            for number, item in ((1, "pen"), (2, "ink"))
            for name in ("Bob", "Bobby")
        },
    ]


def name_of_worker(batches: Any) -> Any:
    import pyarrow as pa

    assert TaskContext.get() is not None
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})


def test_bad_input_stops_the_query_naming_stream_key_epoch_and_cure_which_goes_on_with_quarantine(
    orders: Source, customers: Source, run: Run
) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("i", None, 10, "ink", 1), ("i", 2, 10, "cap", 1), ("i", 3, 10, "nib", None))
    customers.add((10, "Ann", 1))
    sink = Collected()
    with pytest.raises(BadInputError, match=r'"orders", epoch 1.*\(\d such rows? in this epoch(.|\n)*quarantine'):
        run(join_of(orders, customers), sink)
    assert len(sink.epochs) == 1

    query = run(join_of(orders, customers), sink, onBadInput="quarantine")

    assert sink.total() == {(10, 1, "pen", "Ann"): 1, (10, 2, "cap", "Ann"): 1}
    assert query.recentProgress[0]["join"]["quarantined"] == {"orders": 2, "customers": 0}


def test_undecodable_rows_stop_the_query_or_are_kept_with_their_reason(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("+I", 1, 10, "pen", 1), ("what", 2, 10, "ink", 1), (None, 3, 10, "cap", 1), ("-D", 4, 10, "nib", 1))
    customers.add((10, "Ann", 1)).add((None, "nobody", 1))
    kinds = changes(orders.stream().drop("ts"), name="kinds", row_kind_column="op")
    sink = Collected()
    stopped = run(kinds.join(names(customers), on="customer_id"), sink, wait=False)
    with pytest.raises(BadInputError, match=r'"kinds".*epoch 0.*\'what\' is none of'):
        stopped.awaitTermination()

    query = run(
        kinds.join(names(customers), on="customer_id"), sink, on_bad_input="quarantine", deadLetterPath=str(tmp_path / "dead")
    )

    assert isinstance(stopped.exception(), BadInputError)
    assert not stopped.isActive
    assert sink.total() == {(10, 1, "pen", "Ann"): 1}
    first, second = (progress["join"] for progress in query.recentProgress[:2])
    assert (first["rows_in"], first["quarantined"]) == ({"kinds": 4, "customers": 1}, {"kinds": 3, "customers": 0})
    assert (second["rows_in"], second["quarantined"]) == ({"kinds": 0, "customers": 1}, {"kinds": 0, "customers": 1})
    directories = sorted((tmp_path / "dead").iterdir())
    rows = [row for directory in directories for row in pq.read_table(directory).to_pylist()]
    assert [directory.name for directory in directories] == ["epoch=0", "epoch=1"]
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
    writer = view.writeStream.to(sink).to("parquet", path=log).options(onBadInput="quarantine").trigger(availableNow=True)
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


def test_a_checkpoint_of_another_query_or_without_sparks_own_files_is_refused(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))

    def view(how: str = "left", above: int = 0, counted: str = "order_id") -> JoinedStream:
        kept = join_of(orders, customers, how).where(f"order_id > {above}")
        return kept.groupBy("name").agg(ZF.count(counted).alias("n"))

    sink = Collected()
    run(view(), sink)

    for other, reported in (
        ({"how": "inner"}, "how was 'left' and is 'inner'"),
        ({"above": 1}, r"steps.* was"),
        ({"counted": "item"}, r"calls\[0\].columns was"),
    ):
        with pytest.raises(StateError, match=reported):
            run(view(**other), sink)  # type: ignore[arg-type]  # what differs
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    (tmp_path / "checkpoint" / ".metadata.crc").unlink(missing_ok=True)
    with pytest.raises(StateError, match="Spark's own files there were removed"):
        run(view(), sink)


def test_progress_jobs_and_log_lines_report_query_epoch_stages_rows_state_and_times(
    orders: Source, customers: Source, run: Run, caplog: pytest.LogCaptureFixture, spark: SparkSession
) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("u", 1, 20, "pen", 2))
    customers.add((10, "Ann", 1))
    seen: list[str | None] = []

    with caplog.at_level("INFO", logger="zset_join.epochs"):
        query = run(
            join_of(orders, customers), lambda _, __: seen.append(spark.sparkContext.getLocalProperty("spark.job.description"))
        )

    progress = query.lastProgress
    assert progress is not None
    assert progress["numInputRows"] == 1
    assert progress["join"]["rows_in"] == {"orders": 1, "customers": 0}
    assert (progress["join"]["delta_rows"], progress["join"]["retractions"]) == (2, 1)
    assert progress["join"]["log_bytes"] > 0
    assert progress["join"]["state"]["right_rows"] == 1
    assert progress["join"]["seconds"]["total"] > 0
    assert progress["join"]["buffered"] is None  # only what joins rows without keys is counted
    jobs: Any = spark._jsparkSession.sparkContext().statusStore().jobsList(None)  # type: ignore[attr-defined]
    reported = [jobs.apply(at).description() for at in range(jobs.size())]
    assert "orders_left_customers epoch 0: route, join" in [one.get() for one in reported if one.isDefined()]
    assert "epoch 0" not in str(seen)
    assert caplog.messages[0].startswith(
        "orders_left_customers epoch 0: 1 row of orders, 1 row of customers in, 1 out, 0 of them retr"
    )
    assert len(caplog.messages) == 2


def test_a_running_query_has_the_handle_pyspark_users_know(
    orders: Source, customers: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    writer = join_of(orders, customers).writeStream.queryName("handle").to(sink)
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
