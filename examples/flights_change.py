"""Change a view of flights and aircraft while their changes stream in: a join is added, then its groups change.

    python -m examples.flights_change [--runner process|spark] [--rows N] [--postgres CONNINFO] [--kafka SERVERS/TOPIC]

The view `delays` begins as the delays of each carrier. After a third of the year it counts only flights whose aircraft is
registered: a join is added. After two thirds it is grouped by manufacturer instead of by carrier. Each time `diff` shows first
what would differ, and `evolve` then continues with the new view, in the same checkpoint and outputs.

At the end every output must equal, row by row, that of a pipeline that ran the last view from the start over the same data (see
`examples.flights_data`). Exit code 0 only when all are equal.

Needs `zset-join[demo]`, and for `--runner spark` Java 17 or newer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from examples.flights_data import FlightStreams, write_streams
from zset_join.connectors import sink
from zset_join.evolution.differences import PlanDiff
from zset_join.pipeline import Pipeline
from zset_join.pipeline import changes as described
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users write F

__all__ = ["main"]

_GIVEN: dict[str, Any] = {
    "sequence_by": "sequence",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["op", "sequence"],
}
_SQL = "SELECT name, flights, late FROM delays"
_Row = tuple[Any, ...]
_Outputs = list[tuple[str, dict[str, Any]]]


def views(flights: Any, planes: Any, functions: Any, step: int) -> dict[str, Any]:
    """Return the views of a step: 0 by carrier, 1 with the join, 2 by manufacturer; the words are the same in both runners.

    Args:
        flights: the stream of flights.
        planes: the stream of aircraft.
        functions: `functions` of the runner.
        step: which of the three.
    """
    flown = flights.select("flight_id", "tailnum", "carrier", "arr_delay")
    registered = planes.select("tailnum", "manufacturer")
    rows = flown if step == 0 else flown.join(registered, on="tailnum")
    grouped = rows.groupBy("carrier" if step < 2 else "manufacturer")
    sums = grouped.agg(functions.count().alias("flights"), functions.sum("arr_delay").alias("late"))
    named = sums.withColumnRenamed("carrier" if step < 2 else "manufacturer", "name")
    return {"flown": flown, "registered": registered, "delays": named}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example and return its exit code."""
    parser = argparse.ArgumentParser(prog="flights_change", description="change a view while its streams run")
    parser.add_argument("--runner", choices=("process", "spark"), default="process")
    parser.add_argument("--epochs", type=int, default=12, help="how many epochs the changes are cut into (12)")
    parser.add_argument("--rows", type=int, help="how many flights, the first of the year (all 336,776)")
    parser.add_argument("--postgres", metavar="CONNINFO", help="keep the view in this database too, as the table delays")
    parser.add_argument("--kafka", metavar="SERVERS/TOPIC", help="write its changes to this topic, which is there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="flights_change_") as temporary:
        directory = Path(temporary)
        streams = write_streams(directory, options.epochs, options.rows)
        run = in_spark if options.runner == "spark" else in_process
        more: list[tuple[str, dict[str, Any]]] = []
        if options.postgres is not None:
            more.append(("postgres", {"conninfo": options.postgres, "table": "delays"}))
        if options.kafka is not None:
            servers, topic = options.kafka.split("/")
            more.append(("kafka", {"config": {"bootstrap.servers": servers}, "topic": topic, "form": "upsert"}))
        taken = run(streams, directory, more)
        print("changed in the epochs", *(diff.taken for diff in taken))
        expected = fresh(streams)
        found = {"DuckDB": _stored(directory / "changed.duckdb")}
        if options.postgres is not None:
            found["PostgreSQL"] = _stored_in_postgres(options.postgres)
        if options.kafka is not None:
            found["Kafka"] = _held_by_topic(*options.kafka.split("/"))
        for output, rows in found.items():
            print(f"{output}: {'equal' if rows == expected else 'NOT equal'}, {len(rows)} of {len(expected)} rows")
        return 0 if all(rows == expected for rows in found.values()) and len(expected) > 1 else 1


def sources(streams: FlightStreams) -> tuple[Any, Any]:
    """Return the two streams for a pipeline in process."""
    flights, planes = (pq.read_schema(min(place.iterdir())) for place in (streams.flights, streams.planes))
    return described("flights", flights, keys="flight_id", **_GIVEN), described("planes", planes, keys="tailnum", **_GIVEN)


def batches(streams: FlightStreams) -> list[dict[str, Any]]:
    """Return the rows of each epoch."""
    files = zip(sorted(streams.flights.iterdir()), sorted(streams.planes.iterdir()), strict=True)
    return [{"flights": pq.read_table(one), "planes": pq.read_table(other)} for one, other in files]


def fresh(streams: FlightStreams) -> list[_Row]:
    """Return what the last view holds where it ran from the start."""
    with Pipeline(views(*sources(streams), F, 2)) as pipeline:
        for rows in batches(streams):
            pipeline.step(rows)
        return sorted((tuple(row.values()) for row in pipeline.view("delays").to_pylist()), key=str)


def in_process(streams: FlightStreams, directory: Path, more: _Outputs) -> list[PlanDiff]:
    """Run and change the query in this process; return what each change made of it."""
    flights, planes = sources(streams)
    first = sink("duckdb", path=directory / "changed.duckdb", table="delays")
    sinks = [first, *(sink(name, **given) for name, given in more)]
    rows = batches(streams)
    with Pipeline(views(flights, planes, F, 0), directory / "pipeline", outputs={"delays": sinks}) as pipeline:

        def change(step: int) -> PlanDiff:
            print(pipeline.diff(views(flights, planes, F, step)), end="\n\n")
            return pipeline.evolve(views(flights, planes, F, step))

        return _through(len(rows), lambda number: pipeline.step(rows[number]), change)


def in_spark(streams: FlightStreams, directory: Path, more: _Outputs) -> list[PlanDiff]:
    """Run and change the query inside Spark; files come one by one, as they are due."""
    from zset_join.spark import changes, local_session, writeStream
    from zset_join.spark import functions as spark_functions

    session = local_session("flights_change", options={"spark.sql.session.timeZone": "UTC"})
    session.sparkContext.setLogLevel("ERROR")
    places = {name: directory / "arrived" / name for name in ("flights", "planes")}
    files = {"flights": sorted(streams.flights.iterdir()), "planes": sorted(streams.planes.iterdir())}
    keys = {"flights": "flight_id", "planes": "tailnum"}

    def stream(name: str) -> Any:
        places[name].mkdir(parents=True, exist_ok=True)
        schema = session.read.parquet(str(files[name][0])).schema
        return changes(session.readStream.schema(schema).parquet(str(places[name])), name=name, keys=[keys[name]], **_GIVEN)

    flights, planes = stream("flights"), stream("planes")
    writer = writeStream(views(flights, planes, spark_functions, 0)).options(
        checkpointLocation=str(directory / "checkpoint"), localStateDir=str(directory / "local"), execution="driver"
    )
    for name in ("flown", "registered"):
        writer = writer.view(name).toDuckDB(directory / "changed.duckdb", name)
    writer = writer.view("delays").toDuckDB(directory / "changed.duckdb", "delays")
    for name, options in more:
        writer = writer.to(name, **options)
    with ExitStack() as ends:
        ends.callback(session.stop)
        query = writer.start()
        ends.callback(query.stop)

        def take(number: int) -> None:
            for name, listed in files.items():
                listed[number].rename(places[name] / listed[number].name)
            query.processAllAvailable()

        def change(step: int) -> PlanDiff:
            print(query.diff(views(flights, planes, spark_functions, step)), end="\n\n")
            return query.evolve(views(flights, planes, spark_functions, step))

        taken = _through(streams.epochs, take, change)
    for name, listed in files.items():  # for the comparison
        for file in listed:
            (places[name] / file.name).rename(file)
    return taken


def _through(epochs: int, take: Callable[[int], object], change: Callable[[int], PlanDiff]) -> list[PlanDiff]:
    """Take all epochs, and change the view after a third of them and after two thirds."""
    taken = []
    for number in range(epochs):
        if number in (epochs // 3, 2 * epochs // 3):
            taken.append(change(1 if number == epochs // 3 else 2))
        take(number)
    return taken


def _stored(path: Path) -> list[_Row]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return sorted(connection.sql(_SQL).fetchall(), key=str)


def _stored_in_postgres(conninfo: str) -> list[_Row]:
    import psycopg

    with psycopg.connect(conninfo) as connection:
        return sorted(connection.execute(_SQL).fetchall(), key=str)


def _held_by_topic(servers: str, topic: str) -> list[_Row]:
    """Return the rows that the newest records of a topic hold, key by key."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "flights_change", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    held: dict[bytes | None, Any] = {}
    try:
        partitions = list(consumer.list_topics(topic).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, one, 0) for one in partitions])
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(10)
            if message is None or message.error() is not None:
                ended += 1
                continue
            held[message.key()] = message.value()
    finally:
        consumer.close()
    rows = [json.loads(value) for value in held.values() if value is not None]
    return sorted(((row["name"], row["flights"], row["late"]) for row in rows), key=str)


if __name__ == "__main__":
    raise SystemExit(main())
