"""A pipeline of several views is killed between any two of its outputs, and between any two file operations.

The law: after a kill every output holds its view after its own last epoch, whole; outputs of one database are at the same
epoch, all of them at most one epoch apart, and `zset-join position` prints it; and once the pipeline is started again, every
output continues to the same epoch, without a row lost or doubled.

A *seam* is the moment before or after an epoch is given to an output, or to all outputs of one database. A life takes epoch 0
undisturbed, and ends itself at a seam or a file operation of the epochs behind it. Everything is done in children, so that no
thread of a database lives in the process that forks.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
from deltalake import DeltaTable

from faults.kills import KillAt
from faults.processes import Send, exit_at, forked
from faults.tally import Tally
from faults.watching import OperationList
from property_tests.bank import bank_epoch, bank_views, expected_views
from zset_join.pipeline import Pipeline
from zset_join.runners.common import rejected
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.outputs import PipelineOutputs
from zset_join.sinks.delta_view import DeltaViewSink
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sinks.json_lines import JsonLinesSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink, read_changelog
from zset_join.sinks.sink import Sink, write_epoch
from zset_join.storage.operations import observe
from zset_join.tools.position import OutputPosition, positions

__all__ = ["LAST_EPOCH", "Bank", "kill_at_operations", "kill_at_seams", "operations_of", "seams_of"]

LAST_EPOCH = 2
_Rows = set[tuple[Any, ...]]
_Seam = Callable[[], None]


@dataclass(frozen=True)
class Bank:
    """Directories of a pipeline and its outputs.

    Args:
        root: of the files.
        more: makes outputs elsewhere, by view.
        addresses: of those, as `position` takes them.
        read: returns the rows of one of those, named by table and view.
        clear: removes them.
    """

    root: Path
    more: Callable[[], Mapping[str, Sequence[Sink]]] = field(default=dict)
    addresses: Sequence[str] = ()
    read: Callable[[OutputPosition], _Rows] | None = None
    clear: Callable[[], None] = field(default=lambda: None)

    def opened(self) -> Pipeline[Any]:
        """Open the pipeline with its outputs."""
        file = self.root / "bank.duckdb"
        sinks: dict[str, list[Sink]] = {
            "total": [DuckDBViewSink(file, "total"), DeltaViewSink(self.root / "delta", key=())],
            "by_account": [DuckDBViewSink(file, "by_account"), JsonLinesSink(self.root / "lines", "weight")],
            "by_branch": [ParquetChangelogSink(self.root / "log")],
        }
        for view, others in self.more().items():
            sinks[view] += others
        return Pipeline(bank_views(), self.root / "p", outputs=sinks)

    def positions(self) -> Any:
        """Return the positions of the outputs."""
        places = [str(self.root / name) for name in ("bank.duckdb", "delta", "lines", "log")]
        return positions([*places, *self.addresses])

    def rows(self, output: OutputPosition) -> _Rows:
        """Return what an output holds."""
        place = Path(output.output.partition("#")[0])
        if output.kind == "duckdb":
            with duckdb.connect(str(place), read_only=True) as connection:
                return set(connection.table(str(output.view)).fetchall())
        if output.kind == "delta view":
            return _distinct([(tuple(row.values()), 1) for row in DeltaTable(place).to_pyarrow_table().to_pylist()])
        if output.kind == "parquet":
            lines = read_changelog(place).to_pylist()
            return _distinct([(tuple(line.values())[:-2], line["_weight"]) for line in lines])
        if output.kind == "files":
            records = [json.loads(text) for path in sorted(place.glob("*.jsonl")) for text in path.read_text().splitlines()]
            values = [json.loads(record["value"]) for record in records]
            return _distinct([((value["account"], value["amount"]), value["_weight"]) for value in values])
        assert self.read is not None
        return self.read(output)


def _distinct(weighted: Sequence[tuple[tuple[Any, ...], int]]) -> _Rows:
    """Return the sum of changes; a row that is present twice, or less than never, keeps its weight."""
    held: Counter[tuple[Any, ...]] = Counter()
    for row, weight in weighted:
        held[row] += weight
    return {row if count == 1 else (*row, f"{count} times") for row, count in held.items() if count}


# ---------------------------------------------------------------- lives


@contextmanager
def _at_seams(seam: _Seam) -> Iterator[None]:
    """Call a function at every seam."""

    def surrounded(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            seam()
            result = work(*arguments)
            seam()
            return result

        return call

    write_all = surrounded(PipelineOutputs._write)
    with (
        mock.patch.object(rejected, "write_epoch", surrounded(write_epoch)),
        mock.patch.object(PipelineOutputs, "_write", lambda *arguments: write_all(*arguments)),
    ):
        yield


def _live(bank: Bank, disturbing: Callable[[], Any], send: Send) -> None:
    """Take epoch 0 undisturbed, and the others disturbed."""
    pipeline = bank.opened()
    pipeline.step(bank_epoch(0))
    disturbed = disturbing()
    with disturbed:
        for epoch in range(1, LAST_EPOCH + 1):
            pipeline.step(bank_epoch(epoch))
    pipeline.close()
    send("ended")


def _exit_at(number: int) -> Any:
    return _at_seams(exit_at(number))


def seams_of(bank: Bank) -> int:
    """Return how many seams a life has."""

    def life(send: Send) -> None:
        passed = [0]

        def seam() -> None:
            passed[0] += 1

        _live(bank, lambda: _at_seams(seam), lambda _: None)
        send(passed[0])

    return int(_undisturbed(bank, life))


def operations_of(bank: Bank) -> int:
    """Return how many file operations a life has."""

    def life(send: Send) -> None:
        listed = OperationList(bank.root)
        _live(bank, lambda: observe(listed), lambda _: None)
        send(len(listed.described))

    return int(_undisturbed(bank, life))


def _undisturbed(bank: Bank, life: Callable[[Send], None]) -> Any:
    _clear(bank)
    outcome = forked(life)
    if outcome.error or not outcome.messages:
        raise RuntimeError(f"a life failed without a fault: {outcome}")
    return outcome.messages[-1]


def _clear(bank: Bank) -> None:
    shutil.rmtree(bank.root, ignore_errors=True)
    bank.root.mkdir(parents=True)
    bank.clear()


def kill_at_seams(bank: Bank, seams: Sequence[int], tally: Tally) -> None:
    """End lives at seams, recover, and count; `apart` counts the kills that left outputs at two epochs."""
    for number in seams:
        _kill(bank, partial(_exit_at, number), f"seam {number}", tally)


def kill_at_operations(bank: Bank, operations: Sequence[int], tally: Tally) -> None:
    """Kill lives before file operations, recover, and count."""
    for number in operations:
        _kill(bank, lambda at=number: observe(KillAt(bank.root, at, "before")), f"operation {number}", tally)  # type: ignore[misc]


def _kill(bank: Bank, disturbing: Callable[[], Any], where: str, tally: Tally) -> None:
    _clear(bank)
    tally.count("kills injected")
    life = forked(partial(_live, bank, disturbing))
    if life.messages == ["ended"] or life.error:
        tally.problem(f"{where}: the life was not killed: {life}")
        return
    tally.count("kills observed")
    for work, last in ((_found, None), (_recovered, LAST_EPOCH)):
        outcome = forked(partial(work, bank))
        reported = outcome.messages[-1] if outcome.messages else None
        if outcome.error or outcome.signal or not isinstance(reported, dict):
            tally.problem(f"{where}: {work.__name__} ended by {outcome.signal}\n{outcome.error}")
            return
        tally.count("comparisons", reported["outputs"])
        tally.count("apart", reported["apart"] if last is None else 0)
        for problem in reported["problems"]:
            tally.problem(f"{where}, {work.__name__}: {problem}")


def _found(bank: Bank, send: Send) -> None:
    send(_checked(bank, None))


def _recovered(bank: Bank, send: Send) -> None:
    with bank.opened() as pipeline:
        begun = pipeline.epoch
        found = _checked(bank, begun - 1)  # what was committed has reached all outputs
        for epoch in range(begun, LAST_EPOCH + 1):
            pipeline.step(bank_epoch(epoch))
    ended = _checked(bank, LAST_EPOCH)
    send({**ended, "problems": found["problems"] + ended["problems"]})


def _checked(bank: Bank, expected: int | None) -> dict[str, Any]:
    """Compare every output with its view after the epoch it claims.

    Args:
        bank: where they are.
        expected: the epoch that all must hold; None where they may be one apart.
    """
    found, problems = bank.positions(), []
    epochs = {one.output: one.epoch for one in found.outputs}
    known = sorted(set(epochs.values()))
    if expected is not None and known != [expected]:
        problems.append(f"epoch {expected} was expected of all: {epochs}")
    if known[-1] - known[0] > 1 or found.common != known[0] or not found.is_well:
        problems.append(f"outputs are further apart than one epoch, or their common epoch is not the older one: {found}")
    databases: dict[str, set[int]] = {}
    for one in found.outputs:
        if "#" in one.output:
            databases.setdefault(one.output.partition("#")[0], set()).add(one.epoch)
        views = expected_views(range(one.epoch + 1))
        rows = bank.rows(one)
        if rows != views[one.view]:
            problems.append(f"{one.output} claims epoch {one.epoch} and holds {sorted(rows)}, not {sorted(views[one.view])}")
    problems += [f"views of one database at several epochs: {name}: {at}" for name, at in databases.items() if len(at) > 1]
    return {"outputs": len(found.outputs), "apart": len(known) > 1, "problems": problems}


def search(root: Path, kind: str, wanted: Sequence[int] | Callable[[int], Sequence[int]], bug: str = "") -> tuple[int, Tally]:
    """Kill at seams or at operations, in this process; return how many there are, and the counts.

    Args:
        root: an empty directory.
        kind: `seams` or `operations`.
        wanted: at which; or chooses them, given how many there are.
        bug: a key of `PLANTED`.
    """
    bank, tally = Bank(root), Tally()
    pipeline = Pipeline(bank_views())
    for epoch in range(3):
        pipeline.step(bank_epoch(epoch))  # compiles what the bank needs
    with PLANTED[bug]() if bug else nullcontext():
        there = 0 if bug else (seams_of(bank) if kind == "seams" else operations_of(bank))
        chosen = wanted(there) if callable(wanted) else wanted
        (kill_at_seams if kind == "seams" else kill_at_operations)(bank, chosen, tally)
    return there, tally


def search_apart(root: Path, kind: str, wanted: Any, bug: str = "") -> tuple[int, Tally]:
    """Search in a fresh process: one that has used a Delta table has threads that a forked child cannot do without."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(search, root, kind, wanted, bug).result()


PLANTED: Mapping[str, Callable[[], Any]] = {
    "a transaction per view": lambda: mock.patch.object(DuckDBViewSink, "together", return_value=nullcontext()),
    "no epoch is given again at a start": lambda: mock.patch.object(PipelineDirectory, "newest_answers", return_value=()),
}
