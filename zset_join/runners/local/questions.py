"""Text, verification, row history and console of a pipeline, between its epochs.

The law: nothing here changes the pipeline. `verification` and `row_question` take what they need at once and return the work as
a function, so another thread can run it while the pipeline continues; see `zset_join.runners.local.watched`.

`marks_by_stage`, `verify`: compare the contents of a pipeline with DuckDB's batch query over all input.

Expected: the plan as one query, over all changes of all sources (`zset_join.tools.batch`). Actual: the sum of the
answers. Both are compared as Z-sets: every distinct row with its expected and its actual weight. Floats, and averages of
decimals, count as equal when they differ by less than a billionth of themselves: DuckDB adds them in another order.

Cost: one batch query over all input. DuckDB runs in memory, without access to files or network.

Known limits: tombstones that have expired are not known to the batch query. With an idle timeout the watermarks of past epochs
are computed as if all were of one run: a silence that a restart ended counts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zset_join.checkpoint.record import LATE_CHANGES_TOTAL
from zset_join.core.errors import PlanError, StateError
from zset_join.core.extras import needed_for, raising_interrupts
from zset_join.core.progress_line import progress_line
from zset_join.core.relation import Relation
from zset_join.core.shown_values import html_progress, shown_rows
from zset_join.plan.query_plan import PlanSource, QueryPlan, one_view
from zset_join.runners.local.contents import view_not_kept
from zset_join.runners.local.explaining import explain_row
from zset_join.runners.local.history import InputHistory, inputs_not_kept, part_of
from zset_join.runners.local.progress import statistics_of
from zset_join.runners.local.snapshots import Snapshots
from zset_join.runners.local.watched import PublishedEpoch
from zset_join.runners.local.watermarks import KnownTimes, Watermarks
from zset_join.stages.temporal_join import TemporalJoinStage
from zset_join.tools.batch import DUCKDB, EPOCHS, BatchTimes, batch_parts, marks_name, one_statement, source_name
from zset_join.tools.reports import RowHistory, VerificationReport
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE

__all__ = ["PipelineQuestions"]

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.


_WEIGHT = "w"
_DIGITS = 9
_CLOSED_BOX = {"enable_external_access": "false", "autoload_known_extensions": "false"}


def verify(
    plan: QueryPlan,
    history: InputHistory,
    contents: ZSet,
    times: Sequence[BatchTimes],
    marks: Mapping[int, pa.Table],
    *,
    epoch: int | None,
    most_differences: int,
) -> VerificationReport:
    """Compare a view with the batch query over all input."""
    view = batch_parts(plan, times, DUCKDB, marked=marks)
    with _connection() as connection:
        _register(connection, plan, history)
        for number, table in marks.items():
            connection.register(marks_name(number), table)
        connection.execute(f"CREATE TEMP TABLE expected AS {one_statement(view)}")
        schema = plan.output.schema
        connection.register("actual_rows", _numbered(contents.rows, {_WEIGHT: pa.array(contents.weights)}))
        columns = [f"c{at}" for at in range(len(schema))]
        compared = [_compared(f"c{at}", kind) for at, kind in enumerate(schema.types)]
        keys = ", ".join(f"k{at}" for at in range(len(schema)))
        keys_compared = ", ".join(f"{text} AS k{at}" for at, text in enumerate(compared))
        shown = ", ".join(f"any_value({one}) AS {one}" for one in columns)
        connection.execute(
            f"CREATE TEMP TABLE compared AS SELECT {keys}, {shown}, sum(expected) AS expected, sum(actual) AS actual FROM ("
            f"SELECT {', '.join(columns)}, {keys_compared}, 1 AS expected, 0 AS actual FROM expected UNION ALL "
            f"SELECT {', '.join(columns)}, {keys_compared}, 0, w FROM actual_rows) GROUP BY {keys}"
        )
        is_tied = "false"
        if view.tied is not None:
            tied = one_statement(view, of_ties=True)
            connection.execute(f"CREATE TEMP TABLE tied AS SELECT DISTINCT {keys_compared} FROM ({tied})")
            same = " AND ".join(f"t.k{at} IS NOT DISTINCT FROM compared.k{at}" for at in range(len(schema)))
            is_tied = f"EXISTS (SELECT 1 FROM tied t WHERE {same})"
        (counts,) = connection.execute(
            "SELECT coalesce(sum(expected), 0), coalesce(sum(actual), 0), count(*) FILTER (WHERE differs AND NOT is_tied), "
            "count(*) FILTER (WHERE differs AND is_tied) "
            f"FROM (SELECT *, expected <> actual AS differs, {is_tied} AS is_tied FROM compared)"
        ).fetchall()
        different = connection.sql(
            f"SELECT {', '.join(columns)}, expected, actual FROM compared WHERE expected <> actual AND NOT {is_tied} "
            f"LIMIT {int(most_differences)}"
        ).to_arrow_table()
        return VerificationReport(
            equal=counts[2] == 0,
            epoch=epoch,
            expected_rows=int(counts[0]),
            actual_rows=int(counts[1]),
            different_rows=int(counts[2]),
            unjudged_rows=int(counts[3]),
            differences=tuple(_split(line, schema) for line in shown_rows(different)),
        )


def marks_by_stage(watermarks: Watermarks, history: InputHistory, plan: QueryPlan, view: str) -> dict[int, pa.Table]:
    """Return the watermarks of temporal joins of a view before and after each epoch, by number in the plan of the view.

    Those are left out that follow from the rows of the join: no filtered row, replaced row or silence has moved them.
    """
    tables: dict[int, pa.Table] = {}
    epochs: list[tuple[int, KnownTimes, KnownTimes]] | None = None
    for at, number in enumerate(plan.stages_of(view)):
        node = plan.nodes[number]
        is_plain = not any(feed.steps or isinstance(feed.origin, int) for feeds in node.feeds for feed in feeds)
        follows = is_plain and not watermarks.idle_timeout_us and node.stage.max_watermark_jump is None
        if not isinstance(node.stage, TemporalJoinStage) or follows:
            continue
        epochs = epochs or list(watermarks.over(plan, history))
        if not epochs:
            break
        kind = node.stage.shape.times.kind
        shown = pa.int64() if pt.is_integer(kind) else pa.timestamp("us", kind.tz if pt.is_timestamp(kind) else None)
        lines = [(epoch, before.stages[number], after.stages[number]) for epoch, before, after in epochs]
        columns = [pa.array(column, pa.int64()) for column in zip(*lines, strict=True)]
        tables[at] = pa.table([columns[0], *(one.cast(shown) for one in columns[1:])], names=["e", "before", "mark"])
    return tables


@contextmanager
def _connection() -> Iterator[Any]:
    with needed_for("verify()"):
        import duckdb

    with duckdb.connect(config=dict(_CLOSED_BOX)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET lock_configuration = true")
        try:
            with raising_interrupts():
                yield connection
        except duckdb.OutOfMemoryException as error:
            raise StateError(
                f"verify() needs more memory than DuckDB may use, 80 % of this machine's ({error}). Give the process more, or "
                "compare inside Spark.",
                code="OUT_OF_MEMORY",
            ) from error
        except duckdb.Error as error:
            raise PlanError(
                f"DuckDB cannot compute the batch query over the input: {error}. It keeps no text that is not UTF-8, and fewer "
                "dates and numbers than Arrow does; leave such rows out with where(...), or compare inside Spark.",
                code="NOT_VERIFIABLE",
            ) from error


def _register(connection: Any, plan: QueryPlan, history: InputHistory) -> None:
    for number, source in enumerate(plan.sources):
        connection.register(source_name(number), _changes_of(source, history))
    past = list(history)
    times = [pa.array([one.epoch for one in past], pa.int64()), pa.array([one.processing_time_us for one in past], pa.int64())]
    connection.register(EPOCHS, pa.table(times, names=["e", "t"]))


def _changes_of(source: PlanSource, history: InputHistory) -> pa.Table:
    relation: Relation = source.relation
    tables = []
    place = 0
    for past in history:
        delta = past.deltas.get(source.name)
        if delta is None:
            continue
        count = len(delta)
        more = {
            _WEIGHT: pa.array(delta.weights),
            "e": pa.array(np.full(count, past.epoch, np.int64)),
            "n": pa.array(np.arange(place, place + count, dtype=np.int64)),
        }
        tables.append(_numbered(delta.rows, more))
        place += count
    if tables:
        return pa.concat_tables(tables, promote_options="permissive")
    empty = pa.RecordBatch.from_pylist([], schema=relation.schema)
    return _numbered(empty, {name: pa.array([], pa.int64()) for name in (_WEIGHT, "e", "n")})


def _numbered(rows: pa.RecordBatch, more: dict[str, pa.Array]) -> pa.Table:
    return pa.table({**{f"c{at}": column for at, column in enumerate(rows.columns)}, **more})


def _compared(column: str, kind: pa.DataType) -> str:
    """Return the comparison value of a column: of floats the first digits."""
    if pt.is_floating(kind):
        return f"CASE WHEN {column} = 0 THEN '0' ELSE format('{{:.{_DIGITS}e}}', CAST({column} AS DOUBLE)) END"
    return column


def _split(line: dict[str, Any], schema: pa.Schema) -> tuple[dict[str, Any], int, int]:
    row = {name: line[f"c{at}"] for at, name in enumerate(schema.names)}
    return row, int(line["expected"]), int(line["actual"])


class PipelineQuestions(Snapshots):
    """Answer questions about a pipeline."""

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

    def options_in_force(self) -> dict[str, Any]:
        """Return the options of the pipeline, defaults included."""
        shown = {one.name: getattr(self._options, one.name) for one in fields(self._options)}
        return {**shown, "keep_view": self._contents is not None, "keep_inputs": self._history is not None}

    def _kept_inputs(self, what: str) -> InputHistory:
        if self._history is None:
            raise inputs_not_kept(what)
        return self._history
