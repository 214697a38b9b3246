"""Ours beside differential dataflow and DBSP in one run.

    python -m benchmarks.peers [--only PATTERN] [--rounds N] [--events N] [--output benchmarks/results/peers.txt]

Builds the programs with cargo where they are not yet (in `CARGO_TARGET_DIR`, else in `peers-target` below the temporary files),
then measures cell by cell. Exit code 1 where an answer differed or a process failed, 2 without cargo.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.measure import CellError
from benchmarks.peers.cells import join_cells, lines_of, measured, nexmark_cells
from benchmarks.peers.programs import NoCargoError, build, versions_of_peers
from benchmarks.report import give

__all__ = ["main"]

ROUNDS = 3


def main() -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Ours beside other engines' programs.")
    parser.add_argument(
        "--only", metavar="PATTERN", default="", help="regular expression on names of cells, as join/100000/ or nexmark/q3/"
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="of Nexmark")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time while programs are built")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    cells = [cell for cell in (*join_cells(), *nexmark_cells(given.events)) if re.search(given.only, cell.name)]
    if not cells:
        print(f"--only {given.only!r} names no cell.", file=sys.stderr)
        return 2
    try:
        build({program for cell in cells for program in cell.programs}, jobs=given.jobs)
    except NoCargoError as error:
        print(error, file=sys.stderr)
        return 2
    lines: list[str] = []
    failures: list[str] = []
    with (
        tqdm(total=len(cells) * given.rounds, unit="cell", file=sys.stderr) as progress,
        tempfile.TemporaryDirectory(prefix="peers-rows-") as folder,
    ):
        for cell in cells:
            progress.set_postfix_str(cell.name)
            path = Path(folder) / cell.rows
            try:
                if not path.exists():
                    cell.write(path)
                rounds = []
                for number in range(given.rounds):
                    rounds.append(measured(cell, path, turned=bool(number % 2)))
                    progress.update()
                lines += lines_of(cell, rounds)
            except (AssertionError, CellError, RuntimeError) as error:
                failures.append(f"FAILED {cell.name}: {error}")
    give([*versions_of_peers(), "", *lines, *failures], given.output)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
