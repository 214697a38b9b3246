"""How fast is this checkout beside another one?

    python -m benchmarks.beside ../e303961 [--rounds N] [--no-spark] [--output FILE]

Measured in turns, each in processes of its own checkout, the order changed in every other round: the join operator in every
cell of `benchmarks.run` (orders/customers at 400 k rows of state, many-to-many), a pipeline of a join and its groups
(`benchmarks.pipeline`), and the maintained joins inside Spark (`benchmarks.spark_throughput`, one round each). Each figure is
this checkout's rate by the other's: the median over the rounds, with the least and the greatest.

Known limits: both checkouts run their own benchmark script, so a comparison is only right where the two scripts do the same
work (`git diff` of the script shows it). The other checkout must run in this environment.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tqdm import tqdm

from benchmarks.report import give

__all__ = ["main", "ratio_lines"]

HERE = Path(__file__).resolve().parents[1]
ROUNDS = 3
CELLS = "^(orders_customers/100000|many_to_many)/"


def main() -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="This checkout beside another one.")
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-spark", action="store_true", help="leave out the joins inside Spark")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    places = {"this": HERE, "other": given.other.resolve()}
    rates: list[dict[str, dict[str, float]]] = []
    for number in tqdm(range(given.rounds), unit="round", file=sys.stderr):
        order = sorted(places, reverse=bool(number % 2))
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for measure in (operator_rates, pipeline_rates, *(() if given.no_spark else (spark_rates,))):
            for name in order:
                found[name] |= measure(places[name])
        rates.append(found)
    give([f"other: {_commit(places['other'])}", f"this: {_commit(HERE)}", "", *ratio_lines(rates)], given.output)
    return 0


def ratio_lines(rounds: list[dict[str, dict[str, float]]]) -> list[str]:
    """Return a line per figure that both checkouts have: median rates, and the ratio with its least and greatest."""
    both = [name for name in rounds[0]["this"] if name in rounds[0]["other"]]
    lines = [f"{'per CPU second':44} {'other':>12} {'this':>12}  ratio (least, greatest) of {len(rounds)} rounds"]
    for name in both:
        ratios = [found["this"][name] / found["other"][name] for found in rounds]
        middle = {place: statistics.median(found[place][name] for found in rounds) for place in ("other", "this")}
        lines.append(
            f"{name:44} {middle['other']:>12,.0f} {middle['this']:>12,.0f}  "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        )
    return lines


def operator_rates(place: Path) -> Mapping[str, float]:
    """Return the changes per CPU second of the join operator."""
    arguments = ("run", "--contestants", "zset_join", "--unchecked", "--only", CELLS)
    return _json_rates(place, *arguments)


def spark_rates(place: Path) -> Mapping[str, float]:
    """Return the changes per CPU second of the joins inside Spark, and of the plan that does nothing with the rows."""
    return _json_rates(place, "spark_throughput", "--rounds", "1")


def pipeline_rates(place: Path) -> Mapping[str, float]:
    """Return the changes and the small epochs per second of a pipeline."""
    printed = _run(place, "pipeline", "--rounds", "3")
    small, large = (float(one.replace(",", "")) for one in re.findall(r"^  pipeline +([\d.,]+)", printed, re.MULTILINE))
    return {"pipeline, epochs of 20 (epochs per second)": 1e3 / small, "pipeline, epochs of 10,000": large}


def _json_rates(place: Path, module: str, *arguments: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        _run(place, module, *arguments, "--output", str(path))
        rows = json.loads(path.read_text())
    return {f"{row['workload']}, {row['engine']}, {row['epoch_changes']:,}": row["changes_per_cpu_second"] for row in rows}


def _run(place: Path, module: str, *arguments: str) -> str:
    """Run a benchmark of a checkout and return what it printed; raise where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} in {place} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _commit(place: Path) -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=place, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
