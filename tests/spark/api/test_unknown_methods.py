"""Methods of PySpark that are not here say what to use."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import join_of
from tests.spark.conftest import Source
from zset_join.errors import MissingMethodError, PlanError
from zset_join.spark import ChangeStream, appends
from zset_join.spark.api.unknown_methods import missing_on_stream, missing_on_view, missing_on_writer


@pytest.mark.parametrize(("method", "says"), [("show", "writeStream"), ("orderBy", "sort"), ("explode_all", "no attribute")])
def test_a_view_says_what_to_use(method: str, says: str) -> None:
    error = missing_on_view(method)

    assert isinstance(error, AttributeError)
    assert says in str(error)


def test_a_writer_says_what_to_use() -> None:
    assert "toDelta" in str(missing_on_writer("toTable"))
    assert "[MISSING_METHOD]" in str(missing_on_writer("outputMode"))


def test_views_and_writers_raise_them_and_hasattr_says_no(orders: Source, customers: Source) -> None:
    view = join_of(orders, customers)

    with pytest.raises(MissingMethodError, match="writeStream"):
        view.show()
    with pytest.raises(MissingMethodError, match="toDelta"):
        view.writeStream.toTable("t")
    assert not hasattr(view, "show")


@pytest.mark.parametrize(("column", "code"), [("", "COLUMN_NAME"), (" ", "COLUMN_NAME"), ("_zset_weight", "RESERVED_COLUMN")])
def test_names_that_cannot_be_columns_are_refused(
    spark: SparkSession, orders: Source, customers: Source, column: str, code: str
) -> None:
    with pytest.raises(PlanError) as of_stream:
        appends(orders.stream().withColumn(column, F.lit(1)), name="odd")
    with pytest.raises(PlanError) as of_view:
        join_of(orders, customers).withColumn(column, F.lit(1))

    assert (of_stream.value.code, of_view.value.code) == (code, code)


@pytest.mark.parametrize(
    ("method", "cure"),
    [
        ("groupBy", "SELECT ... GROUP BY"),
        ("writeStream", "dedup"),
        ("agg", "join it with another"),
        ("where", r"on the DataFrame, before changes\(...\)"),
        ("select", "on the DataFrame"),
        ("union", "union the DataFrames"),
        ("withWatermark", "watermark="),
    ],
)
def test_a_stream_alone_names_what_makes_a_view_of_it(method: str, cure: str) -> None:
    with pytest.raises(MissingMethodError, match=f"a stream of changes has no {method}, .*{cure}"):
        raise missing_on_stream(method)


def test_a_stream_of_changes_has_these_messages() -> None:
    stream = object.__new__(ChangeStream)
    with pytest.raises(MissingMethodError, match="groupBy"):
        stream.groupBy("k")
    assert not hasattr(stream, "gruopBy")
