"""Contents of all views after one epoch, for threads other than the one that calls `step`.

    pipeline.snapshot().tables()        {"by_city": ..., "by_day": ...}, both after the same epoch

The law: the tables of a snapshot are those of all views after `epoch`, whatever the pipeline does meanwhile. An epoch becomes
visible by one assignment, after it is committed and all views have taken it, and before outputs are given it.

A view that is listed from the state of its stages (see `contents`) is listed under the lock of the pipeline, which a step
holds. With a directory that folds the last epoch into the state, as the next epoch would; a reader that dies after it leaves
files as a refused epoch leaves them. A state that holds rows on the disk, or forgets some, is not listed: its log is summed.

Cost: an epoch publishes two references per view. Reading a view lists its rows, or adds up those since the last reading, once
per snapshot. Memory: while a snapshot is held, the rows of its views live on, or at most twice as many rows of deltas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from zset_join.core.epochs import ChainLink
from zset_join.core.errors import StateError
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.reading import Reading
from zset_join.query.view import View
from zset_join.runners.local.contents import Contents, HeldRows, Listing, repeated, view_not_kept
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.durable_epoch import DurableEpoch
from zset_join.runners.local.engine import Engine
from zset_join.runners.local.history import InputHistory
from zset_join.runners.local.listed_answers import list_view
from zset_join.runners.local.outputs import PipelineOutputs
from zset_join.runners.local.saved import lasts
from zset_join.runners.local.stage_states import MemoryStates, shapes_of
from zset_join.runners.local.taking import RowTaking
from zset_join.runners.local.undoing import QueryBefore
from zset_join.runners.local.unfinished import closed, unfinished
from zset_join.runners.local.watched import PublishedEpochs
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import AnswerListingOperator, DurableOperator

__all__ = ["Snapshot", "Snapshots"]


class Snapshot:
    """Contents of all views of a pipeline after an `epoch`, None before the first; immutable, and readable by any thread.

    >>> from zset_join.pipeline import Pipeline, appends
    >>> x = appends("x", {"x": pa.int64()})
    >>> pipeline = Pipeline({"rows": x, "counts": x.groupBy("x").count()})
    >>> before = pipeline.snapshot()
    >>> _ = pipeline.step({"x": [{"x": 7}, {"x": 7}]})
    >>> after = pipeline.snapshot()
    >>> before.epoch, before.table("counts").num_rows, after.epoch, after.table("counts").to_pylist()
    (None, 0, 0, [{'x': 7, 'count': 2}])
    """

    def __init__(self, plan: QueryPlan, epoch: int | None, held: Mapping[str, HeldRows]) -> None:
        self._plan = plan
        self.epoch = epoch
        self._held = held

    def __repr__(self) -> str:
        return f"Snapshot(epoch={self.epoch}, views={sorted(self._held)})"

    def contents(self, name: str | None = None) -> ZSet:
        """Return each distinct row of a view with its weight."""
        return self._held[self._plan.view(name).name].rows()

    def table(self, name: str | None = None) -> pa.Table:
        """Return a view as a table: a row is present as often as its weight."""
        return repeated(self.contents(name), self._plan.output_of(self._plan.view(name).name).schema)

    def tables(self) -> dict[str, pa.Table]:
        """Return all views by name, all after the same epoch."""
        return {name: self.table(name) for name in self._held}


class Snapshots:
    """The parts of a pipeline, which `Pipeline` makes, and snapshots of its views for readers in other threads."""

    plan: QueryPlan
    epoch: int
    progress: Mapping[str, Any]
    positions: Mapping[str, Any]
    dead_letters: pa.Table
    _before: QueryBefore | None = None
    _contents: Mapping[str, Contents] | None
    _directory: PipelineDirectory | None
    _dropped_sources: Mapping[str, int]
    _engine: Engine
    _has_several: bool
    _history: InputHistory | None
    _is_closed: bool
    _last: Mapping[str, ZSet] | None
    _memory: MemoryStates | None
    _options: StageOptions
    _outputs: PipelineOutputs
    _processing_time_us: int | None
    _published: Snapshot | None = None
    _readings: Mapping[str, Reading]
    _taking: RowTaking
    _undo_epochs: int
    _unfinished: int | None
    _views: Mapping[str, View] | None
    _watching: PublishedEpochs
    _watermarks: Watermarks

    def snapshot(self) -> Snapshot:
        """Return the contents of all views after the newest epoch, immutable, for any thread.

        Raises:
            OptionError: `VIEW_NOT_KEPT`: the pipeline keeps no contents.
        """
        published = self._published
        if published is None:
            if self._contents is None:
                raise view_not_kept()
            with self._watching.lock:  # state or plan changes; then views are published again
                published = self._published
        assert published is not None  # noqa: S101 - a pipeline that keeps its views publishes them from the start
        return published

    def _publish(self) -> None:
        """Make an epoch visible that all views have taken."""
        if self._contents is not None:
            held = {name: contents.held() for name, contents in self._contents.items()}
            self._published = Snapshot(self.plan, self.epoch - 1 if self.epoch else None, held)

    def _list_views(self, options: StageOptions) -> None:
        """List views from the state of the stages, where it holds them; call it when plan, state and contents fit each other.

        Args:
            options: what the stages were built with.

        With kept inputs deltas are summed, since `verify` compares them.
        """
        memory, directory = (self._memory, self._directory) if self._history is None else (None, None)
        with ExitStack() as held:
            shapes = shapes_of(self.plan, options, held) if directory is not None and self._contents else {}
            for name, contents in (self._contents or {}).items():
                rows: Callable[[], ZSet] | None = None
                if memory is not None:
                    rows = list_view(self.plan, self.plan.view(name), memory.operators, options)
                elif directory is not None:
                    rows = _list_view_of_directory(directory, self.plan, name, shapes, options)
                contents.list_by(None if rows is None else Listing(rows, self._watching.lock, self._check_usable))

    def _leave_views(self) -> set[int]:
        """End the views; return the numbers of the states from which those that were not read are listed when they are read."""
        used = set[int]()
        with self._watching.lock:
            for name, contents in (self._contents or {}).items():
                rows = None if self._directory is None else partial(self._directory.left_view, name)
                if contents.end(rows) and rows is None:
                    origins = {feed.origin for feed in self.plan.view(name).feeds}
                    used |= {self.plan.state_of[origin].number for origin in origins if isinstance(origin, int)}
        return used

    @contextmanager
    def _settled_views(self) -> Iterator[None]:
        """Change state or plan inside; snapshots that are held are read before, and threads that take one wait for the end."""
        with self._watching.lock:
            self._published = None
            try:
                for contents in (self._contents or {}).values():
                    contents.settle()
                yield
            finally:
                self._publish()

    def _in_memory(self, what: str) -> MemoryStates:
        self._check_usable()
        if self._memory is None:
            raise lasts(what)
        return self._memory

    def _link(self) -> ChainLink | None:
        """Return the place of the last epoch in the chain of epochs; None in memory."""
        record = None if self._directory is None else self._directory.last
        return None if record is None else record.link

    def _check_usable(self) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal

    def _refusal(self) -> StateError | None:
        """Return why the pipeline can no longer be used; None where it can."""
        if self._is_closed:
            return closed()
        if self._unfinished is None:
            return None
        return unfinished(self._unfinished, None if self._directory is None else self._directory.outcome(self._unfinished))


class _OpenStages:
    """Return the operators of the stages that are being read, one reader at a time."""

    def __init__(self) -> None:
        self.epoch: DurableEpoch | None = None

    def __call__(self, number: int) -> DurableOperator:
        assert self.epoch is not None  # noqa: S101 - set while rows are read
        return self.epoch.read(number)


def _list_view_of_directory(
    directory: PipelineDirectory, plan: QueryPlan, name: str, shapes: Mapping[int, DurableOperator], options: StageOptions
) -> Callable[[], ZSet] | None:
    """Return what `list_view` does, over stages that are opened when rows are read."""
    view, stages = plan.view(name), _OpenStages()
    listed = list_view(plan, view, shapes, options, stages)
    if listed is None:
        return None
    origins = [feed.origin for feed in view.feeds if isinstance(feed.origin, int)]
    return partial(_rows, directory, name, stages, origins, listed)


def _rows(directory: PipelineDirectory, name: str, stages: _OpenStages, origins: list[int], listed: Callable[[], ZSet]) -> ZSet:
    with directory.reading() as stages.epoch:
        try:
            operators = [stages(number) for number in origins]
            if all(one.lists_answer for one in operators if isinstance(one, AnswerListingOperator)):
                return listed()
        finally:
            stages.epoch = None
    return directory.summed_view(name)
