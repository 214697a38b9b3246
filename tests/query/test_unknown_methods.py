"""Methods of PySpark that a view in process has not: each names what to use instead, and breaks no protocol of Python."""

from __future__ import annotations

import copy

import pyarrow as pa
import pytest

from zset_join.core.errors import MissingMethodError
from zset_join.pipeline import View, changes
from zset_join.query.grouping import GroupedView
from zset_join.query.unknown_methods import missing_on_view

ORDERS = changes("orders", {"id": pa.int64(), "total": pa.int64()}, keys="id")


def test_every_method_of_a_data_frame_is_there_or_names_what_to_use() -> None:
    import pyspark.sql as pyspark

    names = [name for name in dir(pyspark.DataFrame) if not name.startswith("_") and not hasattr(View, name)]
    unsaid = [name for name in names if not isinstance(missing_on_view(name), MissingMethodError)]
    about_spark_alone = {"executionInfo", "inputFiles", "isLocal", "sameSemantics", "semanticHash", "sparkSession"}
    assert set(unsaid) <= about_spark_alone | {"withMetadata"}


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("show", r"pipeline.view\(\)"),
        ("writeStream", "outputs="),
        ("count", "agg"),
        ("orderBy", "has no order"),
        ("dropDuplicatesWithinWatermark", r"dropDuplicates\(\)"),
        ("createOrReplaceTempView", "CREATE VIEW"),
    ],
)
def test_a_method_that_is_not_there_names_the_cure(name: str, cure: str) -> None:
    with pytest.raises(MissingMethodError, match=f"no {name}, .*{cure}") as missing:
        getattr(ORDERS, name)
    assert missing.value.code == "MISSING_METHOD"


def test_grouped_rows_name_the_aggregates() -> None:
    with pytest.raises(MissingMethodError, match=r"agg\(F.count"):
        ORDERS.groupBy("id").pivot("total")


@pytest.mark.parametrize("rows", [ORDERS, ORDERS.groupBy("id")])
def test_other_names_are_plain_attribute_errors_and_copies_work(rows: View | GroupedView) -> None:
    assert not hasattr(rows, "shwo")
    with pytest.raises(AttributeError, match="'shwo'"):
        rows.shwo  # noqa: B018
    assert type(copy.copy(rows)) is type(rows)
