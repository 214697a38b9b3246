"""Event time inside Spark: watermarks, buckets that answer without rows, and joins by time from end to end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from tests.sweeps import for_each
from zset_join.checkpoint.reading import read_committed
from zset_join.core.errors import OptionError, PlanError
from zset_join.runners.any_mode import evolve_wherever
from zset_join.runners.spark.driver.executors_state import diff_of_executors
from zset_join.runners.spark.epoch.event_times import EventTimes
from zset_join.spark import appends

Run = Callable[..., Any]
ORDERS = pa.schema([("id", pa.int64()), ("currency", pa.string()), ("t", pa.int64())])
RATES = pa.schema([("currency", pa.string()), ("at", pa.int64()), ("rate", pa.float64())])


@pytest.fixture
def bought(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "bought", ORDERS)


@pytest.fixture
def rates(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "rates", RATES)


def priced(bought: Source, rates: Source, **options: Any) -> Any:
    left = appends(bought.stream(), name="bought", watermark=("t", 0))
    right = appends(rates.stream(), name="rates", watermark=("at", 0)).dedup("currency", order_by="at desc")
    return left.temporal_join(right, on="currency", how="left", **options)


def answers_of(checkpoint: Path, epoch: int) -> list[bytes]:
    """Return the files of an answer that hold rows, and remove all of them."""
    found = sorted((checkpoint / "zset/delta").glob(f"*/*{epoch}-*"))
    contents = [path.read_bytes() for path in found]
    for path in found:
        path.unlink()
    return sorted(contents)


def test_rows_wait_for_the_watermark_and_a_bucket_without_rows_answers_when_it_comes_also_a_second_time(
    bought: Source, rates: Source, run: Run, tmp_path: Path
) -> None:
    bought.add((1, "EUR", 1000)).add((2, "EUR", 2000), (3, "EUR", 900))
    rates.add(("EUR", 500, 1.1), ("EUR", 800, 1.2), ("EUR", 1200, 1.3)).add()
    sink, location = Collected(), str(tmp_path / "checkpoint")
    first = run(priced(bought, rates), sink, buckets=4)
    committed = read_committed(location)
    shutil.rmtree(tmp_path / "local")
    bought.add()
    rates.add(("USD", 3000, 1.0))  # of another bucket: the one that answers is opened because something is due
    sink.fails_in = 2
    with pytest.raises(Exception, match="failed in epoch 2"):
        run(priced(bought, rates), sink)
    answers = [answers_of(tmp_path / "checkpoint", 2)]
    shutil.rmtree(tmp_path / "local")
    sink.fails_in = -1

    query = run(priced(bought, rates), sink)

    assert query.lastProgress["join"]["replayed"]
    assert answers == [answers_of(tmp_path / "checkpoint", 2)] != [[]]
    assert sink.epochs[0] == [(("EUR", 1, 1000, 800, 1.2), 1)]
    assert sink.epochs[1] == []
    assert sink.epochs[2] == [(("EUR", 2, 2000, 1200, 1.3), 1)]
    assert committed is not None
    assert committed.last is not None
    assert committed.last.watermarks == {"bought": 2000, "rates": 1200, "stage:temporal_join-0": 1200}
    progress = [one for run_ in (first, query) for one in run_.recentProgress if "epoch" in (one["join"] or {})]
    assert [one["numInputRows"] for one in progress] == [4, 2, 0]  # the second answer comes from the log
    assert progress[1]["join"]["late_rows"] == {"bought": 1, "rates": 0}
    assert progress[1]["join"]["quarantined"] == {"bought": 1, "rates": 0}
    schema = "currency string, id long, t long, at long, rate double, _weight long"
    emitted = bought.spark.createDataFrame([(*row, weight) for row, weight in sink.total().items()], schema)
    report = query.verify(actual_df=emitted)
    assert report.equal, str(report)
    assert report.expected_rows == 2
    assert not query.verify(actual_df=emitted.where("id <> 1")).equal
    same = priced(bought, rates).writeStream
    diffs = diff_of_executors(location, same.planned), evolve_wherever(location, same)
    late = [one.late for one in (*diffs, diff_of_executors(location, same.planned))]
    assert late == [{"bought": 1, "rates": 0}] * 3  # of all epochs, as on the driver


def test_times_of_text_go_by_their_bytes_and_on_from_the_checkpoint(
    bought: Source, rates: Source, run: Run, tmp_path: Path
) -> None:
    trades = appends(bought.stream().withColumn("t", F.concat(F.lit("day "), F.col("t"))), name="bought")
    quotes = appends(rates.stream().withColumn("at", F.concat(F.lit("day "), F.col("at"))), name="rates")
    view = trades.join_asof(quotes, on="currency", how="left", left_time="t", right_time="at", op=">")
    bought.add((1, "EUR", 9), (2, "EUR", 80))
    rates.add(("EUR", 80, 1.2))
    sink = Collected()
    run(view, sink, buckets=2)
    shutil.rmtree(tmp_path / "local")
    rates.add(("EUR", 800, 1.25), ("EUR", 79, 1.5))
    bought.add()

    query = run(view, sink, buckets=2)

    assert sink.total() == {("EUR", 1, "day 9", "day 800", 1.25): 1, ("EUR", 2, "day 80", "day 79", 1.5): 1}
    assert query.lastProgress["join"]["corrections"] == {"as_of_join-0": 2}
    emitted = bought.spark.createDataFrame([*sink.total()], "currency string, id long, t string, at string, rate double")
    assert query.verify(actual_df=emitted.withColumn("_weight", F.lit(1).cast("long"))).equal


def test_the_watermark_of_a_dataframe_is_taken_over(bought: Source) -> None:
    timed = bought.stream().withColumn("ts", F.timestamp_seconds("t"))

    stream = appends(timed.withWatermark("ts", "10 seconds"), name="bought")

    assert (stream.stream.event_time, stream.stream.watermark_delay) == ("ts", 10_000_000)
    assert appends(timed, name="bought", watermark=("ts", "1 minute")).stream.watermark_delay == 60_000_000
    assert appends(timed, name="bought").stream.event_time is None


@for_each(
    ("watermark", "error", "words"),
    [
        (("nowhere", "1 second"), PlanError, "nowhere"),
        (("currency", "1 second"), PlanError, "timestamp"),
        (("t", "1 second"), OptionError, "whole number"),
        ("t", OptionError, "a column and a delay"),
    ],
)
def test_a_watermark_that_makes_no_sense_is_refused(bought: Source, watermark: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        appends(bought.stream(), name="bought", watermark=watermark)


def test_a_stream_that_is_silent_does_not_hold_the_others_up_after_its_timeout(bought: Source, rates: Source) -> None:
    times = EventTimes(priced(bought, rates).placed.planned_stages, idle_timeout_us=10)
    stage = "stage:temporal_join-0"

    first, _ = times.after({}, [20, 0, None, 0], 100)
    assert (first, times.next_idle(first, 100)) == ({"bought": 20}, 110)
    second, late = times.after(first, [30, 1, None, 0], 110)
    assert (second, late["bought"]) == ({"bought": 30, stage: 30}, 1)
    assert times.next_idle(second, 110) is None
    reported = times.progress(second, late, 110)
    assert (reported["held_by"]["temporal_join-0"], reported["idle"], reported["largest_times"]) == (
        "bought",
        ["rates"],
        {"bought": 30},
    )
    third, _ = times.after(second, [None, 0, 25, 0], 111)
    assert third == {"bought": 30, "rates": 25, stage: 30}
    assert times.progress(third, {}, 111)["held_by"]["temporal_join-0"] == "rates"


def test_a_row_too_far_ahead_of_its_stream_reaches_no_stage(bought: Source, rates: Source, run: Run, tmp_path: Path) -> None:
    bought.add((1, "EUR", 10)).add((2, "EUR", 111), (3, "EUR", 110))
    rates.add(("EUR", 10, 1.1)).add(("EUR", 9_000, 9.9), ("EUR", 9, 1.0))
    left = appends(bought.stream(), name="bought", watermark=("t", 0), max_watermark_jump=100)
    right = appends(rates.stream(), name="rates", watermark=("at", 0), max_watermark_jump=100)
    view, sink = left.join(right.dedup("currency", order_by="at desc"), "currency", "left"), Collected()
    with pytest.raises(Exception, match=r"TIME_JUMP.*epoch 1.*, at most 110"):
        run(view, sink)

    run(view, sink, onBadInput="quarantine", deadLetterPath=str(tmp_path / "dead"))

    last = read_committed(str(tmp_path / "checkpoint")).last
    assert (last.watermarks["bought"], last.watermarks["rates"]) == (110, 10)
    assert (last.progress["rows_in"], last.progress["quarantined"]) == ({"bought": 2, "rates": 2}, {"bought": 1, "rates": 1})
    assert {row[1] for row in sink.total()} == {1, 3}
    assert 9.9 not in {row[4] for row in sink.total()}
    letters = bought.spark.read.parquet(str(tmp_path / "dead")).where("stream = 'rates'").collect()
    assert [(one["code"], one["rates"]["at"]) for one in letters] == [("TIME_JUMP", 9_000)]
    assert letters[0]["reason"].endswith("allows: at = 9000, at most 110")


def test_a_bound_is_measured_from_a_watermark(bought: Source) -> None:
    with pytest.raises(OptionError, match=r"CONFLICTING_ARGUMENTS.*measured from the watermark"):
        appends(bought.stream(), name="bought", max_watermark_jump=5)
