"""A join by processing time as a batch query, for left rows that are only added; why a lookup join cannot be one.

Each left row meets the right rows that were there in its epoch, so the query rebuilds the right side for every epoch in which
a left row came.
Cost: these epochs times the changes of the right side.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by `to_sql`.

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from zset_join.core.errors import PlanError
from zset_join.shapes.event_time import has_clock
from zset_join.shapes.join import joined_schema
from zset_join.shapes.lookup import LookupShape
from zset_join.stages.current_versions import CurrentVersionsStage
from zset_join.stages.lookup_join import LookupJoinStage
from zset_join.stages.process_time_join import ProcessTimeJoinStage
from zset_join.tools.batch.dialect import Dialect
from zset_join.tools.batch.tables import BatchScope, BatchTable, column, expression_sql, newest_first, register_batch_query

__all__ = ["current_sql", "lookup_sql", "process_time_sql"]


def process_time_sql(stage: ProcessTimeJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the join of left rows with the right side of their epochs.

    Raises:
        PlanError: rows may be taken back, or do not come from sources, so that nobody knows what they met.
    """
    left, right = inputs
    versions = None if right.versions is None or right.versions[1].history is None else right.versions
    if stage.left.mode != "append" or left.history is None or (right.history is None and versions is None):
        raise PlanError(
            f'verify() can compare a join by processing time only where "{stage.left.name}" is a source that rows are only '
            f"added to, and "
            f'"{stage.right.name}" a source: what other rows met at their time is known to the state alone.',
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    dialect = scope.dialect
    came = f"SELECT e, {', '.join(left.columns)} FROM {dialect.repeated(left.history, 'w')}"
    kind = "JOIN" if stage.how == "inner" else "LEFT JOIN"
    met = f"r.moment = l.e AND {_condition(stage, left, right, dialect)}"
    there = _at_moments(stage, left, right, dialect) if versions is None else _versions_at(stage, left, *versions, scope)
    return f"SELECT {_shown(stage, left, right)} FROM ({came}) l {kind} ({there}) r ON {met}"


def _at_moments(stage: ProcessTimeJoinStage, left: BatchTable, right: BatchTable, dialect: Dialect) -> str:
    """Return the right rows of every epoch in which a left row came."""
    names = ["moment", *right.columns]
    columns = ", ".join(["m.e AS moment", *(f"h.{one}" for one in right.columns)])
    before = "<=" if stage.snapshot == "current" else "<"
    at_moment = f"FROM (SELECT DISTINCT e FROM {left.history}) m JOIN {right.history} h ON h.e {before} m.e"
    if stage.right.mode == "upsert":
        key = ", ".join(f"h.{right.column(name)}" for name in stage.right.primary_key)
        order = ", ".join(newest_first(stage.right, "h."))
        numbered = f"SELECT {columns}, h.w, row_number() OVER (PARTITION BY m.e, {key} ORDER BY {order}) AS place"
        return f"SELECT * FROM ({numbered} {at_moment}) WHERE place = 1 AND w > 0"
    counted = dialect.distinct(names, "sum(w) AS copies", f"(SELECT {columns}, h.w {at_moment})", having="sum(w) > 0")
    return f"SELECT {', '.join(names)} FROM {dialect.repeated(f'({counted})', 'copies')}"


def _versions_at(
    stage: ProcessTimeJoinStage, left: BatchTable, current: CurrentVersionsStage, versions: BatchTable, scope: BatchScope
) -> str:
    """Return the versions that held in every epoch in which a left row came, or in the epoch before it.

    Raises:
        PlanError: the processing time of the epoch before is not known.
    """
    if stage.snapshot == "previous" and not scope.has_all_epochs:
        raise PlanError(
            f'verify() cannot say which versions of "{stage.right.name}" held in the epoch before each row: the processing '
            'time of an epoch without rows is in no log. Compare one with snapshot="current".',
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    moments = f"SELECT DISTINCT e FROM {left.history}"
    seen = "e" if stage.snapshot == "current" else "lag(e) OVER (ORDER BY e)"
    epochs = f"SELECT e, {seen} AS seen FROM {scope.epochs}"
    clock = (
        f"SELECT o.e AS moment, q.seen, t.t FROM ({moments}) o JOIN ({epochs}) q ON q.e = o.e "
        f"JOIN {scope.epochs} t ON t.e = q.seen"
    )
    return f"SELECT moment, {_columns(current)} FROM ({_held(current, versions, clock, scope.dialect)})"


def current_sql(stage: CurrentVersionsStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the versions that hold when the last epoch ends.

    Raises:
        PlanError: the versions do not come from sources, so that their order is not known.
    """
    (versions,) = inputs
    if versions.history is None:
        raise PlanError(
            f'verify() cannot say which versions of "{stage.source.name}" hold: they are the answer of an earlier stage, and '
            "in which order they came is known to the state alone.",
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    known = scope.times.processing_time_us
    now = "NULL" if known is None else str(known)
    clock = f"SELECT 0 AS moment, max(e) AS seen, CAST({now} AS BIGINT) AS t FROM {scope.epochs}"
    return f"SELECT {_columns(stage)} FROM ({_held(stage, versions, clock, scope.dialect)})"


def _columns(stage: CurrentVersionsStage) -> str:
    """Return the columns that are shown, renumbered."""
    names, source = stage.output.schema.names, stage.source.schema
    return ", ".join(f"{column(source, name)} AS c{at}" for at, name in enumerate(names))


def _held(stage: CurrentVersionsStage, versions: BatchTable, clock: str, dialect: Dialect) -> str:
    """Return the versions that held at moments: `moment`, the last epoch `seen` and its processing time `t`."""
    names = ["moment", *versions.columns]
    columns = ", ".join(["m.moment", *(f"h.{one}" for one in versions.columns)])
    kind = stage.source.schema.field(str(stage.source.event_time)).type
    time = f"h.{versions.column(str(stage.source.event_time))}"
    came = f"FROM ({clock}) m JOIN {versions.history} h ON h.e <= m.seen AND {time} IS NOT NULL"
    came += f" AND (m.t IS NULL OR {dialect.microseconds(time, kind)} <= m.t)" if has_clock(kind) else ""
    there = f"SELECT {columns}, h.w, h.n {came}"
    if stage.source.mode == "changelog":
        newest = "max(CASE WHEN w > 0 THEN n END) AS n"
        there = dialect.distinct(names, f"sum(w) AS w, {newest}", f"({there})", having="sum(w) > 0")
    key = ", ".join(versions.column(name) for name in stage.key)
    order = [f"{versions.column(str(stage.source.event_time))} DESC", *newest_first(stage.source)]
    place = f"row_number() OVER (PARTITION BY moment, {key} ORDER BY {', '.join(order)}) AS place"
    holds = "w > 0" if stage.delete_column is None else f"w > 0 AND NOT coalesce({versions.column(stage.delete_column)}, false)"
    return f"SELECT * FROM (SELECT *, {place} FROM ({there})) WHERE place = 1 AND {holds}"


def _condition(stage: ProcessTimeJoinStage, left: BatchTable, right: BatchTable, dialect: Dialect) -> str:
    shape = LookupShape.of(stage.left, stage.right, stage.how, using=stage.using, leaves_process=False)
    flags = stage.null_safe or (False,) * len(stage.left.join_key)
    parts = []
    for own, other, field, safe in zip(stage.left.join_key, stage.right.join_key, shape.key_schema, flags, strict=True):
        kind = dialect.type_name(field.type)
        sign = "IS NOT DISTINCT FROM" if safe else "="
        parts.append(f"CAST(l.{left.column(own)} AS {kind}) {sign} CAST(r.{right.column(other)} AS {kind})")
    if stage.residual is not None:
        schemas = {"left": left.relation.schema, "right": right.relation.schema}
        parts.append(expression_sql(stage.residual, schemas, dialect, {"left": "l", "right": "r"}))
    return " AND ".join(parts)


def _shown(stage: ProcessTimeJoinStage, left: BatchTable, right: BatchTable) -> str:
    schema, sources = joined_schema(stage.left, stage.right, stage.how, using=stage.using, output_names=None)
    shown = dict(zip(schema.names, sources, strict=True))
    columns = []
    for at, field in enumerate(stage.output.schema):
        side, name = shown[field.name]
        columns.append(f"{f'l.{left.column(name)}' if side == 'left' else f'r.{right.column(name)}'} AS c{at}")
    return ", ".join(columns)


def lookup_sql(stage: LookupJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> NoReturn:  # noqa: ARG001 - as others
    """Refuse: nobody but the journal knows what the outside said.

    Raises:
        PlanError: always.
    """
    raise PlanError(
        f'verify() cannot compare a lookup join with a batch query: what "{stage.source.name}" said when each row came is '
        f"known to the "
        "journal alone, and the table may have changed since. Verify what stands before it.",
        code="NOT_VERIFIABLE",
        kind=stage.kind,
    )


register_batch_query("current_versions", current_sql)
register_batch_query("process_time_join", process_time_sql)
register_batch_query("lookup_join", lookup_sql)
