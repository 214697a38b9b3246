"""In a session whose time zone is not UTC, expressions have the values that Spark's own batch query has, or are refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.functions import udf

from tests.spark.conftest import Collected
from tests.spark.driver.test_record_decoder import both, check_same
from zset_join.changelog.formats import RecordOptions
from zset_join.core.errors import PlanError
from zset_join.runners.spark.api.streams import changed_stream
from zset_join.spark import appends
from zset_join.spark import functions as Z  # noqa: N812 - as PySpark's
from zset_join.sql import connect

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
ROWS = [(1, NOON, "2024-01-02 03:04:05"), (2, NOON + dt.timedelta(hours=8), "2024-06-30 01:02:03"), (3, None, None)]
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("text", pa.string())])
EXPRESSIONS: dict[str, Any] = {
    "as text": "CAST(at AS string)",
    "as text, implied": "concat(at, '!')",
    "as date": "CAST(at AS date)",
    "as date, implied": "day(at)",
    "as timestamp": "CAST(text AS timestamp)",
    "without zone": "CAST(at AS timestamp_ntz)",
    "hour": "hour(at)",
    "extract": "extract(HOUR FROM at)",
    "format": "date_format(at, 'HH')",
    "truncated": "date_trunc('DAY', at)",
    "seconds": "unix_timestamp(text, 'yyyy-MM-dd HH:mm:ss')",
    "from seconds": "from_unixtime(id)",
    "compared with a literal": NOON,
    "compared with a text": "at > '2024-01-01 21:30:00'",
    "compared with a date": "at < DATE'2024-01-02'",
    "compared with a timestamp": "at > TIMESTAMP'2024-01-01 21:30:00'",
    "a month more": "at + INTERVAL '1' MONTH",
    "days between": "datediff(at, DATE'2024-01-01')",
    "in JSON": "to_json(struct(at))",
}


@pytest.fixture
def tokyo(spark: SparkSession) -> Iterator[SparkSession]:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def stream_of(session: SparkSession, place: Path) -> DataFrame:
    place.mkdir(exist_ok=True)
    pq.write_table(pa.table([list(one) for one in zip(*ROWS, strict=True)], schema=SCHEMA), place / "1.parquet")
    return session.readStream.schema("id bigint, at timestamp, text string").parquet(str(place))


def shown(rows: Any) -> list[str]:
    """Return rows with instants in one zone."""
    table: pa.Table = rows
    fields = [pa.field(at.name, pa.timestamp("us", "UTC") if getattr(at.type, "tz", None) else at.type) for at in table.schema]
    return sorted(map(repr, table.cast(pa.schema(fields)).to_pylist()))


def run(view: Any, place: Path, execution: str = "driver") -> list[str]:
    sink = Collected()
    writer = view.writeStream.options(checkpointLocation=str(place / "checkpoint"), execution=execution)
    writer.option("localStateDir", str(place / "local")).trigger(availableNow=True).to(sink).start().awaitTermination()
    return sorted(repr(dict(zip(sink.names, row, strict=True))) for row in sink.total())


def computed(name: str) -> Column:
    given = EXPRESSIONS[name]
    return F.expr(given) if isinstance(given, str) else F.col("at") > F.lit(given)


def test_expressions_have_the_values_of_a_batch_query_before_and_behind_a_stage(tokyo: SparkSession, tmp_path: Path) -> None:
    given = stream_of(tokyo, tmp_path / "rows")
    batch = tokyo.read.schema(given.schema).parquet(str(tmp_path / "rows"))
    rows = appends(given, name="t")
    columns = {name: computed(name).alias(f"x{at}") for at, name in enumerate(EXPRESSIONS)}
    distinct = rows.groupBy("id", "at", "text").count()
    translated, refusals = {}, []
    for at, (name, column) in enumerate(columns.items()):
        try:
            found = run(distinct.select("id", column), tmp_path / str(at))
        except PlanError as refused:
            refusals.append((refused.code, "Asia/Tokyo" in str(refused)))
        else:
            translated[name] = found

    assert run(rows.select("id", *columns.values()), tmp_path) == shown(batch.select("id", *columns.values()).toArrow())
    assert {*refusals} == {("SPARK_ONLY_STEP", True)}
    assert {*translated} == {"compared with a literal", "compared with a timestamp"}
    assert translated == {name: shown(batch.select("id", columns[name]).toArrow()) for name in translated}


def test_records_and_udfs_have_the_instants_that_were_written(tokyo: SparkSession, tmp_path: Path) -> None:
    table = pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "made": pa.timestamp("us")})
    value = '{"op":"c","ts_us":1704110400000000,"after":{"id":1,"at":"2024-01-01T12:00:00Z","made":1704110400000}}'
    (tmp_path / "records").mkdir()
    pq.write_table(pa.table({"key": ['{"id":1}'], "value": [value]}), tmp_path / "records" / "1.parquet")
    given = tokyo.readStream.schema("key string, value string").parquet(str(tmp_path / "records"))
    options = RecordOptions(time_unit="ms", metadata={"record_time": "written"})
    shape: dict[str, Any] = {"format": "debezium-json", "schema": table, "keys": ["id"], "options": options}
    stream = changed_stream(given, name="t", **shape)

    ours, executors = both(tokyo, stream, tmp_path)

    check_same(ours, executors, ["id"])
    columns = ours.delta.rows.select(["id", "at", "made", "written"]).to_pylist()
    assert columns == [{"id": 1, "at": NOON, "made": NOON.replace(tzinfo=None), "written": NOON}]

    local = udf(lambda at: at and at.isoformat(), "string")
    rows = stream_of(tokyo, tmp_path / "rows")
    batch = tokyo.read.schema(rows.schema).parquet(str(tmp_path / "rows"))
    found = run(appends(rows, name="u").select("id", local("at").alias("x")), tmp_path)
    assert found == shown(batch.select("id", local("at").alias("x")).toArrow())


PLACES = """
SELECT hour(a.at) AS h, count(*) AS n, max(CAST(a.at AS string)) AS last FROM t AS a JOIN u AS b
ON CAST(a.at AS date) = b.day AND hour(a.at) > hour(b.at) WHERE a.at < '2024-01-02 12:00:00' GROUP BY hour(a.at)
"""
DAYS = [(dt.date(2024, 1, 1), NOON - dt.timedelta(hours=9)), (dt.date(2024, 1, 2), NOON + dt.timedelta(hours=4))]


def days(session: SparkSession, place: Path) -> DataFrame:
    place.mkdir()
    schema = pa.schema([("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])
    pq.write_table(pa.table([list(one) for one in zip(*DAYS, strict=True)], schema=schema), place / "1.parquet")
    return session.readStream.schema("day date, at timestamp").parquet(str(place))


def of_batch(session: SparkSession, tmp_path: Path) -> list[str]:
    for name, folder in (("t", "rows"), ("u", "days")):
        session.read.parquet(str(tmp_path / folder)).createOrReplaceTempView(name)
    return shown(session.sql(PLACES).toArrow())


def places(session: SparkSession, tmp_path: Path) -> Any:
    rows, others = (appends(one(session, tmp_path / to), name=to) for one, to in ((stream_of, "rows"), (days, "days")))
    joined = rows.join(others, on=[(Z.expr("CAST(at AS date)"), "day")], condition="hour(rows.at) > hour(days.at)")
    hour, last = Z.expr("hour(at)"), Z.max(Z.expr("CAST(at AS string)")).alias("last")
    return joined.where(Z.expr("at < '2024-01-02 12:00:00'")).groupBy(h=hour).agg(Z.count().alias("n"), last)


@pytest.mark.parametrize("execution", ["driver", "executors"])
def test_keys_conditions_and_arguments_as_expressions_are_in_the_zone_of_the_session(
    tokyo: SparkSession, tmp_path: Path, execution: str
) -> None:
    assert run(places(tokyo, tmp_path), tmp_path, execution) == of_batch(tokyo, tmp_path)


def test_a_session_of_sql_is_in_the_zone_of_its_spark_session(tokyo: SparkSession, tmp_path: Path) -> None:
    with connect(engine="spark", spark=tokyo, dialect="spark", keep_inputs=True) as session:
        session.register("t", stream_of(tokyo, tmp_path / "rows"))
        session.register("u", days(tokyo, tmp_path / "days"))
        running = session.sql(PLACES).start()
        session.sql("CREATE TABLE given (id INT, at TIMESTAMP, h AS hour(at), PRIMARY KEY (id))")
        session.sql("INSERT INTO given VALUES (1, '2024-01-01 21:00:00'), (2, TIMESTAMP '2024-01-01 21:00:00Z')")
        session.sql("DELETE FROM given WHERE at < '2024-01-01 20:59:59'")

        assert sorted(map(repr, running.table().to_pylist())) == of_batch(tokyo, tmp_path)
        assert running.verify().equal
        assert [(one["at"], one["h"]) for one in session.sql("SELECT * FROM given").table().to_pylist()] == [
            (NOON, 21),
            (NOON + dt.timedelta(hours=9), 6),
        ]
        with pytest.raises(PlanError, match=r"date_trunc.*Asia/Tokyo") as refused:
            session.sql("SELECT date_trunc('DAY', at) AS day FROM t").start()
        assert refused.value.code == "SPARK_ONLY_STEP"
