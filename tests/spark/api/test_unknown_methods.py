"""Methods of PySpark that are not here name what to use."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import join_of
from tests.spark.conftest import Source
from tests.sweeps import for_each
from zset_join.core.errors import MissingMethodError, PlanError
from zset_join.runners.spark.api.unknown_methods import missing_on_view, missing_on_writer
from zset_join.spark import appends


@for_each(("method", "expected"), [("show", "writeStream"), ("orderBy", "sort"), ("explode_all", "no attribute")])
def test_a_view_names_what_to_use(method: str, expected: str) -> None:
    error = missing_on_view(method)

    assert isinstance(error, AttributeError)
    assert expected in str(error)


def test_a_writer_names_what_to_use() -> None:
    assert "toTable" in str(missing_on_writer("clusterBy"))
    assert "[MISSING_METHOD]" in str(missing_on_writer("outputMode"))


def test_views_and_writers_raise_them_and_one_stream_is_a_view_with_all_words(orders: Source, customers: Source) -> None:
    view = join_of(orders, customers)

    with pytest.raises(MissingMethodError, match="writeStream"):
        view.show()
    with pytest.raises(MissingMethodError, match="toTable"):
        view.writeStream.clusterBy("t")
    assert not hasattr(view, "show")

    stream = appends(orders.stream(), name="orders")

    view = stream.where("order_id > 1").groupBy("item").count()

    assert [one.stage.kind for one in view.placed.planned_stages] == ["aggregate"]
    assert [one.stage.kind for one in stream.placed.planned_stages] == ["unchanged"]
    with pytest.raises(MissingMethodError, match="watermark="):
        stream.withWatermark("ts", "1 minute")


@for_each(("column", "code"), [("", "COLUMN_NAME"), (" ", "COLUMN_NAME"), ("_zset_weight", "RESERVED_COLUMN")])
def test_names_that_cannot_be_columns_are_refused(
    spark: SparkSession, orders: Source, customers: Source, column: str, code: str
) -> None:
    with pytest.raises(PlanError) as of_stream:
        appends(orders.stream().withColumn(column, F.lit(1)), name="odd")
    with pytest.raises(PlanError) as of_view:
        join_of(orders, customers).withColumn(column, F.lit(1))

    assert (of_stream.value.code, of_view.value.code) == (code, code)
