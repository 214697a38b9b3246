"""Turn measurements into the printed tables and the JSON rows.

Ratios are always between two numbers of the same run. Every cell is printed, also where a baseline wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, versions
from benchmarks.measure import Measurement

__all__ = [
    "BASELINE",
    "Goal",
    "give",
    "goals_of",
    "json_rows",
    "loss_lines",
    "machine_lines",
    "table_lines",
    "write_results",
]

BASELINE = "dict"
ENGINE = "zset_join"
VIEW = "zset_join_view"
JSON_FIELDS = (
    "workload",
    "engine",
    "state_rows",
    "epoch_changes",
    "changes_per_cpu_second",
    "delta_rows_per_cpu_second",
    "p50_ms",
    "p99_ms",
    "peak_bytes",
)
_DICT_RATIO_GOALS = {1_000: 5.0, 10_000: 10.0, 100_000: 12.0}
_MANY_TO_MANY_GOAL = 8.0
_VIEW_GOAL, _MANY_TO_MANY_VIEW_GOAL = 0.9, 0.85
_GROWTH_GOAL = 2.0


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One sentence that is true or not: `measured` compared with `bound`."""

    sentence: str
    measured: float
    bound: float
    at_least: bool = True

    @property
    def reached(self) -> bool:
        """Return whether the measured value is on the right side of the bound."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def line(self) -> str:
        """Return the goal as a line of the report."""
        relation = ">=" if self.at_least else "<="
        verdict = "reached" if self.reached else "MISSED "
        return f"{verdict}  {self.measured:8.2f} {relation} {self.bound:<6.2f} {self.sentence}"


def table_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Return one line per measurement, grouped by workload, state size and epoch size."""
    header = (
        f"{'contestant':<16}{'changes/cpu s':>14}{'min - max window':>24}{'x ' + BASELINE:>9}"
        f"{'delta rows/cpu s':>18}{'rows/change':>12}{'p50 ms':>10}{'p99 ms':>10}{'peak MB':>9}{'epochs':>8}"
    )
    lines: list[str] = []
    for group in _groups(measurements):
        first = group[0]
        title = (
            f"{first.workload}, {first.state_rows:,} rows of state, {first.epoch_changes:,} changes per epoch, "
            f"{first.answer_rows_per_change:.2f} answer rows per change"
        )
        lines += ["", title, header]
        base = _rate(group, BASELINE)
        for one in group:
            ratio = f"{one.changes_per_cpu_second / base:.2f}" if base else "-"
            window = f"{one.slowest_window:,.0f} - {one.fastest_window:,.0f}"
            lines.append(
                f"{one.engine:<16}{one.changes_per_cpu_second:>14,.0f}{window:>24}{ratio:>9}"
                f"{one.delta_rows_per_cpu_second:>18,.0f}{one.emitted_rows_per_change:>12,.2f}"
                f"{one.p50_ms:>10.2f}{one.p99_ms:>10.2f}{one.peak_bytes / 1e6:>9,.0f}{one.epochs:>8}"
            )
    return lines


def goals_of(measurements: Sequence[Measurement]) -> list[Goal]:
    """Return the goals that these measurements decide; a goal whose cells were not measured is omitted."""
    goals: list[Goal] = []
    for group in _groups(measurements):
        first, ours = group[0], _rate(group, ENGINE)
        where = f"{first.workload}, {first.state_rows:,} rows, {first.epoch_changes:,} per epoch"
        bound = _MANY_TO_MANY_GOAL if first.workload == "many_to_many" else _DICT_RATIO_GOALS.get(first.epoch_changes)
        base = _rate(group, BASELINE)
        if ours and base and bound:
            goals.append(Goal(sentence=f"times the {BASELINE} join: {where}", measured=ours / base, bound=bound))
        view = _rate(group, VIEW)
        if ours and view:
            bound = _MANY_TO_MANY_VIEW_GOAL if first.workload == "many_to_many" else _VIEW_GOAL
            goals.append(Goal(sentence=f"a view by SQL beside the operator: {where}", measured=view / ours, bound=bound))
        if first.workload != "many_to_many":
            for peer in ("polars", "duckdb"):
                rate = _rate(group, peer)
                if ours and rate:
                    goals.append(Goal(sentence=f"times {peer}: {where}", measured=ours / rate, bound=1.0))
    return goals + _growth_goals(measurements)


def loss_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Return one line per cell in which a baseline beats the engine."""
    lines = []
    for group in _groups(measurements):
        ours = _rate(group, ENGINE)
        lines += [
            f"{one.engine} is {one.changes_per_cpu_second / ours:.2f} times faster: {one.workload}, "
            f"{one.state_rows:,} rows, {one.epoch_changes:,} per epoch"
            for one in group
            if 0.0 < ours < one.changes_per_cpu_second and one.engine != VIEW
        ]
    return lines


def json_rows(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return the rows of `latest.json`, with exactly the published fields."""
    return [{name: getattr(one, name) for name in JSON_FIELDS} for one in measurements]


def give(lines: Sequence[str], output: Path | None) -> None:
    """Print the machine and the lines of a report, and write the same to a file where one is named."""
    text = "\n".join([*machine_lines(), "", *lines])
    print(text)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")


def machine_lines() -> list[str]:
    """Return machine and versions, one per line."""
    return [f"{name}: {value}" for name, value in {**describe_machine(), **versions()}.items()]


def write_results(path: Path, measurements: Sequence[Measurement], lines: Sequence[str]) -> None:
    """Write the JSON rows to `path`, the printed report and the machine next to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(json_rows(measurements), indent=1) + "\n", encoding="utf-8")
    machine = {"machine": describe_machine(), "versions": versions()}
    path.with_suffix(".machine.json").write_text(json.dumps(machine, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _growth_goals(measurements: Sequence[Measurement]) -> list[Goal]:
    ours = [one for one in measurements if one.engine == ENGINE and one.workload == "orders_customers"]
    goals = []
    for epoch_changes in sorted({one.epoch_changes for one in ours}):
        sizes = {one.state_rows: one.changes_per_cpu_second for one in ours if one.epoch_changes == epoch_changes}
        if 400_000 in sizes and 40_000_000 in sizes:
            sentence = f"cost per change at 40 M rows, times that at 400 k, {epoch_changes:,} per epoch"
            measured = sizes[400_000] / sizes[40_000_000]
            goals.append(Goal(sentence=sentence, measured=measured, bound=_GROWTH_GOAL, at_least=False))
    return goals


def _groups(measurements: Sequence[Measurement]) -> list[list[Measurement]]:
    groups: dict[tuple[str, int, int], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.workload, one.state_rows, one.epoch_changes), []).append(one)
    return list(groups.values())


def _rate(group: Sequence[Measurement], engine: str) -> float:
    return next((one.changes_per_cpu_second for one in group if one.engine == engine), 0.0)
