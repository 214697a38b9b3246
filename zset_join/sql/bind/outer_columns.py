"""Columns of the query around a subquery, brought into its FROM where ON of an outer join reads them.

    SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b LEFT JOIN c ON b.x = c.x AND a.y = c.y WHERE a.x = b.x AND c.z IS NULL)

becomes, with d the different pairs (a.x, a.y) there are,

    SELECT * FROM a WHERE (x, y) IN (SELECT d.x, d.y FROM b JOIN d ON d.x = b.x LEFT JOIN c ON b.x = c.x AND d.y = c.y
                                     WHERE c.z IS NULL)

Why that is the same: for one row of `a`, the subquery reads of `a` nothing but its pair, and the joins behind `d` pad the rows
of `b` for each pair by itself. NULL in a pair is a value like others.

Remembers the different pairs, and what the join with them remembers.

Known limits: `b` is tied to `d` by an equality in WHERE; all joins of the subquery are INNER, LEFT, SEMI or ANTI.

Source: T. Neumann, A. Kemper, "Unnesting Arbitrary Queries", BTW 2015.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlglot import exp

from zset_join.core.errors import SqlError
from zset_join.expressions import Expression
from zset_join.query import View
from zset_join.sql.bind.scopes import Item, Scope
from zset_join.sql_expressions.positions import Position, pick

__all__ = ["Brought", "brought_columns", "outer_columns", "seeing_no_outer"]

_ALIAS = "the query around"


@dataclass(frozen=True)
class Brought:
    """Columns of the outer query."""

    item: Item
    columns: tuple[tuple[Expression, str], ...]


def outer_columns(conjunct: exp.Expr, seen: Scope, outer: Scope) -> list[exp.Column]:
    """Return the columns of a condition that are of the query around; columns of queries within are theirs."""
    columns = [one for one in conjunct.walk(prune=lambda one: isinstance(one, exp.Query)) if isinstance(one, exp.Column)]
    return [one for one in columns if seen.search(one) is None and outer.search(one) is not None]


def brought_columns(conjuncts: Sequence[exp.Expr], seen: Scope, outer: Scope, view: View) -> Brought:
    """Return the columns of the query around that conditions read; from then on they are found in the item."""
    trees: list[Expression] = []
    for column in (one for conjunct in conjuncts for one in outer_columns(conjunct, seen, outer)):
        tree = outer.row_column(column)
        place = next((place for place, known in enumerate(trees) if known.same_as(tree)), len(trees))
        trees += [tree] if place == len(trees) else []
        column.meta["brought"] = f"outer {place}"
    names = [f"outer {place}" for place in range(len(trees))]
    item = Item(
        alias=_ALIAS,
        view=view.select(dict(zip(names, trees, strict=True))).distinct(),
        columns={name: name for name in names},
        is_bounded=all(one.is_bounded for one in outer.items),
        shown=(),
    )
    return Brought(item, tuple(zip(trees, names, strict=True)))


@contextmanager
def seeing_no_outer(outer: Scope, at: Position) -> Iterator[None]:
    """Name the reason where a part of a subquery reads a column that only the query around it has."""
    try:
        yield
    except SqlError as error:
        name = str(error.facts.get("name"))
        is_table = error.code == "UNKNOWN_TABLE" and outer.item(name) is not None
        if not is_table and not (error.code == "UNKNOWN_COLUMN" and any(pick(one.columns, name) for one in outer.items)):
            raise
        raise SqlError(
            f'"{name}" is of the query around this subquery. It is seen in WHERE and ON of a subquery without groups and '
            "aggregates, not by a query in its FROM or WITH. Join the tables there, group by the key, and compare in WHERE.",
            code="NOT_OFFERED",
            at=at,
            name=name,
        ) from error
