"""Run the benchmarks: `python -m benchmarks.run [--quick] [--only PATTERN]`; see README.md.

First all contestants prove that they give the same answers. Then every cell is measured in processes of its own, three
times, the contestants one after the other in each round so that they meet the same machine; the median counts. A partial
run (`--quick`, `--only`) writes `results/partial.json` by default, so that `results/latest.json` always holds
one whole run. Exit code 1 when a cell failed; a missed goal is printed, not an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.contestant import CONTESTANTS
from benchmarks.durability import (
    DURABILITY_LABEL,
    Durability,
    durability_goals,
    durability_lines,
    measure_durability,
)
from benchmarks.measure import Cell, CellError, Measurement, measure_apart, middle_of, run_apart
from benchmarks.memory import Footprint, footprint_goals, footprint_lines, measure_footprints
from benchmarks.report import goals_of, loss_lines, machine_lines, table_lines, write_results
from benchmarks.spark_throughput import SPARK_LABEL, measure_spark_apart

__all__ = ["cell_label", "cells_of", "main"]

RESULTS = Path(__file__).resolve().parent / "results"
STANDARD = ("zset_join", "zset_join_view", "dict", "polars", "duckdb")
MEMORY_LABEL = "memory"
ROUNDS = 3


def cells_of(*, quick: bool, contestants: Sequence[str]) -> list[Cell]:
    """List the cells of a run, in the order they are measured."""
    everyone = [name for name in STANDARD if name in contestants]
    cells: list[Cell] = []
    for scale in (100_000,) if quick else (100_000, 1_000_000):
        for epoch_changes, epochs, warm_up_epochs in _epoch_plan(scale, quick=quick):
            cells += [
                _cell("orders_customers", scale, name, epoch_changes, epochs, warm_up_epochs, quick=quick) for name in everyone
            ]
    skewed = [name for name in CONTESTANTS if name in contestants]
    epochs, warm_up_epochs = (5, 1) if quick else (15, 2)
    cells += [_cell("many_to_many", 20_000, name, 1_000, epochs, warm_up_epochs, quick=quick) for name in skewed]
    if not quick and "zset_join" in contestants:
        plan = _epoch_plan(10_000_000, quick=quick)
        cells += [_cell("orders_customers", 10_000_000, "zset_join", *sizes, quick=quick) for sizes in plan]
    return cells


def cell_label(cell: Cell) -> str:
    """Return the name that `--only` is matched with: workload/scale/epoch changes/contestant."""
    return f"{cell.workload}/{cell.scale}/{cell.epoch_changes}/{cell.contestant}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    options = _parser().parse_args(arguments)
    contestants = options.contestants.split(",")
    unknown = sorted(set(contestants) - set(CONTESTANTS))
    if unknown:
        print(f"--contestants names {unknown}; there are {', '.join(CONTESTANTS)}.", file=sys.stderr)
        return 2
    pattern = re.compile(options.only)
    cells = [cell for cell in cells_of(quick=options.quick, contestants=contestants) if pattern.search(cell_label(cell))]
    with_memory = "zset_join" in contestants and bool(pattern.search(MEMORY_LABEL))
    failures: list[str] = []

    lines = ["benchmarks of zset_join: one thread, CPU time, one process per cell", *machine_lines(), ""]
    print("\n".join(lines), flush=True)
    if not options.unchecked:
        same = run_apart("benchmarks.verify", ",".join(contestants))
        lines.append(same)
        print(same, flush=True)

    measurements: list[Measurement] = []
    footprints: list[Footprint] = []
    rounds = 1 if options.quick else ROUNDS
    with tqdm(total=rounds * len(cells) + with_memory, unit="cell", dynamic_ncols=True, file=sys.stderr) as progress:
        for group in _groups(cells):
            measurements += _measure_group(group, rounds, progress, failures)
        if with_memory:
            progress.set_postfix_str(MEMORY_LABEL)
            try:
                footprints = measure_footprints(100_000 if options.quick else 1_000_000)
            except CellError as error:
                failures.append(f"FAILED {MEMORY_LABEL}: {error}")
            progress.update()

    if "zset_join" in contestants and not options.quick and pattern.search(SPARK_LABEL):
        measurements += measure_spark_apart(lines, failures)

    durability: Durability | None = None
    if "zset_join" in contestants and not options.quick and pattern.search(DURABILITY_LABEL):
        try:
            durability = measure_durability()
        except CellError as error:
            failures.append(f"FAILED {DURABILITY_LABEL}: {error}")

    report = table_lines(measurements)
    if footprints:
        report += footprint_lines(footprints)
    goals = goals_of(measurements) + footprint_goals(footprints)
    if durability is not None:
        report += durability_lines(durability)
        goals += durability_goals(durability)
    if goals:
        report += ["", "goals", *(goal.line() for goal in goals)]
    losses = loss_lines(measurements)
    if losses:
        report += ["", "losses", *losses]
    report += failures
    print("\n".join(report))
    partial = options.quick or options.only or set(contestants) < set(CONTESTANTS)
    path = options.output or RESULTS / ("partial.json" if partial else "latest.json")
    write_results(path, measurements, lines + report)
    print(f"\nwritten: {path.name} and its .txt and .machine.json, in {path.parent.name}/")
    return 1 if failures else 0


def _groups(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yield the cells that differ in their contestant only."""
    for _, group in groupby(cells, key=lambda cell: (cell.workload, cell.scale, cell.epoch_changes)):
        yield list(group)


def _measure_group(group: Sequence[Cell], rounds: int, progress: Any, failures: list[str]) -> list[Measurement]:
    """Measure the cells in turn, round after round; return the median round of each that never failed."""
    found: dict[str, list[Measurement]] = {cell.contestant: [] for cell in group}
    for _ in range(rounds):
        for cell in group:
            progress.set_postfix_str(cell_label(cell))
            try:
                found[cell.contestant].append(measure_apart(cell))
            except CellError as error:
                failures.append(f"FAILED {cell_label(cell)}: {error}")
            progress.update()
    return [middle_of(measured) for measured in found.values() if len(measured) == rounds]


def _epoch_plan(scale: int, *, quick: bool) -> list[tuple[int, int, int]]:
    """Return (changes per epoch, measured epochs, warm-up epochs): enough for a p99, little beside the state."""
    if quick:
        return [(1_000, 50, 5), (10_000, 15, 2), (100_000, 5, 1)]
    return [(1_000, 200, 20), (10_000, 40, 4), (100_000, 6 if scale == 100_000 else 10, 1)]


def _cell(
    workload: str, scale: int, contestant: str, epoch_changes: int, epochs: int, warm_up_epochs: int, *, quick: bool
) -> Cell:
    return Cell(
        workload=workload,
        scale=scale,
        contestant=contestant,
        epoch_changes=epoch_changes,
        epochs=epochs,
        warm_up_epochs=warm_up_epochs,
        budget_seconds=2.0 if quick else 8.0,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure the join against its baselines.")
    parser.add_argument("--quick", action="store_true", help="the smallest size, short windows, one round; about a minute")
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        default="",
        help="regular expression on workload/scale/epoch changes/contestant, such as many_to_many or /1000000/1000/",
    )
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="comma-separated; default: all")
    parser.add_argument("--output", type=Path, help="where the JSON rows go")
    parser.add_argument("--unchecked", action="store_true", help="do not compare the answers first")
    return parser


if __name__ == "__main__":
    sys.exit(main())
