"""A query that runs in this process: an epoch takes changes of sources and returns the change of the view.

Several views are one pipeline: `Pipeline({"by_customer": revenue, "by_day": days})`. What they have in common is kept once, and
an epoch is answered by all of them, then committed, then given to all outputs.

The law: after every epoch the sum of the deltas of a view equals its batch query over the sum of the inputs. A step that raises
has changed nothing where the attribute `epoch` is as before: correct the input and take the step again. An interrupt while an
epoch is folded in or committed, such as Ctrl-C, leaves a pipeline that refuses every further step.

Remembers what `explain()` lists, and the contents of the views where `keep_view` requests them. With a directory it is durable,
see `zset_join.runners.local.durable`.

Known limits: one thread at a time uses a pipeline; others may call `snapshot()`.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, cast, overload

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import ResourceError
from zset_join.core.extras import raising_interrupts
from zset_join.core.options import KeepState
from zset_join.kernels.machine.first_use import compile_rest_in_background
from zset_join.query.reading import Reading
from zset_join.query.rows import PlannedQuery, planned
from zset_join.query.view import View
from zset_join.runners.common.epoch_spans import writes_spans
from zset_join.runners.common.rejected import RejectedRows, warn_of_late_changes
from zset_join.runners.common.workers import Workers
from zset_join.runners.local.contents import Contents, repeated
from zset_join.runners.local.directory_plans import (
    UNDO_EPOCHS,
    PipelineOptions,
    Place,
    checked_undo_epochs,
    note_given_change,
    plan_of_directory,
)
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.engine import AnsweredEpoch, Engine
from zset_join.runners.local.history import InputHistory
from zset_join.runners.local.outputs import Outputs, OutputsByView, PipelineOutputs, outputs_by_view
from zset_join.runners.local.prepared import PreparedEpoch, epoch_gap, out_of_memory
from zset_join.runners.local.progress import (
    epoch_counts,
    explained_budgets,
    explained_state,
    explained_threads,
    statistics_of,
    write_span,
)
from zset_join.runners.local.query_changes import QueryChanges
from zset_join.runners.local.questions import PipelineQuestions
from zset_join.runners.local.snapshots import SavedState, load_state, save_state
from zset_join.runners.local.stage_states import MemoryStates, StageStates, with_long_chunks
from zset_join.runners.local.taking import RowTaking, dead_letters, no_dead_letters, replay_letters
from zset_join.runners.local.watched import PublishedEpochs, open_pipeline_console
from zset_join.runners.local.watermarks import Watermarks, processing_time_us
from zset_join.sources.source import Undecodable
from zset_join.stages.lookup_join import explained_for
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import NextDue, earliest

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from zset_join.console import Console

    Answer = TypeVar("Answer", default=ZSet)
else:
    from typing import TypeVar

    Answer = TypeVar("Answer")

_Done = TypeVar("_Done")

__all__ = ["Pipeline"]


class Pipeline(PipelineQuestions, QueryChanges, Generic[Answer]):
    """Run a query in this process.

    Run it: `step`, `prepare`, `commit`, `next_due`, `replay`, `save`, `load`, `close`.
    Read it: `view`, `contents`, `show`, `snapshot`, `statistics`, `schema`, `sources`, `views`.
    Check it: `explain`, `explanation`, `verify`, `explain_row`, `console`, `options_in_force`.
    Change it: `diff`, `evolve`, `undo`, `add_view`, `drop_view`.

    Args:
        view: the query, or several by name. `step` returns a ZSet, for several views one per name.
        directory: of the checkpoint, used by one process at a time; None: in memory only.
        keep_view: keep the contents of the views, for `view()`.
        keep_inputs: keep every input change, for `verify()` and `explain_row()`; memory grows.
        outputs: sinks, or names with options (of several views: by name); each epoch exactly once.
        options: options of the operators, such as `on_bad_input`.
        idle_timeout_seconds: ignore a source without rows for so long in watermarks; None: never.
        snapshot_after_bytes: with a directory, size of the log that a snapshot replaces.
        keep_state: "needed" stores what this query needs, "all" also what `evolve` may need.
        undo_epochs: how many epochs after a change `undo` works; 0: only before the next epoch.
        threads: threads per epoch. Answers and stored state do not depend on it.
        before_begin: called with `positions` before the first write; an exception cancels the start.

    Attributes:
        plan: the plan of all views.
        epoch: number of the next epoch.
        progress: counts of the last epoch.
        dead_letters: late and bad rows of the last epoch.
        positions: positions of the sources after the last epoch, as given to `step`.

    Raises:
        PlanError: the query cannot be planned, or an output names an unknown view.
        StateError: the directory is in use, holds another query, or is damaged.

    >>> from zset_join.pipeline import changes, functions as F
    >>> orders = changes("orders", {"id": pa.int64(), "total": pa.int64()}, keys="id")
    >>> pipeline = Pipeline(orders.agg(F.sum("total").alias("revenue")))
    >>> pipeline.step({"orders": [{"id": 1, "total": 30}]}).to_pylist()
    [((30,), 1)]
    """

    @overload
    def __init__(
        self: Pipeline[ZSet], view: View, directory: str | Path | Place | None = ..., **options: Unpack[PipelineOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: Pipeline[dict[str, ZSet]],
        view: Mapping[str, View] | PlannedQuery,
        directory: str | Path | Place | None = ...,
        **options: Unpack[PipelineOptions],
    ) -> None: ...

    def __init__(
        self,
        view: View | Mapping[str, View] | PlannedQuery,
        directory: str | Path | Place | None = None,
        *,
        keep_view: bool = True,
        keep_inputs: bool = False,
        outputs: Outputs | OutputsByView = (),
        options: StageOptions | None = None,
        idle_timeout_seconds: float | None = None,
        snapshot_after_bytes: int = 64 * 1024 * 1024,
        keep_state: KeepState = "all",
        undo_epochs: int = UNDO_EPOCHS,
        threads: int = 1,
        before_begin: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        query = planned(view, keep_state=keep_state)
        self._undo_epochs = checked_undo_epochs(undo_epochs)
        self._has_several, self.plan, self._readings = query.has_several, query.plan, query.readings
        self._views = view if isinstance(view, Mapping) else None
        if directory is not None:
            self.plan = plan_of_directory(directory, self.plan, has_names=self._has_several)
        compile_rest_in_background()
        self.epoch = 0
        self.progress: Mapping[str, Any] = {}
        self.positions: Mapping[str, Any] = {}
        self._options = with_long_chunks(StageOptions() if options is None else options)
        quarantines = self._options.on_bad_input == "quarantine"
        idle_us = None if idle_timeout_seconds is None else int(idle_timeout_seconds * 1_000_000)
        self._watermarks = Watermarks(self.plan, idle_timeout_us=idle_us)
        self._taking = RowTaking(self.plan, self._readings, is_strict=self._options.on_bad_input == "error")
        self._engine = Engine(self.plan, self._watermarks, quarantines=quarantines)
        self.dead_letters: pa.Table = dead_letters(0, [])
        held = {one.name: Contents(self.plan.output_of(one.name).schema) for one in self.plan.views}
        self._contents = held if keep_view else None
        self._history = InputHistory() if keep_inputs else None
        self._processing_time_us: int | None = None
        self._last: Mapping[str, ZSet] | None = None
        self._unfinished: int | None = None
        self._watching = PublishedEpochs()
        self._is_closed = False
        self._workers = Workers(threads)
        self._memory: MemoryStates | None = None
        self._directory: PipelineDirectory | None = None
        sinks = outputs_by_view(self.plan, outputs, has_several=self._has_several)
        if directory is None:
            self._memory = MemoryStates(self.plan, self._options, workers=self._workers)
            self._memory.share()
        else:
            self._directory = PipelineDirectory(
                directory,
                self.plan,
                self._options,
                self._watermarks,
                self._contents,
                self._history,
                snapshot_after_bytes=snapshot_after_bytes,
                workers=self._workers,
            )
        changed = None if self._directory is None else self._directory.checkpoint.changed
        has_bare_view = changed is not None and changed.bare_view != ""
        named = None if self._has_several else self.plan.name
        bare_view = changed.bare_view if changed is not None and has_bare_view else named
        self._dropped_sources = {} if changed is None else changed.gone
        self._outputs = PipelineOutputs(sinks, quarantines=quarantines, bare_view=bare_view)
        try:
            self._go_on(before_begin)
        except BaseException:
            self.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the only view; of several, `plan.output_of(name).schema` has those of each."""
        return self.plan.output.schema

    @property
    def views(self) -> tuple[str, ...]:
        """Return the names of the views."""
        return tuple(view.name for view in self.plan.views)

    @property
    def readings(self) -> Mapping[str, Reading]:
        """Return how the rows of each source are decoded."""
        return self._readings

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of the sources."""
        return tuple(source.name for source in self.plan.sources)

    def step(
        self,
        rows: Mapping[str, Any] | None = None,
        *,
        processing_time: datetime.datetime | int | None = None,
        epoch: int | None = None,
        positions: Mapping[str, Any] | None = None,
        read: str | None = None,
    ) -> Answer:
        """Process one epoch of input changes; return the change of the view, or of each view by name.

        Args:
            rows: per source a list of dicts, a dict of columns, an Arrow table or a ZSet. A missing source has no rows;
                an epoch without rows only advances time.
            processing_time: a datetime with a time zone, or microseconds since 1970; default: now. It never decreases.
            epoch: number of the epoch, for callers that may repeat the last one: it is answered again and not applied.
            positions: positions of the sources after these rows, JSON-ready; stored with the epoch.
            read: with a directory, a digest of the input, in place of one that is computed from the rows.

        Returns:
            Every changed row once, with its weight, retractions first.

        Raises:
            PlanError: an unknown source, or columns that do not fit.
            BadInputError: rows that break the contract of their source, or that a view cannot evaluate. The error names the
                views; no view applies the epoch.
            SinkError: `SINK_VALUE`: an output can never hold a row of the answer; nothing is applied.
            ResourceError: `TOO_MANY_ROWS`: more copies than an output of single rows takes; nothing is applied.
            StateError: `epoch` is neither the last nor the next one; memory is exhausted; the directory cannot be written; or
                the pipeline was closed or interrupted.
            Exception: raised by an output. If the attribute `epoch` has advanced, the rows are applied, and the next step first
                passes the epoch to the output.
        """
        return self._reporting_memory(self._step, rows or {}, processing_time, epoch, positions or {}, read)

    def _reporting_memory(self, work: Callable[..., _Done], *given: Any) -> _Done:
        """Return what work returns; memory that runs out is an error that names the epoch and whether it counts."""
        wanted = self.epoch
        try:
            with self._watching.lock, raising_interrupts():
                return work(*given)
        except MemoryError as error:
            raise out_of_memory(wanted, error, self._refusal(), is_taken=self.epoch > wanted) from error

    def _step(
        self,
        rows: Mapping[str, Any],
        processing_time: datetime.datetime | int | None,
        epoch: int | None,
        positions: Mapping[str, Any],
        read: str | None,
    ) -> Answer:
        if epoch is not None and epoch != self.epoch:
            self._check_usable()
            self._outputs.settle()
            return self._returned(self._replay(epoch))
        return self._returned(self._committed(self._prepared(rows, processing_time), positions, read))

    @property
    def directory(self) -> PipelineDirectory:
        """Return the directory of the pipeline, for a runner that numbers its epochs.

        Raises:
            StateError: the pipeline was closed or interrupted.
            OptionError: it is in memory.
        """
        self._check_usable()
        if self._directory is None:
            raise no_dead_letters()
        return self._directory

    def prepare(
        self, rows: Mapping[str, Any] | None = None, *, processing_time: datetime.datetime | int | None = None
    ) -> PreparedEpoch:
        """Answer the next epoch without applying it: `commit` applies it, closing it discards it.

        Args:
            rows: as for `step`.
            processing_time: as for `step`.

        Raises:
            ZsetJoinError: as `step`.
        """
        return self._reporting_memory(self._prepared, rows or {}, processing_time)

    def commit(self, prepared: PreparedEpoch, *, positions: Mapping[str, Any] | None = None) -> Answer:
        """Apply an epoch that `prepare` answered; return what `step` returns.

        Raises:
            StateError: another epoch was applied since.
            Exception: raised by an output, as in `step`.
        """
        self._check_usable()
        prepared.check_is_next(self.epoch)
        return self._returned(self._reporting_memory(self._committed, prepared, positions or {}, None))

    def _returned(self, answers: Mapping[str, ZSet]) -> Answer:
        return cast("Answer", dict(answers) if self._has_several else answers[self.plan.name])

    def view(self, name: str | None = None) -> pa.Table:
        """Return the contents of a view; a row appears as often as its weight.

        Args:
            name: of the view; optional if there is only one.

        Raises:
            OptionError: contents are not kept; or `VIEW_NAME`.
            BadInputError: a source that passes through no stage has retracted an absent row.
        """
        return repeated(self.contents(name), self.plan.output_of(self.plan.view(name).name).schema)

    @property
    def lock(self) -> threading.RLock:
        """Return what is held while an epoch is taken, and while a view is read."""
        return self._watching.lock

    def replay(self, *, stream: str | None = None, code: str | None = None) -> int:
        """Decode the dead letters that are records again, in one epoch, exactly once.

        Records that are still unreadable become dead letters again, or fail the epoch. A replayed record arrives after all
        rows processed since; if that matters, order changes by `sequence_by`.

        Args:
            stream: only those of one source.
            code: only those with one code.

        Returns:
            The number of records; 0 runs no epoch.

        Raises:
            OptionError: the pipeline has no directory.
            BadInputError: as `step`.
        """
        return replay_letters(self.directory.location, self.positions, self.step, stream=stream, code=code)

    def save(self, path: str | Path) -> None:
        """Write the state of a pipeline in memory to a directory, for `load`.

        Raises:
            OptionError: the pipeline has a directory, which holds its state already.
        """
        known = self._watermarks.known
        save_state(
            Path(path),
            self.plan,
            self._in_memory("save()").states,
            SavedState(
                epoch=self.epoch,
                processing_time_us=self._processing_time_us,
                watermarks=self._watermarks.written(known),
                late_rows={name: one.late_rows for name, one in known.sources.items()},
                contents=None if self._contents is None else {name: one.rows() for name, one in self._contents.items()},
                dropped_sources=self._dropped_sources,
            ),
        )

    def load(self, path: str | Path) -> None:
        """Replace the state by one that `save` wrote. Kept inputs are discarded.

        Raises:
            OptionError: the pipeline has a directory.
            StateError: there is no saved state, or it belongs to another query.
        """
        operators = self._in_memory("load()").states
        with self._settled_views():
            state = load_state(Path(path), self.plan, operators, keeps_view=self._contents is not None)
            self._in_memory("load()").share()
            self.epoch, self._dropped_sources = state.epoch, state.dropped_sources
            self._processing_time_us, self._last = state.processing_time_us, None
            self._watermarks.load(state.watermarks, state.late_rows)
            for name, contents in (self._contents or {}).items():
                if state.contents is not None:
                    contents.replace(state.contents[name])
            if self._history is not None:
                self._history = None  # earlier input is not known, so nothing can be verified against it

    def console(self, *, port: int = 0, diff: View | Mapping[str, View] | None = None) -> Console:
        """Serve a page about the pipeline on this machine until it is closed; close it before the pipeline.

        With a directory it reads the directory; in memory, the pipeline publishes a summary per epoch.

        Args:
            port: of 127.0.0.1; 0 picks a free one. The attribute `url` of the result is the address.
            diff: another query; the page shows how its answers would differ, see `diff`.

        Raises:
            MissingPackageError: the extra `console` is not installed.
            OptionError: the port is taken.
        """
        directory = None if self._directory is None else self._directory.location
        return open_pipeline_console(self, self._watching, directory, port=port, changed=diff)

    def statistics(self) -> dict[str, Mapping[str, Any]]:
        """Return counts: per stage those of its operator and its watermark, per source its event time.

        With a directory, the counts of a stage are those before the last epoch that had rows for it.
        """
        counts = {} if self._directory is None else self._directory.statistics
        operators = {} if self._memory is None else self._memory.operators
        return statistics_of(self.plan, self._watermarks, operators, counts)

    def next_due(self) -> NextDue:
        """Return when `step()` without rows has output: the earliest time of all stages.

        With a directory it is the time in the last commit record of a stage.
        """
        if self._memory is not None:
            dues = [self._memory.next_due(node.number) for node in self.plan.nodes]
        else:
            record = None if self._directory is None else self._directory.last
            dues = [] if record is None else list(record.dues.values())
        return earliest(dues)

    def explanation(self) -> str:
        """Return a text that describes what the query computes and stores."""
        with explained_for(self._options.more):
            text = self.plan.explain(buckets=1)
        text += explained_state(self.statistics()) + explained_budgets(self._options)
        return text + explained_threads(self.plan, self._options, self._workers.threads)

    def explain(self) -> None:
        """Print a description of the query and its state."""
        print(self.explanation())  # noqa: T201 - printing is what explain() does in PySpark

    def close(self) -> None:
        """Release state, directory and outputs; afterwards the last contents of the views can be read, and nothing else done.

        May be called twice. A view that was not read is listed when it is read: its state stays in memory until then. With a
        directory it is read from the files, which raises `StateError` once they are gone.
        """
        if self._is_closed:
            return
        used = set[int]()
        try:
            if self._unfinished is None:  # else state may hold a part of an epoch
                used = self._leave_views()
        finally:
            with self._watching.lock:  # what reads the state now ends first
                self._is_closed = True
            try:
                self._outputs.close()
            finally:
                if self._memory is not None:
                    self._memory.close(keeping=used)
                if self._directory is not None:
                    self._directory.close()
                self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _go_on(self, before_begin: Callable[[Mapping[str, Any]], None] | None) -> None:
        """Take up where the directory ends, and give the outputs what they may have missed."""
        directory = self._directory
        outputs = {name: self.plan.output_of(name) for name in self.views}
        if directory is None:
            self._outputs.open(outputs, None)
        else:
            self._outputs.open(outputs, directory.query_id, altered=directory.altered_views())
            directory.check_outputs(self._outputs.epochs())
        if directory is not None and (record := directory.last) is not None:
            self.epoch = record.epoch + 1
            self.progress = record.progress
            self.positions = record.positions
            self._processing_time_us = record.processing_time_us
            self._last = directory.answers(record)
            if self._outputs.is_any:
                for epoch, answers, link, begins in directory.newest_answers(record, self._last):
                    self._outputs.add(epoch, answers, link, begins)
                    self._outputs.settle()
            note_given_change(directory.checkpoint)
        self._list_views(self._options)
        self._publish()
        if before_begin is not None:
            before_begin(self.positions)
        if directory is not None:
            directory.begin()

    def _prepared(self, rows: Mapping[str, Any], processing_time: datetime.datetime | int | None) -> PreparedEpoch:
        """Return the next epoch, answered; what sources refused is before what stages do."""
        self._check_usable()
        self._outputs.settle()
        deltas, unread, far = self._taking.deltas(rows, self.epoch, self._watermarks.known)
        time_us = processing_time_us(processing_time, self._processing_time_us)
        while True:
            try:
                return self._answered(deltas, unread, far, time_us)
            except ResourceError as error:
                if error.code != "TOO_MANY_ROWS" or self._options.on_bad_input == "error":
                    raise
                deltas, heavy = self._taking.without_heavy(deltas, error.facts.get("views", self.views))
                if not heavy:
                    raise
                far += heavy

    def _answered(
        self, deltas: Mapping[str, ZSet], unread: Sequence[Undecodable], far: Sequence[RejectedRows], time_us: int
    ) -> PreparedEpoch:
        if self._memory is not None:
            return PreparedEpoch(self._checked(self._memory, deltas, far, time_us), deltas, unread, None)
        with ExitStack() as stack:
            opened = stack.enter_context(self.directory.epoch(Tick(self.epoch, time_us)))
            return PreparedEpoch(self._checked(opened, deltas, far, time_us), deltas, unread, opened, stack.pop_all())

    def _checked(
        self, states: StageStates, deltas: Mapping[str, ZSet], far: Sequence[RejectedRows], time_us: int
    ) -> AnsweredEpoch:
        answered = self._engine.answer(states, self.epoch, deltas, time_us)
        answered.rejected[:0] = far
        answered.rejected += self._outputs.check(self.epoch, answered.answers)
        return answered

    def _committed(self, prepared: PreparedEpoch, positions: Mapping[str, Any], read: str | None) -> Mapping[str, ZSet]:
        with prepared:
            return self._commit(prepared, positions, read)

    def _commit(self, prepared: PreparedEpoch, positions: Mapping[str, Any], read: str | None) -> Mapping[str, ZSet]:
        begun = time.perf_counter()
        answered, deltas = prepared.answered, prepared.deltas
        reached = {**self.positions, **positions}
        letters, before = dead_letters(answered.epoch, answered.rejected, prepared.unread), self.progress
        if self._memory is not None:
            lookups = self._memory.effects.counts()
            counts = epoch_counts(deltas, answered, prepared.unread, lookups, times=self._watermarks.known, last=before)
            self._unfinished = self.epoch  # until all of the epoch is taken
            self._memory.absorb(answered.requested)
            self.dead_letters, self.progress = letters, counts
        else:
            self._commit_durably(prepared, letters, reached, read)
        prepared.close()
        self.positions = reached
        self._take(answered, deltas)
        taken = time.perf_counter()
        self._outputs.add(answered.epoch, answered.answers, self._link())
        self._unfinished = None
        self._outputs.settle()
        self._watching.publish(self, answered, letters)
        if writes_spans():
            write_span(", ".join(self.views), self._directory, self.progress, taken - begun, time.perf_counter() - taken)
        warn_of_late_changes(self.progress, before)
        return answered.answers

    def _commit_durably(self, prepared: PreparedEpoch, letters: pa.Table, reached: Mapping[str, Any], read: str | None) -> None:
        answered, directory = prepared.answered, self._directory
        assert directory is not None and prepared.opened is not None  # noqa: S101, PT018 - as `_prepared` made it
        directory.put_aside(answered.epoch, letters)
        times, lookups = self._watermarks.known, directory.effects.counts()
        counts = epoch_counts(prepared.deltas, answered, prepared.unread, lookups, times=times, last=self.progress)
        self._unfinished = self.epoch  # until all of the epoch is taken, or it is seen that it does not count
        try:
            record = directory.commit(prepared.opened, answered, prepared.deltas, counts, reached, read)
        except BaseException:
            self._unfinished = None if directory.outcome(answered.epoch) == "open" else answered.epoch
            raise
        self.progress, self.dead_letters = record.progress, letters

    def _take(self, answered: AnsweredEpoch, deltas: Mapping[str, ZSet]) -> None:
        """Go on from an epoch that counts."""
        if self._history is not None:
            self._history.add(answered.epoch, answered.processing_time_us, deltas, fetched=answered.fetched(self.plan))
        self._engine.take(answered)
        self._processing_time_us = answered.processing_time_us
        self._last = answered.answers
        self.epoch += 1
        for name, contents in (self._contents or {}).items():
            contents.add(answered.answers[name])
        self._publish()

    def _replay(self, epoch: int) -> Mapping[str, ZSet]:
        if self._last is None or epoch != self.epoch - 1:
            raise epoch_gap(epoch, self.epoch)
        return self._last
