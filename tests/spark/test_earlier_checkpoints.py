"""Checkpoints that an earlier version made continue: two queries of commit e303961, each with two epochs."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from zset_join.core.errors import StateError
from zset_join.sinks.parquet_changelog import read_changelog
from zset_join.spark import View, changes
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F
from zset_join.storage.sealed import seal

ORDERS = pa.schema(
    [(name, pa.string() if name == "op" else pa.int64()) for name in ("op", "order_id", "customer_id", "total", "ts")]
)
CUSTOMERS = pa.schema([("customer_id", pa.int64()), ("city", pa.string()), ("ts", pa.int64())])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give the directory of both queries, as if they had been made there."""
    with tarfile.open(Path(__file__).parent / "earlier" / "e303961.tar.gz") as stored:
        stored.extractall(tmp_path, filter="data")
    for path in [one for one in tmp_path.rglob("*") if one.is_file() and b"/PLACE" in one.read_bytes()]:
        text = path.read_text().replace("/PLACE", str(tmp_path))
        if path.suffix == ".json":
            sealed = json.loads(text)
            path.write_bytes(seal(sealed["body"], version=sealed["format"], name=f"commits/{int(path.stem)}"))
        else:
            path.write_text(text)
    return tmp_path


def stream(spark: SparkSession, directory: Path, schema: pa.Schema) -> DataFrame:
    empty = spark.createDataFrame(schema.empty_table())
    return spark.readStream.schema(empty.schema).option("maxFilesPerTrigger", 1).parquet(str(directory))


def add(directory: Path, schema: pa.Schema, *row: Any) -> None:
    path = directory / "0002.parquet"
    pq.write_table(pa.table([pa.array([one], field.type) for one, field in zip(row, schema, strict=True)], schema=schema), path)
    os.utime(path, (1_600_000_002, 1_600_000_002))


def joined(spark: SparkSession, place: Path, *, deletes: str = "op = 'd'") -> View:
    orders = changes(
        stream(spark, place / "orders", ORDERS),
        name="orders",
        keys=["order_id"],
        sequence_by="ts",
        apply_as_deletes=deletes,
        except_column_list=["op", "ts"],
    )
    customers = stream(spark, place / "customers", CUSTOMERS)
    customers_table = changes(customers, name="customers", keys=["customer_id"], sequence_by="ts", except_column_list=["ts"])
    return orders.join(customers_table, on="customer_id", how="left")


def by_city(view: View) -> View:
    return view.where("total > 0").groupBy("city").agg(ZF.sum("total").alias("revenue"), ZF.count().alias("orders"))


def written(query: View, place: Path) -> Any:
    writer = query.writeStream.option("checkpointLocation", str(place / "checkpoint"))
    writer = writer.option("localStateDir", str(place / "local")).trigger(availableNow=True)
    return writer.to("parquet", path=str(place / "out"))


@pytest.mark.parametrize(("kind", "behind"), [("join", lambda view: view), ("groups", by_city)])
def test_a_checkpoint_of_an_earlier_version_goes_on(
    spark: SparkSession, place: Path, kind: str, behind: Callable[[View], View]
) -> None:
    place /= kind
    add(place / "orders", ORDERS, "u", 1, 10, 50, 3)
    add(place / "customers", CUSTOMERS, 30, "Bonn", 1)

    query = written(behind(joined(spark, place)), place).start()
    query.awaitTermination()

    report = query.verify()
    assert (report.equal, report.epoch, report.expected_rows) == (True, 2, 2)
    assert read_changelog(str(place / "out")).num_rows > 0


def test_another_query_is_refused_by_it(spark: SparkSession, place: Path) -> None:
    place /= "join"

    with pytest.raises(StateError, match="QUERY_CHANGED"):
        written(by_city(joined(spark, place)), place).start()
