"""SQL and the fluent words make one and the same plan: the plan is the same for both."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest

from zset_join.expressions import col, left, right
from zset_join.pipeline import View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users write it
from zset_join.sql import connect

CREATED = """
CREATE TABLE orders (id BIGINT, customer BIGINT, amount BIGINT, PRIMARY KEY (id) NOT ENFORCED);
CREATE TABLE customers (number BIGINT, name STRING, PRIMARY KEY (number) NOT ENFORCED);
"""
ORDERS = changes("orders", pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("amount", pa.int64())]), keys=["id"])
CUSTOMERS = changes("customers", pa.schema([("number", pa.int64()), ("name", pa.string())]), keys=["number"])
PAIR = (left("customer") == right("number")) & (left("amount") > 3)
SAME: dict[str, Callable[[], View]] = {
    "SELECT id, amount * 2 AS twice FROM orders WHERE amount > 10": lambda: ORDERS.where(col("amount") > 10).select(
        "id", twice=col("amount") * 2
    ),
    "SELECT DISTINCT customer FROM orders": lambda: ORDERS.select("customer").distinct(),
    "SELECT customer FROM orders UNION ALL SELECT number FROM customers": lambda: ORDERS.select("customer").union(
        CUSTOMERS.select("number")
    ),
    "SELECT id, name FROM orders LEFT JOIN customers ON customer = number AND amount > 3": lambda: ORDERS.join(
        CUSTOMERS, PAIR, "left"
    ).select("id", "name"),
    "SELECT name, sum(amount) AS total FROM orders JOIN customers ON customer = number GROUP BY name": lambda: (
        ORDERS.join(CUSTOMERS, [("customer", "number")])
        .groupBy("name")
        .agg(F.sum("amount").alias("aggregate 1"))
        .select("name", total=col("aggregate 1"))
    ),
}


@pytest.mark.parametrize("text", SAME)
def test_a_query_has_one_plan_whether_it_is_written_as_sql_or_in_fluent_words(text: str) -> None:
    with connect(dialect="flink") as session:
        session.sql(CREATED)
        of_sql = session.sql(text).bound.view.plan()

    assert json.dumps(of_sql.to_json()) == json.dumps(SAME[text]().plan().to_json())
