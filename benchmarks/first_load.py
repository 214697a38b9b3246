"""Peak memory of a first load on the driver: a baseline, or the first batch of a stream of files, of many rows.

    python -m benchmarks.first_load                            2,000,000 rows as a baseline, then as a first batch
    python -m benchmarks.first_load --rows 10000000 --of baseline
    python -m benchmarks.first_load --whole                    as one table, as it was before slices

Orders of about 60 bytes into a Parquet changelog, `local[2]`. It prints the peak of the anonymous memory of Python and of the
resident set of the JVM, the bytes of the rows in Arrow, the bytes of state, and the CPU seconds of both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.nexmark_spark import cpu_seconds

PER_FILE = 250_000
OF = ("baseline", "stream")


def write_files(place: Path, rows: int) -> int:
    """Write orders, several files; return their bytes in Arrow."""
    place.mkdir(parents=True)
    rng, size = np.random.default_rng(7), 0
    for number, begin in enumerate(range(0, rows, PER_FILE)):
        ids = np.arange(begin, min(rows, begin + PER_FILE))
        table = pa.table(
            {
                "id": ids,
                "customer": rng.integers(0, 10_000, len(ids)),
                "total": rng.integers(0, 1000, len(ids)),
                "seq": np.zeros(len(ids), np.int64),
                "note": [f"a note of order {one:09d}" for one in ids.tolist()],
            }
        )
        size += table.nbytes
        pq.write_table(table, place / f"{number:05d}.parquet")
    return size


def measure(place: Path, of: str, *, is_whole: bool) -> dict[str, Any]:
    """Load once, and return what it took."""
    from zset_join.runners.spark.driver import collecting, epochs
    from zset_join.spark import changes, local_session

    if is_whole:
        epochs.first_tables = lambda rows, epoch, most: iter([collecting.collected_table(rows, epoch, most)])
        epochs.collected_slices = epochs.first_tables
    session = local_session("first_load", cores=2)
    rows = session.read.parquet(str(place / "orders"))
    given = {"baseline": rows} if of == "baseline" else {}
    (place / "empty").mkdir(exist_ok=True)
    stream = session.readStream.schema(rows.schema).parquet(str(place / ("empty" if of == "baseline" else "orders")))
    orders = changes(stream, name="orders", keys=["id"], sequence_by="seq", **given)
    process = int(session.sparkContext._gateway.jvm.java.lang.ProcessHandle.current().pid())
    before, begun = cpu_seconds(), _resident(os.getpid(), "VmRSS")
    arrow_peak = _Watch(os.getpid())
    with tempfile.TemporaryDirectory() as directory:
        writer = orders.select("id", "customer", "total", "note").writeStream
        writer = writer.options(checkpointLocation=f"{directory}/cp", execution="driver", localStateDir=f"{directory}/local")
        query = writer.option("maxDeltaBytes", 0).trigger(availableNow=True).to("parquet", path=f"{directory}/log").start()
        query.awaitTermination()
        progress = query._runner.progress.entries[-1]
    return {
        "rows": progress["answer_rows"],
        "python_before": begun,
        "python_peak": arrow_peak.stop(),
        "jvm_peak": _resident(process, "VmHWM"),
        "state": progress["state_bytes"],
        "cpu": cpu_seconds() - before,
        "seconds": progress["seconds"],
    }


class _Watch:
    """Keep the largest anonymous memory of a process: state in mapped files can be reclaimed by the system."""

    def __init__(self, process: int) -> None:
        self._process, self._most, self._ends = process, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ends.is_set():
            self._most = max(self._most, _resident(self._process, "RssAnon"))
            time.sleep(0.05)

    def stop(self) -> int:
        """Return the largest one seen, in bytes."""
        self._ends.set()
        self._thread.join()
        return self._most


def _resident(process: int, what: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(what)), 0)


def main() -> None:
    """Run the cases of the arguments, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--of", nargs="*", choices=OF, default=list(OF))
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--place", help="measure over the files there; for the processes this one starts")
    given = parser.parse_args()
    if given.place is not None:
        print(json.dumps(measure(Path(given.place), given.of[0], is_whole=given.whole)))
        return
    with tempfile.TemporaryDirectory() as directory:
        size = write_files(Path(directory) / "data" / "orders", given.rows)
        for of in given.of:
            command = [sys.executable, "-m", "benchmarks.first_load", "--of", of, "--place", f"{directory}/data"]
            command += ["--whole"] if given.whole else []
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(answer.stdout.strip().splitlines()[-1])
            shown = {name: f"{found[name] / 1e6:,.0f} MB" for name in ("python_before", "python_peak", "jvm_peak", "state")}
            how = "whole" if given.whole else "in slices"
            print(
                f"{found['rows']:,} rows as {of}, {how}: {size / 1e6:,.0f} MB in Arrow; Python {shown['python_before']} first, "
                f"{shown['python_peak']} at its peak; JVM {shown['jvm_peak']} at its peak; state {shown['state']}; "
                f"{found['cpu']:.1f} CPU s, {found['seconds']}"
            )


if __name__ == "__main__":
    main()
