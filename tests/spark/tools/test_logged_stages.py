"""Rows that no join made are explained by replaying the logs: with the rows, times and outside answers of then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.lookup import DataFrameSource
from zset_join.pipeline import PROCESSING_TIME
from zset_join.spark import appends, changes
from zset_join.spark import functions as F  # noqa: N812 - as PySpark users write it

Run = Callable[..., Any]
ORDERS = pa.schema([("id", pa.int64()), ("sku", pa.int64()), ("t", pa.int64())])
PRICES = pa.schema([("sku", pa.int64()), ("price", pa.int64()), ("at", pa.int64())])
CODES = pa.schema([("sku", pa.int64()), ("code", pa.int64())])


@pytest.fixture
def sources(spark: SparkSession, tmp_path: Path) -> tuple[Source, Source]:
    orders, prices = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "p", PRICES)
    orders.add(*((n, n % 5, 10) for n in range(9))).add((21, 1, 12), (22, 2, 13)).add((31, 1, 30), (32, 3, 31)).add()
    prices.add(*((n, 10 * n, 5) for n in range(5))).add((1, 99, 11), (2, 77, 40)).add((3, 66, 9)).add((4, 5, 50))
    return orders, prices


def looked_up(sources: tuple[Source, Source], spark: SparkSession) -> Any:
    """Return two joins with one table of versions, with an external table that changes, and the last rows of that."""
    orders, prices = sources
    times = iter(range(1_000))

    def table() -> Any:
        now = next(times)
        return spark.createDataFrame([(n, 100 * now + n) for n in range(4)], "sku long, code long")

    left = appends(orders.stream(), name="orders", watermark=("t", 0))
    versions = changes(prices.stream(), name="prices", keys=["sku"], watermark=("at", 0))
    priced = left.temporal_join(versions, on="sku", how="left")
    priced = priced.union(left.alias("refunds").temporal_join(versions.alias("again"), on="sku"))
    codes = DataFrameSource(name="codes", schema=CODES, dataframe=table)
    return priced.lookup_join(codes, on="sku", how="left").dedup("sku", order_by="id", keep="last")


def moment(sources: tuple[Source, Source], _: SparkSession) -> Any:
    """Return an as-of join, with the table of the moment, in groups."""
    orders, prices = sources
    left = appends(orders.stream(), name="orders", watermark=("t", 0))
    quotes = appends(prices.stream(), name="quotes", watermark=("at", 0)).alias("quotes")
    now = changes(prices.stream(), name="prices", keys=["sku"]).alias("now")
    joined = left.join_asof(quotes, on="sku", how="left", left_time="t", right_time="at").select("sku", "id", "price")
    return joined.groupBy("sku", "price").agg(F.count().alias("n")).temporal_join(now, on="sku", as_of=PROCESSING_TIME)


@pytest.mark.parametrize(
    ("view", "streams"), [(looked_up, {"orders", "prices", "refunds", "again"}), (moment, {"orders", "quotes", "now"})]
)
def test_rows_of_every_kind_of_stage_are_explained_as_they_were_emitted(
    view: Callable[..., Any], streams: set[str], sources: tuple[Source, Source], spark: SparkSession, run: Run
) -> None:
    made, sink = view(sources, spark), Collected()
    query = run(made, sink, buckets=3)
    place = made.columns.index("sku")
    requested: dict[int, list[Any]] = {}
    for epoch, rows in enumerate(sink.epochs):
        of_one = sorted((line for line in rows if line[0][place] == 1), key=lambda line: (line[1], line[0]))
        requested |= {epoch: of_one} if of_one else {}

    history = query.explain_row({"sku": 1})

    reported = {event.epoch: [(tuple(row.values()), weight) for row, weight in event.emitted] for event in history.events}
    assert reported == requested
    assert len(reported) > 1
    assert {change.stream for event in history.events for change in event.changes} == streams


def test_behind_a_snapshot_the_epochs_of_the_log_are_explained(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    orders = Source(spark, tmp_path / "o", ORDERS)
    view = appends(orders.add((1, 1, 1)).stream(), name="orders").dedup("sku", order_by="id", keep="last").select("sku", "id")
    sink = Collected()
    run(view, sink, buckets=1, snapshotAfterBytes=1)
    orders.add((2, 1, 2))
    query = run(view, sink, snapshotAfterBytes=1)

    history = query.explain_row({"sku": 1})

    assert not history.is_complete
    assert [event.epoch for event in history.events] == [1]
    assert [(change.stream, change.row["id"]) for change in history.events[0].changes] == [("orders", 2)]
