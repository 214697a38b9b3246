"""A query in Spark as a program of its own that logs everything there is: `python -m tests.services.secret_program SETTINGS`.

    orders -> LEFT lookup in PostgreSQL by a password from the environment -> LEFT lookup in Redis by a password given in memory

SETTINGS is JSON: `directory`, `postgres` and `redis` (ports), `redis_password`. It logs at DEBUG, in Python and in the JVM, prints
plan, explanation, progress, rows and errors, and ends. Each run begins with a new checkpoint.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.core.errors import LookupFailedError
from zset_join.lookup import Lookup, PostgresSource, RedisSource, Secret
from zset_join.spark import appends

ORDERS = pa.schema([("order_id", pa.int64()), ("customer_id", pa.int64())])
SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})


def print_line(*shown: object) -> None:
    """Write a line."""
    sys.stdout.write(" ".join(map(str, shown)) + "\n")


def main() -> None:
    """Run it."""
    settings = json.loads(sys.argv[1])
    place = Path(settings["directory"])
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", str(place / "events"))
    builder = builder.config("spark.eventLog.compress", "false").config("spark.sql.warehouse.dir", str(place / "warehouse"))
    (place / "events").mkdir()
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("DEBUG")
    orders = Source(spark, place / "orders", ORDERS).add((1, 3), (2, 99))
    hint = Lookup(error_attempts=2, error_delay="1ms")
    customers = PostgresSource(
        name="customers",
        schema=SCHEMA,
        table="guarded",
        host="127.0.0.1",
        port=settings["postgres"],
        password=Secret.env("CRM_PASSWORD"),
    )
    people = RedisSource(
        name="people",
        schema=SCHEMA,
        key_pattern="c:{id}",
        host="127.0.0.1",
        port=settings["redis"],
        password=settings.pop("redis_password"),
    )
    first = appends(orders.stream(), name="orders").lookup_join(
        customers, on=[("customer_id", "id")], how="left", columns=["name"], hint=hint
    )
    view = first.lookup_join(people, on=[("customer_id", "id")], how="left", columns=["name"], hint=hint)
    print_line(repr(customers), repr(people), customers.explain(), people.explain())
    sink = Collected()
    writer = view.writeStream.option("checkpointLocation", str(place / "checkpoint")).option("buckets", 2)
    query = writer.option("localStateDir", str(place / "local")).trigger(availableNow=True).to(sink).start()
    try:
        query.awaitTermination()
    except LookupFailedError as error:
        traceback.print_exc()
        print_line(repr(error), error.facts)
    print_line(query.lastProgress, query.explain())
    print_line("rows", json.dumps(sorted(sink.total(), key=repr)))
    spark.stop()


if __name__ == "__main__":
    main()
