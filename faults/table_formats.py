"""Tables of Delta and Iceberg, kept by Spark's own writers: a view by MERGE, a changelog by INSERT, killed between statements.

    python -m faults.table_formats [delta] [iceberg]

Each format needs an older PySpark than this project's, so each gets an environment of its own below `build/table-formats`,
made by pip and Maven when it is missing (about 600 MB each). `make soak` runs this; CI does not.

For each format, in driver mode and with executors: two streams of files, orders and customers, are joined; the view goes to one
table and every change to another. The process ends at every statement that writes, in turn, and is started again. At the end
the view is compared with the join of the newest rows, and so are the sums of the changelog. Of Delta the orders also come from
a table that MERGE and DELETE change, through its change feed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.processes import EXIT_CODE, exit_at
from tools.servers.maven_jars import jars_of

__all__ = ["FORMATS", "main"]

ROOT = Path(__file__).resolve().parents[1]
EPOCHS, ORDERS, CUSTOMERS = 4, 40, 9
_SECONDS = 600


@dataclass(frozen=True)
class TableFormat:
    """Requirements of a session to write tables of one format.

    Args:
        pyspark: the version that its jars were built for.
        artifacts: the jars.
        settings: of the session; `{place}` is a folder for tables.
        catalog: where tables are made.
    """

    pyspark: str
    artifacts: Sequence[str]
    settings: dict[str, str]
    catalog: str


FORMATS = {
    "delta": TableFormat(
        "4.2.0",
        ("io.delta:delta-spark_2.13:4.4.0", "io.delta:delta-storage:4.4.0"),
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
        "default",
    ),
    "iceberg": TableFormat(
        "4.1.4",
        ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",),
        {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": "{place}/lake",
        },
        "lake.shop",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Try the formats; end with an exit code of 1 at the first difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("formats", nargs="*", choices=[*FORMATS, []], help="default: all")
    parser.add_argument("--life", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.life:
        _live(**json.loads(given.life))
        return
    for name in given.formats or FORMATS:
        python = _environment(name)
        for mode in ("driver", "executors"):
            for source in ("files", "feed") if name == "delta" else ("files",):
                print(f"{name}, {mode}, orders from {source}: {_tried(python, name, mode, source)}", flush=True)  # noqa: T201 - a report


def _environment(name: str) -> Path:
    """Return the Python of an environment with the PySpark of a format, which is made where it is missing."""
    place = ROOT / "build" / "table-formats" / name
    python, ready = place / "bin" / "python", place / "ready"
    if not ready.exists():
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        wanted = ["--editable", f"{ROOT}[spark]", f"pyspark=={FORMATS[name].pyspark}"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], check=True)
        ready.touch()
    return python


def _tried(python: Path, name: str, mode: str, source: str) -> str:
    """Return how often the query was ended, after it came to its end with the right answer."""
    with tempfile.TemporaryDirectory() as place:
        expected = _history(Path(place), by_feed=source == "feed")
        ended = 0
        for moment in (*range(1, 2 * EPOCHS, 2), 0):
            life = {"name": name, "mode": mode, "source": source, "place": place, "moment": moment}
            command = [str(python), "-m", "faults.table_formats", "--life", json.dumps(life)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False)
            if done.returncode not in (0, EXIT_CODE):
                raise RuntimeError(f"{name}, {mode}, {source}, moment {moment}:\n{done.stderr[-6000:]}")
            ended += done.returncode == EXIT_CODE
        answer = json.loads(done.stdout.splitlines()[-1])
        for table in ("view", "changelog"):
            found = Counter(tuple(row) for row in answer[table])
            if found != expected:
                raise RuntimeError(f"{name}, {mode}, {source}: {table} differs by {found - expected} and {expected - found}.")
        return f"{sum(expected.values())} rows in view and changelog, equal to the join, after {ended} ends in the middle"


def _history(place: Path, *, by_feed: bool) -> Counter[tuple[Any, ...]]:
    """Write the input, a file per epoch and stream, and return the join of the newest rows."""
    draw = random.Random(40)
    orders: dict[int, tuple[int, int]] = {}
    customers: dict[int, str] = {}
    for epoch in range(EPOCHS):
        changed, moved = [], []
        for key in draw.sample(range(ORDERS), 15):
            is_deleted = draw.random() < 0.25 and key in orders
            orders[key] = (draw.randrange(CUSTOMERS), draw.randrange(1, 90))
            changed.append((key, *orders[key], is_deleted, epoch))
            if is_deleted:
                del orders[key]
        for key in draw.sample(range(CUSTOMERS), 3):
            customers[key] = draw.choice(("Oslo", "Rome", "Lyon"))
            moved.append((key, customers[key], epoch))
        _write(place / ("changes" if by_feed else "orders"), epoch, ("id", "customer", "total", "gone", "n"), changed)
        _write(place / "customers", epoch, ("customer", "city", "n"), moved)
    return Counter((key, customer, total, customers.get(customer)) for key, (customer, total) in orders.items())


def _write(folder: Path, epoch: int, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    (folder / f"{epoch}.json").write_text(lines, encoding="utf-8")


def _live(*, name: str, mode: str, source: str, place: str, moment: int) -> None:
    """Run the query to the end of its input; `moment`: the statement that writes and at which the process ends, 0 for none."""
    from zset_join.runners.spark.epoch.table_output import TableSink

    session, folder, chosen = _session(name, place), Path(place), FORMATS[name]
    if name == "iceberg":
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {chosen.catalog}")
    if source == "feed":
        _change_table(session, folder)
    if moment:
        seam = exit_at(moment)
        for method in ("_merge", "_append", "_keep_position"):
            setattr(TableSink, method, _after(seam, getattr(TableSink, method)))
    writer = _joined(session, folder, source).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.options(execution=mode, localStateDir=str(folder / "local")).trigger(availableNow=True)
    writer = writer.toTable(f"{chosen.catalog}.kept", format=name)
    query = writer.toTable(f"{chosen.catalog}.grown", form="weight", format=name).start()
    query.awaitTermination()
    columns = "id, customer, total, city"
    view = session.sql(f"SELECT {columns} FROM {chosen.catalog}.kept").collect()
    sums = f"SELECT {columns} FROM {chosen.catalog}.grown GROUP BY {columns} HAVING sum(_weight) = 1"
    found = {"view": [list(row) for row in view], "changelog": [list(row) for row in session.sql(sums).collect()]}
    print(json.dumps(found))  # noqa: T201 - `_tried` reads it
    session.stop()


def _after(seam: Callable[[], None], method: Callable[..., Any]) -> Callable[..., Any]:
    def called(*given: Any, **named: Any) -> Any:
        seam()
        return method(*given, **named)

    return called


def _joined(session: Any, folder: Path, source: str) -> Any:
    from zset_join.spark import changes

    read = session.readStream.option("maxFilesPerTrigger", 1)
    places = read.schema("customer BIGINT, city STRING, n BIGINT").json(str(folder / "customers"))
    customers = changes(places, name="customers", keys=["customer"], sequence_by="n", except_column_list=["n"])
    if source == "feed":
        feed = session.readStream.option("readChangeFeed", "true").option("maxFilesPerTrigger", 1).table("default.orders")
        orders = changes(feed, name="orders", keys=["id"], format="change-data-feed")
    else:
        rows = read.schema("id BIGINT, customer BIGINT, total BIGINT, gone BOOLEAN, n BIGINT").json(str(folder / "orders"))
        orders = changes(
            rows,
            name="orders",
            keys=["id"],
            sequence_by="n",
            apply_as_deletes="gone",
            except_column_list=["gone", "n"],
        )
    return orders.join(customers, on="customer", how="left").select("id", "customer", "total", "city")


def _change_table(session: Any, folder: Path) -> None:
    """Let MERGE and DELETE bring the changes of each file into a table of Delta, once."""
    if session.catalog.tableExists("default.orders"):
        return
    session.sql(
        "CREATE TABLE default.orders (id BIGINT, customer BIGINT, total BIGINT) USING delta "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    for file in sorted((folder / "changes").iterdir()):
        session.read.json(str(file)).createOrReplaceTempView("changed")
        session.sql(
            "MERGE INTO default.orders t USING changed s ON t.id = s.id WHEN MATCHED AND s.gone THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET customer = s.customer, total = s.total "
            "WHEN NOT MATCHED AND NOT s.gone THEN INSERT (id, customer, total) VALUES (s.id, s.customer, s.total)"
        )


def _session(name: str, place: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = sorted(str(path) for path in jars_of(FORMATS[name].artifacts, with_dependencies=name == "delta").glob("*.jar"))
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(jars))
    for key, value in _settings(name, place):
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _settings(name: str, place: str) -> Iterator[tuple[str, str]]:
    yield "spark.sql.warehouse.dir", f"{place}/warehouse"
    yield "spark.hadoop.javax.jdo.option.ConnectionURL", f"jdbc:derby:{place}/metastore;create=true"
    yield "spark.sql.catalogImplementation", "hive"
    yield "spark.ui.enabled", "false"
    yield "spark.sql.shuffle.partitions", "2"
    for key, value in FORMATS[name].settings.items():
        yield key, value.format(place=place)


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    main()
