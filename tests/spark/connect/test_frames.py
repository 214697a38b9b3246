"""The law of plans: what a client reads from its own messages is what the JVM reads from the analysed plan."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from tests.spark.connect.conftest import Client
from zset_join.spark.frames.facts import reader_of

SCHEMA = "a long, b string, c double, d timestamp, e array<long>, f struct<x: long, y: string>, `g.h` long"
SELECTIONS: tuple[tuple[str, ...], ...] = (
    ("a",), ("*",), ("a", "b AS c"), ("b AS a", "a AS b"), ("a AS x", "a AS y"), ("a + 1 AS a",), ("`g.h`",), ("`g.h` AS i",),
    ("upper(b) AS u",), ("f.x",), ("f.x AS x", "f"), ("e[0] AS first",), ("cast(a AS string) AS t",), ("cast(d AS date) AS t",),
    ("date_trunc('day', d) AS t",), ("hour(d) AS h",), ("rand() AS r",), ("uuid() AS r",), ("current_timestamp() AS n",),
    ("current_date() AS n", "a"), ("now() AS n",), ("CASE WHEN a > 1 THEN b ELSE 'x' END AS w",), ("coalesce(b, 'n') AS b",),
    ("a IS NULL AS n",), ("b LIKE 'x%' AS l",), ("concat(b, b) AS t",), ("abs(a) % 3 AS m",), ("a BETWEEN 1 AND 3 AS w",),
    ("a IN (1, 2) AS w",), ("round(c, 2) AS r",), ("explode(e) AS x",), ("sum(a) AS s",), ("count(*) AS n",),
    ("row_number() OVER (ORDER BY a) AS n",), ("monotonically_increasing_id() AS i",), ("transform(e, x -> x + a) AS t",),
    ("struct(a, b) AS s",), ("named_struct('k', a) AS s",), ("1 AS one",), ("NULL AS nothing",), ("a", "1 AS one"),
    ("size(e) AS s",), ("to_json(f) AS j",), ("md5(b) AS h",), ("xxhash64(a, b) AS h",), ("a * 2 AS `x.y`",),
)  # fmt: skip
CONDITIONS = (
    "a > 1", "b = 'x' AND c < 2", "a IS NOT NULL", "b RLIKE '^x'", "rand() > 0.5", "d > current_timestamp()", "true",
    "f.x > 1 OR e[0] = 2", "a IN (1, 2, 3)", "NOT (a = 1)", "hour(d) = 3", "length(b) > a",
)  # fmt: skip


def facts_of_all(spark: SparkSession) -> dict[str, Any]:
    """Return what a session's reader says of every call of the table."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.createDataFrame([], SCHEMA)
    reader = reader_of(spark)
    calls: dict[str, Any] = {f"select {one}": rows.selectExpr(*one) for one in SELECTIONS}
    calls |= {f"where {one}": rows.where(one) for one in CONDITIONS}
    calls |= {
        "columns": rows.select(F.col("a"), (F.col("a") + 1).alias("n"), F.lower("b").alias("b")),
        "when": rows.select(F.when(F.col("a") > 1, F.col("b")).otherwise("x").alias("w")),
        "cast": rows.select(F.col("a").cast("int").alias("i"), F.to_date("d").alias("day")),
        "random": rows.select(F.rand().alias("r")),
        "field": rows.select(F.col("f").getField("x").alias("x")),
        "withColumn": rows.withColumn("n", F.col("a") + 1),
        "over": rows.withColumn("a", F.col("c")),
        "renamed": rows.withColumnRenamed("a", "z"),
        "drop": rows.drop("a", "c"),
        "toDF": rows.toDF(*"pqrstuv"),
        "both": rows.where("a > 1").select("a", "b"),
        "alias": rows.alias("o").select("o.a"),
        "udf": rows.select(F.udf(_same, "long")("a").alias("u")),
        "nondeterministic udf": rows.select(F.udf(_same, "long").asNondeterministic()("a").alias("u")),
        "distinct": rows.distinct(),
        "limit": rows.limit(3),
        "grouped": rows.groupBy("b").count(),
        "explode": rows.select("a", F.explode("e").alias("x")),
    }
    return {name: _facts(reader, rows, done) for name, done in calls.items()}


def _same(value):  # type: ignore[no-untyped-def]  # Spark reads hints of its own in a signature
    return value


def _facts(reader: Any, rows: Any, done: Any) -> dict[str, Any]:
    found = reader.step(rows, done)
    is_foreign = found.foreign is not None
    facts = {"foreign": is_foreign, "deterministic": found.is_deterministic, "subquery": found.subquery is not None}
    if is_foreign:
        return facts
    more = {
        "momentary": found.momentary is not None,
        "zone": found.needs_zone,
        "selection": found.is_selection,
        "kept": dict(found.kept),
        "reads": sorted(found.reads),
    }
    return facts | more


def test_a_client_reads_what_the_jvm_reads(spark: SparkSession, client: Client) -> None:
    by_jvm = facts_of_all(spark)

    by_client = client(facts_of_all)

    differing = {name: (by_jvm[name], by_client[name]) for name in by_jvm if by_jvm[name] != by_client[name]}
    assert not differing
    assert len(by_jvm) > 70
