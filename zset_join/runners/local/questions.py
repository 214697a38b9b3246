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

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import PlanError, StateError
from zset_join.core.extras import needed_for, raising_interrupts
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_rows
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.runners.local.history import InputHistory
from zset_join.runners.local.watermarks import KnownTimes, Watermarks
from zset_join.stages.temporal_join import TemporalJoinStage
from zset_join.tools.batch import DUCKDB, EPOCHS, BatchTimes, batch_parts, marks_name, one_statement, source_name
from zset_join.tools.reports import VerificationReport
from zset_join.zset import ZSet

__all__ = ["marks_by_stage", "verify"]

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
