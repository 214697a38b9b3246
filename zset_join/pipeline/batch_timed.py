"""Dedup, temporal and as-of joins as queries of DuckDB's.

Window functions over all pairs of equal keys: nothing is asked of an index or of an order, so a mistake of the engine's is not
made twice. What is late, and what was known when a row was released or, in eager mode, was past correction, is worked out from
the epochs in which rows came and went, where both inputs come straight from sources; behind others it is taken that nothing
was late. Arrival, which breaks ties, is that of the copies that are left: a retraction takes the oldest. Behind other stages it
is known to the state alone, and `*_tied` select the rows among which it decides.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by `to_sql`.

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.types as pt

from zset_join.errors import PlanError
from zset_join.expressions.sql_text import type_name
from zset_join.pipeline.batch_queries import BatchTable, BatchTimes, expression_sql, newest_first, register_batch_query
from zset_join.stages.as_of_join import AsOfJoinStage
from zset_join.stages.deduplicate import DeduplicateStage
from zset_join.stages.temporal_join import TemporalJoinStage
from zset_join.state.time.version_join_shape import VersionJoinShape

__all__ = ["as_of_sql", "as_of_tied", "dedup_sql", "dedup_tied", "temporal_sql", "temporal_tied"]

_NEVER = 2**62
"""An epoch behind all others."""


def dedup_sql(stage: DeduplicateStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:  # noqa: ARG001 - as others
    """Return the first rows of every key by their number."""
    (table,) = inputs
    arrivals, order = _knows_arrivals(table), _order_of(stage, table)
    last = stage.columns[-1]
    if arrivals:
        order.append("n DESC" if last.descending != (stage.keep == "last") else "n")
    keys = ", ".join(table.column(name) for name in stage.keys)
    columns = ", ".join(f"c{at}" for at in range(len(table.relation.schema)))
    rows = f"SELECT * FROM ({_copies(table)}) WHERE gone IS NULL" if arrivals else f"SELECT * FROM {table.name}"
    ranked = f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {', '.join(order)}) AS place FROM ({rows})"
    return f"SELECT {columns} FROM ({ranked}) WHERE place <= {stage.n}"


def dedup_tied(stage: DeduplicateStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str | None:  # noqa: ARG001 - as others
    """Return the rows of keys whose last place is that of several rows."""
    (table,) = inputs
    if _knows_arrivals(table):
        return None
    columns = ", ".join(f"c{at}" for at in range(len(table.relation.schema)))
    keys, order = [table.column(name) for name in stage.keys], _order_of(stage, table)
    alike = ", ".join([*keys, *(table.column(one.name) for one in stage.columns)])
    before = f"sum(copies) OVER (PARTITION BY {', '.join(keys)} ORDER BY {', '.join(order)} RANGE UNBOUNDED PRECEDING)"
    among = f"count(*) OVER (PARTITION BY {alike}) AS among, sum(copies) OVER (PARTITION BY {alike}) AS own"
    distinct = f"SELECT {columns}, count(*) AS copies FROM {table.name} GROUP BY ALL"
    placed = f"SELECT *, {before} AS until, {among} FROM ({distinct})"
    return f"SELECT {columns} FROM ({placed}) WHERE among > 1 AND until > {stage.n} AND until - own < {stage.n}"


def _order_of(stage: DeduplicateStage, table: BatchTable) -> list[str]:
    order = []
    for column in stage.columns:
        turned = column.descending != (stage.keep == "last")
        order.append(f"{table.column(column.name)} {'DESC NULLS LAST' if turned else 'ASC NULLS FIRST'}")
    return order


def _knows_arrivals(table: BatchTable) -> bool:
    return table.history is not None and table.relation.mode != "upsert"


def _copies(table: BatchTable, came: str = "true", went: str = "true") -> str:
    """Return every copy of a row that came: when, `e` and `n`, and the epoch in which it was taken back, `gone`, or NULL.

    Args:
        table: with its history.
        came: which insertions count, of a history `h`.
        went: which retractions do.
    """
    columns = [f"c{at}" for at in range(len(table.relation.schema))]
    listed, history = ", ".join(f"h.{one}" for one in columns), f"{table.history} h"
    place = f"row_number() OVER (PARTITION BY {', '.join(columns)} ORDER BY n) AS k"
    gained = f"SELECT {listed}, h.e, h.n FROM {history}, unnest(range(CAST(h.w AS BIGINT))) WHERE h.w > 0 AND {came}"
    if table.relation.mode == "append":
        return f"SELECT *, CAST(NULL AS BIGINT) AS gone FROM ({gained})"
    lost = f"SELECT {listed}, h.e, h.n FROM {history}, unnest(range(CAST(-h.w AS BIGINT))) WHERE h.w < 0 AND {went}"
    same = " AND ".join([*(f"a.{one} IS NOT DISTINCT FROM b.{one}" for one in columns), "a.k = b.k"])
    return (
        f"SELECT {', '.join(f'a.{one}' for one in columns)}, a.e, a.n, b.e AS gone "
        f"FROM (SELECT *, {place} FROM ({gained})) a LEFT JOIN (SELECT *, {place} FROM ({lost})) b ON {same}"
    )


def temporal_sql(stage: TemporalJoinStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:
    """Return, for each left row that counts, the newest version at or before its time that counts for it.

    Raises:
        PlanError: what a row met when it came is known to the state alone.
    """
    return _temporal(stage, inputs, times, is_tied=False)


def temporal_tied(stage: TemporalJoinStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str | None:
    """Return the answers among which the arrival of versions decides, where it is not known."""
    return None if inputs[1].history is not None else _temporal(stage, inputs, times, is_tied=True)


def _temporal(stage: TemporalJoinStage, inputs: Sequence[BatchTable], times: BatchTimes, *, is_tied: bool) -> str:
    left, right = inputs
    shape, emit = stage.shape, stage.options.emit
    left_time, right_time = left.column(str(shape.left.event_time)), right.column(str(shape.right.event_time))
    if left.history is None or right.history is None:
        if emit == "once":
            raise PlanError(
                f'verify() cannot compare a temporal join with emit="once" where "{stage.left.name}" or "{stage.right.name}" '
                "is the answer of an earlier stage: what was there when each row came is known to the state alone.",
                code="NOT_VERIFIABLE",
                kind=stage.kind,
            )
        parts = [
            f"versions AS ({_versions(stage, right, '')})",
            f"lefts AS (SELECT *, 0 AS known, row_number() OVER () AS id FROM {left.name})",
        ]
        passed = "" if times.watermark_us is None or emit != "on_watermark" else _at_most("l", left, left_time, times)
        if emit == "on_watermark" and times.watermark_us is None:
            passed = "false"
        known = ""
    else:
        kept = _behind(stage, stage.shape.keep_probe_for if emit == "eager" else 0)
        before = "(SELECT max(mark) FROM marks WHERE marks.e < h.e)"
        parts = _epochs(stage, left, right, left_time, right_time)
        parts.append(f"versions AS ({_versions(stage, right, f'h.{right_time} <= {before}{kept}')})")
        # What was known is fixed in the epoch in which a row is released, or may not be corrected any more.
        freed = f"(SELECT min(e) FROM marks WHERE marks.e >= h.e AND mark{kept} >= h.{left_time})"
        released = {"on_watermark": freed, "eager": f"coalesce({freed}, {_NEVER})", "once": "e"}[emit]
        late = f"h.{left_time} <= {before}"
        if stage.shape.late == "join":  # joined all the same, where the version of its time cannot have been freed
            past = [*_equal(shape, left, right, "h"), "r.e < h.e", f"r.{right_time} <= {before}{kept}"]
            newest = f"(SELECT max(r.{right_time}) FROM versions r WHERE {' AND '.join([*past, _there('h.e - 1')])})"
            late = f"h.{left_time} <= {before}{kept} AND coalesce({newest} > h.{left_time}, false)"
        copies = _copies(left, _not(late), _not(f"h.{left_time} <= {before}{kept}"))
        parts.append(
            f"lefts AS (SELECT h.* EXCLUDE (e, n, gone), {released} AS known, row_number() OVER () AS id "
            f"FROM ({copies}) h WHERE gone IS NULL)"
        )
        passed, known = "known IS NOT NULL", f" AND r.e <= l.known AND {_there('l.known')}"
    pairs = " AND ".join([*_equal(shape, left, right), f"r.{right_time} <= l.{left_time}"]) + known
    *settled, _ = newest_first(shape.right, "r.", "r.deleted")  # the arrival comes last
    order = [f"r.{right_time} DESC", *settled]
    query = _chosen(shape, left, right, pairs, order, "NOT r.deleted", passed, is_tied=is_tied)
    return f"WITH {', '.join(parts)} {query}"


def _there(epoch: str) -> str:
    """Return whether a copy had not been taken back when an epoch ended."""
    return f"(r.gone IS NULL OR r.gone > {epoch})"


def _not(condition: str) -> str:
    return f"NOT coalesce({condition}, false)"


def as_of_sql(stage: AsOfJoinStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str:  # noqa: ARG001 - as others
    """Return, for each left row, the nearest right row."""
    return _as_of(stage, inputs, is_tied=False)


def as_of_tied(stage: AsOfJoinStage, inputs: Sequence[BatchTable], times: BatchTimes) -> str | None:  # noqa: ARG001 - as others
    """Return the answers among which the arrival of right rows decides, where it is not known."""
    return None if _knows_arrivals(inputs[1]) else _as_of(stage, inputs, is_tied=True)


def _as_of(stage: AsOfJoinStage, inputs: Sequence[BatchTable], *, is_tied: bool) -> str:
    left, right = inputs
    options, shape = stage.options, stage.shape
    left_time, right_time = f"l.{left.column(options.left_time)}", f"r.{right.column(options.right_time)}"
    rights = f"SELECT *, 0 AS n FROM {right.name}"
    if _knows_arrivals(right):
        rights = f"SELECT * FROM ({_copies(right)}) WHERE gone IS NULL"
    parts = [
        f"versions AS (SELECT *, false AS deleted FROM ({rights}))",
        f"lefts AS (SELECT *, 0 AS known, row_number() OVER () AS id FROM {left.name})",
    ]
    pairs = [*_equal(shape, left, right), f"{left_time} {options.op} {right_time}"]
    if options.tolerance is not None:
        kind = shape.times.kind
        one, other = (left_time, right_time) if options.op in (">=", ">") else (right_time, left_time)
        if pt.is_time(kind):  # a time of day plus an interval wraps around
            pairs.append(f"epoch_us({one}) <= epoch_us({other}) + {options.tolerance}")
        else:
            reach = str(options.tolerance) if pt.is_integer(kind) else f"to_microseconds({options.tolerance})"
            pairs.append(f"{one} <= {other} + {reach}")
    nearest = "DESC" if options.op in (">=", ">") else "ASC"
    order = [f"{right_time} {nearest}"]
    if options.tie == "smallest_key":
        order += [f"r.{right.column(name)}" for name in stage.right.primary_key]
    query = _chosen(shape, left, right, " AND ".join(pairs), order, "true", "", is_tied=is_tied)
    return f"WITH {', '.join(parts)} {query}"


def _versions(stage: TemporalJoinStage, right: BatchTable, past: str) -> str:
    """Return the versions with `deleted`, `e`, `n` and `gone`; retractions of what is `past` take nothing back."""
    marked = "false"
    if stage.options.delete_column is not None:
        marked = f"coalesce({right.column(stage.options.delete_column)}, false)"
    if right.history is None:
        return f"SELECT *, {marked} AS deleted, 0 AS e, 0 AS n, CAST(NULL AS BIGINT) AS gone FROM {right.name}"
    if stage.right.mode == "changelog":
        return f"SELECT *, {marked} AS deleted FROM ({_copies(right, went=_not(past) if past else 'true')})"
    deleted = "w < 0" if stage.right.mode == "upsert" else marked
    return f"SELECT *, {deleted} AS deleted, CAST(NULL AS BIGINT) AS gone FROM {right.history}"


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
    shape: VersionJoinShape,
    left: BatchTable,
    right: BatchTable,
    pairs: str,
    order: Sequence[str],
    counts: str,
    passed: str,
    *,
    is_tied: bool,
) -> str:
    """Return the join with the one right row that comes first in an order, then by arrival, if it passes the rest of ON.

    With `is_tied`: the answers of left rows for which several right rows come first, if they differ.
    """
    if shape.residual is not None:
        schemas = {"left": left.relation.schema, "right": right.relation.schema}
        counts += f" AND ({expression_sql(shape.residual, schemas, {'left': 'l', 'right': 'r'})})"
    first = f"rank() OVER (PARTITION BY l.id ORDER BY {', '.join(order)})"
    if not is_tied:
        first = f"row_number() OVER (PARTITION BY l.id ORDER BY {', '.join([*order, 'r.n DESC'])})"
    numbered = f"{first} AS place"
    taken = [f"r.{right.column(name)} AS r{at}" for at, (side, name) in enumerate(shape.sources) if side == "right"]
    matches = ", ".join(["l.id AS id", f"({counts}) AS counts", numbered, *taken])
    candidates = f"(SELECT {matches} FROM lefts l JOIN versions r ON {pairs})"
    kind = "LEFT JOIN" if shape.how == "left" else "JOIN"
    shown = ", ".join(
        f"{f'm.r{at}' if side == 'right' else f'l.{left.column(name)}'} AS c{at}"
        for at, (side, name) in enumerate(shape.sources)
    )
    where = f" WHERE {passed}" if passed else ""
    if is_tied:
        answers = ", ".join(
            f"{f'CASE WHEN m.counts THEN m.r{at} END' if side == 'right' else f'l.{left.column(name)}'} AS c{at}"
            for at, (side, name) in enumerate(shape.sources)
        )
        columns = ", ".join(f"c{at}" for at in range(len(shape.sources)))
        dropped = " AND coalesce(m.counts, false)" if shape.how == "inner" else ""
        every = (
            f"SELECT DISTINCT l.id, m.counts, {answers} FROM lefts l JOIN (SELECT * FROM {candidates} WHERE place = 1) m "
            f"ON l.id = m.id{where}"
        )
        several = f"SELECT *, count(*) OVER (PARTITION BY id) AS among FROM ({every})"
        return f"SELECT {columns} FROM ({several}) m WHERE among > 1{dropped}"
    return f"SELECT {shown} FROM lefts l {kind} (SELECT * FROM {candidates} WHERE place = 1 AND counts) m ON l.id = m.id{where}"


register_batch_query("deduplicate", dedup_sql, tied=dedup_tied)
register_batch_query("temporal_join", temporal_sql, tied=temporal_tied)
register_batch_query("as_of_join", as_of_sql, tied=as_of_tied)
