"""The console of a query on executors: from its checkpoint and from its process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.spark.conftest import Source
from zset_join.console import Console
from zset_join.spark import changes


def _nothing(rows: Any, epoch: int) -> None:
    pass


@contextmanager
def _answers(console: Console) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{console.port}", follow_redirects=True, timeout=60) as client:
        client.get(console.url)
        yield client


def test_the_page_has_numbers_rows_and_histories_of_the_query(orders: Source, customers: Source, tmp_path: Path) -> None:
    orders.add((None, 1, 10, "pen", 1), (None, None, 10, "cup", 1)).add((None, 2, 10, "ink", 1))
    customers.add((10, "Ann", 1)).add((10, "Anna", 2))
    left = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts")
    right = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts")
    writer = left.join(right, on="customer_id").select("order_id", "item", "name").writeStream
    options = {"checkpointLocation": str(tmp_path / "checkpoint"), "onBadInput": "quarantine", "execution": "executors"}
    writer = writer.options(**options, retainInputLog=True, localStateDir=str(tmp_path / "local"), buckets=1)
    query = writer.to("parquet", path=str(tmp_path / "out")).start()
    try:
        query.processAllAvailable()
        with query.console() as console, _answers(console) as browser:
            overview = browser.get("/api/overview").json()
            first, second = browser.get("/api/epochs").json()["epochs"]
            (change,) = (one for one in browser.get("/api/changes").json()["epochs"] if one["epoch"] == 1)
            rows = browser.get("/api/rows", params={"where": json.dumps({"item": "pen"})}).json()
            history = browser.get("/api/explain_row", params={"where": json.dumps({"order_id": "1"})}).json()
            verified = browser.get("/api/verifying", params={"view": ""}).text
            letters = browser.get("/api/dead_letters").json()
    finally:
        query.stop()
    assert overview["trouble"] == []
    assert (overview["owner"]["state"], overview["in_force"]["execution"]) == ("running", "executors")
    assert (first["rows_in"], first["put_aside"]) == ({"orders": 2, "customers": 1}, 1)
    assert first["seconds"]["commit"] > 0
    assert second["stages"]["join"]["inputs"] == [1, 1]
    assert second["stages"]["join"]["seconds"] > 0
    assert (change["columns"], change["weights"]) == (["order_id", "item", "name"], [-1, 1, 1])
    assert (rows["rows"], rows["weights"], rows["total"]) == ([[1, "pen", "Anna"]], [1], 1)
    assert [event["epoch"] for event in history["events"]] == [0, 1]
    assert '"equal": true' in verified
    assert [letter["code"] for letter in letters["letters"]] == ["NULL_PRIMARY_KEY"]


def test_rows_of_the_state_are_shown_where_no_output_can_be_read(orders: Source, tmp_path: Path) -> None:
    orders.add((None, 1, 10, "pen", 1))
    writer = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts").groupBy("item").count().writeStream
    writer = writer.options(checkpointLocation=str(tmp_path / "checkpoint"), buckets=1).trigger(availableNow=True)
    query = writer.foreachBatch(_nothing).start()
    query.awaitTermination()
    with query.console() as console, _answers(console) as browser:
        found = browser.get("/api/rows").json()
    assert found["tables"][0] != "orders_grouped"
    assert "pen" in json.dumps(found["rows"])
