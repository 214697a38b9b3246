"""The same text, in process over tables that change, and in Spark as a batch query.

    python -m property_tests.sql_against_spark --queries 2000

The law: after some epochs a query's view holds what Spark answers to the same text over the tables as they are, under ANSI
mode, row for row. Twenty queries of which one fails in process, for example at a number that does not fit, are omitted
together; more than a tenth omitted is a failure, and so is more than a third whose answer has no rows.
Spark's planner itself fails at a few (4.3: `key not found`, an internal error); more than a fiftieth is a failure too.

Queries and rows are drawn as for `property_tests.test_sql`, which compares with DuckDB. One Spark session, one set of tables
for twenty queries. A seed gives the same.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from property_tests.sql_queries import queries
from property_tests.test_sql import LEFT, RIGHT, bag, rows_of
from zset_join.core.errors import ZsetJoinError
from zset_join.spark import local_session
from zset_join.sql import Query, connect

__all__ = ["main"]

_OF_ONE_SET = 20
_EPOCHS = 6
_KEYS, _MOST_ROWS = 24, 20


def drawn_texts(count: int, number: int) -> list[str]:
    """Return so many queries."""
    found: list[str] = []

    @settings(
        max_examples=count, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @seed(number)
    @given(queries())
    def collect(text: str) -> None:
        found.append(text)

    collect()
    return found[:count]


def in_process(texts: list[str], chance: random.Random) -> tuple[dict[str, pa.Table], list[Any]]:
    """Return the tables after some epochs, and what each query holds then: a bag of rows, or None where it failed."""
    with connect() as session:
        session.register("lefts", LEFT, keys="id")
        session.register("rights", RIGHT, keys="rid")
        running: list[Any] = []
        for text in texts:
            made = session.sql(text)
            assert isinstance(made, Query)
            running.append(made.start())
        for _ in range(_EPOCHS):
            name, schema = chance.choice([("lefts", LEFT), ("rights", RIGHT)])
            session.insert(name, pa.Table.from_pylist(rows_of(chance, schema.names, keys=_KEYS, most=_MOST_ROWS), schema))
        tables = {}
        for name in ("lefts", "rights"):
            stored = session.sql(f"SELECT * FROM table({name})")
            assert isinstance(stored, Query)
            tables[name] = stored.table()
        return tables, [bag(one.table()) for one in running]


def answer_of_spark(spark: Any, text: str) -> collections.Counter[tuple[Any, ...]]:
    """Return Spark's answer as a bag of rows."""
    return bag(spark.sql(text).toArrow())


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="sql_against_spark")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    spark = local_session(cores=1)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set("spark.sql.ansi.enabled", "true")
    chance = random.Random(options.seed)
    texts = drawn_texts(options.queries, options.seed)
    compared = refused = rows = empty = failed = different = 0
    begun = time.monotonic()
    for place in range(0, len(texts), _OF_ONE_SET):
        part = texts[place : place + _OF_ONE_SET]
        try:
            tables, answers = in_process(part, chance)
        except ZsetJoinError as error:
            print(f"refused in process: {str(error).splitlines()[0]}", flush=True)  # noqa: T201 - a program's output
            refused += len(part)
            continue
        for name, table in tables.items():
            spark.createDataFrame(table).createOrReplaceTempView(name)
        for text, answer in zip(part, answers, strict=True):
            try:
                expected = answer_of_spark(spark, text)
            except (PySparkException, Py4JError) as error:
                failed += 1
                reason = str(getattr(error, "java_exception", error)).splitlines()[0]
                print(f"Spark failed: {text}\n  {reason[:300]}", flush=True)  # noqa: T201 - a program's output
                continue
            compared += 1
            rows += sum(expected.values())
            empty += not expected
            if expected != answer:
                different += 1
                reported = f"DIFFERENT: {text}\n  in process {answer}\n  Spark      {expected}"
                print(reported, flush=True)  # noqa: T201 - a program's output
    print(  # noqa: T201 - a program's output
        f"{compared} queries ({len(set(texts))} texts) compared, with {rows} rows, {empty} without any, {refused} left out, "
        f"{failed} that Spark failed at, {different} different, "
        f"{time.monotonic() - begun:.0f} s"
    )
    return 1 if different or empty * 3 > compared or refused * 10 > compared or failed * 50 > compared else 0


if __name__ == "__main__":
    sys.exit(main())
