"""What `changes` and `appends` accept, and how they refuse the rest."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Source
from tests.sweeps import for_each
from zset_join.core.errors import PlanError, ZsetJoinError
from zset_join.runners.spark.api.streams import REJECT, WEIGHT
from zset_join.spark import appends, changes


def test_arguments_become_the_columns_keys_and_mode_of_a_stream(orders: Source, customers: Source) -> None:
    """Columns are all unless some are chosen, orders that are left out are carried hidden, and weights and kinds make changelogs."""
    stream = changes(orders.stream(), name="orders", keys="order_id", sequence_by="ts", apply_as_deletes="op = 'd'")

    assert stream.stream.columns == ("op", "order_id", "customer_id", "item", "ts")
    assert (stream.stream.mode, stream.stream.keys, stream.stream.sequence_by, stream.stream.hidden) == (
        "upsert",
        ("order_id",),
        ("ts",),
        (),
    )

    stream = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", except_column_list=["op", "ts"])

    assert stream.stream.columns == ("order_id", "customer_id", "item")
    assert stream.stream.sequence_by == stream.stream.hidden == ("__sequence_0",)
    assert stream.stream.schema.field("__sequence_0").type == pa.int64()

    stream = changes(
        orders.stream(),
        name="orders",
        keys=[F.col("order_id")],
        sequence_by=F.struct("ts", "op"),
        apply_as_deletes=F.col("op") == "d",
    )

    assert stream.stream.keys == ("order_id",)
    assert pa.types.is_struct(stream.stream.schema.field("__sequence_0").type)

    stream = changes(orders.stream(), name="orders", keys=["order_id"], column_list=["item", "order_id"])

    assert stream.stream.columns == ("item", "order_id")

    stream = changes(customers.stream(), name="ledger", weight_column="ts")

    assert (stream.stream.mode, stream.stream.columns, stream.stream.keys) == ("changelog", ("customer_id", "name"), ())
    assert stream.stream.prepared.columns[-3:] == [WEIGHT, REJECT, "__raw"]

    keyed = changes(orders.stream(), name="keyed", keys=["order_id"], sequence_by="ts", row_kind_column="op")
    plain = changes(orders.stream(), name="plain", row_kind_column="op")

    assert (keyed.stream.mode, plain.stream.mode) == ("upsert", "changelog")
    assert "op" not in keyed.stream.columns

    stream = appends(customers.stream(), name="clicks")

    assert (stream.stream.mode, stream.stream.columns) == ("append", ("customer_id", "name", "ts"))


@for_each(
    ("arguments", "complaint"),
    [
        ({}, "keys is missing; an upsert replaces the row with the same key"),
        ({"keys": ["id"]}, r"keys=\['id'\] names \['id'\], which is not among its columns \['op', 'order_id'"),
        ({"keys": ["order_id", "order_id"]}, "twice"),
        ({"keys": [7]}, "keys holds 7; expected column names"),
        ({"keys": ["order_id"], "except_column_list": ["order_id"]}, "leaves out"),
        ({"keys": ["order_id"], "column_list": ["order_id"], "except_column_list": ["op"]}, "were both given"),
        ({"keys": ["order_id"], "sequence_by": ["when"]}, r"sequence_by=\['when'\] names"),
        ({"keys": ["order_id"], "sequence_by": "when"}, "cannot resolve sequence_by='when'"),
        ({"keys": ["order_id"], "apply_as_deletes": "op ="}, "cannot resolve apply_as_deletes='op ='"),
        ({"keys": ["order_id"], "apply_as_deletes": "kind = 'd'"}, "Spark cannot resolve"),
        ({"keys": ["order_id"], "apply_as_deletes": "rand() < 0.5"}, "not deterministic"),
        ({"keys": ["order_id"], "apply_as_deletes": "op = 'd'", "row_kind_column": "op"}, "both set the operation of a row"),
        ({"weight_column": "item"}, r'weight_column="item" is of type string; a weight is a whole number'),
        ({"weight_column": "w"}, r"weight_column=\['w'\] names"),
        ({"row_kind_column": "ts"}, r'row_kind_column="ts" is of type bigint'),
        ({"weight_column": "ts", "sequence_by": "ts"}, "sequence_by orders the changes of one key"),
    ],
)
def test_a_refused_argument_names_itself_its_value_and_the_cure(
    orders: Source, arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        changes(orders.stream(), name="orders", **arguments)


@for_each("name", ["", "  ", None, "stream"])
def test_a_stream_needs_a_name_of_its_own(orders: Source, name: Any) -> None:
    with pytest.raises(ZsetJoinError, match="name="):
        appends(orders.stream(), name=name)


def test_a_dataframe_that_can_be_no_stream_is_refused(spark: SparkSession, orders: Source) -> None:
    with pytest.raises(PlanError, match=r"is a static DataFrame.*readStream"):
        appends(spark.range(3), name="numbers")

    doubled = orders.stream().selectExpr("item", "order_id as Item")

    with pytest.raises(PlanError, match="ignoring case"):
        appends(doubled, name="orders")

    strange = orders.stream().selectExpr("item", "make_interval(0, ts) as span")

    with pytest.raises(PlanError, match='column "span" has type interval'):
        appends(strange, name="orders")


def test_something_else_than_a_dataframe_is_refused() -> None:
    with pytest.raises(PlanError, match="expected a streaming DataFrame, got list"):
        appends([1, 2], name="numbers")  # type: ignore[arg-type]  # the mistake under test
