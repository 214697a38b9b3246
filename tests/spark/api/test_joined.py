"""What `join` accepts, the schema it returns, and how it refuses the rest."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Source
from tests.sweeps import for_each
from zset_join.core.errors import PlanError
from zset_join.expressions import left, right
from zset_join.spark import ChangeStream, appends, changes


@pytest.fixture
def pair(orders: Source, customers: Source) -> tuple[ChangeStream, ChangeStream]:
    """Give orders keyed by order_id and customers keyed by customer_id."""
    return (
        changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", except_column_list=["op", "ts"]),
        changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts"),
    )


def test_a_join_has_the_columns_and_routes_that_its_keys_need(
    pair: tuple[ChangeStream, ChangeStream], capsys: pytest.CaptureFixture[str]
) -> None:
    joined = pair[0].join(pair[1], on="customer_id", how="left")

    assert joined.columns == ["customer_id", "order_id", "item", "name", "ts"]
    assert joined.schema["name"].dataType.simpleString() == "string"

    joined = pair[0].join(pair[1], on=[("customer_id", "customer_id")])

    assert joined.columns == ["order_id", "customer_id", "item", "customer_id_right", "name", "ts"]

    assert not [name for name in pair[0].join(pair[1], on="customer_id", how="full").columns if name.startswith("__")]

    stages = pair[0].join(pair[1], on="customer_id").placed.planned_stages

    assert [(one.stage.kind, one.reader.side) for one in stages if one.stage.forwards] == [("route", 0)]

    pair[0].join(pair[1], on="customer_id", how="left").explain()

    assert "Route by primary key (order_id)" in capsys.readouterr().out


@for_each(
    ("arguments", "complaint"),
    [
        ({"on": None}, "names no key column; a cross join has no bounded change"),
        ({"on": []}, "names no key column"),
        ({"on": "region"}, r"on='region' names \"region\", which \"orders\" does not have"),
        ({"on": [("customer_id", "id")]}, r"names \"id\", which \"customers\" does not have"),
        ({"on": 5}, "on=5 is not understood"),
        ({"on": [("a", "b", "c")]}, "is not understood"),
        ({"on": "customer_id", "how": "cross"}, "how='cross'"),
        ({"on": "customer_id", "null_safe": [True, False]}, "one of them for each of the 1 key columns"),
        ({"on": "customer_id", "condition": left("itemm") < right("name")}, "itemm"),
        ({"on": [("item", "customer_id")]}, "cast one of them"),
    ],
)
def test_a_refused_argument_names_itself_its_value_and_the_cure(
    pair: tuple[ChangeStream, ChangeStream], arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        pair[0].join(pair[1], **arguments)


def test_a_side_that_cannot_be_joined_is_refused_with_a_way_out(
    pair: tuple[ChangeStream, ChangeStream], customers: Source
) -> None:
    with pytest.raises(PlanError, match=r"is not understood; expected a column name"):
        pair[0].join(pair[1], on=F.col("customer_id") == F.col("customer_id"))

    with pytest.raises(PlanError, match=r"got DataFrame. Wrap the DataFrame first"):
        pair[0].join(customers.stream(), on="customer_id")  # type: ignore[arg-type]  # the mistake under test

    with pytest.raises(PlanError, match='several streams of the query are called "customers"'):
        appends(customers.stream(), name="customers").join(appends(customers.stream(), name="customers"), on="customer_id")

    shouting = appends(customers.stream().selectExpr("customer_id", "name as NAME"), name="shouting")

    with pytest.raises(PlanError, match=r"\['NAME', 'name'\].*differ only by case"):
        shouting.join(appends(customers.stream(), name="customers"), on="customer_id")
