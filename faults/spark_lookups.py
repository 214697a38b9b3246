"""A lookup join inside Spark whose driver is killed while rows are parked: `python -m faults.spark_lookups`.

Every order has a key of its own. The HTTP server of `lookup_kills` knows an even key at once and an odd one when it is asked
for the second time, so odd ones are parked, and it counts. The driver, a process of its own with its JVM, ends by SIGKILL
between fetch and commit of one epoch and between commit and output of another.

What is demanded: every order is in the sum of the outputs once; at the end even keys were asked for once, and odd ones twice,
so no call was made again whose answer was journaled.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from faults.lookup_kills import TABLE, CountingServer
from faults.spark_faults import ROOT, _end_group
from faults.spark_program import _session
from faults.tally import Tally
from zset_join.lookup import HttpSource, Lookup
from zset_join.storage.operations import Operation, observe

__all__ = ["drivers", "main"]

ORDERS = pa.schema({"o": pa.int64(), "who": pa.int64()})
_LONGEST_SECONDS = 300
_HINT = Lookup(
    async_=False,
    retry_predicate="lookup_miss",
    retry_strategy="fixed_delay",
    fixed_delay="1ms",
    max_attempts=50,
    park="epochs",
)


def drivers(place: Path, tally: Tally, *, kills: tuple[str, ...] = ("fetched@1", "committed@2")) -> None:
    """Kill a driver per entry of `kills`, start it again, let it end, and compare."""
    server = CountingServer()
    (place / "orders").mkdir(parents=True)
    try:
        for epoch in range(4):
            _write(place, epoch)
        for kill in (*kills, ""):
            code = _run(place, server.port, kill)
            if kill and code != -signal.SIGKILL:
                tally.problems.append(f"{kill}: the driver ended with {code}; {(place / 'stderr').read_text()[-2000:]}")
                return
            tally.count("drivers killed", int(bool(kill)))
        for epoch in (4, 5):  # what is parked by now is asked for with these
            _write(place, epoch)
            _run(place, server.port, "")
    finally:
        server.close()
    _compare(place, server, tally)


def _write(place: Path, epoch: int) -> None:
    orders = range(3 * epoch, 3 * epoch + 3) if epoch < 4 else [100 + 2 * epoch]
    pq.write_table(pa.table({"o": list(orders), "who": list(orders)}, schema=ORDERS), place / "orders" / f"{epoch}.parquet")


def _run(place: Path, port: int, kill: str) -> int:
    with (place / "stderr").open("a") as errors:
        command = [sys.executable, "-m", "faults.spark_lookups", "--child", str(place), "--port", str(port), "--kill", kill]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=errors, stderr=errors, text=True, start_new_session=True
        )
        try:
            return child.wait(timeout=_LONGEST_SECONDS)
        finally:
            _end_group(child)


def _compare(place: Path, server: CountingServer, tally: Tally) -> None:
    held: Counter[tuple[Any, ...]] = Counter()
    for path in (place / "out").iterdir():
        for *row, weight in json.loads(path.read_text(encoding="utf-8")):
            held[tuple(row)] += weight
    orders = [value for epoch in range(6) for value in pq.read_table(place / "orders" / f"{epoch}.parquet")["o"].to_pylist()]
    found = Counter(row[0] for row, weight in held.items() for _ in range(abs(weight)))
    tally.count("rows compared", len(orders))
    tally.lost += sum(not found[order] for order in orders)
    tally.doubled += sum(found[order] > 1 for order in orders)
    wanted = {order: 1 + order % 2 for order in orders}
    if dict(server.asked) != wanted:
        tally.problems.append(f"the server was asked {dict(server.asked)}, expected {wanted}")
    wrong = [row for row in held if row[1:] != (row[0], row[0], wanted[row[0]])]
    if wrong:
        tally.problems.append(f"rows with another answer than the journaled one: {wrong}")


def _child(place: Path, port: int, kill: str) -> None:
    from zset_join.spark import appends

    when, _, number = kill.partition("@")
    session = _session(place, "local[2]")
    orders = session.readStream.schema("o long, who long").option("maxFilesPerTrigger", 1).parquet(str(place / "orders"))
    source = HttpSource(name="table", schema=TABLE, url=f"http://127.0.0.1:{port}/{{id}}")
    view = appends(orders, name="orders").lookup_join(source, on=[("who", "id")], how="left", hint=_HINT)

    def write(rows: Any, epoch: int) -> None:
        if when == "committed" and epoch == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        (place / "out").mkdir(exist_ok=True)
        told = json.dumps(sorted([list(row) for row in rows.collect()], key=repr))
        (place / f"{epoch}.new").write_text(told, encoding="utf-8")
        (place / f"{epoch}.new").replace(place / "out" / str(epoch))

    def dies(operation: Operation, act: Callable[[], Any]) -> Any:
        if when == "fetched" and f"/commits/{int(number):020d}" in (operation.target or operation.path):
            os.kill(os.getpid(), signal.SIGKILL)
        return act()

    with observe(dies):
        writer = view.writeStream.option("checkpointLocation", str(place / "checkpoint")).option("buckets", 2)
        writer.option("localStateDir", str(place / "local")).trigger(availableNow=True).foreachBatch(
            write
        ).start().awaitTermination()


def main(arguments: list[str] | None = None) -> int:
    """Run the faults, or, with `--child`, the program that is killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child")
    parser.add_argument("--port", type=int)
    parser.add_argument("--kill", default="")
    told = parser.parse_args(arguments)
    if told.child:
        _child(Path(told.child), told.port, told.kill)
        return 0
    tally = Tally()
    with tempfile.TemporaryDirectory() as directory:
        drivers(Path(directory) / "place", tally)
    sys.stdout.write(f"{tally}\n" + "".join(f"{problem}\n" for problem in tally.problems))
    return int(bool(tally.problems or tally.lost or tally.doubled))


if __name__ == "__main__":
    sys.exit(main())
