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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast, overload

import pyarrow as pa

from zset_join.checkpoint.record import LATE_CHANGES_TOTAL
from zset_join.core.errors import OptionError
from zset_join.core.options import KeepState
from zset_join.core.progress_line import progress_line
from zset_join.core.shown_values import html_progress
from zset_join.evolution.changed_columns import ChangeTerms, ColumnWords
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.query_plan import one_view
from zset_join.query.reading import Reading
from zset_join.query.rows import PlannedQuery
from zset_join.query.view import View
from zset_join.runners.local.contents import repeated, view_not_kept
from zset_join.runners.local.directory_plans import (
    UNDO_EPOCHS,
    PipelineOptions,
    Place,
    terms_back,
)
from zset_join.runners.local.explaining import explain_row
from zset_join.runners.local.history import InputHistory, inputs_not_kept, part_of
from zset_join.runners.local.outputs import Outputs, OutputsByView
from zset_join.runners.local.pipeline_epochs import SNAPSHOT_AFTER_BYTES, PipelineEpochs, Query
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.runners.local.progress import (
    explained_budgets,
    explained_state,
    explained_threads,
    statistics_of,
)
from zset_join.runners.local.questions import marks_by_stage, verify
from zset_join.runners.local.snapshots import SavedState, load_state, save_state
from zset_join.runners.local.taking import replay_letters
from zset_join.runners.local.watched import open_pipeline_console
from zset_join.sinks.sink import Sink
from zset_join.stages.lookup_join import explained_for
from zset_join.stages.stage import StageOptions
from zset_join.tools.batch import BatchTimes
from zset_join.tools.reports import RowHistory, VerificationReport
from zset_join.zset import ZSet
from zset_join.zset.protocol import NextDue, earliest

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from zset_join.console import Console

    Answer = TypeVar("Answer", default=ZSet)
else:
    from typing import TypeVar

    Answer = TypeVar("Answer")

__all__ = ["Pipeline"]


class Pipeline(PipelineEpochs, Generic[Answer]):
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
        snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES,
        keep_state: KeepState = "all",
        undo_epochs: int = UNDO_EPOCHS,
        threads: int = 1,
        before_begin: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        given = PipelineOptions(
            keep_view=keep_view,
            keep_inputs=keep_inputs,
            outputs=outputs,
            options=options,
            idle_timeout_seconds=idle_timeout_seconds,
            snapshot_after_bytes=snapshot_after_bytes,
            keep_state=keep_state,
            undo_epochs=undo_epochs,
            threads=threads,
            before_begin=before_begin,
        )
        super().__init__(view, directory, given)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the only view; of several, `plan.output_of(name).schema` has those of each."""
        return self.plan.output.schema

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

    # -- questions -------------------------------------------------------------------------------------------------------

    def show(self, n: int = 20, *, view: str | None = None) -> None:
        """Print the first rows of a view, each after its weight.

        Raises:
            OptionError: as `view`.
        """
        self.contents(view).show(n)

    def __repr__(self) -> str:
        """Return the views and the number of epochs in one line; `explain` prints the plan."""
        return f"Pipeline(views: {', '.join(one.name for one in self.plan.views)}; epochs: {self.epoch})"

    def _repr_html_(self) -> str:
        """Return the plan and what the newest epoch did, for a notebook."""
        return self.plan._repr_html_() + html_progress(self.progress)

    def verify(
        self, *, view: str | None = None, contents: ZSet | None = None, most_differences: int = 20
    ) -> VerificationReport:
        """Compare a view with DuckDB's batch query over all inputs; needs `keep_inputs`.

        Args:
            view: its name; optional if there is only one.
            contents: the rows to compare, with weights, as an output holds them; default: those of `keep_view`.
            most_differences: differing rows to list.

        Raises:
            OptionError: contents or inputs are not kept; or `VIEW_NAME`.
            PlanError: DuckDB cannot run a part of the query.
        """
        with progress_line(f"verifying {view or ', '.join(one.name for one in self.plan.views)}"):
            return self.verification(view=view, contents=contents, most_differences=most_differences)()

    def verification(
        self, *, view: str | None = None, contents: ZSet | None = None, most_differences: int = 20
    ) -> Callable[[], VerificationReport]:
        """Return `verify` over the present input as a function that another thread may call.

        Raises:
            OptionError: as `verify`.
        """
        history = self._kept_inputs("verify()").copied()
        contents = self.contents(view) if contents is None else contents
        if not self.epoch:
            return lambda: VerificationReport(equal=True, epoch=None, expected_rows=0, actual_rows=0, different_rows=0)
        plan, watermarks, epoch = one_view(self.plan, view), self._watermarks.known.stages, self.epoch - 1
        late = frozenset(self.progress.get(LATE_CHANGES_TOTAL, ()))
        times = [
            BatchTimes(watermark_us=watermarks[number], processing_time_us=self._processing_time_us, late_inputs=late)
            for number in self.plan.stages_of(plan.name)
        ]
        marks = marks_by_stage(self._watermarks, history, self.plan, plan.name)
        return lambda: verify(plan, history, contents, times, marks, epoch=epoch, most_differences=most_differences)

    def explain_row(self, row: Mapping[str, Any], *, view: str | None = None, most_changes: int = 100) -> RowHistory:
        """List the input changes that produced and retracted the rows of a view with given values; needs `keep_inputs`.

        Args:
            row: columns of the view to values.
            view: its name; optional if there is only one.
            most_changes: changes to list per epoch.

        Raises:
            OptionError: unknown columns, more changes than the limit, or inputs are not kept; or `VIEW_NAME`.
        """
        return self.row_question(row, view=view, most_changes=most_changes)()

    def row_question(
        self, row: Mapping[str, Any], *, view: str | None = None, most_changes: int = 100
    ) -> Callable[[], RowHistory]:
        """Return `explain_row` over the present input as a function that another thread may call.

        Raises:
            OptionError: as `explain_row`.
        """
        plan, history = one_view(self.plan, view), self._kept_inputs("explain_row()").copied()
        stages, sources = self.plan.stages_of(plan.name), [source.name for source in plan.sources]
        return lambda: explain_row(plan, part_of(history, stages, sources), self._options, row, most_changes=most_changes)

    def contents(self, name: str | None = None) -> ZSet:
        """Return the contents of a view, each distinct row with its weight.

        Args:
            name: of the view; optional if there is only one.

        Raises:
            OptionError: contents are not kept; or `VIEW_NAME`.
        """
        view = self.plan.view(name)
        if self._contents is None:
            raise view_not_kept()
        return self._contents[view.name].rows()

    def options_in_force(self) -> dict[str, Any]:
        """Return the options of the pipeline, defaults included."""
        shown = {one.name: getattr(self._options, one.name) for one in fields(self._options)}
        return {**shown, "keep_view": self._contents is not None, "keep_inputs": self._history is not None}

    def _kept_inputs(self, what: str) -> InputHistory:
        if self._history is None:
            raise inputs_not_kept(what)
        return self._history

    # -- another query ---------------------------------------------------------------------------------------------------

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
        words = ColumnWords(renamed=renamed or {}, defaults=defaults or {})
        return self.diff_with(view, ChangeTerms(words=words, reread=reread, as_now=as_now))

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

    def _named_views(self) -> Mapping[str, View]:
        if self._views is None and self._has_several:
            names = [one.name for one in self.plan.views]
            raise _view_name("undo() restored a query whose views have no names", None, names)
        if self._views is None:
            raise _view_name("views can be added and dropped only in a pipeline of named views", None, ())
        return self._views


def _view_name(what: str, name: str | None, views: Iterable[str]) -> OptionError:
    return OptionError(
        f"{what}; its views are {list(views)}. Name another one, or give evolve() all views by name.",
        code="VIEW_NAME",
        name=name,
        names=list(views),
    )
