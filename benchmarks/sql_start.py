"""How long do parsing, binding and planning take, and how long is it from the start of a process to its first delta?

    python -m benchmarks.sql_start

A statement of ten joins over eleven tables is bound and planned twenty times; the first time loads what the parser needs and is
distinguished; CPU time of the process. `zset-join run` is started five times over one file of rows, with kernels that are
compiled. Goals: 50 ms, 1.5 s.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe_machine
from zset_join.sql import connect

_TABLES = "; ".join(f"CREATE TABLE t{number} (k INT, v{number} INT, PRIMARY KEY (k))" for number in range(11))
_JOINS = " ".join(f"JOIN t{number} ON t{number}.k = t0.k AND t{number}.v{number} > {number}" for number in range(1, 11))
_QUERY = (
    f"SELECT t0.k, sum({' + '.join(f't{n}.v{n}' for n in range(11))}) AS total FROM t0 {_JOINS} WHERE t0.v0 < 100 GROUP BY t0.k"
)
_PROGRAM = "import sys; from zset_join.cli import main; sys.exit(main(sys.argv[1:]))"


def planned() -> list[float]:
    """Return the CPU milliseconds of binding and planning the statement, twenty times, the first one first."""
    found = []
    with connect() as session:
        session.sql(_TABLES)
        for _ in range(20):
            begin = time.process_time()
            made = session.sql(_QUERY)
            made.view.plan()  # type: ignore[union-attr]
            found.append((time.process_time() - begin) * 1000)
    return found


def started() -> list[tuple[float, float]]:
    """Return the seconds from the start of a process to the first line it prints, and those of CPU to its end, five times."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        rows, file = Path(directory) / "orders.json", Path(directory) / "pipeline.sql"
        rows.write_text('{"id": 1, "customer": "Ada", "total": 30}\n')
        file.write_text(
            f"CREATE TABLE orders (id INT, customer STRING, total INT) WITH ('connector'='filesystem', 'path'='{rows}');\n"
            "SELECT a.customer, sum(a.total) AS total FROM orders a JOIN orders b ON a.id = b.id GROUP BY a.customer;\n"
        )
        for _ in range(6):
            begin, used = time.perf_counter(), _used()
            with subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, "run", str(file), "--once"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as process:
                assert process.stdout is not None
                process.stdout.readline()
                wall = time.perf_counter() - begin
                process.stdout.read()
            found.append((wall, _used() - used))
    return found[1:]


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def main() -> int:
    """Print what was measured."""
    print(describe_machine())
    first, *rest = planned()
    print(f"parse, bind, plan 10 joins: first {first:.0f} ms, then {statistics.median(rest):.1f} ms "
          f"({min(rest):.1f} to {max(rest):.1f})")  # fmt: skip
    walls, cpus = zip(*started(), strict=True)
    print(f"zset-join run: first delta after {statistics.median(walls):.2f} s ({min(walls):.2f} to {max(walls):.2f}), "
          f"CPU to the end {statistics.median(cpus):.2f} s ({min(cpus):.2f} to {max(cpus):.2f})")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
