"""The law: a plan of a classic session has the facts of the same plan of Spark Connect, or Connect has fewer.

Over Connect a step may count more columns as read, and omit what became of a column, its condition or its selection; what
it gives is the same. Whether a step that looks at more than one row is momentary does not count: it is refused. Where Connect
finds that an expression needs the time zone, and a classic session does not, is named in `MORE_ZONES`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.connect.conftest import Client
from zset_join.runners.spark.frames.facts import StepFacts, reader_of

ROWS = "id long, name string, at timestamp, price decimal(10,2), tags array<string>, more struct<a: int, b: string>"

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
STEPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a filter": lambda rows: rows.where("id > 3 AND name LIKE 'a%'"),
    "a filter of Columns": lambda rows: rows.where((F.col("id") % 2 == 0) & F.col("name").isNotNull()),
    "two filters": lambda rows: rows.where("id > 3").where("name = 'a'"),
    "a selection": lambda rows: rows.select("id", F.upper("name").alias("big"), F.col("price")),
    "a selection of texts": lambda rows: rows.selectExpr("id + 1 AS next", "name", "more.a AS a"),
    "a renaming": lambda rows: rows.select(F.col("id").alias("number"), "name"),
    "a column more": lambda rows: rows.withColumn("twice", F.col("price") * 2),
    "a column replaced": lambda rows: rows.withColumn("name", F.lower("name")),
    "columns renamed": lambda rows: rows.withColumnRenamed("name", "called").withColumnRenamed("id", "number"),
    "columns dropped": lambda rows: rows.drop("tags", "more"),
    "names replaced": lambda rows: rows.select("id", "name").toDF("a", "b"),
    "a star": lambda rows: rows.select("*", F.length("name").alias("long")),
    "a filter and a selection": lambda rows: rows.where("price > 1").select("id", "price"),
    "two of one column": lambda rows: rows.select("id", F.col("id").alias("again")),
    "a cast": lambda rows: rows.select(F.col("id").cast("string").alias("text"), "id"),
    "a cast by the time zone": lambda rows: rows.select(F.col("at").cast("string").alias("text")),
    "an hour": lambda rows: rows.select(F.hour("at").alias("hour")),
    "a text, implied": lambda rows: rows.selectExpr("concat(AT, '!') AS text", "id"),
    "a day of an instant": lambda rows: rows.select(F.dayofmonth("at").alias("day")),
    "days between": lambda rows: rows.select(F.date_diff(F.col("at"), F.lit("2024-01-01")).alias("days")),
    "an instant and a text": lambda rows: rows.where(F.col("at") > "2024-01-01"),
    "an instant and a date": lambda rows: rows.where("at > DATE'2024-01-01'"),
    "a cast of a new name": lambda rows: rows.select(F.col("at").alias("b")).select(F.col("b").cast("string").alias("t")),
    "instants compared": lambda rows: rows.where("at <= at").where(F.col("at") > F.lit(NOON)),
    "no instant": lambda rows: rows.where("at IS NOT NULL AND id > 1").select(F.col("at").isNull().alias("none"), "at"),
    "one of instants": lambda rows: rows.select(
        F.coalesce("at", F.lit(None)).alias("one"), F.expr("greatest(at, at)").alias("g")
    ),
    "an instant where": lambda rows: rows.select(
        F.when(F.col("id") > 1, F.col("at")).alias("when"), F.expr("id + 1").alias("n")
    ),
    "an instant in a struct": lambda rows: rows.select(F.struct("at").alias("inside")),
    "the time now": lambda rows: rows.where(F.col("at") < F.current_timestamp()),
    "today": lambda rows: rows.selectExpr("id", "current_date() AS today"),
    "chance": lambda rows: rows.where(F.rand() < 0.5),
    "a uuid": lambda rows: rows.selectExpr("uuid() AS one", "id"),
    "a window": lambda rows: rows.selectExpr("id", "row_number() OVER (PARTITION BY name ORDER BY id) AS n"),
    "rows of an array": lambda rows: rows.select("id", F.explode("tags").alias("tag")),
    "an aggregate": lambda rows: rows.groupBy("name").agg(F.sum("id")),
    "a limit": lambda rows: rows.limit(3),
    "a sort": lambda rows: rows.sort("id"),
    "distinct": lambda rows: rows.distinct(),
    "a condition of cases": lambda rows: rows.select(F.when(F.col("id") > 1, "x").otherwise(F.col("name")).alias("kind")),
}
MORE_ZONES = {"the time now", "an instant in a struct"}
"""Steps that need no time zone, for which Connect finds a need of one."""
AGGREGATES: dict[str, Callable[[], Any]] = {
    "sum": lambda: F.sum("id"),
    "average": lambda: F.avg("price").alias("mean"),
    "count of all": lambda: F.count("*"),
    "count of one": lambda: F.count(F.lit(1)).alias("n"),
    "count distinct": lambda: F.count_distinct("name"),
    "of an expression": lambda: F.max(F.col("id") + 1),
    "as text": lambda: F.expr("min(price)"),
    "with a filter": lambda: F.expr("sum(id) FILTER (WHERE name = 'a')"),
    "two of them": lambda: F.sum("id") + F.sum("price"),
    "a list": lambda: F.collect_list("name"),
    "no aggregate": lambda: F.lit(1) + F.lit(2),
}
EXPRESSIONS: dict[str, Callable[[], Any]] = {
    "a column": lambda: F.col("name"),
    "a column with a name": lambda: F.col("name").alias("called"),
    "a sum": lambda: F.col("id") + 1,
    "a text": lambda: F.expr("upper(name) || '!'"),
    "a field": lambda: F.col("more.a"),
}


def facts_of(spark: SparkSession) -> dict[str, Any]:
    """Return the facts of a session's plans, in values that can be compared."""
    reader = reader_of(spark)
    rows = spark.createDataFrame([], ROWS)
    found: dict[str, Any] = {}
    for name, change in STEPS.items():
        facts = reader.step(rows, change(rows))
        found[f"step, {name}"] = {
            "foreign": facts.foreign is not None,
            **({} if facts.foreign else _of_rows(facts, has_zone=name not in MORE_ZONES)),
        }
    for name, column in AGGREGATES.items():
        aggregate = reader.aggregate(rows, column())
        found[f"aggregate, {name}"] = aggregate and {
            "function": aggregate.function,
            "name": aggregate.name,
            "type": aggregate.type,
            "arguments": 0 if aggregate.is_constant else len(aggregate.arguments),
            "constant": aggregate.is_constant,
            "condition": aggregate.condition is not None,
            "distinct": aggregate.is_distinct,
        }
    for name, column in EXPRESSIONS.items():
        read = reader.expression(rows, column())
        found[f"expression, {name}"] = {"column": read.column, "used": sorted(reader.used_columns(rows, column()))}
        assert read.meaning == reader.expression(rows, column()).meaning
    twice = F.udf(lambda value: value, "long")
    found["functions"] = (
        len(reader.functions(rows.select(twice("id"), twice("id")))),
        len(reader.functions(rows.where("id > 1"))),
    )
    return found


def _of_rows(facts: StepFacts, *, has_zone: bool) -> dict[str, Any]:
    return {
        "deterministic": facts.is_deterministic,
        "momentary": facts.momentary is not None,
        "subquery": facts.subquery is not None,
        "zone": has_zone and facts.needs_zone,
        "selection": facts.is_selection,
        "kept": dict(facts.kept),
        "reads": sorted(facts.reads),
        "condition": facts.condition is not None,
        "selected": None if facts.selected is None else [column for column, _ in facts.selected],
    }


def _agree(classic: Any, connect: Any) -> bool:
    """Return whether Connect has the same facts, or fewer."""
    if not isinstance(classic, dict) or "kept" not in classic:
        return bool(classic == connect)
    if {"kept", "reads", "condition", "selected"} - set(connect):
        return False
    same = ("foreign", "deterministic", "momentary", "subquery", "zone", "selection")
    both = classic["kept"].keys() & connect["kept"].keys()
    return (
        all(classic[name] == connect[name] for name in same)
        and all(classic["kept"][name] == connect["kept"][name] for name in both)
        and set(classic["reads"]) <= set(connect["reads"])
        and (classic["condition"] or not connect["condition"])
        and connect["selected"] in (None, classic["selected"])
    )


def test_both_kinds_of_session_read_the_same_of_a_plan(spark: SparkSession, client: Client) -> None:
    classic, connect = facts_of(spark), client(facts_of)

    differing = [
        f"{name}: {facts}, and over Connect {connect[name]}"
        for name, facts in classic.items()
        if not _agree(facts, connect[name])
    ]
    assert differing == [], "\n".join(differing)
