"""A lookup join inside Spark, killed while rows are parked: `python -m faults.spark_lookups [--only REGEX]`.

Every order has a key of its own. The HTTP server of `lookup_kills` has an even key at once and an odd one when it is requested
for the second time, so odd ones are parked, and it counts.

| search | what dies |
|---|---|
| `drivers` | the driver with its JVM, between fetch and commit of one epoch, and between commit and output of another |
| `on-driver` | the same of a query whose epochs run on the driver |
| `workers` | the Python worker of every bucket in attempts 0 and 1 of four epochs, in the middle of a part and after it |
| `executors` | one of two executors in the middle of an epoch; the bucket is answered again by the other one |
| `rescalings` | the program that gives the query other buckets while rows are parked: before and after the record that makes
them true |

What is demanded: every order is in the sum of the outputs once; even keys were requested once and odd ones twice, so no call
was made again whose answer was journaled. All these deaths come after the fetch of their epoch; one in the middle of a fetch
may repeat its calls, and is drawn by `lookup_kills`.

Cost: 10 to 20 s per start of Spark on two cores, sixteen starts.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from faults.lookup_kills import CountingServer
from faults.spark_faults import count_worker_kills, emitted, run
from faults.tally import Tally
from zset_join.checkpoint.reading import stored_buckets

__all__ = ["SEARCHES", "drivers", "executors", "main", "on_driver", "rescalings", "workers"]

ORDERS = pa.schema({"o": pa.int64(), "who": pa.int64()})
FULL, LATER = 4, 2
"""Epochs of three orders, and of one even order each, in which what is parked by then is requested."""


def drivers(
    place: Path,
    tally: Tally,
    *,
    kills: Sequence[str] = ("before-commit@1", "before-output@2"),
    execution: str = "executors",
) -> None:
    """Kill a driver per entry of `kills`, start it again, let it end, and compare."""
    server = _begin(place)
    where = ("--execution", execution)
    try:
        for kill in kills:
            tally.count("driver kills injected")
            _kill(place, tally, server, "--kill-driver", kill, *where)
        _end(place, tally, server, *where)
    finally:
        server.close()
    _compare(place, server, tally, "drivers")


def on_driver(place: Path, tally: Tally) -> None:
    """Kill a driver that runs the epochs itself; see `drivers`."""
    drivers(place, tally, execution="driver")


def workers(place: Path, tally: Tally, *, killing: Sequence[int] = (0, 1, 3, 4)) -> None:
    """Kill every worker in attempts 0 and 1 of some epochs; Spark tries again, and what was journaled is not requested."""
    server = _begin(place)
    try:
        mortal = ("--kill-workers", ",".join(map(str, killing)))
        _run(place, tally, server, *mortal)
        _end(place, tally, server, *mortal)
    finally:
        server.close()
    count_worker_kills(place, tally)
    _compare(place, server, tally, "workers")


def executors(place: Path, tally: Tally, *, killing: int = 2) -> None:
    """Kill one of two executors in the middle of an epoch; each keeps local state of its own."""
    server = _begin(place)
    cluster = ("--master", "local-cluster[2,1,1024]", "--local-state", "state", "--buckets", "4")
    try:
        tally.count("executor kills injected")
        _run(place, tally, server, *cluster, "--kill-executor", str(killing))
        _end(place, tally, server, *cluster)
    finally:
        server.close()
    attempts = [line for path in (place / "faults").glob(f"attempt-{killing}-0-*") for line in path.read_text().split()]
    if (place / "faults" / f"executor-{killing}").exists() and len(set(attempts)) > 1:
        tally.count("executor kills observed")
    _compare(place, server, tally, "executors")


def rescalings(place: Path, tally: Tally) -> None:
    """Give the query other buckets while rows are parked, and kill the rescaling process before and after that is true."""
    server = _begin(place)
    try:
        _run(place, tally, server)
        for moment, wanted, found in (("before-rescaling", 3, 2), ("after-rescaling", 3, 3)):
            tally.count("rescalings injected")
            _kill(place, tally, server, "--rescale", str(wanted), "--kill-driver", f"{moment}@{FULL - 1}")
            if stored_buckets(str(place / "checkpoint")) != found:
                tally.problem(f"{moment}: the checkpoint has not {found} buckets")
            tally.count("rescalings killed")
        _run(place, tally, server, "--rescale", "5")
        _end(place, tally, server, "--buckets", "5")
    finally:
        server.close()
    _compare(place, server, tally, "rescalings")


SEARCHES = {
    "drivers": drivers,
    "on-driver": on_driver,
    "workers": workers,
    "executors": executors,
    "rescalings": rescalings,
}


def _begin(place: Path) -> CountingServer:
    (place / "orders").mkdir(parents=True)
    for epoch in range(FULL):
        _write(place, epoch, [3 * epoch, 3 * epoch + 1, 3 * epoch + 2])
    return CountingServer()


def _write(place: Path, epoch: int, orders: list[int]) -> None:
    path = place / "orders" / f"{epoch}.parquet"
    pq.write_table(pa.table({"o": orders, "who": orders}, schema=ORDERS), path)
    os.utime(path, (1_600_000_000 + epoch, 1_600_000_000 + epoch))  # Spark takes files by their time


def _end(place: Path, tally: Tally, server: CountingServer, *arguments: str) -> None:
    """Start the query as often as it takes to request what is parked."""
    _run(place, tally, server, *arguments)
    for epoch in range(FULL, FULL + LATER):
        _write(place, epoch, [100 + 2 * epoch])
    _run(place, tally, server, *arguments)


def _run(place: Path, tally: Tally, server: CountingServer, *arguments: str) -> None:
    death = run(place, "--view", "lookup", "--port", str(server.port), *arguments)
    if death.status:
        tally.problem(f"{arguments}: the program ended with status {death.status}: {death.error}")


def _kill(place: Path, tally: Tally, server: CountingServer, *arguments: str) -> None:
    death = run(place, "--view", "lookup", "--port", str(server.port), *arguments)
    if death.status == -signal.SIGKILL:
        tally.count("driver kills observed")
    else:
        tally.problem(f"{arguments}: the program ended by itself, with status {death.status}: {death.error}")


def _compare(place: Path, server: CountingServer, tally: Tally, where: str) -> None:
    files = sorted((place / "orders").glob("*.parquet"))
    orders = [value for path in files for value in pq.read_table(path)["o"].to_pylist()]
    requested = {order: 1 + order % 2 for order in orders}
    epochs, rows = emitted(place)
    tally.compare(rows, {(order, order, order, requested[order]): 1 for order in orders}, f"{where}, {epochs} epochs")
    tally.count("calls counted at the server", sum(server.requested.values()))
    if dict(server.requested) != requested:
        keys = sorted(server.requested.keys() | requested)
        differing = {
            key: (server.requested[key], requested.get(key, 0))
            for key in keys
            if server.requested[key] != requested.get(key, 0)
        }
        tally.problem(f"{where}: requested and expected, by key: {differing}")


def main(arguments: list[str] | None = None) -> int:
    """Run the searches."""
    parser = argparse.ArgumentParser(prog="python -m faults.spark_lookups")
    parser.add_argument("--only", default=".*", help="a regular expression for the searches to run")
    reported = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory() as directory:
        for name, search in SEARCHES.items():
            if re.fullmatch(reported.only, name):
                search(Path(directory) / name, tally)
                print(f"{name}: so far {tally}", flush=True)  # noqa: T201 - the report
    for problem in tally.problems:
        print(f"FAILED: {problem}")  # noqa: T201
    return int(bool(tally.problems or tally.lost or tally.doubled))


if __name__ == "__main__":
    sys.exit(main())
