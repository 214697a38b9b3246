"""Keep flights LEFT JOIN planes up to date in Spark while a year of changes streams in, then check every row.

    python -m examples.flights_demo [--epochs N] [--rows N] [--keep DIR]

Two streams of real changes (see `flights_data`) run through one Spark query into a view in a DuckDB file. Afterwards
the view must equal Spark's own batch join of the final tables, row for row; those come straight from the data, not
from the changes.

A second query groups the same join by carrier and manufacturer, and passes every changed group to a function that prints the
largest ones while the year goes by. A cancelled flight stays in its group, and is counted as such. Afterwards the groups must
equal Spark's own batch query over the newest change of every flight and aircraft. Exit code 0 only when both are equal.

Needs Java 17 or newer and the packages of `zset-join[demo]`.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from tqdm import tqdm

from examples.flights_data import FlightStreams, write_streams
from zset_join.errors import ZsetJoinError
from zset_join.spark import changes, local_session
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F

if TYPE_CHECKING:
    from zset_join.spark import ChangeStream, JoinQuery

__all__ = ["main"]

VIEW = "flights_planes"
_GROUP_EPOCHS = 8
_SHOWN_GROUPS = 5
_WIDTHS = {"carrier": 9, "manufacturer": 20, "flights": 9, "cancelled": 11, "least": 7, "average": 9, "largest": 7}
_POLL_SECONDS = 0.25
_SAMPLE = f"""
    SELECT flight_id, dest, dep_delay, arr_delay, tailnum, manufacturer, model, seats
    FROM {VIEW} ORDER BY time_hour, flight_id LIMIT 5
"""


@dataclass
class Maintained:
    """What the query did, by epoch."""

    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0

    def take(self, query: JoinQuery) -> None:
        """Note the newest progress of the query."""
        for progress in query.recentProgress:
            if progress["join"] is not None:
                self.epochs[progress["batchId"]] = progress["join"]

    def total(self, name: str) -> int:
        """Return the sum of a count over all epochs."""
        return sum(counts[name] for counts in self.epochs.values())

    def changes_read(self) -> int:
        """Return how many changes the query read."""
        return sum(sum(counts["rows_in"].values()) for counts in self.epochs.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(prog="flights_demo", description="flights LEFT JOIN planes, kept up to date in Spark")
    parser.add_argument("--epochs", type=int, default=40, help="how many epochs the year is cut into (default: 40)")
    parser.add_argument("--rows", type=int, help="how many flights, the first of the year (default: all 336,776)")
    parser.add_argument("--keep", metavar="DIR", help="keep streams, checkpoint and view in this new directory")
    options = parser.parse_args(arguments)
    try:
        with _directory(options.keep) as directory:
            return _run(directory, options.epochs, options.rows)
    except (ZsetJoinError, ModuleNotFoundError, FileExistsError, ValueError) as error:
        print(f"flights_demo: {error}")
        return 2


def _run(directory: Path, epochs: int, rows: int | None) -> int:
    print("Turning the flights of 2013 into streams of changes ...")
    streams = write_streams(directory, epochs, rows)
    pq.write_table(streams.final_flights, directory / "final_flights.parquet")
    pq.write_table(streams.final_planes, directory / "final_planes.parquet")
    print(f"{streams.flight_changes:,} changes of flights, {streams.plane_changes:,} of aircraft; starting Spark ...")
    session = local_session("flights_demo", options={"spark.sql.session.timeZone": "UTC"})
    session.sparkContext.setLogLevel("ERROR")
    try:
        query = _start(session, streams, directory)
        maintained = _follow(query, streams.epochs)
        _print_maintained(maintained, directory / "flights.duckdb")
        print("Comparing the view with Spark's batch join of the final tables ...")
        report = query.verify(
            session.read.parquet(str(directory / "final_flights.parquet")),
            session.read.parquet(str(directory / "final_planes.parquet")),
        )
        print(report)
        groups_are_equal = _keep_groups(session, streams, directory)
        return 0 if report.equal and groups_are_equal and len(maintained.epochs) == epochs else 1
    finally:
        session.stop()


def _start(session: SparkSession, streams: FlightStreams, directory: Path) -> JoinQuery:
    flights = changes(
        _stream(session, streams.flights),
        name="flights",
        keys=["flight_id"],
        sequence_by="sequence",
        apply_as_deletes="op = 'd'",
        except_column_list=["op", "sequence"],
    )
    return (
        flights.join(_planes(session, streams, 1), on="tailnum", how="left")
        .writeStream.queryName(VIEW)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .toDuckDB(directory / "flights.duckdb", VIEW)
        .start()
    )


def _planes(session: SparkSession, streams: FlightStreams, files_per_epoch: int) -> ChangeStream:
    return changes(
        _stream(session, streams.planes, files_per_epoch),
        name="planes",
        keys=["tailnum"],
        sequence_by="sequence",
        apply_as_deletes="op = 'd'",
        except_column_list=["op", "sequence"],
    )


@dataclass
class Groups:
    """The groups as a function sees them: what changed of them, epoch by epoch.

    Attributes:
        now: key to row, after the newest epoch.
        epochs: how many there were.
    """

    now: dict[tuple[str | None, str | None], dict[str, Any]] = field(default_factory=dict)
    epochs: int = 0

    def __call__(self, delta: DataFrame, epoch: int) -> None:
        """Take the net change of every group and show the largest ones."""
        changed = [row.asDict() for row in delta.collect()]
        for row in changed:
            key = (row["carrier"], row["manufacturer"])
            if row.pop("_deleted"):
                del self.now[key]
            else:
                self.now[key] = row
        self.epochs = epoch + 1
        print(f"after epoch {epoch}: {len(self.now)} groups, {len(changed)} of them changed")
        largest = sorted(self.now.values(), key=lambda row: (-row["flights"], str(row["carrier"])))[:_SHOWN_GROUPS]
        for line in (list(_WIDTHS), *(list(row.values()) for row in largest)):
            print("  " + "".join(_shown(value).ljust(width) for value, width in zip(line, _WIDTHS.values(), strict=True)))


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _keep_groups(session: SparkSession, streams: FlightStreams, directory: Path) -> bool:
    """Keep the join grouped by carrier and manufacturer, and compare the groups; return whether they are equal."""
    print("The same join by carrier and manufacturer: flights, cancelled, least, average and largest arrival delay ...")
    at_once = -(-streams.epochs // _GROUP_EPOCHS)
    flights = changes(
        _with_cancelled(_stream(session, streams.flights, at_once)),
        name="flights",
        keys=["flight_id"],
        sequence_by="sequence",
        except_column_list=["op", "sequence"],
    )
    groups = (
        flights.join(_planes(session, streams, at_once), on="tailnum", how="left")
        .groupBy("carrier", "manufacturer")
        .agg(
            ZF.count().alias("flights"),
            ZF.count().filter("cancelled").alias("cancelled"),
            F.min("arr_delay").alias("least"),
            F.avg("arr_delay").alias("average"),
            F.max("arr_delay").alias("largest"),
        )
    )
    kept, started = Groups(), time.perf_counter()
    query = (
        groups.writeStream.queryName("carriers")
        .option("checkpointLocation", str(directory / "groups_checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(kept, form="upsert")
        .start()
    )
    query.awaitTermination()
    print(f"  seconds             {time.perf_counter() - started:>12,.1f}")
    newest = [
        _newest(_with_cancelled(session.read.parquet(str(streams.flights))), "flight_id"),
        _newest(session.read.parquet(str(streams.planes)), "tailnum").where("op <> 'd'"),
    ]
    actual = session.createDataFrame([*kept.now.values()], groups.schema)
    report = query.verify(*newest, actual_df=actual)
    print(report)
    return report.equal and kept.epochs == -(-streams.epochs // at_once)


def _with_cancelled(flights: DataFrame) -> DataFrame:
    """Keep a cancelled flight as a row of its carrier: its change has nothing but the key, such as 2013-01-01 UA1545 EWR."""
    carrier = F.coalesce("carrier", F.split("flight_id", " ")[1].substr(1, 2))
    return flights.withColumn("cancelled", F.col("op") == "d").withColumn("carrier", carrier)


def _newest(changes: DataFrame, key: str) -> DataFrame:
    """Return the newest change of every key."""
    newest = Window.partitionBy(key).orderBy(F.col("sequence").desc())
    return changes.withColumn("newest", F.row_number().over(newest)).where("newest = 1")


def _stream(session: SparkSession, directory: Path, files_per_epoch: int = 1) -> DataFrame:
    """Read a directory file by file, so many per epoch."""
    schema = session.read.parquet(str(directory)).schema
    return session.readStream.schema(schema).option("maxFilesPerTrigger", files_per_epoch).parquet(str(directory))


def _follow(query: JoinQuery, epochs: int) -> Maintained:
    """Show a bar until the query has read everything."""
    maintained, started = Maintained(), time.perf_counter()
    with tqdm(total=epochs, unit="epoch") as bar:
        while not query.awaitTermination(_POLL_SECONDS):
            _show(maintained, query, bar)
        maintained.seconds = time.perf_counter() - started
        _show(maintained, query, bar)
    return maintained


def _show(maintained: Maintained, query: JoinQuery, bar: tqdm[Any]) -> None:
    maintained.take(query)
    if len(maintained.epochs) > bar.n:
        bar.set_postfix_str(f"{maintained.changes_read():,} changes", refresh=False)
        bar.update(len(maintained.epochs) - bar.n)


def _print_maintained(maintained: Maintained, path: Path) -> None:
    with duckdb.connect(str(path), read_only=True) as connection:
        rows = connection.sql(f"SELECT count(*) FROM {VIEW}").fetchall()[0][0]
        sample = connection.sql(_SAMPLE)
        changed, retracted, seconds = (
            maintained.total("delta_rows"),
            maintained.total("retractions"),
            maintained.seconds,
        )
        print(f"flights LEFT JOIN planes ON tailnum, kept in the view {VIEW}:")
        print(f"  rows                {rows:>12,}")
        print(f"  changes read        {maintained.changes_read():>12,}")
        print(f"  changes of the view {changed:>12,}, of which {retracted:,} are retractions")
        print(f"  epochs              {len(maintained.epochs):>12,}")
        print(f"  seconds             {seconds:>12,.1f}")
        print(f"  changes per second  {maintained.changes_read() / seconds:>12,.0f}")
        print(sample)


@contextlib.contextmanager
def _directory(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="flights_demo_") as temporary:
            yield Path(temporary)
        return
    kept = Path(keep).resolve()
    kept.mkdir(parents=True, exist_ok=True)
    if any(kept.iterdir()):
        raise FileExistsError(f"--keep {keep}: the directory has files in it; name a new or empty one")
    yield kept
    print(f"Kept in {kept}: the view in flights.duckdb, the streams, the final tables and the checkpoint.")


if __name__ == "__main__":
    raise SystemExit(main())
