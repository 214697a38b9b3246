"""A restart compares the names of the functions of a query, and `udfVersion`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from zset_join.core.errors import StateError
from zset_join.core.options import QueryOptions
from zset_join.runners.spark.rows.user_functions import UserFunction, functions_in, with_functions
from zset_join.spark import JoinQuery, appends

FEE = UserFunction("fee", "1")


@pytest.mark.parametrize(
    ("functions", "version"), [([UserFunction("tax")], "1"), ([FEE], "2"), ([FEE], None), ([], None)], ids=str
)
def test_another_name_or_version_is_refused(functions: list[UserFunction], version: str | None) -> None:
    stored = with_functions({}, None, [FEE], "1")

    with pytest.raises(StateError, match="udfVersion='1'") as refused:
        with_functions({}, stored, functions, version)

    assert refused.value.code == "FUNCTION_CHANGED"


def test_other_code_of_the_same_name_and_version_continues() -> None:
    stored = with_functions({"query": 1}, None, [FEE], "1")

    assert with_functions({"query": 1}, stored, [UserFunction("fee", "2")], "1") == stored


def test_a_restart_of_a_view_with_a_function_compares_its_version(
    orders: Source, customers: Source, run: Callable[..., JoinQuery]
) -> None:
    def view(function: Callable[[int], int]) -> Any:
        rows = appends(orders.stream(), name="orders").withColumn("fee", F.udf(function, "long")("order_id"))
        return rows.join(appends(customers.stream(), name="customers"), on="customer_id")

    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    run(view(lambda x: x * 2), sink, udfVersion="1")
    run(view(lambda x: 2 * x), sink, udfVersion="1")

    with pytest.raises(StateError, match="their udfVersion"):
        run(view(lambda x: x * 3), sink, udfVersion="2")

    assert "a restart compares their names; set udfVersion" in view(lambda x: x * 2).placed.query_explanation(
        None, QueryOptions.draft({"buckets": 1})
    )


def test_functions_of_the_source_are_found(orders: Source) -> None:
    rows = (
        orders.stream()
        .withColumn("x", F.udf(lambda x: x + 1, "long")("order_id"))
        .where(F.udf(lambda x: x > 0, "boolean")("ts"))
    )

    assert sorted(one.name for one in functions_in(rows)) == ["<lambda>", "<lambda>"]


@pytest.mark.long
def test_a_changed_delete_condition_is_refused(orders: Source, customers: Source, run: Callable[..., JoinQuery]) -> None:
    from zset_join.spark import changes

    def view(deletes: str) -> Any:
        left = changes(
            orders.stream(),
            name="orders",
            keys=["order_id"],
            sequence_by="ts",
            apply_as_deletes=deletes,
            except_column_list=["op"],
        )
        right = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts", except_column_list=["ts"])
        return left.join(right, on="customer_id", how="left")

    orders.add(("i", 1, 10, "pen", 1))
    run(view("op = 'd'"), Collected())

    with pytest.raises(StateError, match="operation") as refused:
        run(view("op in ('d', 'x')"), Collected())

    assert refused.value.code == "QUERY_CHANGED"


def test_functions_of_one_name_in_two_branches_stay_two(orders: Source) -> None:
    rows = appends(orders.stream(), name="orders")
    twice, thrice = (
        rows.select(F.udf(function, "long")("order_id").alias("x")) for function in (lambda x: 2 * x, lambda x: 3 * x)
    )

    found = twice.union(thrice).placed.functions

    assert [one.name for one in found] == ["<lambda>", "<lambda>"]
    assert found[0] != found[1]
