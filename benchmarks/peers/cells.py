"""The cells of a run of peers: what is measured, by which engines, and how their answers are compared.

Every figure is a rate by CPU seconds of a whole process. Of one cell all engines run in turns, in processes of their own, on
the same rows; the order changes in every other round. An engine whose answer differs from ours gets no figure.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import run_apart
from benchmarks.nexmark import EPOCH_EVENTS, KINDS, QUERIES
from benchmarks.peers.programs import run_program

__all__ = ["OURS", "Cell", "join_cells", "lines_of", "measured", "nexmark_cells"]

OURS = ("zset_join", "zset_join_view")
JOIN_PROGRAMS = {"differential": ("differential",)}

Run = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What several engines do with the same rows.

    Args:
        name: of the cell.
        unit: what a rate counts.
        rows: name of the file with its rows, which cells may have in common.
        write: writes that file.
        runs: by engine, what returns its figures; the first one's answer is right.
        programs: those that must be built.
        agree: whether two figures are of equal answers.
    """

    name: str
    unit: str
    rows: str
    write: Callable[[Path], None]
    runs: Mapping[str, Run]
    programs: frozenset[str]
    agree: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = field(repr=False)


def join_cells() -> list[Cell]:
    """Return the six cells of orders/customers, with the epochs of `benchmarks.run`."""
    plans = [(1_000, 200, 20), (10_000, 40, 4), (100_000, 6, 1)]
    return [_join_cell(scale, *plan) for scale in (100_000, 1_000_000) for plan in plans]


def nexmark_cells(events: int) -> list[Cell]:
    """Return the four queries on narrow rows, on whole rows that are kept whole, and on whole rows that are kept pruned."""
    return [_nexmark_cell(query, kind, events) for query in QUERIES for kind in KINDS]


def measured(cell: Cell, path: Path, *, turned: bool) -> dict[str, float]:
    """Return the rates of one round.

    Args:
        cell: to measure.
        path: of the file with its rows.
        turned: run the engines in the opposite order.

    Raises:
        AssertionError: an engine's answer differs from ours.
    """
    names = list(cell.runs)
    found = {name: cell.runs[name](path) for name in (reversed(names) if turned else names)}
    for name in names[1:]:
        if not cell.agree(found[names[0]], found[name]):
            raise AssertionError(f"{cell.name}: the answer of {name} differs from that of {names[0]}; no figure.")
    return {name: found[name]["changes"] / found[name]["seconds"] for name in names}


def lines_of(cell: Cell, rounds: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the lines of a cell: medians, and how many times the rate of another engine ours is, with least and greatest."""
    lines = [f"{cell.name}, {cell.unit} per CPU second, median of {len(rounds)}"]
    ours = [name for name in cell.runs if name in OURS]
    for name in cell.runs:
        line = f"  {name:28}{statistics.median(one[name] for one in rounds):>14,.0f}"
        for own in [] if name in OURS else ours:
            ratios = [one[own] / one[name] for one in rounds]
            line += f"   {own} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(line)
    return lines


def _join_cell(scale: int, epoch_changes: int, epochs: int, warm_up: int) -> Cell:
    sizes = {"scale": scale, "epoch_changes": epoch_changes, "epochs": epochs, "warm_up": warm_up}

    def apart(**more: str) -> Any:
        return json.loads(run_apart("benchmarks.peers.join", json.dumps({**sizes, **more})))

    def ours(engine: str) -> Run:
        return lambda _: dict(apart(engine=engine))

    def theirs(command: Sequence[str]) -> Run:
        return lambda path: run_program(*command, str(path))

    return Cell(
        name=f"join/{scale}/{epoch_changes}",
        unit="changes",
        rows=f"join-{scale}-{epoch_changes}",
        write=lambda path: apart(path=str(path)),
        runs={**{name: ours(name) for name in OURS}, **{name: theirs(command) for name, command in JOIN_PROGRAMS.items()}},
        programs=frozenset(command[0] for command in JOIN_PROGRAMS.values()),
        agree=_same_sums,
    )


def _same_sums(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return all(first[name] == second[name] for name in ("changes", "rows", "checksum"))


def _nexmark_cell(query: str, kind: str, events: int) -> Cell:
    def ours(path: Path) -> dict[str, Any]:
        answer = path.with_name("answer-ours")
        cell = {"query": query, "kind": kind, "path": str(path), "answer": str(answer)}
        return _events(json.loads(run_apart("benchmarks.peers.nexmark", json.dumps(cell))), answer)

    def theirs(path: Path) -> dict[str, Any]:
        answer = path.with_name("answer-dbsp")
        return _events(run_program("dbsp_nexmark", str(path), query, kind, str(answer)), answer)

    def _events(figures: dict[str, Any], answer: Path) -> dict[str, Any]:
        return {**figures, "changes": events - EPOCH_EVENTS, "answer": answer}

    def write(path: Path) -> None:
        run_apart("benchmarks.peers.nexmark", json.dumps({"events": events, "kind": kind, "path": str(path)}))

    return Cell(
        name=f"nexmark/{query}/{kind}",
        unit="events",
        rows=f"nexmark-{'narrow' if kind == 'narrow' else 'whole'}",
        write=write,
        runs={"zset_join": ours, "dbsp": theirs},
        programs=frozenset({"dbsp_nexmark"}),
        agree=_same_lines,
    )


def _same_lines(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two files of answers have the same lines in any order, doubles to nine digits."""
    one, other = (
        sorted(
            re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.9g}", figures["answer"].read_text(encoding="utf-8")).split(
                "\n"
            )
        )
        for figures in (first, second)
    )
    return [line for line in one if line] == [line for line in other if line]
