"""A pipeline with a directory and DuckDB outputs is killed at every file operation of a change of its query.

The law: after a kill the directory is one of the query before or of the new one, never half; opening it gives every output what
it lacks; and a pipeline that continues from there, changed if it was not, ends where one ends that was never killed.

A life opens a directory of two epochs, changes the query (a group by another column, a view more, a view less), and takes an
epoch. It dies before a file operation, or between two outputs. Everything is done in children.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa

from faults.kills import KillAt
from faults.processes import Send, exit_at, forked
from faults.tally import Tally
from faults.watching import OperationList
from zset_join.core.errors import StateError
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.runners.local.outputs import PipelineOutputs
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.storage.operations import observe

__all__ = ["ChangedBank", "kill_at_operations", "kill_at_seams", "operations_of", "seams_of"]

_ORDERS = changes("orders", {"id": pa.int64(), "who": pa.string(), "total": pa.int64()}, keys="id")
_PEOPLE = changes("people", {"who": pa.string(), "city": pa.string()}, keys="who")
_JOINED = _ORDERS.join(_PEOPLE, on="who")
_BEFORE = {
    "sums": _JOINED.groupBy("city").agg(F.sum("total").alias("t")),
    "people": _PEOPLE,
}
_AFTER = {
    "sums": _JOINED.where(col("total") > 2).groupBy("city").agg(F.sum("total").alias("t")),
    "counts": _JOINED.groupBy("who").agg(F.count().alias("n")),
}
_EPOCHS: Sequence[dict[str, Any]] = (
    {
        "orders": [{"id": at, "who": "abc"[at % 3], "total": at} for at in range(9)],
        "people": [{"who": who, "city": city} for who, city in zip("abc", ("Oslo", "Rome", "Oslo"), strict=True)],
    },
    {"orders": [{"id": 0, "who": "b", "total": 20}], "people": [{"who": "c", "city": "Rome"}]},
    {"orders": [{"id": 1, "who": "a", "total": 30}], "people": [{"who": "b", "city": "Bonn"}]},
)
_OLD, _CHANGE = 2, 2  # epochs before the change, and the number of the change
_Disturbing = Callable[[], AbstractContextManager[Any]]


class ChangedBank:
    """Directories of a pipeline and its outputs.

    Args:
        root: of the files.
    """

    def __init__(self, root: Path) -> None:
        self.work, self._copy = root / "work", root / "before"
        outcome = forked(self._make)
        if outcome.error or outcome.signal:
            raise RuntimeError(f"the pipeline could not be made: {outcome}")

    def _make(self, _: Send) -> None:
        self.work.mkdir(parents=True)
        with self.opened(_BEFORE) as pipeline:
            for rows in _EPOCHS[:_OLD]:
                pipeline.step(rows)
        shutil.copytree(self.work, self._copy)

    def restore(self) -> None:
        """Bring back the files as they were before the change."""
        shutil.rmtree(self.work)
        shutil.copytree(self._copy, self.work)

    def sinks(self, *views: str) -> dict[str, list[DuckDBViewSink]]:
        """Return the outputs of views: those that continue are in one database, the new one in another."""
        return {view: [DuckDBViewSink(self.work / f"{'new' if view == 'counts' else 'out'}.duckdb", view)] for view in views}

    def opened(self, views: dict[str, Any]) -> Pipeline[Any]:
        """Open the pipeline with its outputs."""
        return Pipeline(views, self.work / "p", outputs=self.sinks(*views))

    def change(self, pipeline: Pipeline[Any]) -> None:
        """Change the query."""
        pipeline.evolve(_AFTER, outputs=self.sinks("counts"))

    def rows(self, view: str) -> set[tuple[Any, ...]] | None:
        """Return what an output holds; None where it is absent."""
        path = self.work / f"{'new' if view == 'counts' else 'out'}.duckdb"
        if not path.exists():
            return None
        with duckdb.connect(str(path)) as connection:
            return set(connection.table(view).fetchall())


def _live(bank: ChangedBank, disturbing: _Disturbing, send: Send) -> None:
    with disturbing():
        pipeline = bank.opened(_BEFORE)
        bank.change(pipeline)
        pipeline.step(_EPOCHS[_OLD])
    send("ended")


@contextmanager
def _at_seams(seam: Callable[[], None]) -> Iterator[None]:
    write = PipelineOutputs._write

    def surrounded(*arguments: Any) -> None:
        seam()
        write(*arguments)
        seam()

    with mock.patch.object(PipelineOutputs, "_write", surrounded):
        yield


def _exit_at(number: int) -> AbstractContextManager[None]:
    return _at_seams(exit_at(number))


def seams_of(bank: ChangedBank) -> int:
    """Return how many moments before and after a database a life has."""
    return _counted(bank, lambda passed: _at_seams(lambda: passed.append("")))


def operations_of(bank: ChangedBank) -> list[str]:
    """Return the file operations of a life."""
    found: list[str] = []

    def life(send: Send) -> None:
        listed = OperationList(bank.work)
        _live(bank, lambda: observe(listed), lambda _: None)
        send(listed.described)

    bank.restore()
    outcome = forked(life)
    if outcome.error or not outcome.messages:
        raise RuntimeError(f"a life failed without a fault: {outcome}")
    found += outcome.messages[-1]
    return found


def _counted(bank: ChangedBank, disturbing: Callable[[list[str]], AbstractContextManager[None]]) -> int:
    def life(send: Send) -> None:
        passed: list[str] = []
        _live(bank, lambda: disturbing(passed), lambda _: None)
        send(len(passed))

    bank.restore()
    outcome = forked(life)
    if outcome.error or not outcome.messages:
        raise RuntimeError(f"a life failed without a fault: {outcome}")
    return int(outcome.messages[-1])


def kill_at_seams(bank: ChangedBank, seams: Sequence[int], tally: Tally) -> None:
    """End lives before and after databases, recover, and count."""
    for number in seams:
        _kill(bank, partial(_exit_at, number), f"seam {number}", tally)


def kill_at_operations(bank: ChangedBank, operations: Sequence[int], tally: Tally) -> None:
    """Kill lives before file operations, recover, and count; `old` and `new` count what the directory was one of."""
    for number in operations:
        kill = partial(KillAt, bank.work, number, "before")
        _kill(bank, lambda kill=kill: observe(kill()), f"operation {number}", tally)  # type: ignore[misc]


def _kill(bank: ChangedBank, disturbing: _Disturbing, where: str, tally: Tally) -> None:
    bank.restore()
    tally.count("kills injected")
    life = forked(partial(_live, bank, disturbing))
    if life.messages == ["ended"] or life.error:
        tally.problem(f"{where}: the life was not killed: {life}")
        return
    tally.count("kills observed")
    outcome = forked(partial(_recovered, bank))
    found = outcome.messages[-1] if outcome.messages else None
    if outcome.error or outcome.signal or not isinstance(found, dict):
        tally.problem(f"{where}: recovery ended by {outcome.signal}\n{outcome.error}")
        return
    tally.count(found["found"], 1)
    for problem in found["problems"]:
        tally.problem(f"{where}, found {found['found']}: {problem}")


def _recovered(bank: ChangedBank, send: Send) -> None:
    try:
        pipeline, found = bank.opened(_BEFORE), "old"
    except StateError as error:
        if error.code != "QUERY_CHANGED":
            raise
        pipeline, found = bank.opened(_AFTER), "new"
    problems = _compared(bank, pipeline, _BEFORE if found == "old" else _AFTER)
    if (pipeline.epoch == _CHANGE) != (found == "old"):
        problems.append(f"the next epoch is {pipeline.epoch}")
    if found == "old":
        bank.change(pipeline)
        problems += _compared(bank, pipeline, _AFTER)
    if pipeline.epoch == _CHANGE + 1:
        pipeline.step(_EPOCHS[_OLD])
    problems += _compared(bank, pipeline, _AFTER)
    pipeline.close()
    send({"found": found, "problems": problems})


def _compared(bank: ChangedBank, pipeline: Pipeline[Any], views: dict[str, Any]) -> list[str]:
    """Compare views and outputs with a pipeline in memory that has taken the same rows."""
    taken = min(pipeline.epoch, _OLD) + (pipeline.epoch > _CHANGE + 1)
    fresh, problems = Pipeline(views), []
    for rows in _EPOCHS[:taken]:
        fresh.step({name: given for name, given in rows.items() if name in fresh.sources})
    for view in views:
        expected = {tuple(row.values()) for row in fresh.view(view).to_pylist()}
        for what, rows in (
            ("view", {tuple(row.values()) for row in pipeline.view(view).to_pylist()}),
            ("output", bank.rows(view)),
        ):
            if rows != expected:
                problems.append(f"after epoch {pipeline.epoch - 1} the {what} {view} holds {rows}, not {expected}")
    return problems
