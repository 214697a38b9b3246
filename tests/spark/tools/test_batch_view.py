"""What Spark makes of whole tables, stage by stage."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from zset_join import Relation
from zset_join.spark.tools.batch_view import batch_stage
from zset_join.stages import JoinStage

LEFT = Relation(name="l", schema=pa.schema({"id": pa.int64(), "__key_0": pa.string()}), join_key=("__key_0",), mode="changelog")
RIGHT = Relation(
    name="r", schema=pa.schema({"name": pa.string(), "__key_0": pa.string()}), join_key=("__key_0",), mode="changelog"
)


def test_a_computed_key_is_compared_and_not_shown(spark: SparkSession) -> None:
    stage: Any = JoinStage(left=LEFT, right=RIGHT, how="left", hidden=(("__key_0",), ("__key_0",)))
    left = spark.createDataFrame([(1, "a", 1), (2, "b", 2)], "id long, __key_0 string, __weight long")
    right = spark.createDataFrame([("Ada", "a", 3)], "name string, __key_0 string, __weight long")

    made = batch_stage(stage, [left, right], watermark=None)

    assert made.columns == ["id", "name", "__weight"]
    assert sorted(map(tuple, made.collect())) == [(1, "Ada", 3), (2, None, 2)]
