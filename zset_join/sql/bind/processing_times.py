"""Processing times that a SELECT list passes on: to the joins as of a time in the query around it.

`PROCTIME() AS pt` in a query below, and the PROCTIME() of a table that is kept by its key, are names and no columns: their
value would change each time a row is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from zset_join.core.errors import SqlError
from zset_join.expressions import Column, Expression
from zset_join.sql.bind.scopes import Scope
from zset_join.sql.tables.bound import BoundQuery
from zset_join.sql_expressions.positions import Position

__all__ = ["times_kept", "times_of_both", "times_of_stars"]


def times_of_stars(node: exp.Select, scope: Scope) -> set[str]:
    """Return the names that stars bring along from queries below, and that are no columns there; a table leaves them out."""
    times: set[str] = set()
    for one in node.expressions:
        is_of_one = isinstance(one, exp.Column) and isinstance(one.this, exp.Star)
        if not is_of_one and not isinstance(one, exp.Star):
            continue
        table = one.table.lower() if is_of_one else ""
        for item in scope.items:
            if item.table is None and table in {"", item.alias.lower()}:
                times.update(name for name in item.processing_times if name not in item.columns)
    return times


def times_kept(outputs: Sequence[tuple[str, Expression | exp.Expr]], scope: Scope) -> frozenset[str]:
    """Return the columns of a SELECT list that hold the processing time of their row."""
    times = set()
    for name, one in outputs:
        known = {item.columns[time] for item in scope.items for time in item.processing_times if time in item.columns}
        place = scope.search(one) if isinstance(one, exp.Column) else None
        physical = place[1] if place is not None else one.name if isinstance(one, Column) else None
        if physical in known:
            times.add(name)
    return frozenset(times)


def times_of_both(left: BoundQuery, right: BoundQuery, *, keeps_all: bool, at: Position) -> frozenset[str]:
    """Return the columns of two queries behind each other that represent the processing time: those that do so in both.

    Args:
        left: the first one, which names the columns.
        right: the second one.
        keeps_all: UNION ALL; other operations compare rows, which would have another time each.
        at: the position of the operation.

    Raises:
        SqlError: such a column of one query alone, or in rows that are compared.
    """
    alone = {*left.virtual} ^ {*right.virtual} if keeps_all else {*left.virtual, *right.virtual}
    if alone:
        raise SqlError(
            f"{min(alone)} has another value each time a row is read. UNION ALL keeps it where both queries give it under one "
            "name; elsewhere, give the sources a column that holds a time.",
            code="NON_DETERMINISTIC",
            at=at,
        )
    pairs = zip(left.columns, right.columns, strict=False)
    known = {one for one, other in pairs if one in left.processing_times and other in right.processing_times}
    return frozenset({*left.virtual, *known})
