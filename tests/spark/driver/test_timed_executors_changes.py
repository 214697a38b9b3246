"""A query on executors whose stages wait for a time is changed, and continues as one that ran the new query from the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.checkpoint.files import FileEntry
from zset_join.checkpoint.reading import read_committed
from zset_join.checkpoint.record import BucketHistory, CommitRecord, LogEntry
from zset_join.core.errors import StateError
from zset_join.evolution.changed_columns import ChangeTerms
from zset_join.lookup import ArrowSource, Lookup
from zset_join.pipeline import PROCESSING_TIME
from zset_join.runners.any_mode import evolve_wherever
from zset_join.runners.spark.driver.executors_state import kept_dues
from zset_join.runners.spark.planning.other_mode import StatePair
from zset_join.spark import JoinQuery, StateTtl, appends, changes
from zset_join.spark import functions as F  # noqa: N812 - as PySpark users write it
from zset_join.zset.protocol import NextDue

ORDERS = pa.schema([("id", pa.int64()), ("currency", pa.string()), ("t", pa.int64())])
RATES = pa.schema([("currency", pa.string()), ("at", pa.int64()), ("rate", pa.int64())])
NAMES = pa.schema([("currency", pa.string()), ("name", pa.string())])
ZONES = pa.schema([("name", pa.string()), ("zone", pa.string())])
TABLE = ArrowSource(name="sizes", table=pa.table({"name": ["euro", "dollar"], "size": ["big", "small"]}))
OTHER = "NOK"
"""In another bucket than the other currencies."""
NEAR = ("near", None, 5, 1)
BEHIND = ["as_of_join-1", "process_time_join-2", "lookup_join-3", "join-4"]
TIMES = {"orders": 12, "rates": 10}
Start = Callable[..., JoinQuery]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts a query on executors in a place, which continues until the end of the test."""
    started: list[JoinQuery] = []

    def one(view: Any, sink: Any, place: str) -> JoinQuery:
        places = {"checkpointLocation": str(tmp_path / place), "localStateDir": str(tmp_path / f"{place}-local")}
        writer = view.writeStream.options(**places, execution="executors", buckets=2).to(sink)
        started.append(writer.start())
        started[-1].processAllAvailable()
        return started[-1]

    yield one
    for query in started:
        query.stop()


def record(place: Path) -> CommitRecord:
    """Return the last commit record of a checkpoint."""
    committed = read_committed(str(place))
    assert committed is not None
    assert committed.last is not None
    return committed.last


def test_rows_that_end_and_versions_that_wait_are_kept_and_answered_in_their_time(
    spark: SparkSession, tmp_path: Path, start: Start
) -> None:
    """Another aggregate behind both, then a shorter life of rows; in the buckets of those that wait no row arrives any more."""
    orders, rates = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "r", RATES)
    names, zones = Source(spark, tmp_path / "n", NAMES), Source(spark, tmp_path / "z", ZONES)

    def view(*, after: int = 50, aggregate: Any = F.sum) -> Any:
        left = appends(orders.stream(), name="orders", watermark=("t", 0))
        versions = changes(rates.stream(), name="rates", keys=["currency"], watermark=("at", 0))
        priced = left.temporal_join(versions, on="currency", how="left")
        named = changes(names.stream(), name="names", keys=["name"])  # dealt to buckets by another key
        joined = priced.join(named, on="currency", how="left", state_ttl=(StateTtl(after, by="event"), None))
        zoned = joined.join(changes(zones.stream(), name="zones", keys=["name"]), on="name", how="left")
        return zoned.groupBy("zone").agg(aggregate("rate").alias("rate"), F.count("*").alias("n"))

    orders.add((1, "EUR", 7), (2, "USD", 7)).add((3, "EUR", 9), (4, "CHF", 12))
    rates.add(("EUR", 5, 1), ("USD", 6, 3)).add(("EUR", 8, 2), ("CHF", 10, 5))
    names.add(("EUR", "euro"), ("USD", "dollar")).add(("CHF", "franc"))
    zones.add(("euro", "near"), ("dollar", "far")).add(("franc", "near"))
    sink, largest = Collected(), partial(view, aggregate=F.max)
    query = start(view(), sink, "old")
    before = record(tmp_path / "old")
    diff = query.evolve(largest())
    query.stop()
    after = record(tmp_path / "old")
    found = [sink.total()]
    rates.add((OTHER, 30, 1))
    query = start(largest(), sink, "old")
    found.append(sink.total())
    shorter = query.evolve(largest(after=4))
    query.stop()
    orders.add((5, OTHER, 15))
    start(largest(after=4), sink, "old").stop()
    found.append(sink.total())
    fresh = Collected()
    start(largest(after=4), fresh, "fresh").stop()

    assert found[:2] == [{("far", 3, 1): 1, ("near", 2, 2): 1}, {("far", 3, 1): 1, ("near", 5, 3): 1}]
    assert found[2] == fresh.total() == {(None, None, 1): 1, ("near", 5, 1): 1}
    assert before.watermarks == after.watermarks == {**TIMES, "stage:temporal_join-0": 10, "stage:state_ttl-1": 10}
    changed = {key for key, kept in after.histories.items() if before.histories.get(key) != kept}
    assert changed == {"aggregate-3/0", "aggregate-3/1"}
    assert {key.partition("-")[0] for key in after.histories} == {"temporal_join", "route", "state_ttl", "join", "aggregate"}
    assert (list(diff.rebuilt), shorter.rebuilt, shorter.ending) == (["aggregate-3"], {}, {"state_ttl-1": 2})
    assert sink.epochs[4] == []


@pytest.mark.long  # rows wait for eight seconds; what is due behind a change is shown below without Spark
def test_answers_of_their_moment_and_rows_that_wait_for_a_table_are_kept(
    spark: SparkSession, tmp_path: Path, start: Start
) -> None:
    """As-of, by processing time, and lookups that try again: by the command, another aggregate behind all of them."""
    orders, rates = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "r", RATES)
    names, zones = Source(spark, tmp_path / "n", NAMES), Source(spark, tmp_path / "z", ZONES)
    again = Lookup(retry_predicate="lookup_miss", retry_strategy="fixed_delay", fixed_delay="8s", max_attempts=2, park="epochs")

    def view(aggregate: Any = F.sum) -> Any:
        left = changes(orders.stream(), name="orders", keys=["id"])
        quotes = appends(rates.stream(), name="rates")
        priced = left.join_asof(quotes, on="currency", how="left", left_time="t", right_time="at")
        named = changes(names.stream(), name="names", keys=["currency"])
        now = priced.temporal_join(named, on="currency", how="left", as_of=PROCESSING_TIME)
        sized = now.lookup_join(TABLE, on="name", how="left", hint=again)
        zoned = sized.join(changes(zones.stream(), name="zones", keys=["name"]), on="name", how="left")
        return zoned.groupBy("zone", "size").agg(aggregate("rate").alias("rate"), F.count("*").alias("n"))

    orders.add((1, "EUR", 7), (2, "USD", 7)).add((3, "EUR", 9), (4, "CHF", 12))
    rates.add(("EUR", 5, 1), ("USD", 6, 3)).add(("EUR", 8, 2), ("CHF", 10, 5))
    names.add(("EUR", "euro"), ("USD", "dollar")).add(("CHF", "franc"))
    zones.add(("euro", "near"), ("dollar", "far")).add(("franc", "near"))
    sink, place = Collected(), tmp_path / "old"
    start(view(), sink, "old").stop()
    before = record(place)
    diff = evolve_wherever(str(place), view(F.max).writeStream)
    after = record(place)
    orders.add((2, "EUR", 8), (5, "USD", 9))
    rates.add(("EUR", 7, 9))
    names.add(("EUR", "EURO"))
    zones.add(("EURO", "here"))
    fresh = Collected()
    for output, name in ((fresh, "fresh"), (sink, "old")):
        start(view(F.max), output, name)
    last = ("here", None, 9, 2)  # of a name that the table does not have; shown once it was looked up twice
    until = time.monotonic() + 90
    while not {last} <= sink.total().keys() & fresh.total().keys() and time.monotonic() < until:
        time.sleep(0.2)

    assert sink.total() == fresh.total() == {("far", "small", 3, 1): 1, NEAR: 1, ("near", "big", 2, 1): 1, last: 1}
    assert (list(diff.kept), list(diff.rebuilt)) == (["latest-0", *BEHIND], ["aggregate-5"])
    assert [key.partition("/")[0] for key in before.dues] == ["lookup_join-3"]
    assert before.dues == after.dues


def test_the_source_that_spark_counts_stays_when_nothing_waits_so_a_stage_may_wait_again(
    spark: SparkSession, tmp_path: Path, start: Start
) -> None:
    orders, names = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "n", NAMES)

    def view(*, is_sized: bool, table: ArrowSource = TABLE) -> Any:
        named = changes(names.stream(), name="names", keys=["currency"])
        joined = changes(orders.stream(), name="orders", keys=["id"]).join(named, on="currency").select("id", "name")
        hint = Lookup(
            retry_predicate="lookup_miss", retry_strategy="fixed_delay", fixed_delay="8s", max_attempts=2, park="epochs"
        )
        rows = joined.lookup_join(table, on="name", how="left", hint=hint).where("size = 'big'") if is_sized else joined
        return rows.groupBy("name").agg(F.count("*").alias("n"))

    orders.add((1, "EUR", 7), (2, "USD", 7))
    names.add(("EUR", "euro"))
    names.add(("USD", "dollar"))
    sink = Collected()
    start(view(is_sized=True), sink, "old").stop()
    evolve_wherever(str(tmp_path / "old"), view(is_sized=False).writeStream)
    orders.add((3, "EUR", 10))
    query = start(view(is_sized=False), sink, "old")

    assert sink.total() == {("euro", 2): 1, ("dollar", 1): 1}
    with pytest.raises(StateError, match="EVOLVE_BY_TIME"):
        query.evolve(view(is_sized=True))
    differs = query.diff(view(is_sized=True), as_now=True)
    changed = query.evolve(view(is_sized=True), as_now=True)
    orders.add((4, "EUR", 11))
    query.processAllAvailable()
    assert list(differs.lines()) == list(changed.lines())
    assert sink.total() == {("euro", 3): 1}
    query.stop()
    other = ArrowSource(name="other", table=pa.table({"name": ["dollar"], "size": ["big"]}))
    by_command = evolve_wherever(
        str(tmp_path / "old"), view(is_sized=True, table=other).writeStream, terms=ChangeTerms(as_now=True)
    )
    (changed_rows,) = by_command.views.values()
    assert changed_rows.samples() == [({"name": "euro", "n": 3}, None), (None, {"name": "dollar", "n": 1})]


def test_a_first_stage_that_waits_for_event_time_needs_no_source_of_its_own(
    spark: SparkSession, tmp_path: Path, start: Start
) -> None:
    orders, names = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "n", NAMES)

    def view(ttl: StateTtl | None = None) -> Any:
        left = appends(orders.stream(), name="orders", watermark=("t", 0))
        named = changes(names.stream(), name="names", keys=["currency"])
        joined = left.join(named, on="currency", how="left", state_ttl=None if ttl is None else (ttl, None))
        return joined.groupBy("name").agg(F.count("*").alias("n"))

    orders.add((1, "EUR", 7), (2, "USD", 9))
    names.add(("EUR", "euro"), ("USD", "dollar"))
    sink, after = Collected(), view(StateTtl(10, by="event"))
    query = start(view(), sink, "old")
    query.evolve(after, as_now=True)
    query.stop()
    orders.add((3, "USD", 18))
    query = start(after, sink, "old")
    orders.add((4, "USD", 20))
    query.processAllAvailable()

    assert sink.total() == {("dollar", 2): 1}
    assert list((tmp_path / "old" / "zset").glob("start/*")) == []


@pytest.mark.parametrize(
    ("watermarks", "parks", "expected"),
    [
        ({"stage:a": 5}, False, {"a/0": (-(1 << 62), 4), "a/1": (9, None)}),
        ({"stage:a": 5}, True, {"a/0": (3, 0), "a/1": (9, None)}),
        ({"stage:b": 5}, False, {"a/0": (3, 0), "a/1": (9, None)}),
    ],
)
def test_a_bucket_with_rows_that_are_not_folded_is_due_in_the_next_epoch(
    watermarks: dict[str, int], parks: bool, expected: dict[str, tuple[int | None, int | None]]
) -> None:
    """And one without them when it was; a heartbeat is needed where no watermark moves the stage on."""
    logged = {epoch: BucketHistory(logs=(LogEntry(epoch, epoch, "a", FileEntry("l", 1, 1, 1)),)) for epoch in (6, 7)}
    last = CommitRecord(
        query_id="q",
        epoch=7,
        processing_time_us=None,
        watermarks=watermarks,
        dues={"a/0": NextDue(3, 4), "a/1": NextDue(9), "b/0": NextDue(1)},
    )
    histories = {"a/0": logged[7], "a/1": logged[6], "route/0": logged[7]}
    pair = StatePair(executors="a", driver="a", readers=("a",), routes={})
    dues = kept_dues(pair, SimpleNamespace(parks=parks), histories, last)  # type: ignore[arg-type]

    assert {key: (due.watermark_us, due.processing_time_us) for key, due in dues.items()} == expected
