"""Dedup, temporal and as-of joins as batch queries.

Window functions over all pairs of equal keys: nothing is asked of an index or of an order, so a mistake of the engine's is not
made twice. What is late, and what was known when a row was released or, in eager mode, was past correction, is worked out from
the epochs in which rows came and went, where both inputs come straight from sources whose changes are all known; behind others
it is taken that nothing was late. Arrival, which breaks ties, is that of the copies that are left: a retraction takes the
oldest. Behind other stages it is known to the state alone, and `*_tied` select the rows among which it decides.

The watermark before or behind an epoch is joined, from a table with a line per epoch: Spark takes no scalar subquery with an
inequality.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by `to_sql`.

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.types as pt

from zset_join.core.errors import PlanError
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.stages.as_of_join import AsOfJoinStage
from zset_join.stages.deduplicate import DeduplicateStage
from zset_join.stages.temporal_join import TemporalJoinStage
from zset_join.tools.batch.dialect import Dialect
from zset_join.tools.batch.tables import BatchScope, BatchTable, expression_sql, newest_first, register_batch_query

__all__ = ["as_of_sql", "as_of_tied", "dedup_sql", "dedup_tied", "temporal_sql", "temporal_tied"]

_NEVER = 2**62
"""An epoch behind all others."""


def dedup_sql(stage: DeduplicateStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the first rows of every key by their number."""
    (table,) = inputs
    arrivals, order = _knows_arrivals(table), _order_of(stage, table)
    last = stage.columns[-1]
    if arrivals:
        order.append("n DESC" if last.descending != (stage.keep == "last") else "n")
    keys = ", ".join(table.column(name) for name in stage.keys)
    rows = f"SELECT * FROM ({_copies(table, scope.dialect)}) WHERE gone IS NULL" if arrivals else f"SELECT * FROM {table.name}"
    ranked = f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {', '.join(order)}) AS place FROM ({rows})"
    return f"SELECT {', '.join(table.columns)} FROM ({ranked}) WHERE place <= {stage.n}"


def dedup_tied(stage: DeduplicateStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the rows of keys whose last place is that of several rows."""
    (table,) = inputs
    if _knows_arrivals(table):
        return None
    columns = ", ".join(table.columns)
    keys, order = [table.column(name) for name in stage.keys], _order_of(stage, table)
    alike = ", ".join([*keys, *(table.column(one.name) for one in stage.columns)])
    reaching = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    before = f"sum(copies) OVER (PARTITION BY {', '.join(keys)} ORDER BY {', '.join(order)} {reaching})"
    among = f"count(*) OVER (PARTITION BY {alike}) AS among, sum(copies) OVER (PARTITION BY {alike}) AS own"
    distinct = scope.dialect.distinct(table.columns, "count(*) AS copies", table.name)
    placed = f"SELECT *, {before} AS reached, {among} FROM ({distinct})"
    return f"SELECT {columns} FROM ({placed}) WHERE among > 1 AND reached > {stage.n} AND reached - own < {stage.n}"


def _order_of(stage: DeduplicateStage, table: BatchTable) -> list[str]:
    order = []
    for column in stage.columns:
        turned = column.descending != (stage.keep == "last")
        order.append(f"{table.column(column.name)} {'DESC NULLS LAST' if turned else 'ASC NULLS FIRST'}")
    return order


def _knows_arrivals(table: BatchTable) -> bool:
    return table.history is not None and table.relation.mode != "upsert"


def _copies(table: BatchTable, dialect: Dialect, came: str = "true", went: str = "true", more: Sequence[str] = ()) -> str:
    """Return every copy of a row that came: when, `e` and `n`, and the epoch in which it was taken back, `gone`, or NULL.

    Args:
        table: with its history.
        dialect: whose SQL.
        came: which insertions count, of a history `h`.
        went: which retractions do.
        more: columns of the history that are kept of insertions.
    """
    columns, history = table.columns, f"{table.history} h"
    listed, kept = ", ".join(f"h.{one}" for one in columns), [*columns, "e", "n", *more]
    place = f"row_number() OVER (PARTITION BY {', '.join(columns)} ORDER BY n) AS k"
    gained = f"SELECT {', '.join(f'h.{one}' for one in kept)} FROM {dialect.repeated(history, 'h.w')} WHERE h.w > 0 AND {came}"
    if table.relation.mode == "append":
        return f"SELECT *, CAST(NULL AS BIGINT) AS gone FROM ({gained})"
    lost = f"SELECT {listed}, h.e, h.n FROM {dialect.repeated(history, '-h.w')} WHERE h.w < 0 AND {went}"
    same = " AND ".join([*(f"a.{one} IS NOT DISTINCT FROM b.{one}" for one in columns), "a.k = b.k"])
    return (
        f"SELECT {', '.join(f'a.{one}' for one in kept)}, b.e AS gone "
        f"FROM (SELECT *, {place} FROM ({gained})) a LEFT JOIN (SELECT *, {place} FROM ({lost})) b ON {same}"
    )


def temporal_sql(stage: TemporalJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return, for each left row that counts, the newest version at or before its time that counts for it.

    Raises:
        PlanError: what a row met when it came is known to the state alone.
    """
    return _temporal(stage, inputs, scope, is_tied=False)


def temporal_tied(stage: TemporalJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the answers among which the arrival of versions decides, where it is not known."""
    return None if inputs[1].history is not None else _temporal(stage, inputs, scope, is_tied=True)


def _temporal(stage: TemporalJoinStage, inputs: Sequence[BatchTable], scope: BatchScope, *, is_tied: bool) -> str:
    left, right = inputs
    shape, dialect = stage.shape, scope.dialect
    left_time, right_time = _time_of(left, dialect, "l"), _time_of(right, dialect, "r")
    if left.history is None or right.history is None:
        parts, known = _untimed(stage, left, right, scope), ""
    else:
        parts, known = _timed(stage, left, right, scope), f" AND r.e <= l.known AND {_there('l.known')}"
    pairs = " AND ".join([*_equal(shape, left, right, dialect), f"{right_time} <= {left_time}"]) + known
    *settled, _ = newest_first(shape.right, "r.", "r.deleted")  # the arrival comes last
    query = _chosen(shape, left, right, pairs, [f"{right_time} DESC", *settled], dialect, is_tied=is_tied)
    return f"WITH {', '.join(parts)} {query}"


def _untimed(stage: TemporalJoinStage, left: BatchTable, right: BatchTable, scope: BatchScope) -> list[str]:
    """Return the tables `versions` and `lefts` where nobody knows when rows came: none was late.

    Raises:
        PlanError: the answer depends on when they came.
    """
    emit, mark = stage.options.emit, scope.times.watermark_us
    why = None
    if emit == "once":
        why = 'what was there when each row came, which with emit="once" decides, is known to the state alone'
    elif stage.right.mode == "upsert" and right.history is None:
        why = f'the versions of "{stage.right.name}" are upserts by key, and only the newest of each is known'
    if why is not None:
        raise PlanError(
            f'verify() cannot compare the temporal join of "{stage.left.name}" with "{stage.right.name}": {why}, as one of '
            "them is the answer of an earlier stage, or its changes are not known from the first one on.",
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    passed = ""
    if emit == "on_watermark":
        time = str(stage.shape.left.event_time)
        own = scope.dialect.microseconds(f"l.{left.column(time)}", left.relation.schema.field(time).type)
        passed = " WHERE false" if mark is None else f" WHERE {own} <= {mark}"
    columns = ", ".join(f"l.{one}" for one in left.columns)
    return [
        f"versions AS (SELECT * FROM ({_versions(stage, right, scope.dialect)}) WHERE gone IS NULL)",
        f"lefts AS (SELECT {columns}, 0 AS known, {scope.dialect.row_id} AS id FROM {left.name} l{passed})",
    ]


def _timed(stage: TemporalJoinStage, left: BatchTable, right: BatchTable, scope: BatchScope) -> list[str]:
    """Return the tables `versions` and `lefts`, with the epoch after which nothing that comes changes the answer of a row."""
    dialect, emit, kind = scope.dialect, stage.options.emit, stage.shape.times.kind
    kept = -stage.shape.times.as_watermark(stage.shape.keep_probe_for) if emit == "eager" else 0
    before, time = dialect.moved("h.before", kind, kept), _time_of(left, dialect, "h")
    past = f"{_time_of(right, dialect, 'h')} <= {before}"
    parts = _marks(stage, left, right, scope)
    for name, table in (("left_changes", left), ("right_changes", right)):
        columns = ", ".join(f"h.{one}" for one in [*table.columns, "w", "e", "n"])
        parts.append(f"{name} AS (SELECT {columns}, m.before FROM {table.history} h LEFT JOIN marks m ON m.e = h.e)")
    left, right = left.with_history("left_changes"), right.with_history("right_changes")
    parts.append(f"versions AS ({_versions(stage, right, dialect, _not(past))})")
    late = f"{time} <= h.before"
    if stage.shape.late == "join":  # joined all the same, where the version of its time cannot have been freed
        columns = ", ".join(f"h.{one}" for one in [*left.columns, "w", "e", "n", "before"])
        found = [*_equal(stage.shape, left, right, dialect, "h"), "r.e < h.e", f"{_time_of(right, dialect, 'r')} <= {before}"]
        parts.append(
            f"late_changes AS (SELECT {columns}, max({_time_of(right, dialect, 'r')}) AS newest FROM left_changes h "
            f"LEFT JOIN versions r ON {' AND '.join([*found, _there('h.e - 1')])} GROUP BY ALL)"
        )
        left = left.with_history("late_changes")
        late = f"{time} <= {before} AND coalesce(h.newest > {time}, false)"
    copies = _copies(left, dialect, _not(late), _not(f"{time} <= {before}"))
    columns = ", ".join(f"h.{one}" for one in left.columns)
    lefts = f"({copies}) h"
    known, passed = "h.e", "h.gone IS NULL"
    if emit != "once":
        # What was known is fixed in the epoch in which a row is released, or may not be corrected any more.
        low, high = (dialect.moved(f"s.{one}", kind, kept) for one in ("low", "high"))
        lefts += f" LEFT JOIN steps s ON {time} <= {high} AND (s.low IS NULL OR {time} > {low})"
        known = f"CASE WHEN s.e IS NULL THEN {_NEVER} ELSE greatest(s.e, h.e) END"
        passed += " AND s.e IS NOT NULL" if emit == "on_watermark" else ""
        parts.append("steps AS (SELECT e, mark AS high, lag(mark) OVER (ORDER BY e) AS low FROM marks WHERE mark IS NOT NULL)")
    parts.append(f"lefts AS (SELECT {columns}, {known} AS known, {dialect.row_id} AS id FROM {lefts} WHERE {passed})")
    return parts


def _time_of(table: BatchTable, dialect: Dialect, alias: str) -> str:
    """Return the event time of a row, as times are compared."""
    name = str(table.relation.event_time)
    return dialect.time(f"{alias}.{table.column(name)}", table.relation.schema.field(name).type)


def _there(epoch: str) -> str:
    """Return whether a copy had not been taken back when an epoch ended."""
    return f"(r.gone IS NULL OR r.gone > {epoch})"


def _not(condition: str) -> str:
    return f"NOT coalesce({condition}, false)"


def as_of_sql(stage: AsOfJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return, for each left row, the nearest right row."""
    return _as_of(stage, inputs, scope.dialect, is_tied=False)


def as_of_tied(stage: AsOfJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the answers among which the arrival of right rows decides, where it is not known."""
    return None if _knows_arrivals(inputs[1]) else _as_of(stage, inputs, scope.dialect, is_tied=True)


def _as_of(stage: AsOfJoinStage, inputs: Sequence[BatchTable], dialect: Dialect, *, is_tied: bool) -> str:
    left, right = inputs
    options, shape = stage.options, stage.shape
    left_time, right_time = f"l.{left.column(options.left_time)}", f"r.{right.column(options.right_time)}"
    rights = f"SELECT *, 0 AS n FROM {right.name}"
    if _knows_arrivals(right):
        rights = f"SELECT * FROM ({_copies(right, dialect)}) WHERE gone IS NULL"
    columns = ", ".join(f"l.{one}" for one in left.columns)
    parts = [
        f"versions AS (SELECT *, false AS deleted FROM ({rights}))",
        f"lefts AS (SELECT {columns}, 0 AS known, {dialect.row_id} AS id FROM {left.name} l)",
    ]
    pairs = [*_equal(shape, left, right, dialect), f"{left_time} {options.op} {right_time}"]
    if options.tolerance is not None:
        kind = shape.times.kind
        one, other = (left_time, right_time) if options.op in (">=", ">") else (right_time, left_time)
        if pt.is_time(kind):  # a time of day plus an interval wraps around
            near, far = dialect.microseconds(one, kind), f"{dialect.microseconds(other, kind)} + {options.tolerance}"
        else:
            near, far = dialect.time(one, kind), dialect.moved(dialect.time(other, kind), kind, options.tolerance)
        pairs.append(f"{near} <= {far}")
    nearest = "DESC" if options.op in (">=", ">") else "ASC"
    order = [f"{right_time} {nearest}"]
    if options.tie == "smallest_key":
        order += [f"r.{right.column(name)}" for name in stage.right.primary_key]
    query = _chosen(shape, left, right, " AND ".join(pairs), order, dialect, is_tied=is_tied)
    return f"WITH {', '.join(parts)} {query}"


def _versions(stage: TemporalJoinStage, right: BatchTable, dialect: Dialect, went: str = "true") -> str:
    """Return the versions with `deleted`, `e`, `n` and `gone`; retractions that do not count take nothing back."""
    marked = "false"
    if stage.options.delete_column is not None:
        marked = f"coalesce({right.column(stage.options.delete_column)}, false)"
    if right.history is None:
        return f"SELECT *, {marked} AS deleted, 0 AS e, 0 AS n, CAST(NULL AS BIGINT) AS gone FROM {right.name}"
    if stage.right.mode == "changelog":
        return f"SELECT *, {marked} AS deleted FROM ({_copies(right, dialect, went=went)})"
    deleted = "w < 0" if stage.right.mode == "upsert" else marked
    return f"SELECT *, {deleted} AS deleted, CAST(NULL AS BIGINT) AS gone FROM {right.history}"


def _marks(stage: TemporalJoinStage, left: BatchTable, right: BatchTable, scope: BatchScope) -> list[str]:
    """Return the table of the watermark before and after each epoch, where it is not given made of the rows."""
    if scope.marks is not None:
        return [f"marks AS (SELECT e, before, mark FROM {scope.marks})"]
    ends = []
    for table, relation in ((left, stage.left), (right, stage.right)):
        delay = relation.watermark_delay
        time = _time_of(table, scope.dialect, "h")
        if delay is None:  # there is no watermark: NULL, of the type of the other one
            passed = f"max(CASE WHEN false THEN {time} END)"
        else:
            passed = scope.dialect.moved(f"max({time})", stage.shape.times.kind, -delay)
        ends.append(f"(SELECT h.e, {passed} AS passed FROM {table.history} h GROUP BY h.e)")
    running = "max(l.passed) OVER (ORDER BY e) AS one, max(r.passed) OVER (ORDER BY e) AS other"
    smaller = "CASE WHEN one IS NULL OR other IS NULL THEN NULL ELSE least(one, other) END"
    last = "max(mark) OVER (ORDER BY e ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    return [
        f"passing AS (SELECT e, {running} FROM {ends[0]} l FULL JOIN {ends[1]} r USING (e))",
        f"marks AS (SELECT e, mark, {last} AS before FROM (SELECT e, {smaller} AS mark FROM passing))",
    ]


def _equal(shape: VersionJoinShape, left: BatchTable, right: BatchTable, dialect: Dialect, own: str = "l") -> list[str]:
    parts = []
    for (one, other), kind in zip(shape.key, shape.key_types, strict=True):
        sides = []
        for alias, table, name in ((own, left, one), ("r", right, other)):
            text = f"{alias}.{table.column(name)}"
            is_kind = table.relation.schema.field(name).type == kind
            sides.append(text if is_kind else f"CAST({text} AS {dialect.type_name(kind)})")
        parts.append(f"{sides[0]} = {sides[1]}")
    return parts


def _chosen(
    shape: VersionJoinShape,
    left: BatchTable,
    right: BatchTable,
    pairs: str,
    order: Sequence[str],
    dialect: Dialect,
    *,
    is_tied: bool,
) -> str:
    """Return the join with the one right row that comes first in an order, then by arrival, if it passes the rest of ON.

    With `is_tied`: the answers of left rows for which several right rows come first, if they differ.
    """
    counts = "NOT r.deleted"
    if shape.residual is not None:
        schemas = {"left": left.relation.schema, "right": right.relation.schema}
        counts += f" AND ({expression_sql(shape.residual, schemas, dialect, {'left': 'l', 'right': 'r'})})"
    first = f"rank() OVER (PARTITION BY l.id ORDER BY {', '.join(order)})"
    if not is_tied:
        first = f"row_number() OVER (PARTITION BY l.id ORDER BY {', '.join([*order, 'r.n DESC'])})"
    taken = [
        f"{f'r.{right.column(name)}' if side == 'right' else f'l.{left.column(name)}'} AS v{at}"
        for at, (side, name) in enumerate(shape.sources)
    ]
    # An id is read once: Spark may count anew wherever a table is named.
    columns = ", ".join(["l.id AS id", f"coalesce({counts}, false) AS counts", f"{first} AS place", *taken])
    kind = "JOIN" if is_tied else "LEFT JOIN"
    shown = ", ".join(
        f"{f'CASE WHEN counts THEN v{at} END' if side == 'right' else f'v{at}'} AS c{at}"
        for at, (side, _) in enumerate(shape.sources)
    )
    rows = f"(SELECT {columns} FROM lefts l {kind} versions r ON {pairs})"
    dropped = " AND counts" if shape.how == "inner" else ""
    if not is_tied:
        return f"SELECT {shown} FROM {rows} WHERE place = 1{dropped}"
    answers = f"SELECT DISTINCT id, counts, {shown} FROM {rows} WHERE place = 1"
    several = f"SELECT *, count(*) OVER (PARTITION BY id) AS among FROM ({answers})"
    return f"SELECT {', '.join(f'c{at}' for at in range(len(shape.sources)))} FROM ({several}) WHERE among > 1{dropped}"


register_batch_query("deduplicate", dedup_sql, tied=dedup_tied)
register_batch_query("temporal_join", temporal_sql, tied=temporal_tied)
register_batch_query("as_of_join", as_of_sql, tied=as_of_tied)
