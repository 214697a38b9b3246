"""Spark for real, with workers, drivers and executors killed: is the changelog still the batch join, after every death?

    python -m faults.spark_faults [--long] [--seed N] [--keep DIRECTORY]

Each search starts `faults.spark_program` on a place of its own, kills, starts it again on the same checkpoint, and so on to
the end of the files. After every death the committed epochs of the changelog are summed up and held against a join made
of dicts over as many files; at the end of a search the program itself holds the whole against Spark's own batch join.

| search | what dies |
|---|---|
| `workers` | the Python worker of every bucket in attempts 0 and 1 of some epochs, in the middle of a part and after it |
| `commits` | the driver, between its job and the commit, between commit and output, between output and Spark's commit |
| `drivers` | the driver at random times; alone, so that its JVM and tasks live on for a while, or with all of them |
| `executors` | an executor of two, in the middle of an epoch; local state is kept per executor |
| `views` | workers and the driver under an aggregate of the join, and a worker between the join and the aggregate |
| `chain` | the same under three streams, two joins and an aggregate |
| `hybrid` | the same under an aggregate of the join, both with next to nothing in memory and the rest on disk |
| `hybrid-duckdb` | the same, with the rest in DuckDB files |
| `outputs` | the driver, before each of four outputs of one epoch after the other |
| `rescalings` | the program that gives such a query other buckets: around the record that makes them true, and at random times
|

`driver-commits`, `driver-views` and so on do the same to a query whose epochs run on the driver; there a worker dies only in a
function of the user's over a source.

It prints what was injected, observed and compared, and fails when that is too little, or when anything was lost or doubled.

Cost: 10 to 20 s per start of Spark on two cores; the long profile takes a quarter of an hour without `chain` and `hybrid`,
which took 16 minutes beside other work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from faults.spark_outputs import BETWEEN, outputs_of
from faults.spark_program import TABLE_KEYS, region_of, streams_of
from faults.tally import Tally
from zset_join.checkpoint.reading import stored_buckets
from zset_join.sinks.parquet_changelog import committed_epochs, read_changelog
from zset_join.testing.reference import Counts

__all__ = [
    "FLOORS",
    "commits",
    "count_worker_kills",
    "drivers",
    "emitted",
    "executors",
    "main",
    "outputs",
    "rescalings",
    "run",
    "short_of",
    "views",
    "workers",
    "write_files",
]

ROOT = Path(__file__).resolve().parent.parent
KEYS, ORDERS, CUSTOMERS, REGIONS = 40, 30, 12, 6
LONGEST_SECONDS = 900
_MORE_OUTPUTS = 3
FLOORS = {
    "worker kills observed": 48,
    "driver kills observed": 32,
    "executor kills observed": 2,
    "rescalings killed": 4,
    "rows and groups on disk": 30,
    "comparisons": 46,
}
"""What the long profile must reach."""
_LONG_ONLY = ("chain", "hybrid", "hybrid-duckdb", "driver-chain", "driver-hybrid", "driver-hybrid-duckdb")

_SCHEMAS = {
    "orders": pa.schema(
        [
            ("op", pa.string()),
            ("order_id", pa.int64()),
            ("customer_id", pa.int64()),
            ("amount", pa.float64()),
            ("ts", pa.int64()),
        ]
    ),
    "customers": pa.schema([("op", pa.string()), ("customer_id", pa.int64()), ("name", pa.string()), ("ts", pa.int64())]),
    "regions": pa.schema([("op", pa.string()), ("region", pa.int64()), ("title", pa.string()), ("ts", pa.int64())]),
}
_ROWS = {"orders": ORDERS, "customers": CUSTOMERS, "regions": REGIONS // 2}


@dataclass
class Death:
    """How a run of the program ended.

    Args:
        status: its exit status; negative for a signal.
        printed: its output, line by line.
        error: the end of its standard error.
    """

    status: int
    printed: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""

    @property
    def verdict(self) -> dict[str, Any] | None:
        """Return what it found at the end, when it came that far."""
        return next((line for line in self.printed if "equal" in line), None)


def write_files(place: Path, *, epochs: int, seed: int) -> None:
    """Write the input: one file per stream and epoch, with inserts, updates, moved keys, deletes and late changes."""
    draw = random.Random(seed)
    for name, schema in _SCHEMAS.items():
        directory = place / name
        directory.mkdir(parents=True)
        for epoch in range(epochs):
            rows = [_row(draw, name, epoch * 100 + number) for number in range(_ROWS[name])]
            path = directory / f"{epoch:04d}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
            os.utime(path, (1_600_000_000 + epoch, 1_600_000_000 + epoch))  # Spark takes files by their time


def _row(draw: random.Random, name: str, moment: int) -> dict[str, Any]:
    late = draw.random() < 0.1
    row: dict[str, Any] = {"op": "d" if draw.random() < 0.15 else "u", "ts": max(0, moment - 150) if late else moment}
    if name == "regions":
        return {**row, "region": draw.randrange(REGIONS), "title": f"title {draw.randrange(3)}"}
    customer = None if name == "orders" and draw.random() < 0.05 else draw.randrange(KEYS)
    row["customer_id"] = customer
    if name == "orders":
        return {**row, "order_id": draw.randrange(3 * KEYS), "amount": draw.randrange(1000) / 8}
    return {**row, "name": f"customer {customer} as of {moment}"}


def files_read(place: Path, epochs: int, view: str = "join") -> tuple[int, ...]:
    """Return how many files of each stream of a view the first epochs have read, by Spark's own account.

    One of each per epoch, but for one case: a process that dies after a source has noted its next file, and before the offsets
    of the epoch are written, makes that source give two files to the epoch.
    """
    streams = streams_of(view)
    if not epochs:
        return (0,) * len(streams)
    offsets = (place / "checkpoint" / "offsets" / str(epochs - 1)).read_text().splitlines()[2:]
    # A line per source behind two of the epoch; a query that waits for times has one more, which holds the time.
    return tuple(json.loads(offset)["logOffset"] + 1 for offset in offsets[: len(streams)])


def expected(place: Path, epochs: int, view: str = "join") -> Counts:
    """Return a view of what the files of the first epochs make, by dicts alone."""
    streams = streams_of(view)
    tables = {
        name: _table(place / name, count, TABLE_KEYS[name])
        for name, count in zip(streams, files_read(place, epochs, view), strict=True)
    }
    joined = _full_join(tables["orders"], tables["customers"])
    if view == "join":
        return dict.fromkeys(joined, 1)
    kept = [(customer, order, amount, name) for customer, order, amount, _, name, _ in joined if order is None or order % 5]
    if view != "chain":
        return _groups([((customer,), amount, name, order) for customer, order, amount, name in kept], with_orders=True)
    regions = tables["regions"]
    placed = [(region_of(customer), amount, name, order) for customer, order, amount, name in kept]
    placed += [(region, None, None, None) for region in regions.keys() - {region for region, *_ in placed}]
    lines = [((region, regions.get(region, {}).get("title")), *rest) for region, *rest in placed]
    return _groups(lines, with_orders=False)


def _full_join(orders: dict[Any, dict[str, Any]], customers: dict[Any, dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the rows of `orders FULL JOIN customers`; an order is in one of them."""
    rows: list[tuple[Any, ...]] = []
    for order in orders.values():
        customer = customers.get(order["customer_id"], {"name": None, "ts": None})
        rows.append((order["customer_id"], order["order_id"], order["amount"], order["ts"], customer["name"], customer["ts"]))
    matched = {order["customer_id"] for order in orders.values()}
    rows += [(key, None, None, None, one["name"], one["ts"]) for key, one in customers.items() if key not in matched]
    return rows


def _groups(lines: Sequence[tuple[tuple[Any, ...], Any, Any, Any]], *, with_orders: bool) -> Counts:
    """Return per key the number of lines, the sum of amounts, the greatest name, and the smallest order where that is shown."""
    found: dict[tuple[Any, ...], list[tuple[Any, Any, Any]]] = {}
    for key, *rest in lines:
        found.setdefault(key, []).append((rest[0], rest[1], rest[2]))
    rows: Counts = {}
    for key, group in found.items():
        amounts, names, orders = ([value for value in column if value is not None] for column in zip(*group, strict=True))
        row = (*key, len(group), sum(amounts) if amounts else None, max(names, default=None))
        rows[(*row, min(orders, default=None)) if with_orders else row] = 1
    return rows


def _table(directory: Path, files: int, key: str) -> dict[Any, dict[str, Any]]:
    """Return key to row: the largest sequence wins, and of equals the later one."""
    newest: dict[Any, dict[str, Any]] = {}
    for number in range(files):
        for row in pq.read_table(directory / f"{number:04d}.parquet").to_pylist():
            if row[key] not in newest or row["ts"] >= newest[row[key]]["ts"]:
                newest[row[key]] = row
    return {name: row for name, row in newest.items() if row["op"] != "d"}


def emitted(place: Path) -> tuple[int, Counts]:
    """Return how many epochs the changelog has, and the sum of their deltas."""
    changelog = place / "changelog"
    epochs = committed_epochs(changelog) if changelog.exists() else []
    rows: Counts = {}
    if epochs:
        for line in read_changelog(changelog).to_pylist():
            weight = line.pop("_weight")
            del line["epoch"]
            row = tuple(line.values())
            rows[row] = rows.get(row, 0) + weight
    return len(epochs), {row: weight for row, weight in rows.items() if weight}


def compare(place: Path, tally: Tally, where: str, view: str = "join") -> int:
    """Hold what is committed against the view of as many files; return how many epochs are."""
    epochs, rows = emitted(place)
    tally.compare(rows, expected(place, epochs, view), f"{where}, {epochs} epochs")
    return epochs


@contextmanager
def program(place: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the program in a process group of its own; whatever is left of the group is ended afterwards."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    with (place / "stderr").open("a") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "faults.spark_program", str(place), *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            _end_group(child)
            child.wait()


def run(place: Path, *arguments: str) -> Death:
    """Run the program to its end, whichever that is."""
    with program(place, *arguments) as child:
        out = child.communicate(timeout=LONGEST_SECONDS)[0]
    return Death(child.returncode, list(_lines(out.splitlines())), (place / "stderr").read_text()[-3000:])


def workers(place: Path, tally: Tally, *, epochs: int, killing: Sequence[int], seed: int) -> None:
    """Kill every worker in attempts 0 and 1 of some epochs; Spark tries again."""
    write_files(place, epochs=epochs, seed=seed)
    death = run(place, "--kill-workers", ",".join(map(str, killing)))
    _finish(place, tally, death, "workers", epochs)


def commits(
    place: Path,
    tally: Tally,
    *,
    epochs: int,
    moments: Sequence[str],
    seed: int,
    killing: Sequence[int] = (),
    execution: str = "executors",
) -> None:
    """End the driver at chosen moments, such as `before-output@3`, one after the other; and workers in some epochs."""
    write_files(place, epochs=epochs, seed=seed)
    mortal = ("--kill-workers", ",".join(map(str, killing)), "--execution", execution)
    for moment in moments:
        tally.count("driver kills injected")
        death = run(place, *mortal, "--kill-driver", moment)
        _count_death(tally, death, f"commits, {moment}")
        compare(place, tally, f"commits, after {moment}")
    _finish(place, tally, run(place, *mortal), "commits", epochs)


def outputs(place: Path, tally: Tally, *, epochs: int, moments: Sequence[str], seed: int, execution: str = "executors") -> None:
    """End the driver before an output is given an epoch, such as `between-2@1`, and hold every output against its epochs."""
    write_files(place, epochs=epochs, seed=seed)
    given = ("--more-outputs", "--execution", execution)
    for moment in moments:
        tally.count("driver kills injected")
        death = run(place, *given, "--kill-driver", moment)
        _count_death(tally, death, f"outputs, {moment}")
        _compare_outputs(place, tally, f"outputs, after {moment}", compare(place, tally, f"outputs, after {moment}"))
    _finish(place, tally, run(place, *given), "outputs", epochs)
    done = emitted(place)[0]
    held = _compare_outputs(place, tally, "outputs, at the end", done)
    if set(held.values()) != {done - 1} or len(held) != _MORE_OUTPUTS:
        tally.problem(f"outputs: at the end they hold epochs {held}, and {done - 1} is the last one")


def _compare_outputs(place: Path, tally: Tally, where: str, done: int) -> dict[str, int]:
    """Compare every output with the epochs it claims; return these."""
    found = outputs_of(place)
    for name, (epoch, rows) in found.items():
        tally.compare(rows, expected(place, epoch + 1), f"{where}, {name}, epoch {epoch}")
        if abs(epoch + 1 - done) > 1:
            tally.problem(f"{where}: {name} holds epoch {epoch}, and the changelog {done - 1}")
    epochs = {name: epoch for name, (epoch, _) in found.items()}
    tally.count("outputs apart", len({*epochs.values(), done - 1}) > 1)
    return epochs


def drivers(place: Path, tally: Tally, *, epochs: int, kills: int, seed: int, execution: str = "executors") -> None:
    """Kill the driver at random times, some epochs after its start: half of the times alone, else with its JVM and workers."""
    write_files(place, epochs=epochs, seed=seed)
    draw = random.Random(seed)
    done = 0
    for number in range(kills):
        tally.count("driver kills injected")
        with program(place, "--kill-workers", str(done + 1), "--execution", execution) as child:
            printed = _read_until(child, epochs=draw.randrange(4))
            time.sleep(draw.uniform(0, 2))
            if draw.random() < 0.5:
                child.kill()
            else:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if draw.random() < 0.5:
                _end_group(child)  # else the next driver meets a JVM that has not noticed yet
            death = Death(child.returncode, printed, (place / "stderr").read_text()[-3000:])
        _count_death(tally, death, f"drivers, kill {number}")
        done = compare(place, tally, f"drivers, after kill {number}")
    _finish(place, tally, run(place, "--execution", execution), "drivers", epochs)


def executors(place: Path, tally: Tally, *, epochs: int, killing: int, seed: int) -> Death:
    """Kill one of two executors in the middle of an epoch; each keeps local state of its own. Return how the run ended."""
    write_files(place, epochs=epochs, seed=seed)
    tally.count("executor kills injected")
    cluster = ("--master", "local-cluster[2,1,1024]", "--local-state", "state", "--buckets", "4")
    death = run(place, *cluster, "--kill-executor", str(killing))
    # The bucket whose executor died was answered again by a worker of another one.
    attempts = [line for path in (place / "faults").glob(f"attempt-{killing}-0-*") for line in path.read_text().split()]
    if (place / "faults" / f"executor-{killing}").exists() and len(set(attempts)) > 1:
        tally.count("executor kills observed")
    _finish(place, tally, death, "executors", epochs)
    return death


def views(
    place: Path,
    tally: Tally,
    *,
    epochs: int,
    moments: Sequence[str],
    seed: int,
    killing: Sequence[int],
    view: str = "groups",
    execution: str = "executors",
) -> None:
    """Do as `commits` to a query that does more than join; a worker is killed between two of its stages as well.

    Args:
        place: an empty directory.
        tally: counts what happened.
        epochs: of the input.
        moments: when the driver dies, as of `commits`.
        seed: of the input.
        killing: epochs in which workers die.
        view: which of the views of the program.
        execution: where its epochs run.
    """
    write_files(place, epochs=epochs, seed=seed)
    mortal = ("--view", view, "--kill-workers", ",".join(map(str, killing)), "--execution", execution)
    for moment in moments:
        tally.count("driver kills injected")
        _count_death(tally, run(place, *mortal, "--kill-driver", moment), f"{view}, {moment}")
        compare(place, tally, f"{view}, after {moment}", view)
    death = run(place, *mortal)
    _finish(place, tally, death, view, epochs, view=view)
    if view.startswith("hybrid"):
        tally.count("rows and groups on disk", _most_cold(death))
        if not _most_cold(death):
            tally.problem(f"{view}: nothing was ever on disk")
    if (place / "faults" / "expression").exists():
        tally.count("worker kills injected")
        tally.count("worker kills observed")  # the search has come to its end all the same


def _most_cold(death: Death) -> int:
    """Return the most rows and groups that the stages of a run had on disk before an epoch."""
    stages = [
        (reported["state"], *reported.get("aggregates", {}).values()) for reported in death.printed if "state" in reported
    ]
    stages += [tuple(line["remembers"].values()) for line in death.printed if "remembers" in line]  # on the driver
    names = ("left_cold_rows", "right_cold_rows", "cold_groups")
    return max((sum(stage.get(name, 0) for stage in found for name in names) for found in stages), default=0)


def rescalings(place: Path, tally: Tally, *, epochs: int, kills: int, seed: int) -> None:
    """Kill `rescale` of a query that groups the join, again and again; the checkpoint has the old buckets or the new ones."""
    write_files(place, epochs=epochs, seed=seed)
    stopped = 2
    buckets, draw = 2, random.Random(seed)
    tally.count("driver kills injected")
    _count_death(
        tally, run(place, "--view", "groups", "--kill-driver", f"after-output@{stopped}"), "rescalings, the query before"
    )
    for number in range(kills):
        where = f"rescalings, kill {number}"
        wanted = draw.choice([other for other in (1, 2, 3, 5) if other != buckets])
        tally.count("driver kills injected")
        if number < 2:
            moment = ("before-rescaling", "after-rescaling")[number]
            death = run(place, "--rescale", str(wanted), "--kill-driver", f"{moment}@{stopped}")
            allowed = [(buckets,), (wanted,)][number]
        else:
            death = _killed_at_random(place, draw, "--rescale", str(wanted))
            allowed = (buckets, wanted)
        if death.status == -signal.SIGKILL:
            tally.count("driver kills observed")
            tally.count("rescalings killed")
        elif death.status:
            tally.problem(f"{where}: the rescaling ended by itself, with status {death.status}: {death.error}")
        found = stored_buckets(str(place / "checkpoint"))
        if found not in allowed:
            tally.problem(f"{where}: the checkpoint has {found} buckets, and {allowed} are allowed")
        tally.count("rescalings that counted", found == wanted)
        tally.count("rescalings that did not", found == buckets)
        buckets = found or buckets
    _finish(place, tally, run(place, "--view", "groups", "--buckets", str(buckets)), "rescalings", epochs, view="groups")


def _killed_at_random(place: Path, draw: random.Random, *arguments: str) -> Death:
    """Run the program and kill it and all its processes some time after it is ready."""
    with program(place, *arguments) as child:
        printed = _read_until(child, epochs=0)
        time.sleep(draw.uniform(0, 6))
        _end_group(child)
        child.wait()
    return Death(child.returncode, printed, (place / "stderr").read_text()[-3000:])


def count_worker_kills(place: Path, tally: Tally) -> None:
    """Count the worker kills of a search; one was seen when a later attempt came as far."""
    faults = place / "faults"
    injected = [path.name.split("-")[1:] for path in faults.glob("worker-*")]
    observed = [name for name in injected if (faults / f"attempt-{name[0]}-{name[1]}-{int(name[2]) + 1}").exists()]
    tally.count("worker kills injected", len(injected))
    tally.count("worker kills observed", len(observed))


def _finish(place: Path, tally: Tally, death: Death, where: str, epochs: int, *, view: str = "join") -> None:
    """Count the worker kills of a search, and what its last run found."""
    count_worker_kills(place, tally)
    if death.status or death.verdict is None:
        tally.problem(f"{where}: the last run ended with status {death.status}: {death.error}")
        return
    tally.count("comparisons with Spark")
    if not death.verdict["equal"]:
        tally.problem(f"{where}: {death.verdict['text']}")
    done = compare(place, tally, f"{where}, at the end", view)
    if set(files_read(place, done, view)) != {epochs}:
        tally.problem(f"{where}: not all of {epochs} files were committed")


def _count_death(tally: Tally, death: Death, where: str) -> None:
    if death.status == -signal.SIGKILL:
        tally.count("driver kills observed")
    elif death.verdict is None:
        tally.problem(f"{where}: the driver ended by itself, with status {death.status}: {death.error}")


def _read_until(child: subprocess.Popen[str], *, epochs: int) -> list[dict[str, Any]]:
    """Read until the query runs and has reported so many epochs."""
    printed: list[dict[str, Any]] = []
    if child.stdout is None:
        raise RuntimeError("the program was started without a pipe")
    for line in child.stdout:
        printed += _lines([line])
        if len([reported for reported in printed if "ready" in reported or "epoch" in reported]) > epochs:
            break
    return printed


def _lines(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)


def _end_group(child: subprocess.Popen[str]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left


def short_of(tally: Tally, floors: dict[str, int]) -> list[str]:
    """Return what is wrong with a search: its problems, and the counts that are too low."""
    low = [f"{name}: {tally.of(name)}, and {least} were wanted" for name, least in floors.items() if tally.of(name) < least]
    return tally.problems + low


def _between(is_long: bool) -> list[str]:
    """Return moments between outputs, in epochs that arrive one after the other."""
    numbers = [1, 3, 2, 0, 3, 1, 2] if is_long else [2, 1]
    return [f"{BETWEEN}{number}@{epoch}" for epoch, number in enumerate(numbers, 1)]


def main(arguments: list[str] | None = None) -> int:
    """Run all searches and print what they counted."""
    parser = argparse.ArgumentParser(prog="python -m faults.spark_faults")
    parser.add_argument("--long", action="store_true", help="what make soak runs; else a short search of most kinds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="a regular expression for the searches to run")
    parser.add_argument("--keep", type=Path, help="directory to work in, kept afterwards")
    given = parser.parse_args(arguments)
    base = given.keep or Path(tempfile.mkdtemp(prefix="zset_join-spark-faults-"))
    tally, seed = Tally(), given.seed
    moments = [f"{when}@{epoch}" for epoch, when in enumerate(("before-commit", "before-output", "after-output") * 3)]
    few = moments[:6] if given.long else moments[:3]
    searches = {
        "workers": lambda place: workers(place, tally, epochs=12, killing=(0, 2, 3, 7, 8, 9), seed=seed),
        "commits": lambda place: commits(place, tally, epochs=12, moments=moments if given.long else moments[:3], seed=seed),
        "drivers": lambda place: drivers(place, tally, epochs=120, kills=20 if given.long else 2, seed=seed),
        "executors": lambda place: executors(place, tally, epochs=12, killing=4, seed=seed),
        "views": lambda place: views(place, tally, epochs=12, moments=moments[:3], seed=seed, killing=(0, 3, 8)),
        "chain": lambda place: views(place, tally, epochs=12, moments=few, seed=seed, killing=(0, 3, 8), view="chain"),
        "hybrid": lambda place: views(place, tally, epochs=12, moments=few, seed=seed, killing=(0, 3, 8), view="hybrid"),
        "hybrid-duckdb": lambda place: views(
            place, tally, epochs=12, moments=few, seed=seed, killing=(0, 3, 8), view="hybrid-duckdb"
        ),
        "rescalings": lambda place: rescalings(place, tally, epochs=8, kills=8 if given.long else 2, seed=seed),
        "executors-in-epoch-0": lambda place: executors(place, tally, epochs=6, killing=0, seed=seed + 1),
        "outputs": lambda place: outputs(place, tally, epochs=10, moments=_between(given.long), seed=seed),
        "driver-commits": lambda place: commits(
            place, tally, epochs=12, moments=moments if given.long else moments[:3], seed=seed, execution="driver"
        ),
        "driver-drivers": lambda place: drivers(
            place, tally, epochs=120, kills=20 if given.long else 2, seed=seed, execution="driver"
        ),
        "driver-outputs": lambda place: outputs(
            place, tally, epochs=10, moments=_between(given.long), seed=seed, execution="driver"
        ),
        **{
            f"driver-{view}": lambda place, view=view: views(
                place, tally, epochs=12, moments=few, seed=seed, killing=(), view=view, execution="driver"
            )
            for view in ("groups", "chain", "hybrid", "hybrid-duckdb")
        },
    }
    for name, search in searches.items():
        is_wanted = given.long or name not in _LONG_ONLY if given.only is None else re.fullmatch(given.only, name)
        if is_wanted:
            before = tally.seconds
            search(base / name)
            print(f"{name}: {tally.seconds - before:.0f} s; so far {tally}", flush=True)  # noqa: T201 - the report
    problems = short_of(tally, FLOORS if given.long and given.only is None else {"comparisons with Spark": 1})
    for problem in problems:
        print(f"FAILED: {problem}")  # noqa: T201
    if given.keep is None:
        shutil.rmtree(base, ignore_errors=True)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
