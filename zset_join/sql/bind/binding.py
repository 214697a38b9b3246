"""Protocols between the binder and the parts of a query, which avoid circular imports.

`QueryBinder` of `queries` is a `QueryContext`, `JoinPlanner` of `joins` a `JoinContext`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sqlglot import exp

from zset_join.expressions import Expression
from zset_join.plan.conditions import together
from zset_join.query import View
from zset_join.sql.bind.outer_columns import Brought
from zset_join.sql.bind.scopes import Item, Scope
from zset_join.sql.bind.state_ttl import StateTtls
from zset_join.sql.parse.hints import Hints
from zset_join.sql.tables.bound import BoundQuery
from zset_join.sql.tables.catalog import Catalog
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.positions import Position

__all__ = ["JoinContext", "QueryContext", "conjuncts_of", "subquery_of", "where_all"]

_MOST_STEPS = 32


class QueryContext(Protocol):
    """Binder of the queries of a statement."""

    catalog: Catalog
    statement: Statement
    settings: Mapping[str, str]
    warnings: list[str]

    def at(self, node: exp.Expr | None) -> Position:
        """Return the position of a node."""
        ...

    def bind(self, node: exp.Expr, *, ctes: Mapping[str, BoundQuery] | None = None) -> BoundQuery:
        """Return a query that can run."""
        ...

    def with_queries(self, node: exp.Expr, ctes: Mapping[str, BoundQuery]) -> dict[str, BoundQuery]:
        """Return the queries in sight behind WITH."""
        ...

    def check_clauses(self, node: exp.Select) -> None:
        """Reject unsupported clauses of a SELECT."""
        ...

    def item_of(self, name: str, alias: str, at: Position | None, ctes: Mapping[str, BoundQuery]) -> Item:
        """Return a named table, view or CTE as an item of FROM."""
        ...

    def item_of_query(self, query: BoundQuery, alias: str) -> Item:
        """Return a query as an item of FROM."""
        ...


class JoinContext(Protocol):
    """Planner of the joins of a SELECT."""

    ctes: Mapping[str, BoundQuery]
    state_ttls: StateTtls
    correlated: list[exp.Expr]
    brought: Brought | None

    @property
    def query(self) -> QueryContext:
        """Return the binder of the query."""
        ...

    @property
    def hints(self) -> Hints:
        """Return the hints of the SELECT."""
        ...

    def emit(self) -> Any:
        """Return when a temporal join by event time answers."""
        ...

    def plan(self, node: exp.Select) -> tuple[Scope, View, list[exp.Expr]]:
        """Return the items in sight, the joined rows, and the conditions that are still to be evaluated."""
        ...

    def within(self, ctes: Mapping[str, BoundQuery], outer: Scope, view: View | None = None) -> JoinContext:
        """Return the planner of a query within this one."""
        ...

    def is_outer(self, conjunct: exp.Expr, scope: Scope) -> bool:
        """Return whether a condition reads the query around this one."""
        ...

    def equi_join(
        self, view: View, right: View, trees: Sequence[Expression], how: str, node: exp.Expr, *, state_ttl: Any = None
    ) -> View:
        """Join two views on conditions over `left(...)` and `right(...)`."""
        ...


def where_all(view: View, conditions: Iterable[Expression]) -> View:
    """Keep the rows for which all conditions hold: a step for each, or one for a long list."""
    parts = list(conditions)
    whole = together(parts) if len(parts) > _MOST_STEPS else None
    for part in parts if whole is None else [whole]:
        view = view.where(part)
    return view


def conjuncts_of(node: exp.Expr | None) -> list[exp.Expr]:
    """Return the parts of a condition that AND holds together."""
    waiting, parts = [] if node is None else [node], []
    while waiting:
        one = waiting.pop()
        if isinstance(one, exp.Paren):
            waiting.append(one.this)
        elif isinstance(one, exp.And):
            waiting += [one.expression, one.this]
        else:
            parts.append(one)
    return parts


def subquery_of(node: exp.Expr) -> tuple[exp.Expr, bool] | None:
    """Return the EXISTS or IN of a condition, and whether NOT is before it."""
    is_negated = False
    while isinstance(node, exp.Paren | exp.Not):
        is_negated ^= isinstance(node, exp.Not)
        node = node.this
    is_one = isinstance(node, exp.Exists) or (isinstance(node, exp.In) and node.args.get("query") is not None)
    return (node, is_negated) if is_one else None
