"""ROW_NUMBER() OVER (PARTITION BY k ORDER BY t) = 1: the first rows of each key, a dedup stage.

Offered: a ROW_NUMBER() with a name in a SELECT list, and around it, in WHERE, ON or QUALIFY, `rn = 1`, `rn <= n`, `rn < n`,
`rn BETWEEN 1 AND n`, or these the other way round. The first rows are taken before any other condition, as in Spark.
Of `rn = 1` the number may be shown, as 1; of others it cannot: it would change for rows that stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Column, Expression, lit
from zset_join.query import View
from zset_join.sql.bind.binding import QueryContext
from zset_join.sql.bind.scopes import Item
from zset_join.sql.tables.catalog import FirstRows
from zset_join.sql_expressions.consumed import Position, copied, pick
from zset_join.sql_expressions.scalars import ScalarBinder

__all__ = ["is_shown", "keep_first", "limit_of", "limits_of", "read_row_number", "take_first"]


def read_row_number(
    node: exp.Alias, chosen: Sequence[tuple[str, Expression]], binder: ScalarBinder, query: QueryContext
) -> tuple[FirstRows, list[tuple[str, Expression]]]:
    window = node.this
    keys, order = window.args.get("partition_by") or [], window.args.get("order")
    if order is None:
        raise SqlError("ROW_NUMBER() needs ORDER BY, which defines the first rows.", code="NOT_OFFERED", at=query.at(node))
    known = {tree.name: name for name, tree in chosen if isinstance(tree, Column)}
    hidden: list[tuple[str, Expression]] = []

    def column(part: exp.Expr) -> str:
        tree = binder.bind(part)
        if isinstance(tree, Column) and tree.name in known:
            return known[tree.name]
        for name, other in [*chosen, *hidden]:
            if other.same_as(tree):
                return name
        hidden.append((f"order {len(hidden) + 1}", tree))
        return hidden[-1][0]

    # Without PARTITION BY all rows are of one key.
    partition = tuple(column(part) for part in keys or [exp.Literal.number(1)])
    ordered = []
    for part in order.expressions:
        name, how = column(part.this), "desc" if part.args.get("desc") else "asc"
        nulls_first = part.args.get("nulls_first")
        if nulls_first is not None and bool(nulls_first) != (how == "asc"):
            # NULLs come first going up and last going down; otherwise `IS NULL` is an order of its own before.
            is_null = exp.Is(this=copied(part.this), expression=exp.Null())
            number = exp.Case(ifs=[exp.If(this=is_null, true=exp.Literal.number(1))], default=exp.Literal.number(0))
            ordered.append(f"{column(number)} {'desc' if nulls_first else 'asc'}")
        ordered.append(f"{name} {how}")
    return FirstRows(node.alias, partition, tuple(ordered)), hidden


def numbered_by(qualify: exp.Expr) -> tuple[exp.Alias | None, exp.Expr]:
    """Return the ROW_NUMBER() that QUALIFY compares, with a name, and QUALIFY over that name; None where there is none."""
    window = next((one for one in qualify.find_all(exp.Window) if isinstance(one.this, exp.RowNumber)), None)
    if window is None:
        return None, qualify
    name = exp.to_identifier("row number", quoted=True)
    compared = copied(qualify).transform(lambda node: exp.Column(this=name.copy()) if node == window else node, copy=False)
    return exp.Alias(this=window, alias=name), compared


def limit_of(node: exp.Expr, name: str) -> int | None:
    """Return how many first rows a condition keeps; None where it is another condition."""
    pairs: dict[type[exp.Expr], tuple[int | None, int | None]] = {
        exp.EQ: (0, 0), exp.LTE: (0, None), exp.LT: (-1, None), exp.GTE: (None, 0), exp.GT: (None, -1),
    }  # fmt: skip
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Between):
        low = node.args.get("low")
        begins = isinstance(low, exp.Literal) and low.name == "1"
        return limit_of(exp.LTE(this=node.this, expression=node.args.get("high")), name) if begins else None
    if type(node) not in pairs:
        return None
    one, other = node.this, node.expression
    is_left = isinstance(one, exp.Column) and one.name.lower() == name.lower()
    is_right = isinstance(other, exp.Column) and other.name.lower() == name.lower()
    shift = pairs[type(node)][0 if is_left else 1]
    number = other if is_left else one
    if not (is_left or is_right) or shift is None or not isinstance(number, exp.Literal) or not number.name.isdecimal():
        return None
    count = int(number.name) + shift
    if isinstance(node, exp.EQ) and count != 1:
        return None
    return count if count >= 1 else None


def limits_of(conjuncts: Sequence[exp.Expr], item: Item, items: Sequence[Item]) -> list[tuple[exp.Expr, int]]:
    """Return the conditions that bound the first rows of an item, each with the number."""
    assert item.first_rows is not None  # noqa: S101 - the caller has checked
    name = item.first_rows.name
    is_alone = not any(
        pick(one.columns, name) or (one.first_rows is not None and one.first_rows.name.lower() == name.lower())
        for one in items
        if one is not item
    )
    limits = []
    for one in conjuncts:
        count = limit_of(one, name)
        tables = {column.table.lower() for column in one.find_all(exp.Column)}
        if count is not None and (tables == {item.alias.lower()} or (tables == {""} and is_alone)):
            limits.append((one, count))
    return limits


def take_first(item: Item, counts: Sequence[int], at: Position, *, is_shown: bool) -> None:
    """Let an item of FROM be the first rows of each key."""
    first_rows = item.first_rows
    assert first_rows is not None  # noqa: S101 - the caller has checked
    if not counts:
        raise SqlError(
            f"ROW_NUMBER() is supported to keep the first rows of each key: the query around it must have WHERE "
            f"{first_rows.name} = 1, or <= n, and not of rows that an outer join pads.",
            code="NOT_OFFERED",
            at=at,
        )
    item.view = keep_first(item.view, first_rows, min(counts), at)
    item.first_rows, item.number = None, first_rows.name
    if is_shown and min(counts) == 1 and first_rows.name not in item.columns:
        item.view = item.view.withColumn(first_rows.name, lit(1))
        columns = list(item.columns.items())
        columns.insert(first_rows.place, (first_rows.name, first_rows.name))
        item.columns = dict(columns)


def keep_first(view: View, first_rows: FirstRows, count: int, at: Position) -> View:
    try:
        return view.dedup(keys=first_rows.keys, order_by=first_rows.order_by, n=count, state_ttl=first_rows.state_ttl)
    except PlanError as error:
        raise SqlError(error.message, code=error.code, at=at) from error


def is_shown(name: str, limits: int, node: exp.Select) -> bool:
    """Return whether a SELECT reads a number of rows elsewhere than in conditions that limit it."""
    clauses = [node.args.get(clause) for clause in ("where", "group", "having", "qualify")]
    parts = [*node.expressions, *(one for one in clauses if one is not None)]
    parts += [join.args.get("on") for join in node.args.get("joins") or [] if join.args.get("on") is not None]
    named = sum(1 for part in parts for column in part.find_all(exp.Column) if column.name.lower() == name.lower())
    return named > limits or any(
        isinstance(one, exp.Star) or isinstance(one.this, exp.Star) for one in node.expressions if not isinstance(one, exp.Func)
    )
