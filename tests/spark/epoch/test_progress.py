"""What an epoch did, in numbers, on the handle and in Spark's own listener."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from tests.spark.conftest import Collected, Source
from zset_join.runners.spark.planning import placed_query
from zset_join.spark import JoinedStream, JoinQuery, changes, join_progress

Run = Callable[..., JoinQuery]


def join_of(orders: Source, customers: Source) -> JoinedStream:
    left = changes(
        orders.stream(), name="orders", keys=["order_id"], apply_as_deletes="op = 'd'", except_column_list=["op", "ts"]
    )
    return left.join(changes(customers.stream(), name="customers", keys=["customer_id"]), on="customer_id", how="left")


class Heard(StreamingQueryListener):
    """Keeps Spark's progress, with the numbers that belong to it."""

    def __init__(self) -> None:
        self.progress: list[tuple[int, dict[str, Any] | None]] = []

    def wait_for(self, count: int) -> None:
        """Wait for so many reports; listeners run a moment later."""
        deadline = time.monotonic() + 60
        while len(self.progress) < count and time.monotonic() < deadline:
            time.sleep(0.05)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.progress.append((event.progress.batchId, join_progress(event.progress)))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass


def test_an_epoch_is_reported_in_rows_bytes_and_seconds(orders: Source, customers: Source, run: Run) -> None:
    orders.add(*(("i", number, 10, "pen", 1) for number in range(6)), ("i", 7, 20, "ink", 1))
    customers.add((10, "Ann", 1), (20, "Bob", 1))
    orders.add(("d", 7, None, None, 2), ("i", 8, 20, "cap", 2), ("i", None, 20, "cap", 2))
    customers.add((10, "Anna", 2))

    query = run(join_of(orders, customers), Collected(), buckets=1, onBadInput="quarantine", snapshotAfterBytes=1)

    first, second = (progress["join"] for progress in query.recentProgress)
    assert first["fan_out"] == {"pairs": 6, "key": {"customer_id": 10}}
    assert (first["delta_rows"], first["retractions"]) == (7, 0)
    assert second["rows_in"] == {"orders": 3, "customers": 1}
    assert second["retractions_in"] == {"orders": 1, "customers": 0}
    assert second["quarantined"] == {"orders": 1, "customers": 0}
    assert (second["delta_rows"], second["retractions"]) == (14, 7)
    assert (second["state"]["left_rows"], second["state"]["right_rows"], second["state"]["buckets"]) == (7, 2, 1)
    assert second["log_bytes"] > 0
    assert second["snapshot_bytes"] > 0
    assert second["locality"] == {"hits": 2, "misses": 0, "executors": 1}
    assert {"total", "job", "commit", "output", "join", "join.answer", "route-left", "route-left.fold"} <= set(
        second["seconds"]
    )


class Plannings(Collected):
    """Remembers, per epoch, how often something of a plan had been computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.done = 0
        self.until: list[int] = []
        for name in ("placed_stages", "named", "fusings_of", "fused_stages_of"):
            monkeypatch.setattr(placed_query, name, partial(self._counted, getattr(placed_query, name)))

    def _counted(self, function: Callable[..., Any], *given: Any) -> Any:
        self.done += 1
        return function(*given)

    def write(self, *given: Any) -> None:
        self.until.append(self.done)
        super().write(*given)


def test_sparks_own_listener_finds_the_numbers_of_the_join_and_an_epoch_plans_nothing(
    spark: SparkSession, orders: Source, customers: Source, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("i", 2, 10, "ink", 1))
    customers.add((10, "Ann", 1))
    heard = Heard()
    spark.streams.addListener(heard)
    try:
        query = run(join_of(orders, customers), plannings := Plannings(monkeypatch))
        heard.wait_for(2)
    finally:
        spark.streams.removeListener(heard)

    assert [(epoch, reported) for epoch, reported in heard.progress if reported is not None] == [
        (progress["batchId"], progress["join"]) for progress in query.recentProgress
    ]
    assert len(heard.progress) == 2
    assert 0 < plannings.until[0] == plannings.until[1]


def test_a_progress_of_another_query_has_no_numbers_of_a_join() -> None:
    assert join_progress({"id": "11111111-2222-3333-4444-555555555555", "batchId": 0}) is None
