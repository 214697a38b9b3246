"""What is checked of a stream before a row is present; what `changes` and `appends` make of it is in `test_streams`."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from zset_join.core.errors import OptionError, PlanError
from zset_join.runners.spark.api.stream_arguments import check_dataframe, check_stream_name, column_names, table_columns


@pytest.mark.parametrize("name", ["", "  ", "reason", "Weight"])
def test_a_name_that_the_dead_letters_need_is_refused(name: str) -> None:
    with pytest.raises(OptionError) as refused:
        check_stream_name(name)

    assert refused.value.code == "NAME"


def test_columns_are_found_or_refused_and_a_table_must_stream(spark: SparkSession) -> None:
    rows = spark.range(1).selectExpr("id", "id AS b")

    assert column_names(rows, "id", "keys", "t") == ("id",)
    assert table_columns(rows, "t", None, ["b"], []) == ("id",)
    with pytest.raises(PlanError, match="keys") as refused:
        column_names(rows, ["c"], "keys", "t")
    assert refused.value.code == "UNKNOWN_COLUMN"

    with pytest.raises(PlanError) as refused:
        check_dataframe(spark.range(1), "t")

    assert refused.value.code == "NOT_STREAMING"
