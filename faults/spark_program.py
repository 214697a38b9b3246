"""A join in Spark as a program of its own, made to be killed: driver, workers, executors.

    python -m faults.spark_program PLACE [--view groups] [--master local[2,4]] [--kill-workers E,E] [--kill-executor E]
        [--kill-driver WHEN@E] [--rescale BUCKETS] [--execution driver] [--more-outputs]

It reads the files below PLACE, one per stream and epoch, keeps a view of them as a Parquet changelog in PLACE/changelog, and
ends when all files are read. Orders are routed, the other streams are not.

| view | is |
|---|---|
| `join` | `orders FULL JOIN customers` |
| `groups` | that join grouped by customer, behind a function of Python's that kills its worker once |
| `chain` | that join with the same function behind it, joined with regions, grouped by region |
| `hybrid` | as `groups`, with two rows and groups in memory per stage, and the others on disk |
| `hybrid-duckdb` | the same with the others in DuckDB files |
| `lookup` | orders LEFT JOIN the answer of a server on loopback for each, misses parked between epochs |
| `lookups` | orders LEFT JOIN a table of PostgreSQL, that LEFT JOIN hashes of Redis, misses of both parked |
| `temporal` | orders LEFT JOIN the rates of their times, once the watermark has passed them |
| `eager` | the same at once, and corrected |
| `shared` | orders of two currencies, each with its rate as in `temporal`, from one copy of the rates |

With `--execution driver` epochs run on the driver; the Python function then maps the orders, before the first
stage. `--more-outputs` adds those of `spark_outputs` to the changelog. With `--rescale` it gives the checkpoint of
such a query another number of buckets, and ends. On its standard output it prints
JSON lines: `ready`, the progress of every epoch, and at last whether the changelog equals Spark's own batch query over the
files.

Faults are injected from outside the product: workers and executors die in the part writer that travels to them, the driver
in the observer of its file operations. Every fault leaves a file in PLACE/faults *before* it strikes; that it struck is
seen later (a later attempt, another executor, the end of the process).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from faults.spark_outputs import BETWEEN, death_between, with_more_outputs
from tools.short_lived_jvms import PLAIN_FILES, SHORT_LIVED, use_short_lived_jvms
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import PartEntry
from zset_join.core.epochs import Tick
from zset_join.storage.operations import Operation, observe
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from zset_join.runners.spark.worker.parts import PartWriter
    from zset_join.spark import ChangeStream, View

__all__ = [
    "CURRENCIES",
    "KILLED_ATTEMPTS",
    "TABLE_KEYS",
    "VIEWS",
    "main",
    "note_attempt",
    "region_of",
    "spark_home",
    "streams_of",
]

TABLE_KEYS = {"orders": "order_id", "customers": "customer_id", "regions": "region"}
"""Stream to the key of its table."""
KILLED_ATTEMPTS = 2
VIEWS = ("join", "groups", "chain", "hybrid", "hybrid-duckdb", "lookup", "lookups", "temporal", "eager", "shared")
_HYBRID = {"default_hash_join": "hybrid", "default_hash_table": "hybrid", "max_hot_keys": 8}  # 2 per bucket of both stages
CURRENCIES = 12
_LOOKUPS, _TIMED = ("lookup", "lookups"), ("temporal", "eager", "shared")
_REGIONS_OF_CUSTOMERS = 8
_CLUSTER = "local-cluster"


@dataclass(frozen=True)
class MortalParts:
    """Write parts as the product does, and die in chosen epochs: in the middle of a part, or after it and before the log.

    Args:
        inner: the product's writer.
        faults: directory of the files that faults leave.
        worker_epochs: epochs in whose attempts 0 and 1 the Python worker is killed.
        executor_epoch: epoch in whose attempt 0 of bucket 0 the executor is killed; -1 for none.
    """

    inner: PartWriter
    faults: Path
    worker_epochs: frozenset[int]
    executor_epoch: int

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        """Write a part, or die."""
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        note_attempt(self.faults, f"attempt-{tick.epoch}-{bucket}-{attempt}")
        if tick.epoch == self.executor_epoch and bucket == 0 and _is_first(self.faults / f"executor-{tick.epoch}"):
            os.kill(_parent_of(os.getppid()), signal.SIGKILL)
            time.sleep(60)  # this worker goes down with it
        dies = tick.epoch in self.worker_epochs and attempt < KILLED_ATTEMPTS
        name = f"worker-{tick.epoch}-{bucket}-{attempt}"
        if dies and attempt == 0:
            chunks = _fatal(chunks, self.faults / name)
        parts = self.inner.write(files, bucket, tick, schema, chunks)
        if dies:
            _die(self.faults / name)
        return parts


def note_attempt(faults: Path, name: str) -> None:
    """Leave a file that an attempt came as far as its answer, and which process started its worker."""
    with (faults / name).open("a") as file:
        file.write(f"{os.getppid()}\n")


def spark_home(directory: Path) -> Path:
    """Return a SPARK_HOME for a local cluster: the installed package, but with a place of its own for executors to work in."""
    import pyspark

    home = directory / "spark-home"
    home.mkdir(exist_ok=True)
    for path in Path(pyspark.__file__).parent.iterdir():
        link = home / path.name
        if path.name != "work" and not link.exists():
            link.symlink_to(path)
    return home


def main(arguments: list[str] | None = None) -> int:
    """Run the program; see the module header."""
    parser = argparse.ArgumentParser(prog="python -m faults.spark_program")
    parser.add_argument("place", type=Path)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--execution", choices=("executors", "driver"), default="executors")
    parser.add_argument("--more-outputs", action="store_true")
    parser.add_argument("--buckets", type=int, default=2)
    parser.add_argument("--local-state", help="localStateDir; a relative one is another on every executor")
    parser.add_argument("--view", choices=VIEWS, default="join")
    parser.add_argument("--port", type=int, default=0, help="of the server of a lookup")
    parser.add_argument("--redis-port", type=int, default=0, help="of the Redis of `lookups`")
    parser.add_argument("--rescale", type=int, help="the new number of buckets")
    parser.add_argument("--kill-workers", default="", help="epochs, with commas")
    parser.add_argument("--kill-executor", type=int, default=-1, help="an epoch")
    parser.add_argument("--kill-driver", default="", help="a moment of killer, @, an epoch")
    given = parser.parse_args(arguments)
    (given.place / "faults").mkdir(exist_ok=True)
    spark = session(given.place, given.master)
    with ExitStack() as stack:
        if given.kill_driver:
            when, _, epoch = given.kill_driver.partition("@")
            stack.enter_context(_deadly(when, int(epoch), given))
        equal = _run(spark, given) if given.rescale is None else _rescaled(spark, given)
    spark.stop()
    return 0 if equal else 1


def _run(spark: SparkSession, given: argparse.Namespace) -> bool:
    place = given.place
    view = _view(spark, place, given)
    writer = (
        view.writeStream.option("checkpointLocation", str(place / "checkpoint"))
        .option("localStateDir", given.local_state or str(place / "local-state"))
        .options(**({"retainInputLog": True} if given.execution == "driver" else {"buckets": given.buckets}))
        .option("snapshotAfterBytes", 20_000)
        .option("execution", given.execution)
        .options(**_hybrid(given.view))
        .trigger(availableNow=True)
        .to("parquet", path=place / "changelog")
    )
    ((output,),) = writer._outputs.values()
    mortal = frozenset(int(epoch) for epoch in given.kill_workers.split(",") if epoch)
    if given.execution == "executors":
        output.parts = MortalParts(output.parts, place / "faults", mortal, given.kill_executor)
    if given.more_outputs:
        writer = with_more_outputs(writer, place)
    query = writer.start()
    _print_line({"ready": query.id})
    reported = -1
    while True:
        stopped = query.awaitTermination(0.1)
        for entry in list(query._runner.progress.entries):
            if entry["epoch"] > reported:
                reported = entry["epoch"]
                _print_line(entry)
        if stopped:
            break
    if given.view in _LOOKUPS:  # external rows are in no batch query; the search compares
        _print_line({"ended": True})
        return True
    if given.view in _TIMED:
        _print_line({"ended": True})  # the search compares
        return True
    if given.execution == "driver":
        with (
            writer.attach() as stored
        ):  # the input is compared with DuckDB's batch query, and the search compares it with dicts
            report = stored.verify()
    else:
        report = query.verify(tables={name: _final(spark, place, name) for name in streams_of(given.view)})
    _print_line({"equal": report.equal, "rows": report.expected_rows, "different": report.different_rows, "text": str(report)})
    return report.equal


def _rescaled(spark: SparkSession, given: argparse.Namespace) -> bool:
    from zset_join.spark import rescale

    _print_line({"ready": "rescale"})
    report = rescale(
        given.place / "checkpoint", buckets=given.rescale, session=spark, local_state_dir=str(given.place / "local-state")
    )
    _print_line({"buckets": report.buckets, "moved": report.rows})
    return report.rows > 0


def _hybrid(view: str) -> dict[str, Any]:
    """Return the options of hybrid state, on the medium of a view."""
    if not view.startswith("hybrid"):
        return {}
    return {**_HYBRID, "cold_store": "duckdb" if view.endswith("duckdb") else "files"}


def _view(spark: SparkSession, place: Path, given: argparse.Namespace) -> View:
    from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F

    name = given.view
    if name in _LOOKUPS:
        return _looked_up(spark, place, given)
    if name in _TIMED:
        return _priced(spark, place, name)
    orders = _stream(spark, place, "orders")
    if name != "join":
        orders = orders.where(_passes(place)("order_id"))
    joined = orders.join(_stream(spark, place, "customers"), on="customer_id", how="full")
    if name == "join":
        return joined
    kept = joined.where("order_id IS NULL OR order_id % 5 <> 0")
    if name != "chain":
        return kept.groupBy("customer_id").agg(ZF.count().alias("rows"), ZF.sum("amount"), ZF.max("name"), ZF.min("order_id"))
    placed = kept.select("order_id", "amount", "name", _region().alias("region"))
    placed = placed.join(_stream(spark, place, "regions"), on="region", how="full")
    return placed.groupBy("region", "title").agg(ZF.count().alias("rows"), ZF.sum("amount"), ZF.max("name"))


def _stream(spark: SparkSession, place: Path, name: str) -> ChangeStream:
    from zset_join.spark import changes

    rows = _rows(spark, place, name)
    dropped = ["op"] if name != "regions" else ["op", "ts"]
    return changes(
        rows, name=name, keys=[TABLE_KEYS[name]], sequence_by="ts", apply_as_deletes="op = 'd'", except_column_list=dropped
    )


def _rows(spark: SparkSession, place: Path, name: str) -> DataFrame:
    """Return the files of a stream, one per epoch."""
    schema = spark.read.parquet(str(place / name)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(place / name))


def _looked_up(spark: SparkSession, place: Path, given: argparse.Namespace) -> View:
    """Return orders, each with what is known of it outside; misses are parked."""
    from zset_join.lookup import HttpSource, Lookup, PostgresSource, RedisSource
    from zset_join.spark import appends

    retry = {"retry_predicate": "lookup_miss", "retry_strategy": "fixed_delay", "fixed_delay": "1ms", "max_attempts": 50}
    hint = Lookup(async_=False, park="epochs", **retry)
    requested: dict[str, Any] = {"on": [("who", "id")], "how": "left", "hint": hint}
    orders = appends(_rows(spark, place, "orders"), name="orders")
    table = pa.schema({"id": pa.int64(), "attempts": pa.int64()})
    if given.view == "lookup":
        return orders.lookup_join(
            HttpSource(name="table", schema=table, url=f"http://127.0.0.1:{given.port}/{{id}}"), **requested
        )
    where: dict[str, Any] = {"host": "127.0.0.1", "port": given.port, "database": "postgres"}
    known = orders.lookup_join(PostgresSource(name="known", schema=table, table="known", **where), **requested)
    names = RedisSource(
        name="names",
        schema=pa.schema({"id": pa.int64(), "name": pa.string()}),
        key_pattern="name:{id}",
        host="127.0.0.1",
        port=given.redis_port,
    )
    return known.select("o", "who", "attempts").lookup_join(names, **{**requested, "columns": ["name"]})


def _priced(spark: SparkSession, place: Path, view: str) -> View:
    """Return orders, each with the rate of its time; late ones are set aside."""
    from zset_join.spark import appends

    rows = _rows(spark, place, "orders")
    rows = rows.withColumn("paid_in", rows["id"] % CURRENCIES) if view == "shared" else rows
    orders = appends(rows, name="orders", watermark=("t", 0))
    rates = appends(_rows(spark, place, "rates"), name="rates", watermark=("at", 0))
    options: dict[str, Any] = {"emit": "eager", "keep_probe_for": 100} if view == "eager" else {"emit": "on_watermark"}
    newest = rates.dedup("currency", order_by="at desc")
    if view == "shared":
        again = rates.alias("again").dedup("currency", order_by="at desc")
        options |= {"how": "left", "delete_column": "gone"}
        sold = orders.temporal_join(newest, on="currency", **options)
        paid = orders.alias("paid").temporal_join(again, on=[("paid_in", "currency")], **options)
        return sold.select("id", "t", "at", "rate").union(paid.select("id", "t", "at", "rate"))
    return orders.temporal_join(newest, on="currency", how="left", delete_column="gone", **options).drop("gone")


def streams_of(view: str) -> tuple[str, ...]:
    """Return the streams of a view, in the order in which Spark notes how far they were read."""
    if view in _LOOKUPS:
        return ("orders",)
    if view in _TIMED:
        return ("orders", "rates")
    return ("orders", "customers", "regions") if view == "chain" else ("orders", "customers")


def region_of(customer: int | None) -> int | None:
    """Return the region of a customer; none without one, and some regions are in no table."""
    return None if customer is None else customer % _REGIONS_OF_CUSTOMERS


def _region() -> Column:
    """Return `region_of` a row of the join."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

    return F.pmod("customer_id", F.lit(_REGIONS_OF_CUSTOMERS)).cast("long")


def _passes(place: Path) -> Callable[[str], Column]:
    """Return a condition that all orders fulfil, whose function dies at the first row it is given, once."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

    def passes(_):  # type: ignore[no-untyped-def]  # PySpark would read the hints
        if _is_first(place / "faults" / "expression"):
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    return F.udf(passes, "boolean")


def _final(spark: SparkSession, place: Path, name: str) -> DataFrame:
    """Return the table that all files make, by Spark alone."""
    spark.read.parquet(str(place / name)).createOrReplaceTempView(name)
    newest = f"row_number() over (partition by {TABLE_KEYS[name]} order by ts desc) newest"
    return spark.sql(f"select * except(newest, op) from (select *, {newest} from {name}) where newest = 1 and op <> 'd'")


def session(place: Path, master: str) -> SparkSession:
    from pyspark.sql import SparkSession

    from zset_join.spark import cluster_settings

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    use_short_lived_jvms()
    if master.startswith(_CLUSTER):
        os.environ["SPARK_HOME"] = str(spark_home(place))
    builder = (
        SparkSession.builder.master(master)
        .appName("zset_join faults")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.extraJavaOptions", SHORT_LIVED)
        .config("spark.executor.memory", "512m")
        .config("spark.local.dir", str(place / "spark-local"))
        .config(map=cluster_settings())
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.checkpointFileManagerClass", PLAIN_FILES)
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _deadly(when: str, epoch: int, given: argparse.Namespace) -> AbstractContextManager[object]:
    """Return what ends this process at a moment of an epoch, while it is entered."""
    faults = given.place / "faults"
    if when.startswith(BETWEEN):
        return death_between(int(when.removeprefix(BETWEEN)), epoch, faults, given.execution)
    return observe(killer(when, epoch, faults))


def killer(when: str, epoch: int, faults: Path) -> Callable[[Operation, Callable[[], Any]], Any]:
    """Return an observer that ends this process at a moment of an epoch.

    before-commit: the tasks are done, and no commit record is present. before-output: the record is present, the output lacks
    the epoch. after-output: the output has it, and Spark has no record of it. before-rescaling, after-rescaling: the new
    buckets are written, and the record that makes them true is absent, or there.
    """
    record, shown = f"/zset/commits/{epoch:020d}.json", f"/changelog/epoch={epoch:08d}"
    rescaled = f"/zset/rescalings/{epoch:020d}-"

    def observer(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind not in ("rename", "link", "replace", "put"):
            return act()
        name = operation.target or operation.path
        before = {"before-commit": name.endswith(record), "before-rescaling": rescaled in name}
        after = {
            "before-output": name.endswith(record),
            "after-output": name.endswith(shown),
            "after-rescaling": rescaled in name,
        }
        if before.get(when):
            _die(faults / f"driver-{when}-{epoch}")
        found = act()
        if after.get(when):
            _die(faults / f"driver-{when}-{epoch}")
        return found

    return observer


def _fatal(chunks: Iterable[ZSet], fault: Path) -> Iterator[ZSet]:
    for chunk in chunks:
        yield chunk
        _die(fault)


def _die(fault: Path) -> None:
    fault.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def _is_first(fault: Path) -> bool:
    """Return whether a fault strikes for the first time, and note that it does."""
    try:
        fault.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _parent_of(process: int) -> int:
    text = Path(f"/proc/{process}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


def _print_line(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)  # noqa: T201 - this is what the program is for


if __name__ == "__main__":
    raise SystemExit(main())
