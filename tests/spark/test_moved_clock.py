"""The clock of the driver's host goes backwards and jumps ahead: times of epochs never decrease, and no row is lost or doubled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from tests.sweeps import some_of
from zset_join import pipeline as local
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.spark import StateTtl, appends, changes

ORDERS = pa.schema([("order_id", pa.int64()), ("sku", pa.int64())])
PRICES = pa.schema([("sku", pa.int64()), ("price", pa.int64())])
HOUR_SECONDS = 3600
HOURS = (0, -2, 3, 1, 1, -30, 3.5, 90, 4)
"""What the clock shows in each epoch: the third one frees the rows of the first ones, and the eighth those of all before."""


class Timed(Collected):
    """Keeps the processing time of each epoch, from its commit record, as well."""

    def __init__(self, records: Path) -> None:
        super().__init__()
        self.records = records
        self.times_us: list[int] = []

    def write(self, epoch: int, chunks: Any) -> None:
        super().write(epoch, chunks)
        self.times_us.append(json.loads((self.records / f"{epoch:020d}.json").read_bytes())["body"]["processing_time_us"])


def _view(orders: Any, prices: Any) -> Any:
    joined = orders.join(prices, on="sku", how="left", state_ttl=(StateTtl("1 hour", by="processing"), None))
    return joined.groupBy("sku", "price").count()


def _rows(epoch: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the orders and prices of an epoch: each price changes while older orders may still wait for it."""
    return [(2 * epoch, epoch % 3), (2 * epoch + 1, 3)], [(epoch % 3, epoch), (3, epoch)]


def _expected(times_us: list[int]) -> dict[tuple[Any, ...], int]:
    """Return the sum of the answers of the same query in process, at the same times."""
    words = {
        "orders": dict(zip(ORDERS.names, ORDERS.types, strict=True)),
        "prices": dict(zip(PRICES.names, PRICES.types, strict=True)),
    }
    view = _view(local.appends("orders", words["orders"]), local.changes("prices", words["prices"], keys="sku"))
    with local.Pipeline(view) as pipeline:
        for epoch, time_us in enumerate(times_us):
            orders, prices = (
                [dict(zip(schema.names, row, strict=True)) for row in rows]
                for schema, rows in zip((ORDERS, PRICES), _rows(epoch) if epoch < len(HOURS) else ([], []), strict=True)
            )
            pipeline.step({"orders": orders, "prices": prices}, processing_time=time_us)
        return {tuple(row.values()): 1 for row in pipeline.view().to_pylist()}


@pytest.mark.parametrize("execution", some_of(("driver", "executors"), short=("driver",)))
def test_a_moved_clock_frees_rows_by_the_latest_time_it_showed(
    spark: SparkSession, tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, execution: str
) -> None:
    orders, prices = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "p", PRICES)
    for epoch in range(len(HOURS)):
        of_orders, of_prices = _rows(epoch)
        orders.add(*of_orders)
        prices.add(*of_prices)
    sink = Timed(Path(checkpoint_folder(str(tmp_path / "checkpoint")).location) / "commits")
    now, started = time.time_ns, time.time_ns()
    monkeypatch.setattr(
        time, "time_ns", lambda: now() + int(HOURS[min(len(sink.epochs), len(HOURS) - 1)] * HOUR_SECONDS * 10**9)
    )

    run(
        _view(appends(orders.stream(), name="orders"), changes(prices.stream(), name="prices", keys="sku")),
        sink,
        execution=execution,
        **({"buckets": 2} if execution == "executors" else {}),
    )

    hours = [round((time_us - started // 1000) / 3.6e9, 1) for time_us in sink.times_us[: len(HOURS)]]
    assert sink.times_us == sorted(sink.times_us)
    assert [round(hour * 2) / 2 for hour in hours] == [0, 0, 3, 3, 3, 3, 3.5, 90, 90]
    assert sink.total() == _expected(sink.times_us)
