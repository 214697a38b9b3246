"""`verify(sample=)` and `explain_row` of queries whose state ends by time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from tests.sweeps import some_of
from zset_join.spark import StateTtl, appends, changes

Run = Callable[..., Any]
ORDERS = pa.schema([("order_id", pa.int64()), ("sku", pa.int64()), ("at", pa.int64())])
PRICES = pa.schema([("sku", pa.int64()), ("price", pa.int64()), ("at", pa.int64())])
TTL = StateTtl(10, by="event")


@pytest.fixture
def sources(spark: SparkSession, tmp_path: Path) -> tuple[Source, Source]:
    orders, prices = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "p", PRICES)
    orders.add(*((n, n % 7, n % 5) for n in range(40))).add(*((100 + n, n % 7, 12) for n in range(20)))
    prices.add(*((n, 10 * n, 0) for n in range(5))).add((2, 99, 12), (6, 60, 12))
    return orders, prices


def joined(sources: tuple[Source, Source], how: str = "left") -> Any:
    orders, prices = sources
    left = appends(orders.stream(), name="orders", watermark=("at", 0))
    right = changes(prices.stream(), name="prices", keys=["sku"], watermark=("at", 0))
    return left.join(right, on="sku", how=how, state_ttl=(TTL, TTL))


VIEWS: dict[str, Callable[[tuple[Source, Source]], Any]] = {
    "join": joined,
    "groups behind it": lambda sources: joined(sources).groupBy("sku").count(),
    "first rows that end": lambda sources: appends(sources[0].stream(), name="orders", watermark=("at", 0)).dedup(
        "sku", order_by="order_id", state_ttl=StateTtl(10, by="event", of="row")
    ),
}


@pytest.mark.parametrize("view", some_of(VIEWS, short=[*VIEWS][:1]))
def test_a_sample_is_compared_with_the_rows_that_are_alive(
    view: Callable[[tuple[Source, Source]], Any], sources: tuple[Source, Source], spark: SparkSession, run: Run
) -> None:
    sink = Collected()
    made = view(sources)
    query = run(made, sink, buckets=2)
    columns = ", ".join(f"{name} long" for name in (*made.columns, "_weight"))
    emitted = spark.createDataFrame([(*row, weight) for row, weight in sink.total().items()], columns)

    whole, half = query.verify(actual_df=emitted), query.verify(actual_df=emitted, sample=0.5)

    assert whole.equal, str(whole)
    assert half.equal, str(half)
    assert 0 < half.expected_rows < whole.expected_rows
    assert not query.verify(actual_df=emitted.limit(0), sample=0.5).equal
    if view is joined:
        check_ends(query)


def check_ends(query: Any) -> None:
    """A row that ended is explained by what made it and by its end."""
    gone, padded = query.explain_row({"order_id": 1}), query.explain_row({"order_id": 3})  # of the latter only the price ended

    assert [(event.epoch, [weight for _, weight in event.emitted]) for event in gone.events] == [(0, [1]), (1, [-1])]
    assert [(change.stream, change.row["sku"]) for change in gone.events[0].changes] == [("orders", 1), ("prices", 1)]
    assert gone.events[1].time == "rows expired (state_ttl): the watermark had passed their time"
    assert gone.live_rows == ()
    assert [row["price"] for row, _ in padded.events[1].emitted] == [30, None]
    assert len(query.explain_row({"order_id": 101}).live_rows) == 1


@pytest.mark.long
def test_a_first_row_that_ended_is_explained_by_the_epochs_that_emitted_it(sources: tuple[Source, Source], run: Run) -> None:
    sink = Collected()
    query = run(VIEWS["first rows that end"](sources), sink, buckets=2)

    history = query.explain_row({"sku": 1})

    emitted = [sorted((weight, row) for row, weight in epoch if row[1] == 1) for epoch in sink.epochs]
    assert [sorted((weight, tuple(row.values())) for row, weight in event.emitted) for event in history.events] == emitted
    assert [change.row["order_id"] for change in history.events[0].changes] == [1]
    assert (len(history.events), history.events[1].changes) == (2, ())
    assert history.events[1].time == "rows expired (state_ttl): the watermark had passed their time"


@pytest.mark.long
def test_rows_of_a_snapshot_end_at_their_time_in_an_explanation(sources: tuple[Source, Source], run: Run) -> None:
    orders, prices = sources
    sink = Collected()
    run(joined(sources), sink, buckets=1, snapshotAfterBytes=1)
    orders.add((200, 5, 30))
    prices.add((5, 50, 30))
    query = run(joined(sources), sink, snapshotAfterBytes=1)

    history = query.explain_row({"order_id": 101})

    assert not history.is_complete
    assert [[weight for _, weight in event.emitted] for event in history.events] == [[1], [-1]]
    assert history.events[1].time == "rows expired (state_ttl): the watermark had passed their time"
