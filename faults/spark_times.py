"""A temporal join inside Spark, killed while rows wait for the watermark: `python -m faults.spark_times [--only REGEX]`.

Orders run ahead of the rates, so in every epoch most of them wait; some orders come late, some rates too, some are deletes, and
some epochs bring rates alone, or nothing, so that buckets without rows are due.

| search | what dies |
|---|---|
| `drivers` | the driver with its JVM, before a commit, before the output of an epoch, and after it |
| `workers` | the Python worker of every bucket in attempts 0 and 1 of some epochs, in the middle of a part and after it |
| `executors` | one of two executors in the middle of an epoch |
| `rescalings` | the program that gives the query other buckets while rows wait: before and after the record that makes them
true | | `eager-*` | the same under a join that answers at once and corrects |
| `shared-*` | the same under two joins that look up in one copy of the rates |
| `on-driver`, `eager-on-driver`, `shared-on-driver` | as `drivers`, of a query whose epochs run on the driver |

After every death, and after every `availableNow` run, the sum of the outputs is held against `TemporalHistory`, dicts and
bisect, fed with the files that the committed epochs have read: what the watermark has not reached yet is not in it.

Cost: 10 to 20 s per start of Spark on two cores, 60 starts.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from faults.spark_faults import count_worker_kills, emitted, files_read, run
from faults.spark_program import CURRENCIES
from faults.tally import Tally
from property_tests.temporal_history import TemporalHistory
from zset_join.checkpoint.reading import stored_buckets
from zset_join.testing.reference import Counts
from zset_join.testing.reference_temporal import TimedRow

__all__ = ["SEARCHES", "drivers", "executors", "expected", "main", "on_driver", "rescalings", "workers", "write_files"]

ORDERS = pa.schema({"id": pa.int64(), "currency": pa.int64(), "t": pa.int64()})
RATES = pa.schema({"currency": pa.int64(), "at": pa.int64(), "rate": pa.int64(), "gone": pa.bool_()})
EPOCHS, KEEP = 8, 100
_QUIET = {3: ("orders",), 5: ("orders", "rates")}
"""Epochs in which these files are empty."""


def write_files(place: Path, *, seed: int, epochs: range = range(EPOCHS)) -> None:
    """Write orders and rates, one file of each per epoch; a time of a rate is drawn once."""
    for epoch in epochs:
        draw = random.Random(f"{seed} {epoch}")
        moment, quiet = 100 * epoch, _QUIET.get(epoch, ())
        orders = [
            (100 * epoch + number, draw.randrange(CURRENCIES), moment + draw.randrange(-140 if draw.random() < 0.1 else 0, 100))
            for number in range(0 if "orders" in quiet else 25)
        ]
        times = [time for time in draw.sample(range(moment - 55, moment + 45), 0 if "rates" in quiet else 12) if time >= 0]
        rates = [(draw.randrange(CURRENCIES), time, time * 10 + epoch % 10, draw.random() < 0.2) for time in times]
        _write(place / "orders", epoch, ORDERS, orders)
        _write(place / "rates", epoch, RATES, rates)


def _write(directory: Path, epoch: int, schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{epoch:04d}.parquet"
    pq.write_table(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema), path)
    os.utime(path, (1_600_000_000 + epoch, 1_600_000_000 + epoch))  # Spark takes files by their time


def expected(place: Path, epochs: int, *, view: str) -> Counts:
    """Return the sum of the committed epochs' answers, by the oracle."""
    keep = KEEP if view == "eager" else 0
    histories = [TemporalHistory(right_width=2, how="left", keep=keep) for _ in range(2 if view == "shared" else 1)]
    printed: Counts = {}
    before: int | None = None
    largest: list[int | None] = [None, None]
    read = (0, 0)
    for epoch in range(epochs):
        until = files_read(place, epoch + 1, view)
        orders, rates = (
            [row for number in range(first, last) for row in pq.read_table(place / name / f"{number:04d}.parquet").to_pylist()]
            for name, first, last in zip(("orders", "rates"), read, until, strict=True)
        )
        read = (until[0], until[1])
        for side, (rows, name) in enumerate(((orders, "t"), (rates, "at"))):
            times = [row[name] for row in rows] + [one for one in largest[side : side + 1] if one is not None]
            largest[side] = max(times, default=None)
        known = [one for one in largest if one is not None]
        after = min(known) if len(known) == 2 else None
        right = [(TimedRow((row["currency"],), row["at"], (row["at"], row["rate"]), deleted=row["gone"]), 1) for row in rates]
        for history, left in zip(histories, _lefts(orders, view), strict=True):
            released, _ = history.epoch(left, right, before=before, after=after)
            for line, weight in released.items():
                printed[line] = printed.get(line, 0) + weight
        before = after
    return histories[0].everything() if view == "eager" else printed


def _lefts(orders: Sequence[dict[str, Any]], view: str) -> list[list[tuple[TimedRow, int]]]:
    """Return the left rows of every join of a view, in the oracle's words."""
    if view != "shared":
        return [[(TimedRow((row["currency"],), row["t"], (row["currency"], row["id"], row["t"])), 1) for row in orders]]
    return [
        [(TimedRow((key(row),), row["t"], (row["id"], row["t"])), 1) for row in orders]
        for key in (lambda row: row["currency"], lambda row: row["id"] % CURRENCIES)
    ]


def drivers(
    place: Path,
    tally: Tally,
    *,
    view: str = "temporal",
    seed: int = 1,
    moments: Sequence[str] | None = None,
    execution: str = "executors",
) -> None:
    """Kill a driver at chosen moments, one after the other, and compare after each."""
    write_files(place, seed=seed)
    where = ("--execution", execution)
    for moment in moments or ("before-commit@1", "before-output@3", "after-output@4", "before-commit@5"):
        tally.count("driver kills injected")
        _kill(place, tally, view, "--kill-driver", moment, *where)
        _compare(place, tally, f"drivers of {view}, {moment}", view)
    _end(place, tally, view, "drivers", *where)


def on_driver(place: Path, tally: Tally, *, view: str = "temporal", moments: Sequence[str] | None = None) -> None:
    """Kill a driver that runs the epochs itself; see `drivers`."""
    drivers(place, tally, view=view, moments=moments, execution="driver")


def workers(
    place: Path, tally: Tally, *, view: str = "temporal", seed: int = 2, killing: Sequence[int] = (0, 2, 3, 5, 6)
) -> None:
    """Kill every worker in attempts 0 and 1 of some epochs, those without rows among them; Spark tries again."""
    write_files(place, seed=seed)
    _end(place, tally, view, "workers", "--kill-workers", ",".join(map(str, killing)))
    count_worker_kills(place, tally)


def executors(place: Path, tally: Tally, *, view: str = "temporal", seed: int = 3, killing: int = 4) -> None:
    """Kill one of two executors in the middle of an epoch; each keeps local state of its own."""
    write_files(place, seed=seed)
    cluster = ("--master", "local-cluster[2,1,1024]", "--local-state", "state", "--buckets", "4")
    tally.count("executor kills injected")
    _end(place, tally, view, "executors", *cluster, "--kill-executor", str(killing))
    attempts = [line for path in (place / "faults").glob(f"attempt-{killing}-0-*") for line in path.read_text().split()]
    if (place / "faults" / f"executor-{killing}").exists() and len(set(attempts)) > 1:
        tally.count("executor kills observed")


def rescalings(place: Path, tally: Tally, *, view: str = "temporal", seed: int = 4) -> None:
    """Give the query other buckets while rows wait, and kill the rescaling process before and after that is true."""
    half = EPOCHS // 2
    write_files(place, seed=seed, epochs=range(half))
    _run(place, tally, view)
    done = _compare(place, tally, f"rescalings of {view}, before", view)
    for moment, wanted, found in (("before-rescaling", 3, 2), ("after-rescaling", 3, 3)):
        tally.count("rescalings injected")
        _kill(place, tally, view, "--rescale", str(wanted), "--kill-driver", f"{moment}@{done - 1}")
        if stored_buckets(str(place / "checkpoint")) != found:
            tally.problem(f"{moment}: the checkpoint has not {found} buckets")
        tally.count("rescalings killed")
    _run(place, tally, view, "--rescale", "5")
    write_files(place, seed=seed, epochs=range(half, EPOCHS))
    _end(place, tally, view, "rescalings", "--buckets", "5")


_EACH: dict[str, Callable[..., None]] = {
    "drivers": drivers,
    "on-driver": on_driver,
    "workers": workers,
    "executors": executors,
    "rescalings": rescalings,
}
SEARCHES = {
    f"{prefix}{name}": (search, view)
    for prefix, view in (("", "temporal"), ("eager-", "eager"), ("shared-", "shared"))
    for name, search in _EACH.items()
}


def _run(place: Path, tally: Tally, view: str, *arguments: str) -> None:
    death = run(place, "--view", view, *arguments)
    if death.status:
        tally.problem(f"{view} {arguments}: the program ended with status {death.status}: {death.error}")
    if death.verdict is not None:
        tally.count("comparisons with Spark")


def _kill(place: Path, tally: Tally, view: str, *arguments: str) -> None:
    death = run(place, "--view", view, *arguments)
    if death.status == -signal.SIGKILL:
        tally.count("driver kills observed")
    else:
        tally.problem(f"{view} {arguments}: the program ended by itself, with status {death.status}: {death.error}")


def _end(place: Path, tally: Tally, view: str, where: str, *arguments: str) -> None:
    """Let a query come to the end of its files, compare, give it more, and let it come to their end."""
    _run(place, tally, view, *arguments)
    _compare(place, tally, f"{where} of {view}, drained", view)
    write_files(place, seed=7, epochs=range(EPOCHS, EPOCHS + 1))
    _run(place, tally, view, *arguments)
    done = _compare(place, tally, f"{where} of {view}, at the end", view)
    if set(files_read(place, done, view)) != {EPOCHS + 1}:
        tally.problem(f"{where} of {view}: not all of {EPOCHS + 1} files were committed")


def _compare(place: Path, tally: Tally, where: str, view: str) -> int:
    epochs, rows = emitted(place)
    wanted = expected(place, epochs, view=view)
    tally.count("rows compared", len(wanted))
    tally.compare(rows, wanted, f"{where}, {epochs} epochs")
    return epochs


def main(arguments: list[str] | None = None) -> int:
    """Run the searches."""
    parser = argparse.ArgumentParser(prog="python -m faults.spark_times")
    parser.add_argument("--only", default=".*", help="a regular expression for the searches to run")
    reported = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory() as directory:
        for name, (search, view) in SEARCHES.items():
            if re.fullmatch(reported.only, name):
                search(Path(directory) / name, tally, view=view)
                print(f"{name}: so far {tally}", flush=True)  # noqa: T201 - the report
    for problem in tally.problems:
        print(f"FAILED: {problem}")  # noqa: T201
    return int(bool(tally.problems or tally.lost or tally.doubled))


if __name__ == "__main__":
    sys.exit(main())
