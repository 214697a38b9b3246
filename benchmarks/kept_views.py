"""What does it cost a pipeline to keep its view, which it does by default?

    python -m benchmarks.kept_views [--rounds N] [--scale S] [--changes N] [--directory] [--output FILE]

Orders (upserts) join customers (upserts), all columns of both, as in `benchmarks.run`: 3*S orders and S customers are loaded,
and changes come in epochs of 1,000, 10,000 and 100,000. Contestants, in turn, in one process: *without*, a pipeline with
`keep_view=False`; *kept*, the default, whose view nobody reads; *read*, the default, whose view is read after a fifth and after
all of the epochs. Reported are changes per second of user CPU, and the share of *without* that the others have, of the same
round. Beside it: user CPU of one reading of the view, by listing it, and what `Contents` holds in memory at the end.

Known limits: one core; the machine's neighbours show, so minimum and maximum of the rounds are reported beside the median.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.report import machine_lines
from benchmarks.workloads import LEFT, RIGHT, Epoch, OrdersCustomers
from zset_join import ZSet
from zset_join.pipeline import Pipeline, View, changes

SIZES = (1_000, 10_000, 100_000)
CONTESTANTS = ("without", "kept", "read")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="A pipeline that keeps its view beside one that does not.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--directory", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    lines = [*machine_lines(), "", *measured(given.rounds, given.scale, given.changes, in_directory=given.directory)]
    text = "\n".join(lines)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    return 0


def measured(rounds: int, scale: int, count: int, *, in_directory: bool) -> list[str]:
    """Return the lines of the report."""
    workload = OrdersCustomers(scale)
    lines = []
    for size in SIZES:
        epochs = workload.epochs(max(5, count // size), size)
        speed: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
        reads: list[float] = []
        for _ in range(rounds):
            emitted = set()
            for name in CONTESTANTS:
                rate, rows, seconds = run(workload, epochs, name, in_directory=in_directory)
                speed[name].append(rate)
                emitted.add(rows)
                reads += seconds
            assert len(emitted) == 1, "the contestants emitted different numbers of rows"
        lines.append(f"epochs of {size:,} changes, changes per second of user CPU: median of {rounds} rounds (min, max)")
        for name in CONTESTANTS:
            share = statistics.median(one / other for one, other in zip(speed[name], speed["without"], strict=True))
            lines.append(f"  {name:8} {_line(speed[name], ',.0f')}   {share:.2f} of without")
        lines.append(f"  one reading of {3 * scale:,} rows and more, seconds of user CPU: {_line(reads, '.3f')}")
    return lines


def view(workload: OrdersCustomers) -> View:
    """Return the join of orders and customers."""
    orders, customers = (
        changes(relation.name, relation.schema, keys=list(relation.primary_key)) for relation in workload.relations
    )
    return orders.join(customers, on=[("customer_id", "id")])


def run(workload: OrdersCustomers, epochs: Sequence[Epoch], name: str, *, in_directory: bool) -> tuple[float, int, list[float]]:
    """Return changes per second of user CPU, how many rows came out, and seconds per reading."""
    with tempfile.TemporaryDirectory() as folder:
        directory = folder if in_directory else None
        with Pipeline(view(workload), directory, keep_view=name != "without") as pipeline:
            pipeline.step({one.name: _rows(workload, side) for side, one in enumerate(workload.relations)})
            names = [one.name for one in workload.relations]
            rows, reads, used = 0, list[float](), 0.0
            for number, epoch in enumerate(epochs):
                begun = user_seconds()
                rows += len(pipeline.step(_named(names, epoch)))
                used += user_seconds() - begun
                if name == "read" and (number == len(epochs) // 5 or number == len(epochs) - 1):
                    begun = user_seconds()
                    pipeline.contents()
                    reads.append(user_seconds() - begun)
    return sum(epoch.changes for epoch in epochs) / used, rows, reads


def user_seconds() -> float:
    """Return what this process has used of the CPU for itself."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def _named(names: Sequence[str], epoch: Epoch) -> Mapping[str, Any]:
    return {names[LEFT]: epoch.deltas[LEFT], names[RIGHT]: epoch.deltas[RIGHT]}


def _rows(workload: OrdersCustomers, side: int) -> ZSet:
    return ZSet.of(pa.Table.from_batches(list(workload.initial(side))))


def _line(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}, {max(values):{form}})"


if __name__ == "__main__":
    raise SystemExit(main())
