"""The parts of a pipeline: its epochs, what readers see of them, and the change of its query.

The law: that of `zset_join.runners.local.pipeline`, whose words call what is here. See `zset_join.runners.local.snapshots` for
readers, and `zset_join.runners.local.evolving` for changes.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import pyarrow as pa

from zset_join.connectors import sinks_of
from zset_join.core.epochs import ChainLink, Tick
from zset_join.core.errors import ResourceError, StateError
from zset_join.core.extras import raising_interrupts
from zset_join.evolution.changed_columns import ChangeTerms, no_words
from zset_join.evolution.differences import PlanDiff
from zset_join.kernels.machine.first_use import compile_rest_in_background
from zset_join.plan.fingerprints import Fingerprints
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.reading import Reading, readings_of
from zset_join.query.rows import PlannedQuery, bindings_of, plan_of, planned
from zset_join.query.view import View
from zset_join.runners.common.rejected import RejectedRows, warn_of_late_changes
from zset_join.runners.common.workers import Workers
from zset_join.runners.local.contents import Contents, Listing, view_not_kept
from zset_join.runners.local.directory_plans import (
    UNDO_EPOCHS,
    DirectoryChange,
    PipelineOptions,
    Place,
    QueryBefore,
    check_same_columns,
    check_undo,
    checked_undo_epochs,
    columns_of_change,
    note_given_change,
    nothing_to_undo,
    plan_of_directory,
    query_before,
)
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.engine import AnsweredEpoch, Engine, MemoryStates, StageStates, shapes_of, with_long_chunks
from zset_join.runners.local.evolving import Evolution, EvolutionStart
from zset_join.runners.local.history import InputHistory, under_columns
from zset_join.runners.local.outputs import Outputs, OutputsByView, PipelineOutputs, outputs_by_view
from zset_join.runners.local.prepared import DurableEpoch, PreparedEpoch, closed, epoch_gap, out_of_memory, unfinished
from zset_join.runners.local.progress import epoch_counts, statistics_of, write_span, writes_spans
from zset_join.runners.local.snapshots import Snapshot, lasts, list_view_of_directory
from zset_join.runners.local.stored_rows import list_view, read_again
from zset_join.runners.local.taking import RowTaking, dead_letters, no_dead_letters
from zset_join.runners.local.watched import PublishedEpoch, PublishedEpochs
from zset_join.runners.local.watermarks import Watermarks, processing_time_us
from zset_join.sinks.sink import Sink
from zset_join.sources.source import Undecodable
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, DurableOperator

__all__ = ["PipelineEpochs", "Query", "plan_of_change", "plan_of_program", "readings_of_query"]

_Done = TypeVar("_Done")
Query = View | Mapping[str, View] | PlannedQuery
SNAPSHOT_AFTER_BYTES = 64 * 1024 * 1024


class PipelineEpochs:
    """Keep the views of a query, epoch by epoch."""

    def __init__(self, view: Query, directory: str | Path | Place | None, given: PipelineOptions) -> None:
        query = planned(view, keep_state=given.get("keep_state", "all"))
        self._undo_epochs = checked_undo_epochs(given.get("undo_epochs", UNDO_EPOCHS))
        self._has_several, self.plan, self._readings = query.has_several, query.plan, query.readings
        self._views = view if isinstance(view, Mapping) else None
        if directory is not None:
            self.plan = plan_of_directory(directory, self.plan, has_names=self._has_several)
        compile_rest_in_background()
        self.epoch = 0
        self._before: QueryBefore | None = None
        self._published: Snapshot | None = None
        self.progress: Mapping[str, Any] = {}
        self.positions: Mapping[str, Any] = {}
        self._options = with_long_chunks(given.get("options") or StageOptions())
        quarantines = self._options.on_bad_input == "quarantine"
        idle_timeout_seconds = given.get("idle_timeout_seconds")
        idle_us = None if idle_timeout_seconds is None else int(idle_timeout_seconds * 1_000_000)
        self._watermarks = Watermarks(self.plan, idle_timeout_us=idle_us)
        self._taking = RowTaking(self.plan, self._readings, is_strict=self._options.on_bad_input == "error")
        self._engine = Engine(self.plan, self._watermarks, quarantines=quarantines)
        self.dead_letters: pa.Table = dead_letters(0, [])
        held = {one.name: Contents(self.plan.output_of(one.name).schema) for one in self.plan.views}
        self._contents = held if given.get("keep_view", True) else None
        self._history = InputHistory() if given.get("keep_inputs") else None
        self._processing_time_us: int | None = None
        self._last: Mapping[str, ZSet] | None = None
        self._unfinished: int | None = None
        self._watching = PublishedEpochs()
        self._is_closed = False
        self._workers = Workers(given.get("threads", 1))
        self._memory: MemoryStates | None = None
        self._directory: PipelineDirectory | None = None
        sinks = outputs_by_view(self.plan, given.get("outputs", ()), has_several=self._has_several)
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
                snapshot_after_bytes=given.get("snapshot_after_bytes", SNAPSHOT_AFTER_BYTES),
                workers=self._workers,
            )
        changed = None if self._directory is None else self._directory.checkpoint.changed
        has_bare_view = changed is not None and changed.bare_view != ""
        named = None if self._has_several else self.plan.name
        bare_view = changed.bare_view if changed is not None and has_bare_view else named
        self._dropped_sources = {} if changed is None else changed.gone
        self._outputs = PipelineOutputs(sinks, quarantines=quarantines, bare_view=bare_view)
        try:
            self._go_on(given.get("before_begin"))
        except BaseException:
            self.close()
            raise

    @property
    def views(self) -> tuple[str, ...]:
        """Return the names of the views."""
        return tuple(view.name for view in self.plan.views)

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

    def _reporting_memory(self, work: Callable[..., _Done], *given: Any) -> _Done:
        """Return what work returns; memory that runs out is an error that names the epoch and whether it counts."""
        wanted = self.epoch
        try:
            with self._watching.lock, raising_interrupts():
                return work(*given)
        except MemoryError as error:
            raise out_of_memory(wanted, error, self._refusal(), is_taken=self.epoch > wanted) from error

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
        self._watching.publish(self.published_epoch, answered, letters)
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

    # -- what readers see ------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the contents of all views after the newest epoch, immutable, for any thread."""
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
                    rows = list_view_of_directory(directory, self.plan, name, shapes, options)
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

    def published_epoch(self) -> PublishedEpoch:
        """Return the summary of the last epoch, of a pipeline in memory, for its console."""
        known, memory = self._watermarks.known, self._memory
        dues = {} if memory is None else {f"{one.name}/0": memory.next_due(one.number) for one in self.plan.nodes}
        return PublishedEpoch(
            epoch=self.epoch - 1,
            at_us=self._processing_time_us,
            progress=dict(self.progress),
            statistics=statistics_of(self.plan, self._watermarks, {} if memory is None else memory.operators, {}),
            watermarks=self._watermarks.written(known),
            dues={name: due for name, due in dues.items() if due != NOTHING_DUE},
        )

    # -- another query ---------------------------------------------------------------------------------------------------

    def diff_with(self, view: Query, terms: ChangeTerms) -> PlanDiff:
        """Return how the answers of another query differ, as `Pipeline.diff`, which gives some of the terms."""
        self._check_usable()
        with ExitStack() as stack:
            if self._directory is None:
                stack.enter_context(self._watching.lock)
                states = self._in_memory("diff()").states
            else:
                opened = stack.enter_context(self._directory.epoch(Tick(self.epoch, self._processing_time_us)))
                states = {state.number: opened.state(state.number, opened.tick) for state in self.plan.states}
            return stack.enter_context(closing(self._evolution(view, terms, states))).diff()

    def evolve_with(
        self,
        view: Query,
        terms: ChangeTerms,
        outputs: Outputs | OutputsByView | None = None,
        new_table: str | Mapping[str, str] | None = None,
    ) -> PlanDiff:
        """Replace the query as `evolve` does, which gives some of the terms."""
        self._check_usable()
        self._outputs.settle()
        with self._watching.lock, ExitStack() as stack:
            place, tick = self._directory, Tick(self.epoch, self._processing_time_us)
            opened = None if place is None else stack.enter_context(place.epoch(tick))
            if opened is None:
                states = self._in_memory("evolve()").states
            else:
                states = {one.number: opened.state(one.number, tick) for one in (self.plan.states if self.epoch else ())}
            evolution = self._evolution(view, terms, states)
            if opened is None or self.epoch:
                evolution.build()
            try:
                diff = self._evolved(evolution, view, outputs, new_table, opened, terms.note)
            except BaseException:
                if self.plan is not evolution.plan or opened is not None:
                    evolution.close()
                raise
            if opened is not None:
                evolution.close()
        self._outputs.settle()
        return diff

    def _query_before(self) -> QueryBefore:
        """Return the query before the last change, which `undo` restores."""
        self._check_usable()
        changed = None if self._directory is None else self._directory.checkpoint.changed
        before = self._before
        if before is None and self._directory is not None and changed is not None and changed.changes:
            query = query_before(self._directory.checkpoint, self._readings, self.plan, has_several=self._has_several)
            before = QueryBefore(changed.epoch, self._views_as_in(query.plan), query, columns_of_change(changed))
        if before is None:
            raise nothing_to_undo("this pipeline" if self._directory is None else self._directory.location, "evolve()")
        check_undo(self.epoch, before.epoch, self._undo_epochs if changed is None else changed.undo_epochs)
        if self.epoch and not before.epoch:
            check_same_columns(before.query.plan, self.plan)
        return before

    def _views_as_in(self, before: QueryPlan) -> Mapping[str, View] | None:
        """Return the views of another query as they were given for this one; None where one of them differs, or is not here."""
        texts = [
            {one.name: prints.text(one.feeds) for one in prints.plan.views} for prints in map(Fingerprints, (self.plan, before))
        ]
        views = self._views or {}
        if not all(name in views and texts[0][name] == text for name, text in texts[1].items()):
            return None
        return {name: views[name] for name in texts[1]}

    def _evolved(
        self,
        evolution: Evolution,
        view: Query,
        outputs: Outputs | OutputsByView | None,
        new_table: str | Mapping[str, str] | None,
        opened: DurableEpoch | None,
        note: Any,
    ) -> PlanDiff:
        """Go over to the new query; what can be refused is refused before anything changes."""
        origin, plan = evolution.origin, evolution.plan
        diff = evolution.diff()
        answers = diff.answers([one.name for one in plan.views])
        given = _outputs_by_view(plan, outputs)
        given |= {} if new_table is None else self._outputs.beside(plan, new_table)
        before, after = ({one.name: each.output_of(one.name) for one in each.views} for each in (self.plan, plan))
        query_id = None if self._directory is None else self._directory.query_id
        changed = self._outputs.changed(before, after, given, query_id)
        try:
            begins = evolution.beginnings(answers)
            begins |= {name: evolution.rows_after(name) for name in given}
            rejected = changed.check(self.epoch, {**answers, **begins})
            answered = AnsweredEpoch(origin.epoch, origin.processing_time_us, answers, evolution.known_times())
            answered.rejected = rejected
            self._go_over(evolution, view, answered, begins, changed, opened, note)
        except BaseException:
            if self._outputs is not changed:
                changed.leave(self._outputs)
            raise
        if origin.epoch:
            self._outputs.add(origin.epoch, answers, self._link(), begins)
        return replace(diff, taken=origin.epoch or None)

    def _go_over(
        self,
        evolution: Evolution,
        view: Query,
        answered: AnsweredEpoch,
        begins: Mapping[str, ZSet],
        changed: PipelineOutputs,
        opened: DurableEpoch | None,
        note: Any,
    ) -> None:
        """Become a pipeline of the new query: everything that can fail is made first."""
        origin, memory, directory = evolution.origin, self._memory, self._directory
        plan = evolution.plan if directory is None or not origin.epoch else evolution.durable_plan()
        readings, has_several = readings_of_query(view), isinstance(view, Mapping)
        if isinstance(view, PlannedQuery):
            has_several = view.has_several
        before = PlannedQuery(plan=replace(self.plan, state_names=()), readings=self._readings, has_several=self._has_several)
        undone = QueryBefore(self.epoch, self._views, before, tuple(evolution.columns.values()))
        watermarks = self._watermarks.of_plan(plan, evolution.known_times())
        taking = RowTaking(plan, readings, is_strict=self._options.on_bad_input == "error")
        engine = Engine(plan, watermarks, quarantines=self._options.on_bad_input == "quarantine")
        if directory is not None:
            for one in (self._contents or {}).values():
                one.keep()  # the stages that list it may go
        contents = None if self._contents is None else evolution.contents(self._contents)
        counts = epoch_counts({}, answered, [], {}, last=self.progress) if origin.epoch else self.progress
        letters = dead_letters(origin.epoch, answered.rejected)
        states = None if memory is None else MemoryStates(plan, evolution.options, evolution.operators(), memory.workers)
        unused, outputs = evolution.unused() if memory is not None else [], self._outputs
        change = DirectoryChange(
            plan=plan,
            watermarks=watermarks,
            contents=contents,
            answers=answered.answers,
            begins=begins,
            bare_view=changed.bare_view,
            positions=self.positions,
            progress=counts,
            note=note,
            undo_epochs=self._undo_epochs,
        )
        there = {source.name for source in plan.sources}
        gone = {name: rows for name, rows in self._dropped_sources.items() if name not in there} | evolution.gone_after()
        past = [] if self._history is None else under_columns(self._history, evolution.columns.values())
        self._unfinished = self.epoch  # until all of it is taken
        if directory is not None and opened is not None:
            try:
                counts = self._changed_durably(directory, opened, evolution, change, letters)
            except BaseException:
                self._unfinished = None if directory.outcome(self.epoch) == "open" else self.epoch
                raise
        with self._settled_views():
            self._memory, self._engine, self._taking, self._watermarks = states, engine, taking, watermarks
            self._contents, self._outputs, self._readings = contents, changed, readings
            changed.go_on()
            self._has_several = has_several
            self._views, self._before = view if isinstance(view, Mapping) else None, undone
            self._dropped_sources = gone
            self.plan = plan
            if states is not None:
                states.share()
            if origin.epoch:
                if self._history is not None:
                    self._history.go_over(past)
                    self._history.add(self.epoch, self._processing_time_us, origin.first_rows)
                self._last, self.progress, self.dead_letters = answered.answers, counts, letters
                self.epoch += 1
            self._list_views(evolution.options)
        self._unfinished = None
        if memory is not None:
            memory.effects.close()
        for operator in unused:
            operator.close()
        outputs.leave(changed)

    def _changed_durably(
        self,
        directory: PipelineDirectory,
        opened: DurableEpoch,
        evolution: Evolution,
        change: DirectoryChange,
        letters: pa.Table,
    ) -> Mapping[str, Any]:
        """Let the directory be one of the new query; return the counts of the epoch."""
        if not self.epoch:
            directory.change_at_once(change)
            return change.progress
        directory.put_aside(self.epoch, letters)
        return directory.change(opened, evolution, change).progress

    def _evolution(self, view: Query, terms: ChangeTerms, states: Mapping[int, DurableOperator]) -> Evolution:
        origin = replace(
            self._start(states),
            gone={name: rows for name, rows in self._dropped_sources.items() if name not in terms.fresh},
            as_now=terms.as_now,
            words=no_words() if terms.words is None else terms.words,
            first_rows=terms.first_rows,
            reread=read_again(terms.reread or {}, readings_of_query(view)),
        )
        return Evolution(origin, plan_of_change(view, self.plan))

    def _start(self, states: Mapping[int, DurableOperator]) -> EvolutionStart:
        return EvolutionStart(
            plan=self.plan,
            epoch=self.epoch,
            processing_time_us=self._processing_time_us,
            options=self._options,
            states=states,
            contents=self._contents,
            history=self._history,
            known=self._watermarks.known,
            gone=self._dropped_sources,
        )


def readings_of_query(view: Query) -> Mapping[str, Reading]:
    if isinstance(view, PlannedQuery):
        return view.readings
    return readings_of(bindings_of(view) if isinstance(view, Mapping) else view.bindings)


def plan_of_change(view: Query, before: QueryPlan) -> QueryPlan:
    """Return the plan of a query, which keeps of sources what the one before does."""
    # The only view of one is the only view of the other, whatever it is called.
    if isinstance(view, Mapping):
        return plan_of(view, keep_state=before.keep_state)
    plan = view.plan if isinstance(view, PlannedQuery) else view.plan(keep_state=before.keep_state)
    is_one = len(before.views) == len(plan.views) == 1
    return replace(plan, views=(replace(plan.view(), name=before.name),)) if is_one else plan


def plan_of_program(view: Query, before: QueryPlan) -> QueryPlan:
    """Return the plan of a query of another program, which may call the only view by a name or not."""
    if isinstance(view, Mapping) and len(view) == len(before.views) == 1:
        (only,) = view.values()
        return plan_of_change(only, before)
    return plan_of_change(view, before)


def _outputs_by_view(plan: QueryPlan, outputs: Any) -> dict[str, Sequence[Sink]]:
    if outputs is None or (not isinstance(outputs, Mapping) and not len(outputs)):
        return {}
    names = {view.name for view in plan.views}
    if not isinstance(outputs, Mapping) or (len(plan.views) == 1 and not names & outputs.keys()):
        return {plan.view().name: sinks_of(cast("Outputs", outputs))}
    return {
        plan.view(name).name: sinks_of(given if isinstance(given, Sequence | Mapping) else (given,))
        for name, given in outputs.items()
    }
