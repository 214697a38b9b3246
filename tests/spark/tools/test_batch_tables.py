"""The batch query of every kind of stage means the same to Spark as to DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from property_tests.batch_views import VIEWS, ran
from zset_join.pipeline import Pipeline
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.local.history import InputHistory
from zset_join.runners.local.questions import _changes_of, _connection, _register
from zset_join.runners.spark.planning.job_settings import job_settings
from zset_join.runners.spark.tools.batch_sources import BatchTables, table_prefix
from zset_join.tools.batch import DUCKDB, EPOCHS, SPARK, BatchTimes, batch_parts, one_statement, source_name

ALIKE = {"inner", "right", "left_semi", "everything"}
"""Views whose query is that of another one but for a word."""

VIEWS_OF_A_JOB = 5
"""The plan of all of them in one job takes hundreds of MB of the driver."""

SMALL_JOB = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


def lines(number: str, rows: DataFrame, weight: int) -> DataFrame:
    """Return rows as lists of texts, each with a weight."""
    texts: list[Column] = [F.col(name).cast("string") for name in rows.columns]
    return rows.select(F.lit(number).alias("view"), F.array(*texts).alias("row"), F.lit(weight).alias("weight"))


def batch_view(plan: QueryPlan, history: InputHistory, times: Sequence[BatchTimes]) -> pa.Table:
    """Return the view as DuckDB computes it from everything that arrived."""
    with _connection() as connection:
        _register(connection, plan, history)
        table = connection.sql(one_statement(batch_parts(plan, times, DUCKDB))).to_arrow_table()
        return table.rename_columns(plan.output.schema.names).cast(plan.output.schema)


def compared(spark: SparkSession, name: str, pipeline: Pipeline, tables: BatchTables) -> Iterator[DataFrame]:
    """Yield what Spark makes of all that arrived, and what DuckDB does, against each other."""
    plan, history = pipeline.plan, pipeline._kept_inputs("verify()")
    times = [
        BatchTimes(watermark_us=mark, processing_time_us=pipeline._processing_time_us)
        for mark in pipeline._watermarks.known.stages
    ]
    prefix = table_prefix()
    for number, source in enumerate(plan.sources):
        tables.add(source_name(number, prefix), spark.createDataFrame(_changes_of(source, history)))
    epochs = pa.table([[one.epoch for one in history], [one.processing_time_us for one in history]], names=["e", "t"])
    tables.add(prefix + EPOCHS, spark.createDataFrame(epochs))
    made = tables.view(batch_parts(plan, times, SPARK, prefix=prefix))
    expected = batch_view(plan, history, times)
    yield lines(name, made, 1)
    yield lines(name, spark.createDataFrame(expected).toDF(*made.columns), -1)
    assert expected.num_rows, name


def test_every_kind_of_stage_is_to_spark_what_it_is_to_duckdb(spark: SparkSession) -> None:
    found = []
    views = list(enumerate(sorted(VIEWS.keys() - ALIKE)))
    for first in range(0, len(views), VIEWS_OF_A_JOB):
        some = views[first : first + VIEWS_OF_A_JOB]
        with BatchTables(spark) as tables, job_settings(spark, SMALL_JOB):
            parts = [part for seed, name in some for part in compared(spark, name, ran(VIEWS[name], seed), tables)]
            sums = reduce(DataFrame.unionAll, parts).groupBy("view", "row").agg(F.sum("weight").alias("weight"))
            found += sums.where("weight <> 0").collect()

    assert found == []
