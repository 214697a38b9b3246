"""A small query with every part that the console shows: a join, an aggregate, a temporal join that waits, two views, late rows."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as in PySpark
from zset_join.stages.stage import StageOptions

HOSTILE = "<script>window.broken = true</script><img src=x onerror=window.broken=1>\"'&"
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def views() -> dict[str, Any]:
    orders = changes(
        "orders", {"id": pa.int64(), "customer": pa.string(), "total": pa.int64(), HOSTILE: pa.string()}, keys="id"
    )
    customers = changes("customers", {"name": pa.string(), "city": pa.string()}, keys="name")
    joined = orders.join(customers, orders["customer"] == customers["name"], "left").select(
        orders["id"], orders["customer"], orders["total"], customers["city"], orders[HOSTILE]
    )
    revenue = joined.groupBy("city").agg(F.sum("total").alias("revenue"), F.count("*").alias("orders"))
    return {"by_order": joined, "revenue": revenue}


def shop(directory: Path | None = None, **options: Any) -> Pipeline[dict[str, Any]]:
    return Pipeline(views(), directory, keep_inputs=True, options=StageOptions(on_bad_input="quarantine"), **options)


def rows_of(epoch: int, rows: int = 5) -> Mapping[str, Any]:
    orders = [
        {"id": (epoch * 3 + at) % 40, "customer": ("Ada", "Bob", HOSTILE)[at % 3], "total": 10 * at + epoch, HOSTILE: HOSTILE}
        for at in range(rows)
    ]
    if epoch % 4 == 3:
        orders.append({"id": None, "customer": HOSTILE, "total": 1, HOSTILE: None})
    customers = [{"name": name, "city": city} for name, city in (("Ada", "Paris"), ("Bob", "Rome"), (HOSTILE, HOSTILE))]
    return {"orders": orders, "customers": customers[: epoch + 1] if epoch < 3 else []}


def run(pipeline: Pipeline[Any], epochs: int, *, first: int = 0) -> None:
    for epoch in range(first, first + epochs):
        pipeline.step(rows_of(epoch), processing_time=START + datetime.timedelta(seconds=epoch))
