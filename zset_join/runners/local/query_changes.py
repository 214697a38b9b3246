"""`Pipeline.diff` and `Pipeline.evolve`; see `zset_join.runners.local.evolving` for what they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from zset_join.connectors import sinks_of
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError
from zset_join.core.progress_line import progress_line
from zset_join.evolution.changed_columns import ChangeTerms, ColumnWords, no_words
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.fingerprints import Fingerprints
from zset_join.query.reading import Reading, readings_of
from zset_join.query.rows import PlannedQuery, bindings_of, plan_of
from zset_join.query.view import View
from zset_join.runners.local.directory_plans import (
    DirectoryChange,
    QueryBefore,
    check_same_columns,
    check_undo,
    columns_of_change,
    nothing_to_undo,
    query_before,
    terms_back,
)
from zset_join.runners.local.engine import AnsweredEpoch, Engine
from zset_join.runners.local.evolving import Evolution, EvolutionStart
from zset_join.runners.local.history import under_columns
from zset_join.runners.local.outputs import Outputs, OutputsByView, PipelineOutputs
from zset_join.runners.local.progress import epoch_counts
from zset_join.runners.local.snapshots import Snapshots
from zset_join.runners.local.stage_states import MemoryStates
from zset_join.runners.local.stored_rows import read_again
from zset_join.runners.local.taking import RowTaking, dead_letters
from zset_join.sinks.sink import Sink
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.plan.query_plan import QueryPlan
    from zset_join.runners.local.durable import PipelineDirectory
    from zset_join.runners.local.prepared import DurableEpoch
    from zset_join.zset.protocol import DurableOperator

__all__ = ["Query", "QueryChanges", "plan_of_change", "plan_of_program", "readings_of_query"]


Query = View | Mapping[str, View] | PlannedQuery


class QueryChanges(Snapshots):
    """Change the query of a pipeline."""

    @progress_line("comparing with another query")
    def diff(
        self,
        view: Query,
        *,
        renamed: Mapping[str, Mapping[str, str]] | None = None,
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
        reread: Mapping[str, Any] | None = None,
        as_now: bool = False,
    ) -> PlanDiff:
        """Return how the answers of another query would differ over all input so far. Nothing changes.

        Args:
            view: the new query: a view, or all views by name; a present view that is not among them would be dropped.
            renamed: as for `evolve`.
            defaults: as for `evolve`.
            reread: as for `evolve`.
            as_now: as for `evolve`.

        Raises:
            PlanError: the query cannot be planned.
            StateError: `EVOLVE_NO_ROWS`, `EVOLVE_BY_TIME`, `EVOLVE_SOURCE`, `EVOLVE_COLUMN`: what it needs is not stored; see
                `evolve`.
            BadInputError: a row that the new query cannot evaluate.

        Cost: every row that a new stage reads, and the rows of views that may differ, in memory; with a directory the last
        epoch is absorbed into the local state.

        >>> from zset_join.expressions import col
        >>> from zset_join.pipeline import Pipeline, changes
        >>> orders = changes("orders", {"id": pa.int64(), "total": pa.int64()}, keys="id")
        >>> pipeline = Pipeline(orders.where(col("total") > 10))
        >>> _ = pipeline.step({"orders": [{"id": 1, "total": 5}, {"id": 2, "total": 20}]})
        >>> print(pipeline.diff(orders.where(col("total") > 1)))
        Traceback (most recent call last):
            ...
        zset_join.core.errors.StateError: [EVOLVE_NO_ROWS] ...
        """
        self._check_usable()
        words = ColumnWords(renamed=renamed or {}, defaults=defaults or {})
        terms = ChangeTerms(words=words, reread=reread, as_now=as_now)
        with ExitStack() as stack:
            if self._directory is None:
                stack.enter_context(self._watching.lock)
                states = self._in_memory("diff()").states
            else:
                opened = stack.enter_context(self._directory.epoch(Tick(self.epoch, self._processing_time_us)))
                states = {state.number: opened.state(state.number, opened.tick) for state in self.plan.states}
            return stack.enter_context(closing(self._evolution(view, terms, states))).diff()

    @progress_line("changing the query")
    def evolve(
        self,
        view: Query,
        *,
        outputs: Outputs | OutputsByView | None = None,
        new_table: str | Mapping[str, str] | None = None,
        as_now: bool = False,
        renamed: Mapping[str, Mapping[str, str]] | None = None,
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
        reread: Mapping[str, Any] | None = None,
    ) -> PlanDiff:
        """Replace the query in an epoch without input; the outputs receive the difference of the views.

        Stages of both queries over the same inputs keep their state. Others are built from the nearest stored
        rows. With a directory one record commits plan and difference; later starts reject the old query.

        Args:
            view: the new query: a view, or all views by name. Other views are dropped, their outputs closed.
            outputs: new outputs by view, which receive all its rows. Other views keep their outputs.
            new_table: a name for the only view, or names by view: new tables, filled at once.
            as_now: build stages whose answer depends on arrival as if all stored rows arrived now.
            renamed: by source, the old and the new names of renamed columns.
            defaults: by source, the values of added columns in stored rows; else NULL.
            reread: by source, all its rows again, for columns that are not stored: rows, a function that
                returns them, or the name of a file or table, see `zset_join.sources.source`.

        Returns:
            The difference; its `taken` is the epoch.

        Raises:
            PlanError: the query cannot be planned.
            StateError: `EVOLVE_NO_ROWS`, `EVOLVE_COLUMN`: needed rows or columns are not stored;
                `EVOLVE_BY_TIME`: the answer of a new stage depends on arrival; `EVOLVE_SOURCE`: another key,
                order, mode or time of a source, or its rows were dropped.
            SinkError: `EVOLVE_OUTPUT`: a kept output would receive other columns, not only added last ones.
            BadInputError: the new query cannot evaluate a row. None of these errors changes anything.
            Exception: raised by an output; if `epoch` has advanced, the change is committed, as in `step`.

        Cost: that of `diff`; with a directory also a snapshot per new stage and a log of the difference.
        """
        words = ColumnWords(renamed=renamed or {}, defaults=defaults or {})
        return self.evolve_with(view, ChangeTerms(words=words, reread=reread, as_now=as_now), outputs, new_table)

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

    def undo(
        self,
        *,
        outputs: Outputs | OutputsByView | None = None,
        new_table: str | Mapping[str, str] | None = None,
    ) -> PlanDiff:
        """Return to the query before the last change; a second `undo` restores the change.

        What the change dropped is rebuilt from stored rows, or the call is rejected. It is possible for `undo_epochs` epochs
        after the change.

        Args:
            outputs: as for `evolve`; outputs that gained columns do not lose them and must be replaced.
            new_table: as for `evolve`.

        Raises:
            StateError: `NOTHING_TO_UNDO`: the query was never changed; `UNDO_GONE`: too many epochs ago; `UNDO_SOURCES`: the
                directory was opened again since, and the earlier query reads a source that the present one does not read.
            ZsetJoinError: as `evolve`. Nothing has changed.

        >>> from zset_join.pipeline import Pipeline, changes
        >>> orders = changes("orders", {"id": pa.int64(), "total": pa.int64()}, keys="id")
        >>> pipeline = Pipeline({"orders": orders})
        >>> _ = pipeline.step({"orders": [{"id": 1, "total": 5}]})
        >>> _ = pipeline.add_view("totals", orders.select("total"))
        >>> pipeline.undo().views["totals"].status, pipeline.views
        ('dropped', ('orders',))
        """
        before = self._query_before()
        terms = terms_back(before.columns, is_at_once=self.epoch == before.epoch + 1)
        return self.evolve_with(before.query if before.views is None else before.views, terms, outputs, new_table)

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

    def add_view(self, name: str, view: View, *, outputs: Outputs | Sink = ()) -> PlanDiff:
        """Add a view; its first rows are those it would have if it had run from the start.

        It is `evolve` with one more view: shared stages keep their state, and all its rows are the answer of an epoch without
        input. The next program that opens the directory must pass all views in the order of their addition.

        Args:
            name: a new name.
            view: the query.
            outputs: receive all its rows first.

        Raises:
            OptionError: `VIEW_NAME`: the name is taken, or the pipeline has one view without a name.
            ZsetJoinError: as `evolve`; nothing has changed.

        >>> from zset_join.pipeline import Pipeline, changes
        >>> orders = changes("orders", {"id": pa.int64(), "total": pa.int64()}, keys="id")
        >>> pipeline = Pipeline({"orders": orders})
        >>> _ = pipeline.step({"orders": [{"id": 1, "total": 5}, {"id": 2, "total": 20}]})
        >>> print(pipeline.add_view("totals", orders.select("total")).views["totals"])
        view "totals" is added, with 2 rows
        >>> pipeline.drop_view("orders").taken, pipeline.views
        (2, ('totals',))
        """
        views = self._named_views()
        if name in views:
            raise _view_name(f"add_view() was given {name!r}, and there is a view of that name", name, views)
        return self.evolve({**views, name: view}, outputs={name: outputs} if outputs else None)

    def drop_view(self, name: str) -> PlanDiff:
        """Remove a view with the state that only it uses, and close its outputs.

        A source that no other view reads is removed as well, and can return under its name only if inputs are kept.

        Args:
            name: of the view.

        Raises:
            OptionError: `VIEW_NAME`: there is no such view, or it is the only one.
        """
        views = self._named_views()
        if name not in views or len(views) == 1:
            raise _view_name(f"drop_view() was given {name!r}, which is no view, or the only one", name, views)
        return self.evolve({other: view for other, view in views.items() if other != name})

    def _views_as_in(self, before: QueryPlan) -> Mapping[str, View] | None:
        """Return the views of another query as they were given for this one; None where one of them differs, or is not here."""
        texts = [
            {one.name: prints.text(one.feeds) for one in prints.plan.views} for prints in map(Fingerprints, (self.plan, before))
        ]
        views = self._views or {}
        if not all(name in views and texts[0][name] == text for name, text in texts[1].items()):
            return None
        return {name: views[name] for name in texts[1]}

    def _named_views(self) -> Mapping[str, View]:
        if self._views is None and self._has_several:
            names = [one.name for one in self.plan.views]
            raise _view_name("undo() restored a query whose views have no names", None, names)
        if self._views is None:
            raise _view_name("views can be added and dropped only in a pipeline of named views", None, ())
        return self._views

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


def _view_name(what: str, name: str | None, views: Iterable[str]) -> OptionError:
    return OptionError(
        f"{what}; its views are {list(views)}. Name another one, or give evolve() all views by name.",
        code="VIEW_NAME",
        name=name,
        names=list(views),
    )


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
