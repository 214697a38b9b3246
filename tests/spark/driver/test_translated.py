"""Steps that were written for Spark behind a stage: they are steps of the plan, and give what Spark gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from zset_join.core.errors import PlanError
from zset_join.spark import JoinedStream, JoinQuery, changes

Run = Callable[..., JoinQuery]

_TEXTS = (
    "order_id + 1 AS a0", "order_id * 2.5 AS a1", "order_id / 2 AS a2", "order_id % 2 = 0 AS a3", "CAST(order_id AS STRING) AS a4",
    "upper(name) AS a5", "concat(name, '-', item) AS a6", "name LIKE 'A%' AS a7", "length(item) > 3 OR item IS NULL AS a8",
    "CASE WHEN order_id > 2 THEN name ELSE item END AS a9", "coalesce(name, item, 'none') AS b0", "substring(item, 1, 2) AS b1",
    "name IN ('Ann', 'Bob') AS b2", "NOT (order_id BETWEEN 1 AND 2) AS b3", "nullif(item, 'pen') AS b4", "abs(-order_id) AS b5",
    "CAST('2024-02-03' AS DATE) AS b6", "date_add(CAST('2024-02-03' AS DATE), 3) AS b7", "greatest(order_id, 2) AS b8",
    "name <=> item AS b9", "trim(name) AS c0", "round(order_id / 3, 2) AS c1", "item || name AS c2", "replace(item, 'p', 'q') AS c3",
    "CAST(order_id AS DECIMAL(12, 2)) + 1 AS c4", "if(order_id > 1, 1, 0) AS c5", "CAST(order_id AS DOUBLE) * 1.5D AS c6",
)  # fmt: skip


def _joined(orders: Source, customers: Source) -> JoinedStream:
    left = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", apply_as_deletes="op = 'd'")
    right = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts")
    named = right.select("customer_id", F.trim("name").alias("name"))
    return left.where("item IS NULL OR item <> 'mug'").join(named, on="customer_id")


def _filled(orders: Source, customers: Source) -> None:
    orders.add((None, 1, 10, "pen", 1), (None, 2, 11, "cup", 1), (None, 3, 10, "ink", 1), (None, 4, 12, None, 1))
    orders.add((None, 1, 10, "inkwell", 2), ("d", 2, 11, "cup", 2), (None, 3, 11, "mug", 2))
    customers.add((10, "Ann", 1), (12, "Ann-Marie", 1))
    customers.add((11, "Bob", 1), (10, "Anna", 2))


def _stepped(rows: Any) -> Any:
    """Return a view or a DataFrame after steps that are written for Spark."""
    kept = rows.select("order_id", "name", "item").where((F.col("order_id") < 9) & F.col("name").isNotNull())
    return kept.withColumn("short", F.substring(F.col("item"), 1, 2)).selectExpr("*", *_TEXTS)


def _counted(rows: Any) -> Any:
    return rows.groupBy(F.col("a3")).agg(F.sum(F.col("order_id") * 2).alias("twice"), F.max("c2").alias("last"))


def test_steps_behind_a_join_are_what_spark_computes(
    orders: Source, customers: Source, spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    _filled(orders, customers)
    joined, before = _joined(orders, customers), Collected()
    run(joined, before, execution="driver", checkpointLocation=str(tmp_path / "before"))
    batch = _stepped(spark.createDataFrame(list(before.total()), joined.schema))
    for at, (view, rows) in enumerate(((_stepped(joined), batch), (_counted(_stepped(joined)), _counted(batch)))):
        expected = {tuple(row): 1 for row in rows.collect()}
        for execution in ("driver", "executors"):
            sink = Collected()

            run(view, sink, execution=execution, checkpointLocation=str(tmp_path / f"{execution}-{at}"))

            assert sink.total() == expected != {}


def test_what_only_spark_computes_is_refused_with_the_reason(orders: Source, customers: Source, run: Run) -> None:
    _filled(orders, customers)
    shout = F.udf(lambda text: f"{text}!", "string")

    with pytest.raises(PlanError, match=r"<lambda>.*before the first join or group, or to the rows of the output") as refused:
        _joined(orders, customers).withColumn("loud", shout("item"))

    assert refused.value.code == "SPARK_ONLY_STEP"
