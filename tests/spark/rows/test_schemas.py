"""Types as the state keeps them: what Arrow does not hold comes back, and strings are compared by their bytes or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.sweeps import for_each
from zset_join.core.errors import PlanError
from zset_join.expressions import left, right
from zset_join.lookup.sources.function import FunctionSource
from zset_join.pipeline import PROCESSING_TIME
from zset_join.runners.spark.rows.schemas import arrow_schema, spark_schema
from zset_join.spark import ChangeStream, JoinedStream, JoinQuery, appends, changes
from zset_join.spark import functions as Z  # noqa: N812 - as the docs write it

LCASE = "collate(name, 'UTF8_LCASE')"
NESTED = {
    "plain": LCASE,
    "array": f"array({LCASE})",
    "struct": f"named_struct('x', {LCASE})",
    "array of structs": f"array(named_struct('x', {LCASE}, 'y', 1))",
    "rtrim": "collate(name, 'UTF8_BINARY_RTRIM')",
    "icu": "collate(name, 'UNICODE_CI')",
}


@pytest.fixture
def people(spark: SparkSession, tmp_path: Path) -> Callable[..., DataFrame]:
    """Return a function that streams (id, name), the name by an expression."""
    (tmp_path / "people").mkdir()
    rows = [{"id": 1, "name": "ABC"}, {"id": 2, "name": "abc"}, {"id": 3, "name": "x"}]
    (tmp_path / "people" / "1.json").write_text("\n".join(map(json.dumps, rows)))

    def stream(expression: str = LCASE) -> DataFrame:
        found = spark.readStream.schema("id long, name string").json(str(tmp_path / "people"))
        return found.withColumn("name", F.expr(expression))

    return stream


def joined(people: Callable[..., DataFrame], expression: str = LCASE) -> JoinedStream:
    names = appends(people(expression), name="names")
    return changes(people("name").select("id"), name="ids", keys=["id"]).join(names, on="id", how="left")


REFUSED: dict[str, Callable[[DataFrame], Any]] = {
    "keys": lambda df: changes(df, name="p", keys=["name"]),
    "keys of appends": lambda df: appends(df, name="p", keys=["name"]),
    "sequence_by": lambda df: changes(df, name="p", keys=["id"], sequence_by="name"),
    "sequence_by an expression": lambda df: changes(df, name="p", keys=["id"], sequence_by=F.struct("name")),
    "join key": lambda df: appends(df, name="p").join(appends(df, name="q"), on="name"),
    "condition": lambda df: appends(df, name="p").join(
        appends(df, name="q"), on=[("id", "id")], condition=left("name") < right("name")
    ),
    "groupBy": lambda df: two(df).groupBy("name").count(),
    "groupBy a computed column": lambda df: two(df).groupBy(F.col("name").alias("n")).count(),
    "distinct": lambda df: two(df).select("name").distinct(),
    "max": lambda df: two(df).agg(Z.max("name").alias("m")),
    "a Column of Spark's": lambda df: two(df).agg(F.min("name").alias("m")),
    "count_distinct": lambda df: two(df).agg(Z.count_distinct("name").alias("m")),
    "join with state_ttl": lambda df: appends(df, name="p").join(appends(df, name="q"), on="name", state_ttl="1 day"),
    "as-of join": lambda df: timed(df).join_asof(timed(df, "q"), on="name", left_time="at", right_time="at"),
    "temporal join": lambda df: timed(df).temporal_join(versions(df), on=[("id", "id"), ("name", "name")]),
    "condition of a temporal join": lambda df: timed(df).temporal_join(
        versions(df), on="id", condition=left("name") == right("name")
    ),
    "temporal join by processing time": lambda df: timed(df).temporal_join(versions(df), on="name", as_of=PROCESSING_TIME),
    "lookup join": lambda df: appends(df, name="p").lookup_join(TABLE, on="name"),
    "lookup join with what is bytes here": lambda df: appends(df.select(F.lit("a").alias("name")), name="p").lookup_join(
        df.sparkSession.sql("SELECT collate('a', 'UTF8_LCASE') AS name, 1 AS v"), on="name"
    ),
    "dedup": lambda df: timed(df).dedup("name", order_by="at"),
    "an expression of the engine": lambda df: two(df).select(x=left("name") == "abc").writeStream,
    "dedup of a view": lambda df: two(df).dedup("name", order_by="id"),
}


def timed(df: DataFrame, name: str = "p") -> ChangeStream:
    return appends(df.withColumn("at", F.col("id")), name=name, watermark=("at", 0))


def versions(df: DataFrame) -> ChangeStream:
    return changes(df.withColumn("at", F.col("id")), name="v", keys=["id"], watermark=("at", 0))


TABLE = FunctionSource(name="t", schema=pa.schema({"name": pa.string(), "v": pa.int64()}), function=lambda keys: keys)


def two(df: DataFrame) -> JoinedStream:
    return appends(df, name="p").join(appends(df.select("id"), name="q"), on="id")


@for_each("use", REFUSED)
def test_a_collation_is_refused_where_equality_or_order_matters(
    people: Callable[..., DataFrame], use: Callable[[DataFrame], Any]
) -> None:
    with pytest.raises(PlanError, match="UTF8_BINARY") as refused:
        use(people())

    assert refused.value.code == "COLLATION"


@for_each("nested", NESTED)
def test_a_collation_is_found_wherever_it_is_nested(people: Callable[..., DataFrame], nested: str) -> None:
    with pytest.raises(PlanError, match=r"UTF8_LCASE|UNICODE_CI|UTF8_BINARY_RTRIM") as refused:
        two(people(nested)).select("name").distinct()

    assert refused.value.code == "COLLATION"


def test_bytes_and_the_cures_of_the_message_are_taken(people: Callable[..., DataFrame]) -> None:
    by_bytes = people("collate(collate(name, 'UTF8_LCASE'), 'UTF8_BINARY')")
    lowered = people().withColumn("name", F.expr("lower(collate(name, 'UTF8_BINARY'))"))

    assert changes(by_bytes, name="p", keys=["name"]).stream.keys == ("name",)
    assert changes(lowered, name="p", keys=["name"]).stream.keys == ("name",)


@for_each("nested", NESTED)
def test_a_view_keeps_the_collation_of_columns_that_pass_by(people: Callable[..., DataFrame], nested: str) -> None:
    view = joined(people, nested)

    assert view.schema["name"].dataType.simpleString() == people(nested).schema["name"].dataType.simpleString()


def test_expressions_are_evaluated_under_the_collation_as_the_batch_query_does(
    spark: SparkSession, people: Callable[..., DataFrame], run: Callable[..., JoinQuery]
) -> None:
    found: list[Any] = []
    rows = appends(people(), name="p").where("name = 'abc'").withColumn("starts", F.col("name").startswith("A"))
    view = rows.join(appends(people().select("id"), name="q"), on="id")

    query = run(view, lambda df, _: found.extend(df.collect()))

    assert sorted((row["id"], row["name"], row["starts"]) for row in found) == [(1, "ABC", True), (2, "abc", True)]
    actual = spark.createDataFrame([tuple(row) for row in found], "id long, name string, starts boolean, _weight long")
    assert query.verify(actual_df=actual).equal
    assert not query.verify(actual_df=actual.withColumn("name", F.lower("name"))).equal  # unequal bytes are a difference


@for_each(
    "expression",
    ["interval 1 day", "interval '1:02' hour to minute", "array(interval 1 hour)", "time'01:02:03'", "named_struct('a', 1S)"],
)
def test_types_come_back_as_they_were(spark: SparkSession, expression: str) -> None:
    given = spark.sql(f"select {expression} as x").schema

    back = spark_schema(arrow_schema(given, relation="r"))

    assert back["x"].dataType.simpleString() == given["x"].dataType.simpleString()


@for_each("expression", ["parse_json('1')", "array(parse_json('1'))", "interval 1 month"])
def test_types_that_would_not_come_back_are_refused(spark: SparkSession, expression: str) -> None:
    given = spark.sql(f"select {expression} as x").schema

    with pytest.raises(PlanError, match="and back") as refused:
        arrow_schema(given, relation="r")

    assert refused.value.code == "COLUMN_TYPE"
