"""A directory that plays a source: every `add` is one file, and one file is one epoch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.pandas.types import from_arrow_schema

from zset_join.runners.spark.planning.stages import Placed
from zset_join.runners.spark.tools.batch_sources import BatchTables, ViewTables, given_source, plan_of_places, sources_of
from zset_join.spark import ChangeStream, JoinedStream, JoinQuery, changes

ORDERS = pa.schema(
    [("op", pa.string()), ("order_id", pa.int64()), ("customer_id", pa.int64()), ("item", pa.string()), ("ts", pa.int64())]
)
CUSTOMERS = pa.schema([("customer_id", pa.int64()), ("name", pa.string()), ("ts", pa.int64())])


class Source:
    """One input: a directory of Parquet files, one per epoch."""

    def __init__(self, spark: SparkSession, directory: Path, schema: pa.Schema) -> None:
        self.spark = spark
        self.directory = directory
        self.schema = schema
        self.files = 0
        directory.mkdir()

    def add(self, *rows: tuple[Any, ...]) -> Source:
        """Append one file; without rows an empty one."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self.schema)
        table = pa.table(
            [pa.array(list(column), field.type) for column, field in zip(columns, self.schema, strict=True)],
            schema=self.schema,
        )
        path = self.directory / f"{self.files:04d}.parquet"
        pq.write_table(table, path.with_name(f".{path.name}"))
        path.with_name(f".{path.name}").rename(path)
        os.utime(path, (1_600_000_000 + self.files, 1_600_000_000 + self.files))  # the file source goes by time
        self.files += 1
        return self

    def stream(self) -> DataFrame:
        """Return the streaming DataFrame, one file per epoch."""
        schema = from_arrow_schema(self.schema)
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.directory))


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Source:
    """Give the source of orders: op, order_id, customer_id, item, ts."""
    return Source(spark, tmp_path / "orders", ORDERS)


@pytest.fixture
def customers(spark: SparkSession, tmp_path: Path) -> Source:
    """Give the source of customers: customer_id, name, ts."""
    return Source(spark, tmp_path / "customers", CUSTOMERS)


def upserts(orders: Source, baseline: DataFrame | None = None) -> ChangeStream:
    return changes(
        orders.stream(),
        name="orders",
        keys=["order_id"],
        sequence_by="ts",
        apply_as_deletes="op = 'd'",
        except_column_list=["op", "ts"],
        baseline=baseline,
    )


class Collected:
    """A sink that keeps the sum of all answers, and each answer."""

    def __init__(self) -> None:
        self.epochs: list[list[tuple[tuple[Any, ...], int]]] = []
        self.fails_in = -1

    def open(self, output: Any, query_id: str) -> None:
        self.query_id = query_id
        self.names = output.schema.names

    def last_epoch(self) -> int | None:
        return len(self.epochs) - 1 if self.epochs else None

    def write(self, epoch: int, chunks: Any) -> None:
        rows = [row for chunk in chunks for row in chunk.to_pylist()]
        assert len(self.epochs) == epoch
        if epoch == self.fails_in:
            raise OSError(f"the output failed in epoch {epoch}")
        self.epochs.append(rows)

    def close(self) -> None:
        pass

    def total(self) -> dict[tuple[Any, ...], int]:
        """Return row to weight, over all epochs."""
        return weights(row for epoch in self.epochs for row in epoch)


class Follower(Collected):
    """A sink of a later start: it continues where another one ended."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.before = epochs

    def last_epoch(self) -> int:
        return self.before + len(self.epochs) - 1

    def write(self, epoch: int, chunks: Any) -> None:
        assert epoch == self.before + len(self.epochs)
        self.epochs.append([row for chunk in chunks for row in chunk.to_pylist()])


def weights(rows: Any) -> dict[tuple[Any, ...], int]:
    """Return row to summed weight, zeros omitted."""
    total: dict[tuple[Any, ...], int] = {}
    for row, weight in rows:
        total[row] = total.get(row, 0) + weight
    return {row: weight for row, weight in total.items() if weight}


def view_of(query: Placed, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the batch query of a view over the tables of its streams, with `__weight`; columns are called c0, c1, ..."""
    plan = plan_of_places(query.plan)
    sources = {
        name: given_source(tables[planned.streams[side].name], plan.source(name).relation.schema)
        for name, planned, side in sources_of(plan, query.planned_stages)
    }
    with BatchTables(query.session) as batch_tables:
        return ViewTables(query, plan, batch_tables, sources).rows.withColumn("__weight", F.lit(1).cast("long"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., JoinQuery]]:
    """Give a function that runs a join over everything its sources have, and returns the finished query."""
    started: list[JoinQuery] = []

    def run_all(joined: JoinedStream, sink: Any, *, wait: bool = True, **options: Any) -> JoinQuery:
        writer = joined.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.option("localStateDir", str(tmp_path / "local")).options(**options).trigger(availableNow=True)
        writer = writer.foreachBatch(sink) if callable(sink) else writer.to(sink)
        query = writer.start()
        started.append(query)
        if wait:
            query.awaitTermination()
        return query

    yield run_all
    for query in started:
        query.stop()
