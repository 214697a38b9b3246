"""Does a join of any type keep its budget? `python -m benchmarks.hybrid_types [--rows N] [--budget MB] [--how left,full]`.

Orders and customers as in `benchmarks.hybrid`, with a budget for rows in memory, epochs of 100,000 changes, uniformly or by
Zipf's law, without and with a residual predicate (`amount < credit`, which about half of the pairs pass). Each case runs in a
process of its own. Reported are the peak of the process within an epoch, beside what it may be (budget, delta and a tenth), its
size after an epoch, the join's own count then, and changes per CPU second.

Results: `results/hybrid_types.txt`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from benchmarks.hybrid import MB, measured_apart
from benchmarks.machine import describe_machine, versions

__all__ = ["main"]

TYPES = ("inner", "left", "right", "full", "left_semi", "left_anti")
KEYS = ("zipf", "uniform")
RESULTS = Path(__file__).resolve().parent / "results" / "hybrid_types.txt"
_COLUMNS = ("join", "predicate", "keys", "may be MB", "peak MB", "resident MB", "counted MB", "k changes per CPU second")


def report(rows: int, budget: int, changes: int, epochs: int, types: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the report, measuring on the way."""
    given = {"rows": rows, "budget_mb": budget, "changes": changes, "epochs": epochs}
    yield json.dumps({**describe_machine(), **versions(), **given})
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---" * len(_COLUMNS) + "|"
    for how, residual, keys in product(types, (False, True), KEYS):
        case = {"keys": keys, "changes": changes, "max_hot_bytes": budget * MB, "how": how, "residual": residual}
        found = measured_apart(scale=rows // 4, epochs=epochs, **case)
        allowed = 1.1 * (budget + found.delta_mb)
        sizes = (allowed, found.peak_mb, found.resident_mb, found.counted_mb, found.changes_per_cpu_second / 1000)
        reported = " | ".join(f"{size:.0f}" for size in sizes)
        yield f"| {how} | {'yes' if residual else 'no'} | {keys} | {reported} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results, those of all types."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--budget", type=int, default=106, help="MB of rows in memory")
    parser.add_argument("--changes", type=int, default=100_000, help="per epoch")
    parser.add_argument("--epochs", type=int, default=12, help="measured, after as many to warm up")
    parser.add_argument("--how", help="some types, separated by commas; then no result is written")
    given = parser.parse_args(arguments)
    kept = []
    types = given.how.split(",") if given.how else TYPES
    for line in report(given.rows, given.budget, given.changes, given.epochs, types):
        print(line, flush=True)
        kept.append(line)
    if not given.how:
        RESULTS.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
