"""The batch query of every kind of stage means the same to Spark as to DuckDB."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join import Relation
from zset_join.expressions import Call, col, left, lit, right
from zset_join.pipeline import PROCESSING_TIME, Pipeline, StateTtl, View, appends, changes
from zset_join.pipeline import functions as ZF  # noqa: N812 - as users write F
from zset_join.pipeline.verification import _changes_of, batch_view
from zset_join.spark.tools.batch_tables import BatchTables, table_prefix
from zset_join.stages import JoinStage
from zset_join.tools.batch import EPOCHS, SPARK, BatchTimes, batch_parts, source_name

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAY = "1 day"
NAMES = {"l": ("id", "t", "x"), "r": ("rid", "u", "y")}
NUMBER, DATE, STAMP = pa.int64(), pa.date32(), pa.timestamp("us")


def columns(name: str, time: pa.DataType = NUMBER) -> dict[str, pa.DataType]:
    """Return a number, a time and an amount, by names that are the source's own, and a key."""
    number, at, amount = NAMES[name]
    return {number: NUMBER, "k": pa.string(), at: time, amount: pa.decimal128(9, 2)}


def upserts(name: str) -> View:
    more = {"s": NUMBER, "op": pa.string()}
    deletes = col("op") == "d"
    return changes(
        name,
        columns(name) | more,
        keys=NAMES[name][0],
        sequence_by="s",
        apply_as_deletes=deletes,
        except_column_list=["s", "op"],
    )


def log(name: str, time: pa.DataType = NUMBER, delay: Any = 1) -> View:
    return changes(name, {**columns(name, time), "w": NUMBER}, weight_column="w", watermark=(NAMES[name][1], delay))


def events(name: str, time: pa.DataType = NUMBER, delay: Any = 1) -> View:
    return appends(name, columns(name, time), watermark=(NAMES[name][1], delay))


def versions(view: View) -> View:
    return view.dedup(keys="k", order_by="u", keep="last")


def joined(one: View, other: View, how: str) -> View:
    near = (left("t") <= right("u")) | (left("x") < right("y")) | (Call("instr", (left("k"), lit("c"))) == 1)
    return one.join(other, on="k", how=how, condition=near)


ON_TIME: dict[str, Any] = {"on": "k", "as_of": "t"}
BY_CLOCK: dict[str, Any] = {"on": "k", "as_of": PROCESSING_TIME, "snapshot": "previous"}
AS_OF: dict[str, Any] = {"on": "k", "left_time": "t", "right_time": "u"}
VIEWS: dict[str, View] = {
    **{how: joined(upserts("l"), log("r"), how) for how in ("inner", "left", "right", "full", "left_semi", "left_anti")},
    "groups": log("l").groupBy("k").agg(
        ZF.count().alias("n"), ZF.sum("x").alias("total"), ZF.avg("x").alias("mean"), ZF.min_by("id", "t").alias("first"),
        ZF.max_by("id", "t").alias("last"), ZF.count_distinct("t").alias("times"), ZF.max("t").alias("top"),
        ZF.collect_set("t").alias("set"), ZF.collect_list("id").alias("list"),
    ),
    "everything": upserts("l").where(col("t") > 1).agg(ZF.sum("t").alias("total")),
    "distinct behind steps": log("l").where(col("t") > 2).select("k", u=col("t") * 2).distinct(),
    "dedup": log("r").dedup(keys="k", order_by=["u desc"], keep="first", n=2),
    "as of": log("l").join_asof(log("r"), **AS_OF, op=">=", how="left", tolerance=2),
    "as of, days": log("l", DATE, DAY).join_asof(log("r", DATE, DAY), **AS_OF, op="<", tolerance="2 days"),
    "once": events("l").temporal_join(versions(log("r")), **ON_TIME, how="left", emit="once"),
    "on watermark": events("l", STAMP, DAY).temporal_join(versions(log("r", STAMP, DAY)), **ON_TIME, emit="on_watermark"),
    "late joined": events("l").temporal_join(
        versions(log("r")), **ON_TIME, how="left", emit="on_watermark", late="join", condition=left("x") <= right("y")
    ),
    "eager": log("l", DATE, DAY).temporal_join(
        versions(log("r", DATE, DAY)), **ON_TIME, how="left", emit="eager", keep_probe_for="36 hours"
    ),
    "by the clock": events("l").temporal_join(upserts("r"), **BY_CLOCK, how="left", condition=left("t") >= right("u")),
    "versions by the clock": events("l", STAMP, DAY).temporal_join(versions(events("r", STAMP, DAY)), **BY_CLOCK),
    "what ends": events("l").join(upserts("r"), on="k", how="full", state_ttl=(StateTtl(2, by="event"), None)),
    "what ends by the clock": events("l").join(upserts("r"), on="k", state_ttl=("4 days", None)),
    "a chain": log("l").groupBy("k").count().join(upserts("r"), on="k", how="full").dedup(keys="k", order_by=["u", "rid"]),
    "a union": log("l").select("k", "t").union(events("r").select("k", t=col("u"))).groupBy("k").count(),
}  # fmt: skip


def ran(view: View, seed: int) -> Pipeline:
    """Return a pipeline after some epochs of random changes."""
    draw, number = random.Random(seed), 0
    pipeline = Pipeline(view, keep_inputs=True)
    live: dict[str, list[dict[str, Any]]] = {"l": [], "r": []}
    for epoch in range(5):
        deltas: dict[str, list[dict[str, Any]]] = {}
        for source in pipeline.plan.sources:
            name, schema = source.name, source.relation.schema
            is_upsert, has_weights = source.relation.mode == "upsert", source.relation.mode == "changelog"
            rows = []
            for _ in range(draw.randint(3, 6)):
                number += 1
                at = 3 * epoch + draw.randint(-3, 3)
                kind = schema.field(NAMES[name][1]).type
                day = START + dt.timedelta(days=at)
                time = at if pa.types.is_integer(kind) else day.date() if pa.types.is_date(kind) else day.replace(tzinfo=None)
                values = (
                    draw.randint(1, 8) if is_upsert else number,
                    time,
                    draw.choice([None, Decimal("1.25"), Decimal("2.5")]),
                )
                key = draw.choice("abc") if name == "r" else draw.choice(["a", "b", "c", None])
                row = {"k": key, **dict(zip(NAMES[name], values, strict=True))}
                rows.append(row | ({"s": number, "op": draw.choice("uuud")} if is_upsert else {}))
            if has_weights:
                live[name] += rows
                gone = draw.sample(live[name], 1)[0]
                live[name].remove(gone)
                rows = [row | {"w": 1} for row in rows] + [gone | {"w": -1}]
            deltas[name] = rows
        pipeline.step(deltas, processing_time=int((START + dt.timedelta(days=3 * epoch)).timestamp()) * 1_000_000)
    return pipeline


def lines(number: str, rows: DataFrame, weight: int) -> DataFrame:
    """Return rows as lists of texts, each with a weight."""
    texts: list[Column] = [F.col(name).cast("string") for name in rows.columns]
    return rows.select(F.lit(number).alias("view"), F.array(*texts).alias("row"), F.lit(weight).alias("weight"))


def compared(spark: SparkSession, name: str, pipeline: Pipeline, tables: BatchTables) -> Iterator[DataFrame]:
    """Yield what Spark makes of all that came, and what DuckDB does, against each other."""
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
    parts: list[DataFrame] = []
    with BatchTables(spark, {}) as tables:
        for seed, (name, view) in enumerate(VIEWS.items()):
            parts += compared(spark, name, ran(view, seed), tables)
        sums = reduce(DataFrame.unionAll, parts).groupBy("view", "row").agg(F.sum("weight").alias("weight"))
        found = sums.where("weight <> 0").collect()

    assert found == []


def test_a_computed_key_is_compared_and_not_shown(spark: SparkSession) -> None:
    key = pa.field("__key_0", pa.string())
    one = Relation(name="l", schema=pa.schema([("id", NUMBER), key]), join_key=("__key_0",), mode="changelog")
    other = Relation(name="r", schema=pa.schema([("name", pa.string()), key]), join_key=("__key_0",), mode="changelog")
    stage = JoinStage(left=one, right=other, how="left", hidden=(("__key_0",), ("__key_0",)))
    ids = spark.createDataFrame([("a", 1), ("b", 2)], "__key_0 string, id long")
    names = spark.createDataFrame([("Ada", "a"), ("Ada", "a")], "name string, __key_0 string")

    with BatchTables(spark, {}) as tables:
        made = tables.rows_of(stage, [ids, names])

    assert sorted(map(tuple, made.collect())) == [(1, "Ada"), (1, "Ada"), (2, None)]
