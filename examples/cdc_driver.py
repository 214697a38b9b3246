"""The query of `cdc_demo` as a program of its own, so that it can be killed and started again: `python -m examples.cdc_driver`.

    PostgreSQL -> Debezium -> Kafka -> [ orders JOIN customers, grouped by city ] -> PostgreSQL view + Kafka topic

It runs in this process or inside Spark, until a file appears; all it needs is in its arguments. Both engines are given the
same topics, columns and keys, and write to the same two outputs.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

__all__ = ["KEY", "TOPIC", "VIEW", "DriverSettings", "Engine", "main"]

Engine = Literal["local", "spark"]

VIEW, TOPIC, KEY = "by_city", "by-city", ["city"]
_ORDERS = pa.schema({"id": pa.int64(), "customer_id": pa.int64(), "total": pa.decimal128(12, 2), "note": pa.string()})
_CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string(), "city": pa.string(), "about": pa.string()})


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """The paths.

    Args:
        engine: local or spark.
        conninfo: of the database that has the view.
        servers: of Kafka.
        directory: of the checkpoint.
        stop: the file that ends the driver.
    """

    engine: Engine
    conninfo: str
    servers: str
    directory: str
    stop: str

    @property
    def command(self) -> list[str]:
        """Return the command that starts the driver."""
        return [sys.executable, "-m", "examples.cdc_driver", json.dumps(asdict(self))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the query until it is stopped; SIGQUIT prints what each thread does, as it does for a JVM."""
    faulthandler.register(signal.SIGQUIT)
    parser = argparse.ArgumentParser(prog="cdc_driver", description="orders JOIN customers, grouped by city")
    parser.add_argument("settings", help="as JSON, see DriverSettings")
    given = json.loads(parser.parse_args(arguments).settings)
    settings = DriverSettings(**given)
    if settings.engine not in get_args(Engine):
        parser.error(f"engine is one of {get_args(Engine)}")
    (_run_local if settings.engine == "local" else _run_in_spark)(settings)
    return 0


def _run_local(settings: DriverSettings) -> None:
    from zset_join.pipeline import Pipeline, records, run
    from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
    from zset_join.sinks.kafka_topic import KafkaTopicSink
    from zset_join.sinks.postgres_view import PostgresViewSink
    from zset_join.sources.kafka import KafkaSource

    kafka = {"bootstrap.servers": settings.servers}
    orders = records("orders", "debezium-json", _ORDERS, keys="id")
    customers = records("customers", "debezium-json", _CUSTOMERS, keys="id")
    by_city = (
        orders.join(customers, on=[("customer_id", "id")])
        .groupBy("city")
        .agg(
            F.count().alias("orders"),
            F.sum("total").alias("total"),
            F.count_distinct("note").alias("notes"),
            F.max("note").alias("last_note"),
            F.min("about").alias("first_about"),
        )
    )
    outputs = [PostgresViewSink(settings.conninfo, VIEW, KEY), KafkaTopicSink(kafka, TOPIC, key=KEY)]
    with Pipeline(by_city, Path(settings.directory) / "pipeline", keep_view=False, outputs=outputs) as pipeline:
        sources = {name: KafkaSource(kafka, f"shop.public.{name}") for name in ("orders", "customers")}
        run(pipeline, sources, most_rows=5_000, trigger_seconds=0.2, stop=Path(settings.stop).exists)


def _run_in_spark(settings: DriverSettings) -> None:
    from tools.servers.maven_jars import SPARK_KAFKA, jars_of
    from zset_join.spark import changes, local_session
    from zset_join.spark import functions as F  # noqa: N812 - PySpark's own habit

    jars = sorted(str(path) for path in jars_of(SPARK_KAFKA, with_dependencies=False).glob("*.jar"))
    session = local_session(
        "cdc_demo",
        cores=2,
        options={"spark.jars": ",".join(jars), "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"},
    )
    session.sparkContext.setLogLevel("ERROR")

    def topic(name: str, schema: pa.Schema) -> Any:
        stream = (
            session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", settings.servers)
            .option("subscribe", f"shop.public.{name}")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 5_000)
            .load()
        )
        return changes(stream, format="debezium-json", name=name, schema=schema, keys=["id"])

    by_city = (
        topic("orders", _ORDERS)
        .join(topic("customers", _CUSTOMERS), on=[("customer_id", "id")])
        .groupBy("city")
        .agg(
            F.count().alias("orders"),
            F.sum("total").alias("total"),
            F.count_distinct("note").alias("notes"),
            F.max("note").alias("last_note"),
            F.min("about").alias("first_about"),
        )
    )
    query = (
        by_city.writeStream.queryName(VIEW)
        .option("checkpointLocation", str(Path(settings.directory) / "checkpoint"))
        .option("buckets", 2)
        .trigger(processingTime="0 seconds")
        .to("postgres", conninfo=settings.conninfo, table=VIEW, key=KEY)
        .to("kafka", config={"bootstrap.servers": settings.servers}, topic=TOPIC, key=KEY)
        .start()
    )
    while not Path(settings.stop).exists():
        if not query.isActive:
            query.awaitTermination()
        time.sleep(0.2)
    query.stop()
    session.stop()


if __name__ == "__main__":
    sys.exit(main())
