"""Exceptions at every call of a step: Ctrl-C, memory that does not exist, and any other.

The law: whatever is raised wherever in `Pipeline.step`, the pipeline continues or refuses, by a coded error, in memory and with
a directory. Where it continues, the caller who obeys its attribute `epoch` (as before: the step is taken again; one more: it is
not) finds the view and the outputs equal to those of a pipeline that was not interrupted. Where it refuses, that holds for the
pipeline that is opened again from the directory, in the same process.

A place is a call of Python or C code, or the return from one, by function, line and callee; an interrupt hits the first or the
last time that the step comes there. Not covered: interrupts inside of C code, which Python does not deliver there, and those
where a lock of the standard library is taken or released: behind the last line of an `__enter__`, before the first of an
`__exit__`, behind `_release_save`. One there leaves a lock to nobody, or releases it twice, and a thread waits for it
for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

from faults.tally import Tally
from zset_join.core.errors import ZsetJoinError
from zset_join.pipeline import FunctionSink, Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.query.view import View

__all__ = ["INTERRUPTS", "Interrupt", "Place", "expected", "interrupt_and_go_on", "places_of_a_step"]

Place = tuple[str, str, int, str]
"""Event, file, line and callee."""

INTERRUPTS: tuple[type[BaseException], ...] = (KeyboardInterrupt, MemoryError, RuntimeError, SystemExit)


def _view() -> View:
    orders = changes("orders", {"id": pa.int64(), "customer": pa.int64(), "total": pa.int64()}, keys="id")
    customers = appends("customers", {"name": pa.int64(), "city": pa.string()})
    joined = orders.join(customers, [("customer", "name")], "left")
    return joined.groupBy("city").agg(F.sum("total").alias("total"))


_STEPS: tuple[dict[str, Any], ...] = (
    {"orders": [{"id": 1, "customer": 1, "total": 10}], "customers": [{"name": 1, "city": "Paris"}]},
    {"orders": [{"id": 1, "customer": 2, "total": 5}, {"id": 2, "customer": 1, "total": 7}]},
    {"orders": [{"id": 3, "customer": 2, "total": 1}], "customers": [{"name": 2, "city": "Rome"}, {"name": 1, "city": "Nice"}]},
    {"orders": [{"id": 2, "customer": 2, "total": 9}]},
)
_INTERRUPTED = 2


def _place(frame: FrameType, event: str, argument: Any) -> Place:
    callee = getattr(argument, "__qualname__", "") if event.startswith("c_") else ""
    return event, frame.f_code.co_filename, frame.f_lineno, callee


@dataclass
class Interrupt:
    """Raise at one place.

    Args:
        place: where.
        turn: which time the work comes there, from 0.
        kind: what is raised.
        threads: of the pipeline that is interrupted; the one that is opened again has one.

    Attributes:
        hit: it was raised.
    """

    place: Place
    turn: int
    kind: type[BaseException]
    threads: int = 1
    hit: bool = False
    _seen: int = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Raise, when the place has come."""
        if self.hit or _place(frame, event, argument) != self.place:
            return
        self._seen += 1
        if self._seen > self.turn:
            self.hit = True
            sys.setprofile(None)
            raise self.kind("injected")


def _profiled(profile: Callable[[FrameType, str, Any], None], pipeline: Pipeline, given: dict[str, Any]) -> None:
    """Take a step under a profile; no other file is entered after it, so that no place is one of this search."""
    sys.setprofile(profile)
    try:
        pipeline.step(given)
    finally:
        sys.setprofile(None)


@dataclass
class _Output:
    """Content of an output: the delta of each epoch."""

    epochs: dict[int, list[tuple[tuple[Any, ...], int]]] = field(default_factory=dict)

    def write(self, epoch: int, delta: Any) -> None:
        self.epochs[epoch] = delta.to_pylist()

    def rows(self) -> dict[tuple[Any, ...], int]:
        total: dict[tuple[Any, ...], int] = {}
        for delta in self.epochs.values():
            for row, weight in delta:
                total[row] = total.get(row, 0) + weight
        return {row: weight for row, weight in total.items() if weight}


def _opened(directory: Path | None, output: _Output, threads: int = 1) -> Pipeline:
    return Pipeline(_view(), directory, threads=threads, outputs=[FunctionSink(output.write)])


def places_of_a_step(directory: Path | None, threads: int) -> dict[Place, int]:
    """Return the places that an epoch comes to, and how often."""
    counts: dict[Place, int] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        place = _place(frame, event, argument)
        name = place[3].rpartition(".")[2] or frame.f_code.co_name
        is_begun = event.endswith("call")
        is_locking = name == ("__exit__" if is_begun else "__enter__")
        is_locking |= not is_begun and frame.f_code.co_name == "_release_save"
        if frame.f_code.co_filename != __file__ and not is_locking:
            counts[place] = counts.get(place, 0) + 1

    output = _Output()
    with _opened(directory, output, threads) as pipeline:
        for given in _STEPS[:_INTERRUPTED]:
            pipeline.step(given)
        _profiled(note, pipeline, _STEPS[_INTERRUPTED])
    return counts


def expected() -> dict[tuple[Any, ...], int]:
    """Return what is right after all steps."""
    output = _Output()
    with _opened(None, output) as pipeline:
        for given in _STEPS:
            pipeline.step(given)
    return output.rows()


def interrupt_and_go_on(directory: Path | None, interrupt: Interrupt, right: dict[tuple[Any, ...], int], tally: Tally) -> None:
    """Interrupt an epoch, continue as a caller who obeys does, and compare.

    Args:
        directory: of the pipeline, not there yet; None for memory.
        interrupt: where.
        right: what view and output hold in the end.
        tally: where to count.
    """
    where = f"{interrupt.kind.__name__} at {interrupt.place}, turn {interrupt.turn}"
    output = _Output()
    pipeline = _opened(directory, output, interrupt.threads)
    try:
        for given in _STEPS[:_INTERRUPTED]:
            pipeline.step(given)
        try:
            _profiled(interrupt, pipeline, _STEPS[_INTERRUPTED])
        except (interrupt.kind, ZsetJoinError):
            tally.count("steps that raised")
        if not interrupt.hit:
            return
        tally.count("interrupts")
        try:
            pipeline = _gone_on(pipeline, directory, output, tally)
        except ZsetJoinError as refused:
            tally.count("refused")
            if refused.code != "PIPELINE_BROKEN" or directory is not None:
                tally.problem(f"{where}: {refused}")
            return
        held = dict(pipeline.contents().to_pylist())
        if held != right:
            tally.problem(f"{where}: the view is {held}, expected {right}")
        if output.rows() != right:
            tally.problem(f"{where}: the output has {output.rows()}, expected {right}")
    except Exception as error:  # noqa: BLE001 - a finding, whatever it is
        tally.problem(f"{where}: raised {type(error).__name__}: {error}")
    finally:
        pipeline.close()


def _gone_on(pipeline: Pipeline, directory: Path | None, output: _Output, tally: Tally) -> Pipeline:
    """Take the steps that are missing, in the same pipeline, or opened again where it refuses."""
    try:
        _rest(pipeline)
    except ZsetJoinError:
        if directory is None:
            raise
        pipeline.close()
        tally.count("opened again")
        pipeline = _opened(directory, output)
        _rest(pipeline)
    return pipeline


def _rest(pipeline: Pipeline) -> None:
    for given in _STEPS[pipeline.epoch :]:
        pipeline.step(given)
