"""ROW_NUMBER() OVER (PARTITION BY k ORDER BY t) = 1: the first rows of each key, a dedup stage.

Offered: a ROW_NUMBER() with a name in a SELECT list, and around it, or in QUALIFY, `rn = 1`, `rn <= n`, `rn < n`, or these the
other way round. The number itself cannot be shown: it would change for rows that stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from zset_join.errors import PlanError, SqlError
from zset_join.expressions import Column, Expression
from zset_join.pipeline import View
from zset_join.sql.binding import QueryContext
from zset_join.sql.bound import FirstRows
from zset_join.sql.places import Place
from zset_join.sql.scalars import ScalarBinder

__all__ = ["keep_first", "limit_of", "read_row_number"]


def read_row_number(
    node: exp.Alias, chosen: Sequence[tuple[str, Expression]], binder: ScalarBinder, query: QueryContext
) -> tuple[FirstRows, list[tuple[str, Expression]]]:
    """Read a ROW_NUMBER() of a SELECT list.

    Args:
        node: it, with its name.
        chosen: the other columns of the list.
        binder: of the rows before the list.
        query: for messages.

    Returns:
        What it says, and the columns that the list lacks for it.

    Raises:
        SqlError: it has no PARTITION BY or ORDER BY.
    """
    window = node.this
    keys, order = window.args.get("partition_by") or [], window.args.get("order")
    if not keys or order is None:
        raise SqlError("ROW_NUMBER() needs PARTITION BY and ORDER BY.", code="NOT_OFFERED", at=query.at(node))
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

    partition = tuple(column(part) for part in keys)
    ordered = []
    for part in order.expressions:
        name = column(part.this)
        ordered.append(f"{name} desc" if part.args.get("desc") else f"{name} asc")
    return FirstRows(node.alias, partition, tuple(ordered)), hidden


def limit_of(node: exp.Expr, name: str) -> int | None:
    """Return how many first rows a condition keeps; None where it says something else."""
    pairs: dict[type[exp.Expr], tuple[int | None, int | None]] = {
        exp.EQ: (0, 0), exp.LTE: (0, None), exp.LT: (-1, None), exp.GTE: (None, 0), exp.GT: (None, -1),
    }  # fmt: skip
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


def keep_first(view: View, first_rows: FirstRows, count: int, at: Place) -> View:
    """Return the first rows of each key.

    Raises:
        SqlError: columns that rows cannot be told apart or ordered by.
    """
    try:
        return view.dedup(keys=first_rows.keys, order_by=first_rows.order_by, n=count, state_ttl=first_rows.state_ttl)
    except PlanError as error:
        raise SqlError(error.message, code=error.code, at=at) from error
