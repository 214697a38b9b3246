"""Protocols between the binder and the parts of a query, which avoid circular imports.

`QueryBinder` of `queries` is a `QueryContext`, `JoinPlanner` of `joins` a `JoinContext`.

`StateTtls`: how long what a query remembers lives: `STATE_TTL` hints and settings as `StateTtl`, per item of FROM.

    SELECT /*+ STATE_TTL('orders'='3 days', 'c'='1d') */ ... FROM orders JOIN customers AS c ON ...
    SET state_ttl = '7 days'

A hint names an item of FROM by its alias or its table. In a join it holds for the rows of that item, where they enter their
join; what was joined before them goes by the setting. In a SELECT over one item it holds for its groups and first rows. A
duration of 0 is no end, as in Flink. Settings decide how rows end, for hints too; by default they are retracted from the
answer, where Flink forgets them (`state_ttl_on_expire`).

Temporal, as-of and lookup joins are not concerned: what they keep is ruled by watermarks and caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlglot import exp

from zset_join.core.errors import OptionError
from zset_join.expressions import Expression
from zset_join.plan.conditions import together
from zset_join.query import View
from zset_join.sql.bind.scopes import Brought, Item, Scope
from zset_join.sql.parse.readers import Hints
from zset_join.sql.tables.catalog import BoundQuery, Catalog
from zset_join.sql.tables.settings import state_ttl_of
from zset_join.sql_expressions.consumed import Position, near
from zset_join.sql_expressions.dialects import Statement
from zset_join.stages.expiring import StateTtl

__all__ = ["JoinContext", "QueryContext", "StateTtls", "conjuncts_of", "subquery_of", "where_all"]

_DEFAULT = "state_ttl"


@dataclass
class StateTtls:
    """How long the rows of one SELECT live."""

    settings: Mapping[str, str] = field(default_factory=dict)
    hinted: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, hints: Hints, items: Sequence[Item], settings: Mapping[str, str], warnings: list[str]) -> StateTtls:
        """Read the hints of a SELECT; those that name nothing of FROM, or no duration, become warnings."""
        ttls = cls(settings)
        for name, text in hints.state_ttls.items():
            named = [item for item in items if name.lower() in _names(item)]
            if not named:
                known = [item.alias for item in items]
                warnings.append(
                    f"the hint STATE_TTL changes nothing for '{name}', which FROM does not name.{near(name, known)}"
                )
                continue
            if any(item.lookup is not None for item in named):
                warnings.append(f"the hint STATE_TTL changes nothing for '{name}', which is looked up and not remembered.")
                continue
            try:
                state_ttl_of({**settings, _DEFAULT: text})
            except OptionError as error:
                warnings.append(f"the hint STATE_TTL changes nothing for '{name}': {error.message}")
                continue
            ttls.hinted.update({item.alias.lower(): text for item in named})
        return ttls

    def of_items(self, items: Sequence[Item]) -> StateTtl | None:
        """Return how long rows of these items live: by the hint of a single one, else by the setting."""
        hint = self.hinted.get(items[0].alias.lower()) if len(items) == 1 else None
        if hint is not None:
            self.used.add(items[0].alias.lower())
        return state_ttl_of(self.settings if hint is None else {**self.settings, _DEFAULT: hint})

    def check_used(self, items: Sequence[Item], warnings: list[str]) -> None:
        """Warn of hints that no join of several items has taken."""
        unused = [alias for alias in self.hinted if alias not in self.used] if len(items) > 1 else []
        warnings += [
            f"the hint STATE_TTL changes nothing for '{alias}': no join remembers rows of it alone. What a join as of a time "
            "keeps is ruled by its watermark; behind a join, SET state_ttl."
            for alias in unused
        ]

    def check_alone(self, items: Sequence[Item], warnings: list[str], *, remembers: bool) -> None:
        """Warn of a hint for the only item of a SELECT that keeps no groups, and no first or different rows, of it."""
        if len(items) == 1 and not remembers:
            warnings += [
                f"the hint STATE_TTL changes nothing for '{alias}': no rows of it are remembered here."
                for alias in self.hinted
                if alias not in self.used
            ]

    def of_group(self, items: Sequence[Item]) -> StateTtl | None:
        """Return how long groups, or first rows, over these items live; only their own rows begin their time again."""
        settings = {name: value for name, value in self.settings.items() if name != "state_ttl_refreshed_by"}
        return StateTtls(settings, self.hinted).of_items(items)


def _names(item: Item) -> set[str]:
    return {item.alias.lower(), *(() if item.table is None else (item.table.name.lower(),))}


_MOST_STEPS = 32


class QueryContext(Protocol):
    """Binder of the queries of a statement."""

    catalog: Catalog
    statement: Statement
    settings: Mapping[str, str]
    warnings: list[str]

    def at(self, node: exp.Expr | None) -> Position:
        """Return the position of a node."""

    def bind(self, node: exp.Expr, *, ctes: Mapping[str, BoundQuery] | None = None) -> BoundQuery:
        """Return a query that can run."""

    def with_queries(self, node: exp.Expr, ctes: Mapping[str, BoundQuery]) -> dict[str, BoundQuery]:
        """Return the queries in sight behind WITH."""

    def check_clauses(self, node: exp.Select) -> None:
        """Reject unsupported clauses of a SELECT."""

    def item_of(self, name: str, alias: str, at: Position | None, ctes: Mapping[str, BoundQuery]) -> Item:
        """Return a named table, view or CTE as an item of FROM."""

    def item_of_query(self, query: BoundQuery, alias: str) -> Item:
        """Return a query as an item of FROM."""


class JoinContext(Protocol):
    """Planner of the joins of a SELECT."""

    ctes: Mapping[str, BoundQuery]
    state_ttls: StateTtls
    correlated: list[exp.Expr]
    brought: Brought | None

    @property
    def query(self) -> QueryContext:
        """Return the binder of the query."""

    @property
    def hints(self) -> Hints:
        """Return the hints of the SELECT."""

    def emit(self) -> Any:
        """Return when a temporal join by event time answers."""

    def plan(self, node: exp.Select) -> tuple[Scope, View, list[exp.Expr]]:
        """Return the items in sight, the joined rows, and the conditions that are still to be evaluated."""

    def within(self, ctes: Mapping[str, BoundQuery], outer: Scope, view: View | None = None) -> JoinContext:
        """Return the planner of a query within this one."""

    def is_outer(self, conjunct: exp.Expr, scope: Scope) -> bool:
        """Return whether a condition reads the query around this one."""

    def equi_join(
        self, view: View, right: View, trees: Sequence[Expression], how: str, node: exp.Expr, *, state_ttl: Any = None
    ) -> View:
        """Join two views on conditions over `left(...)` and `right(...)`."""


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
