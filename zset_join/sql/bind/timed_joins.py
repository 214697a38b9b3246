"""Joins with a table as it was at some time: FOR SYSTEM_TIME AS OF, LATERAL TABLE(f(t)), ASOF JOIN.

| written | meaning |
|---|---|
| `FOR SYSTEM_TIME AS OF o.t`, o.t an event time | the version that was valid at the row's time |
| `... VERSIONED ON c` | the same, with the column c as the time of a version |
| `... AS OF PROCTIME()`, `NOW()`, `o.proctime` | the newest row when the left row arrives |
| `LATERAL TABLE(rates(o.t))` | as the first, of a temporal table function |
| `ASOF JOIN ... MATCH_CONDITION (a.t >= b.t)` or `ON ... AND a.t >= b.t` | the nearest row |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Call, Column, Expression
from zset_join.expressions.rows import named
from zset_join.expressions.tree import walk
from zset_join.lookup.options import Lookup
from zset_join.plan.conditions import JoinCondition, split_condition, together
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import Apply
from zset_join.query import PROCESSING_TIME, View
from zset_join.sql.bind.binding import JoinContext, QueryContext
from zset_join.sql.bind.scopes import Item
from zset_join.sql.parse.readers import lookup_of
from zset_join.sql.tables.catalog import Catalog
from zset_join.sql.tables.settings import kept_for, lookup_defaults
from zset_join.sql_expressions.consumed import near, pick

__all__ = ["TimedStep", "Version", "as_of_join", "is_now", "temporal_join", "versions_of"]

_NOW = frozenset({"CURRENT_TIMESTAMP", "LOCALTIMESTAMP", "NOW", "PROCTIME"})


@dataclass(frozen=True)
class Version:
    """Request of FOR SYSTEM_TIME AS OF."""

    time: exp.Expr
    versioned_on: str | None = None

    @classmethod
    def of(cls, node: exp.Expr | None, item: Item, query: QueryContext) -> Version | None:
        if node is None:
            return None
        is_time = str(node.args.get("this")) == "TIMESTAMP"
        if not is_time or str(node.args.get("kind")) != "AS OF" or node.expression is None:
            raise SqlError("FOR SYSTEM_TIME is supported with AS OF.", code="NOT_OFFERED", at=query.at(node))
        column = node.args.get("versioned_on")
        physical = None
        if column is not None:
            physical = pick(item.columns, column.name)
            if physical is None:
                raise SqlError(
                    f'VERSIONED ON names "{column.name}", which "{item.alias}" does not have.{near(column.name, item.columns)}',
                    code="UNKNOWN_COLUMN",
                    at=query.at(column),
                    name=column.name,
                )
        return cls(node.expression, physical)


class TimedStep(Protocol):
    """A join of FROM, as `zset_join.sql.bind.joins` reads it."""

    item: Item
    node: exp.Join
    how: str
    version: Version | None


def is_now(node: exp.Expr, items: Sequence[Item]) -> bool:
    """Return whether an expression is the processing time."""
    if isinstance(node, exp.Anonymous):
        return node.name.upper() in _NOW
    if isinstance(node, exp.CurrentTimestamp | exp.Localtimestamp):
        return True
    if isinstance(node, exp.Column):
        if not node.table and node.name.upper() in _NOW:
            return True
        for item in items:
            if not node.table or item.alias.lower() == node.table.lower():
                return any(name.lower() == node.name.lower() for name in item.processing_times)
    return False


def temporal_join(
    planner: JoinContext,
    view: View,
    joined: Sequence[Item],
    step: TimedStep,
    trees: Sequence[Expression],
    resolve: Callable[[exp.Column], Expression],
) -> View:
    """Join with the versions of a table, or with its rows when a row arrives."""
    query, item, node = planner.query, step.item, step.node
    at = query.at(node.this)
    if step.how not in {"inner", "left"}:
        raise SqlError(
            f"a {step.how.upper()} temporal join is not supported: the versions of a table have no end to pad. Write LEFT or "
            "INNER, with the table that changes on the right.",
            code="TEMPORAL_SIDE",
            at=at,
        )
    time = step.version.time if step.version is not None else item.time_expression
    assert time is not None  # noqa: S101 - the caller has checked
    parts = _parts(planner, view, item, trees, node)
    try:
        if item.lookup is not None:
            if not is_now(time, joined):
                raise _no_time(planner, time, item)
            _check_plain(planner, item, parts, node)
            return _looked_up(planner, view, item, step.how, parts)
        right = _with_indexes(planner.query.catalog, item).alias(item.alias)
        if is_now(time, joined):
            pairs = list(parts.keys)
            return view.temporal_join(
                right, on=pairs, how=step.how, as_of=PROCESSING_TIME, null_safe=parts.null_safe, condition=parts.condition
            )
        column = resolve(time) if isinstance(time, exp.Column) else None
        if not isinstance(column, Column) or column.side != "left" or column.name not in view.schema.names:
            raise _no_time(planner, time, item)
        _check_plain(planner, item, parts, node)
        view, names = _named_keys(view, parts.keys)
        late: Any = planner.query.settings.get("late")
        return view.temporal_join(
            right,
            on=names,
            how=step.how,
            as_of=column.name,
            emit=planner.emit(),
            late=late,
            keep_probe_for=_kept_for(planner, view.schema.field(column.name).type),
            condition=parts.condition,
            is_change_time=_is_change_time(item),
        )
    except SqlError:
        raise
    except PlanError as error:
        raise SqlError(_in_words_of_sql(error, view, item), code=error.code, at=at) from error


def _kept_for(planner: JoinContext, kind: pa.DataType) -> int | str | None:
    """Return the setting `keep_probe_for` where rows are corrected, as a view takes it."""
    seconds = kept_for(planner.query.settings) if planner.emit() == "eager" else None
    return seconds if seconds is None or pt.is_integer(kind) else f"{seconds} seconds"


def _in_words_of_sql(error: PlanError, view: View, item: Item) -> str:
    """Return the error of a join by event time, with the cure in SQL."""
    left, right = view.name, item.alias
    match error.code:
        case "NOT_VERSIONED":
            why = "a query" if item.table is None else item.table.why()
            return (
                f'"{right}" has no versions by event time ({why}). Declare PRIMARY KEY (...) NOT ENFORCED and WATERMARK FOR '
                "its time, or keep the newest row of each key: WHERE rn = 1 over ROW_NUMBER() OVER (PARTITION BY key ORDER BY "
                "time DESC), of a table with WATERMARK FOR that time. To join what holds when the row comes, write AS OF "
                "PROCTIME()."
            )
        case "TEMPORAL_WATERMARK":
            without = " and ".join(f'"{one}"' for one in error.facts.get("without", ()))
            return (
                f"a join as of an event time answers when the watermarks of both sides have passed, and {without} declares "
                "none: rows would wait for ever. Add WATERMARK FOR t AS t - INTERVAL '5' SECOND to its columns, or SET "
                "temporal_join_emit = 'eager'."
            )
        case "TEMPORAL_KEY":
            key, compared = ", ".join(error.facts["primary_key"]), ", ".join(error.facts["join_key"])
            return (
                f'"{right}" has the primary key ({key}), and ON compares {compared}: a row would meet several at one time. '
                f"Compare the whole key in ON, or join the newest row of each: WHERE rn = 1 over ROW_NUMBER() OVER (PARTITION "
                f"BY {compared} ORDER BY time DESC)."
            )
        case "TEMPORAL_LEFT_CHANGES":
            cure = (
                "Join a table whose rows are only added, or use AS OF PROCTIME()"
                if error.facts.get("emit") == "eager"
                else f'Where both sides change, write ASOF JOIN "{right}" ON a.key = b.key AND a.time >= b.time; or SET '
                f"temporal_join_emit = 'eager', which keeps the rows of \"{left}\" as long as they live; join a table without "
                "PRIMARY KEY; or use AS OF PROCTIME()"
            )
            return f'rows of "{left}" change, and what a join as of an event time has answered is not retracted. {cure}.'
    return error.message


def as_of_join(
    planner: JoinContext, view: View, step: TimedStep, trees: Sequence[Expression], match: Expression | None
) -> View:
    at = planner.query.at(step.node.this)
    ordered = [match] if match is not None else [tree for tree in trees if _order_of(tree) is not None]
    if len(ordered) != 1 or _order_of(ordered[0]) is None:
        raise SqlError(
            "an ASOF JOIN names one comparison of a column of each side: MATCH_CONDITION (a.t >= b.t), or AND a.t >= b.t "
            "in ON.",
            code="NOT_OFFERED",
            at=at,
        )
    order = _order_of(ordered[0])
    assert order is not None  # noqa: S101 - just checked
    left_time, operator, right_time = order
    parts = _parts(planner, view, step.item, [tree for tree in trees if tree is not ordered[0]], step.node)
    _check_plain(planner, step.item, parts, step.node)
    try:
        view, names = _named_keys(view, parts.keys)
        return view.join_asof(
            step.item.view.alias(step.item.alias),
            on=names,
            left_time=left_time,
            right_time=right_time,
            op=operator,
            how=step.how,
            condition=parts.condition,
        )
    except PlanError as error:
        raise SqlError(error.message, code=error.code, at=at) from error


def versions_of(item: Item, time: str, key: str) -> View:
    """Return the versions that a temporal table function names."""
    table = item.table
    if table is None:
        return item.view
    rows = table.rows
    if table.watermark is None or table.watermark[0] != time:
        rows = rows.versioned_by(time)
    return rows if table.primary_key == (key,) else rows.dedup(keys=key, order_by=time, keep="last")


def _is_change_time(item: Item) -> bool:
    """Return whether the time of a version is that of its change: it is filled from metadata."""
    table = item.table
    if table is None or table.watermark is None:
        return False
    return any(column.name == table.watermark[0] and column.metadata is not None for column in table.columns)


def _no_time(planner: JoinContext, time: exp.Expr, item: Item) -> SqlError:
    what = f'"{item.alias}" is looked up when a row arrives' if item.lookup is not None else "the row has the time"
    return SqlError(
        f"FOR SYSTEM_TIME AS OF takes a column of the left rows, or PROCTIME(): {what}.",
        code="NOT_OFFERED",
        at=planner.query.at(time),
    )


def _parts(planner: JoinContext, view: View, item: Item, trees: Sequence[Expression], node: exp.Join) -> JoinCondition:
    condition = together(list(trees))
    parts = None if condition is None else split_condition(condition)
    if parts is None or not parts.keys:
        raise SqlError(
            f'the join of "{view.name}" and "{item.alias}" has no pair of equal expressions. Add ON a.key = b.key.',
            code="CROSS_JOIN",
            at=planner.query.at(node),
        )
    return parts


def _check_plain(planner: JoinContext, item: Item, parts: JoinCondition, node: exp.Join) -> None:
    """Refuse keys that are compared with NULLs as equal, and keys of the right side that are no columns."""
    if any(parts.null_safe):
        raise SqlError(
            f'IS NOT DISTINCT FROM is supported in joins as of PROCTIME() and in joins of changing tables; "{item.alias}" is '
            "joined by = here. Give NULL a value in a view of each side.",
            code="NOT_OFFERED",
            at=planner.query.at(node),
        )
    expressions = [other for _, other in parts.keys if not isinstance(other, Column)]
    if expressions:
        raise SqlError(
            f'a key of "{item.alias}" is a column of it, not {expressions[0]!r}. Compute it in a view and join that.',
            code="NOT_OFFERED",
            at=planner.query.at(node),
        )


def _named_keys(view: View, keys: Sequence[tuple[Expression, Expression]]) -> tuple[View, list[tuple[str, str]]]:
    """Return the rows with their keys as columns, and the pairs of names."""
    names = []
    for number, (own, other) in enumerate(keys):
        if not isinstance(own, Column):
            view = view.withColumn(f"key {number + 1}", own)
        name = own.name if isinstance(own, Column) else f"key {number + 1}"
        names.append((name, other.name if isinstance(other, Column) else repr(other)))
    return view, names


def _order_of(tree: Expression) -> tuple[str, Any, str] | None:
    """Return the time of the left, the comparison, and the time of the right; None for another condition."""
    signs = {"ge": (">=", "<="), "gt": (">", "<"), "le": ("<=", ">="), "lt": ("<", ">")}
    if not isinstance(tree, Call) or tree.operation not in signs:
        return None
    one, other = tree.operands
    if not isinstance(one, Column) or not isinstance(other, Column) or one.side == other.side:
        return None
    forward, backward = signs[tree.operation]
    return (one.name, forward, other.name) if one.side == "left" else (other.name, backward, one.name)


def _looked_up(planner: JoinContext, view: View, item: Item, how: str, parts: JoinCondition) -> View:
    source = item.lookup
    assert source is not None  # noqa: S101 - the caller has checked
    physical = {shown: name for name, shown in item.columns.items()}
    pairs = [(own, physical[other.name] if isinstance(other, Column) else repr(other)) for own, other in parts.keys]
    if parts.condition is not None:
        for column in [one for one in walk(parts.condition) if isinstance(one, Column) and one.side == "right"]:
            if physical[column.name] != column.name:
                raise SqlError(
                    f'a condition over "{column.name}" beside the keys of a lookup needs a name no other table has; '
                    "put it into WHERE.",
                    code="NOT_OFFERED",
                    at=planner.query.statement.place(0),
                )
    options = planner.hints.lookup(item.alias, source.name)
    declared = Lookup() if item.table is None else lookup_of(item.table.options)
    defaults = declared.over(Lookup.from_hint(lookup_defaults(planner.query.settings)))
    hint = (Lookup.from_hint(options) if options else Lookup()).over(defaults)
    joined = view.lookup_join(source, on=pairs, how=how, hint=hint, condition=parts.condition, alias=item.alias)
    if all(name == shown for name, shown in item.columns.items()):
        return joined
    return joined.select(
        {item.columns.get(name, name) if name in source.schema.names else name: named(name) for name in joined.columns}
    )


def _with_indexes(catalog: Catalog, item: Item) -> View:
    """Return the rows of an item of FROM with the indexes of what it reads, by the names its columns have here."""
    view, node = item.view, item.view.node
    while node is not item.node and isinstance(node, Apply) and isinstance(node.step, SelectStep):
        node = node.child
    if item.relation is None or node is not item.node:
        return view
    for index in catalog.indexes.values():
        if index.relation == item.relation and all(column in item.columns for column in index.columns):
            view = view.create_index([item.columns[column] for column in index.columns], name=index.name)
    return view
