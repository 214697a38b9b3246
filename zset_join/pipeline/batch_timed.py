"""Dedup, temporal and as-of joins as queries of DuckDB's.

Window functions over all pairs of equal keys: nothing is asked of an index or of an order, so a mistake of the engine's is not
made twice. What is late, and what was known when a row was released or, in eager mode, was past correction, is worked out from
the epochs in which rows came, where both inputs come straight from sources and the left one is only added to; behind others
it is taken that nothing was late.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by `to_sql`.

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.types as pt

from zset_join.expressions.sql_text import type_name
from zset_join.pipeline.batch_queries import BatchTable, BatchTimes, expression_sql, newest_first, register_batch_query
from zset_join.stages.as_of_join import AsOfJoinStage
from zset_join.stages.deduplicate import DeduplicateStage
from zset_join.stages.temporal_join import TemporalJoinStage
from zset_join.state.time.version_join_shape import VersionJoinShape

__all__ = ["as_of_sql", "dedup_sql", "temporal_sql"]

_NEVER = 2**62
"""An epoch behind all others."""


def dedup_sql(stage: DeduplicateStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:  # noqa: ARG001 - as others
    """Return the first rows of every key by their number."""
    (table,) = inputs
    arrivals = table.history is not None and stage.source.mode == "append"
    order = []
    for column in stage.columns:
        turned = column.descending != (stage.keep == "last")
        order.append(f"{table.column(column.name)} {'DESC NULLS LAST' if turned else 'ASC NULLS FIRST'}")
    last = stage.columns[-1]
    if arrivals:
        order.append("n DESC" if last.descending != (stage.keep == "last") else "n")
    keys = ", ".join(table.column(name) for name in stage.keys)
    columns = ", ".join(f"c{at}" for at in range(len(table.relation.schema)))
    rows = f"SELECT * FROM {table.history}, unnest(range(CAST(w AS BIGINT)))" if arrivals else f"SELECT * FROM {table.name}"
    ranked = f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {', '.join(order)}) AS place FROM ({rows})"
    return f"SELECT {columns} FROM ({ranked}) WHERE place <= {stage.n}"


def temporal_sql(stage: TemporalJoinStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:
    """Return, for each left row that counts, the newest version at or before its time that counts for it."""
    left, right = inputs
    shape, emit = stage.shape, stage.options.emit
    left_time, right_time = left.column(str(shape.left.event_time)), right.column(str(shape.right.event_time))
    knows_epochs = left.history is not None and right.history is not None and stage.left.mode == "append"
    versions = _versions(stage, right)
    parts = [f"versions AS ({versions})"]
    if not knows_epochs:
        parts.append(f"lefts AS (SELECT *, 0 AS known, row_number() OVER () AS id FROM {left.name})")
        passed = "" if times.watermark_us is None or emit != "on_watermark" else _at_most("l", left, left_time, times)
        if emit == "on_watermark" and times.watermark_us is None:
            passed = "false"
        known = ""
    else:
        parts += _epochs(stage, left, right, left_time, right_time)
        kept = _behind(stage, stage.shape.keep_probe_for if emit == "eager" else 0)
        before = "(SELECT max(mark) FROM marks WHERE marks.e < h.e)"
        # What was known is fixed in the epoch in which a row is released, or may not be corrected any more.
        freed = f"(SELECT min(e) FROM marks WHERE marks.e >= h.e AND mark{kept} >= h.{left_time})"
        released = {"on_watermark": freed, "eager": f"coalesce({freed}, {_NEVER})", "once": "e"}[emit]
        late = f"h.{left_time} <= {before}"
        if stage.shape.late == "join":  # joined all the same, where a version that is kept was valid then
            past = [*_equal(shape, left, right, "h"), "r.e < h.e", f"r.{right_time} <= {before}{kept}"]
            newest = f"(SELECT max(r.{right_time}) FROM versions r WHERE {' AND '.join(past)})"
            late = f"h.{left_time} <= {before}{kept} AND coalesce({newest} > h.{left_time}, true)"
        parts.append(
            f"lefts AS (SELECT h.* EXCLUDE (w, e, n), {released} AS known, row_number() OVER () AS id "
            f"FROM {left.history} h, unnest(range(CAST(w AS BIGINT))) "
            f"WHERE {before} IS NULL OR NOT ({late}))"
        )
        passed, known = "known IS NOT NULL", " AND r.e <= l.known"
    pairs = " AND ".join([*_equal(shape, left, right), f"r.{right_time} <= l.{left_time}"]) + known
    order = [f"r.{right_time} DESC", *newest_first(shape.right, "r.", "r.deleted")]
    query = _chosen(shape, left, right, pairs, ", ".join(order), "NOT r.deleted", passed)
    return f"WITH {', '.join(parts)} {query}"


def as_of_sql(stage: AsOfJoinStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:  # noqa: ARG001 - as others
    """Return, for each left row, the nearest right row."""
    left, right = inputs
    options, shape = stage.options, stage.shape
    left_time, right_time = f"l.{left.column(options.left_time)}", f"r.{right.column(options.right_time)}"
    is_append = right.history is not None and stage.right.mode == "append"
    rights = f"SELECT * FROM {right.history}" if is_append else f"SELECT *, 0 AS n FROM {right.name}"
    parts = [
        f"versions AS (SELECT *, false AS deleted FROM ({rights}))",
        f"lefts AS (SELECT *, 0 AS known, row_number() OVER () AS id FROM {left.name})",
    ]
    pairs = [*_equal(shape, left, right), f"{left_time} {options.op} {right_time}"]
    if options.tolerance is not None:
        kind = shape.times.kind
        one, other = (left_time, right_time) if options.op in (">=", ">") else (right_time, left_time)
        reach = str(options.tolerance) if pt.is_integer(kind) else f"to_microseconds({options.tolerance})"
        pairs.append(f"{one} <= {other} + {reach}")
    nearest = "DESC" if options.op in (">=", ">") else "ASC"
    order = [f"{right_time} {nearest}"]
    if options.tie == "smallest_key":
        order += [f"r.{right.column(name)}" for name in stage.right.primary_key]
    query = _chosen(shape, left, right, " AND ".join(pairs), ", ".join([*order, "r.n DESC"]), "true", "")
    return f"WITH {', '.join(parts)} {query}"


def _versions(stage: TemporalJoinStage, right: BatchTable) -> str:
    """Return the versions with `deleted`, `e` and `n`."""
    marked = "false"
    if stage.options.delete_column is not None:
        marked = f"coalesce({right.column(stage.options.delete_column)}, false)"
    if right.history is None or stage.right.mode == "changelog":
        return f"SELECT *, {marked} AS deleted, 0 AS e, 0 AS n FROM {right.name}"
    deleted = "w < 0" if stage.right.mode == "upsert" else marked
    return f"SELECT *, {deleted} AS deleted FROM {right.history}"


def _epochs(stage: TemporalJoinStage, left: BatchTable, right: BatchTable, left_time: str, right_time: str) -> list[str]:
    """Return the table of the watermark after each epoch."""
    ends = []
    for table, column, delay in (
        (left, left_time, stage.left.watermark_delay),
        (right, right_time, stage.right.watermark_delay),
    ):
        known = "NULL" if delay is None else f"max({column}){_behind(stage, delay)}"
        ends.append(f"(SELECT e, {known} AS passed FROM {table.history} GROUP BY e)")
    running = "max(l.passed) OVER (ORDER BY e) AS one, max(r.passed) OVER (ORDER BY e) AS other"
    smaller = "CASE WHEN one IS NULL OR other IS NULL THEN NULL ELSE least(one, other) END"
    return [
        f"passing AS (SELECT e, {running} FROM {ends[0]} l FULL JOIN {ends[1]} r USING (e))",
        f"marks AS (SELECT e, {smaller} AS mark FROM passing)",
    ]


def _at_most(alias: str, table: BatchTable, column: str, times: BatchTimes) -> str:
    kind = table.relation.schema.field(str(table.relation.event_time)).type
    own = f"{alias}.{column}" if pt.is_integer(kind) else f"epoch_us({alias}.{column})"
    return f"{own} <= {times.watermark_us}"


def _behind(stage: TemporalJoinStage, delay: int) -> str:
    """Return what takes a duration, in the unit of the event times, from one."""
    kind = stage.shape.times.kind
    return "" if not delay else f" - {delay}" if pt.is_integer(kind) else f" - to_microseconds({delay})"


def _equal(shape: VersionJoinShape, left: BatchTable, right: BatchTable, own: str = "l") -> list[str]:
    parts = []
    for (one, other), kind in zip(shape.key, shape.key_types, strict=True):
        sides = []
        for alias, table, name in ((own, left, one), ("r", right, other)):
            text = f"{alias}.{table.column(name)}"
            is_kind = table.relation.schema.field(name).type == kind
            sides.append(text if is_kind else f"CAST({text} AS {type_name(kind, 'duckdb')})")
        parts.append(f"{sides[0]} = {sides[1]}")
    return parts


def _chosen(
    shape: VersionJoinShape, left: BatchTable, right: BatchTable, pairs: str, order: str, counts: str, passed: str
) -> str:
    """Return the join with the one right row that comes first in an order, if it passes the rest of ON."""
    if shape.residual is not None:
        schemas = {"left": left.relation.schema, "right": right.relation.schema}
        counts += f" AND ({expression_sql(shape.residual, schemas, {'left': 'l', 'right': 'r'})})"
    numbered = f"row_number() OVER (PARTITION BY l.id ORDER BY {order}) AS place"
    taken = [f"r.{right.column(name)} AS r{at}" for at, (side, name) in enumerate(shape.sources) if side == "right"]
    matches = ", ".join(["l.id AS id", f"({counts}) AS counts", numbered, *taken])
    candidates = f"(SELECT {matches} FROM lefts l JOIN versions r ON {pairs})"
    kind = "LEFT JOIN" if shape.how == "left" else "JOIN"
    shown = ", ".join(
        f"{f'm.r{at}' if side == 'right' else f'l.{left.column(name)}'} AS c{at}"
        for at, (side, name) in enumerate(shape.sources)
    )
    where = f" WHERE {passed}" if passed else ""
    return f"SELECT {shown} FROM lefts l {kind} (SELECT * FROM {candidates} WHERE place = 1 AND counts) m ON l.id = m.id{where}"


register_batch_query("deduplicate", dedup_sql)
register_batch_query("temporal_join", temporal_sql)
register_batch_query("as_of_join", as_of_sql)
