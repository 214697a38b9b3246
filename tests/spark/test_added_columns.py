"""Inside Spark, too, a checkpoint continues with a column more: NULL for the rows that were present before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Follower
from zset_join.spark import JoinedStream, JoinQuery, changes

Run = Callable[..., JoinQuery]
RECORDS = "key string, value string, topic string, partition int, offset long"


def add(directory: Path, *rows: dict[str, object]) -> None:
    directory.mkdir(exist_ok=True)
    number = len(list(directory.iterdir()))
    lines = []
    for at, row in enumerate(rows):
        offset = number * 100 + at
        value = json.dumps({"op": "u", "after": row, "source": {"lsn": offset}})
        record = {"key": json.dumps({"id": row["id"]}), "value": value, "topic": "t", "partition": 0, "offset": offset}
        lines.append(json.dumps(record))
    (directory / f"{number}.json").write_text("\n".join(lines))


def joined(spark: SparkSession, tmp_path: Path, orders: str) -> JoinedStream:
    def table(name: str, schema: str) -> object:
        stream = spark.readStream.schema(RECORDS).json(str(tmp_path / name))
        return changes(stream, format="debezium-json", name=name, schema=schema, keys=["id"])

    return table("orders", orders).join(table("customers", "id long, city string"), on=[("customer", "id")])


def test_old_rows_have_null_in_a_column_that_was_added(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    before, after = "id long, customer long, note string", "id long, customer long, note string, paid int"
    add(tmp_path / "orders", {"id": 1, "customer": 7, "note": "a"})
    add(tmp_path / "customers", {"id": 7, "city": "Rome"})
    run(joined(spark, tmp_path, before), Collected(), buckets=2, snapshotAfterBytes=1)
    add(tmp_path / "orders", {"id": 2, "customer": 7, "note": "b"})
    run(joined(spark, tmp_path, before), Follower(1), snapshotAfterBytes=1)
    add(tmp_path / "orders", {"id": 1, "customer": 7, "note": "__debezium_unavailable_value", "paid": 5})
    add(tmp_path / "customers", {"id": 7, "city": "Oslo"})
    sink = Follower(2)

    query = run(joined(spark, tmp_path, after), sink, snapshotAfterBytes=1)

    assert sink.total() == {
        (1, 7, "a", None, 7, "Rome"): -1,
        (2, 7, "b", None, 7, "Rome"): -1,
        (1, 7, "a", 5, 7, "Oslo"): 1,
        (2, 7, "b", None, 7, "Oslo"): 1,
    }
    assert query is not None
