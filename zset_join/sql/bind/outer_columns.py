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
from zset_join.sql_expressions.positions import position_of

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
def seeing_no_outer(outer: Scope, subquery: exp.Expr) -> Iterator[None]:
    """Name the reason where a part of a subquery reads a column that only the query around it has, or lacks."""
    try:
        yield
    except SqlError as error:
        if error.code not in {"UNKNOWN_TABLE", "UNKNOWN_COLUMN"}:
            raise
        place = (error.facts.get("line"), error.facts.get("column"))
        for column in subquery.find_all(exp.Column):
            at = position_of(column, outer.statement.text)
            if at is None or (at.line, at.column) != place or isinstance(column.this, exp.Star):
                continue
            if outer.search(column) is None and (not column.table or outer.item(column.table) is None):
                break
            # What it lacks is named by itself.
            outer.find(column)
            raise SqlError(
                f'"{column.name}" is of the query around this subquery, {_unseen_in(column, subquery)}',
                code="NOT_OFFERED",
                at=at,
                name=column.name,
            ) from error
        raise


def _unseen_in(column: exp.Column, subquery: exp.Expr) -> str:
    """Return why a column of the query around is not seen where it is read, and another way to write it."""
    select = column.find_ancestor(exp.Select)
    within = None if select is None else select.find_ancestor(exp.From, exp.Join, exp.CTE, exp.Select)
    if within is not None and any(within is one for one in subquery.walk()):
        if isinstance(within, exp.Select):
            return (
                "and read two queries further in. Compare with a column of the query between that equals it, or write both "
                "subqueries as one with a join."
            )
        return "and not seen in its FROM and WITH. Select what it is compared with there, and compare in WHERE of the subquery."
    if select is not None and select.args.get("group") is not None:
        return (
            "and not seen by one with groups. Group in a query in FROM, by what is compared with it, and compare in WHERE: "
            "EXISTS (SELECT 1 FROM (SELECT k, count(*) AS n FROM t GROUP BY k) g WHERE g.k = o.k AND g.n > 1)."
        )
    if isinstance(subquery, exp.Subquery):
        return "and seen in WHERE and beside its aggregates, not within them. Join the tables, and group by the key."
    return (
        "and not seen by one that aggregates. An aggregate without groups is one row in any case: compare with its value, as "
        "in o.v = (SELECT max(t.v) FROM t WHERE t.k = o.k)."
    )
