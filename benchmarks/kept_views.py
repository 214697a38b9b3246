"""What does it cost a pipeline to keep its view, which it does by default?

    python -m benchmarks.kept_views [--rounds N] [--scale S] [--changes N] [--directory] [--output FILE]

Orders (upserts) join customers (upserts), all columns of both, as in `benchmarks.run`: 3*S orders and S customers are loaded,
and changes come in epochs of 1,000, 10,000 and 100,000. Contestants: *without*, a pipeline with `keep_view=False`; *kept*, the
default, whose view nobody reads; *read*, the default, whose view is read after a fifth and after all of the epochs. They are in
one process and take every epoch in turn, so that a noisy neighbour meets all of them. Reported are changes per CPU second of
the thread, the share of *without* that the others have, and the CPU seconds of one reading.

Known limits: one core, whose cache the contestants share.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.report import give
from benchmarks.workloads import Epoch, OrdersCustomers
from zset_join import ZSet
from zset_join.pipeline import Pipeline, View, changes

SIZES = (1_000, 10_000, 100_000)
CONTESTANTS = ("without", "kept", "read")
THROWN_AWAY = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="A pipeline that keeps its view beside one that does not.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--directory", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    give(measured(given.rounds, given.scale, given.changes, in_directory=given.directory), given.output)
    return 0


def measured(rounds: int, scale: int, count: int, *, in_directory: bool) -> list[str]:
    """Return the lines of the report."""
    workload = OrdersCustomers(scale)
    lines = []
    for size in SIZES:
        epochs = workload.epochs(THROWN_AWAY + max(6, count // size), size)
        speed: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
        reads: list[float] = []
        for _ in range(rounds):
            seconds, reading = one_round(workload, epochs, in_directory=in_directory)
            reads += reading
            for name, used in seconds.items():
                speed[name].append((len(epochs) - THROWN_AWAY) * size / used)
        lines.append(f"epochs of {size:,} changes, changes per CPU second: median of {rounds} rounds (min, max)")
        for name in CONTESTANTS:
            share = statistics.median(one / other for one, other in zip(speed[name], speed["without"], strict=True))
            lines.append(f"  {name:8} {_line(speed[name], ',.0f')}   {share:.2f} of without")
        lines.append(f"  one reading of {3 * scale:,} rows and more, CPU seconds: {_line(reads, '.3f')}")
    return lines


def view(workload: OrdersCustomers) -> View:
    """Return the join of orders and customers."""
    orders, customers = (
        changes(relation.name, relation.schema, keys=list(relation.primary_key)) for relation in workload.relations
    )
    return orders.join(customers, on=[("customer_id", "id")])


def one_round(
    workload: OrdersCustomers, epochs: Sequence[Epoch], *, in_directory: bool
) -> tuple[dict[str, float], list[float]]:
    """Return the CPU seconds of the epochs by contestant, and those of each reading."""
    names = [one.name for one in workload.relations]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        running: dict[str, Pipeline[Any]] = {}
        for name in CONTESTANTS:
            directory = str(Path(folder) / name) if in_directory else None
            running[name] = opened.enter_context(Pipeline(view(workload), directory, keep_view=name != "without"))
            running[name].step({one: _rows(workload, side) for side, one in enumerate(names)})
        seconds, reads = dict.fromkeys(CONTESTANTS, 0.0), list[float]()
        for number, epoch in enumerate(epochs):
            rows = set()
            turn = number % len(CONTESTANTS)
            for name in (*CONTESTANTS[turn:], *CONTESTANTS[:turn]):
                begun = time.thread_time()
                answer = running[name].step(dict(zip(names, epoch.deltas, strict=True)))
                seconds[name] += time.thread_time() - begun if number >= THROWN_AWAY else 0.0
                rows.add(len(answer))
            assert len(rows) == 1, "the contestants emitted different numbers of rows"
            if number in (len(epochs) // 5, len(epochs) - 1):
                begun = time.thread_time()
                running["read"].contents()
                reads.append(time.thread_time() - begun)
    return seconds, reads


def _rows(workload: OrdersCustomers, side: int) -> ZSet:
    return ZSet.of(pa.Table.from_batches(list(workload.initial(side))))


def _line(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}, {max(values):{form}})"


if __name__ == "__main__":
    raise SystemExit(main())
