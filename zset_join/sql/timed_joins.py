"""Joins with a table as it was at some time: FOR SYSTEM_TIME AS OF, LATERAL TABLE(f(t)), ASOF JOIN.

| written | what it asks |
|---|---|
| `FOR SYSTEM_TIME AS OF o.t`, o.t an event time | the version that was valid at the row's time |
| `... VERSIONED ON c` | the same, with the column c as the time of a version |
| `... AS OF PROCTIME()`, `NOW()`, `o.proctime` | the newest row when the left row comes |
| `LATERAL TABLE(rates(o.t))` | as the first, of a temporal table function |
| `ASOF JOIN ... MATCH_CONDITION (a.t >= b.t)` or `ON ... AND a.t >= b.t` | the nearest row |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from zset_join.errors import SqlError
from zset_join.pipeline import View
from zset_join.sql.catalog import pick
from zset_join.sql.places import near
from zset_join.sql.scopes import Item

if TYPE_CHECKING:
    from zset_join.sql.joins import JoinPlanner
    from zset_join.sql.queries import QueryBinder

__all__ = ["Version", "as_of_join", "temporal_join"]

_NOW = frozenset({"CURRENT_TIMESTAMP", "LOCALTIMESTAMP", "NOW", "PROCTIME"})


@dataclass(frozen=True)
class Version:
    """What FOR SYSTEM_TIME AS OF asks for.

    Args:
        time: the expression behind AS OF.
        versioned_on: the column that holds the time of a version; None: the event time of the table.
    """

    time: exp.Expr
    versioned_on: str | None = None

    @classmethod
    def of(cls, node: exp.Expr | None, item: Item, query: QueryBinder) -> Version | None:
        """Read a version clause.

        Raises:
            SqlError: it is another than AS OF, or names a column that is not there.
        """
        if node is None:
            return None
        if str(node.args.get("kind")) != "AS OF" or node.expression is None:
            raise SqlError("FOR SYSTEM_TIME is offered with AS OF.", code="NOT_OFFERED", at=query.at(node))
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


def is_now(node: exp.Expr, items: Sequence[Item]) -> bool:
    """Say whether an expression is the processing time."""
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


def temporal_join(planner: JoinPlanner, how: str, node: exp.Join) -> View:
    """Join with the versions of a table.

    Raises:
        SqlError: it cannot be joined so; the message says why.
    """
    at = planner.query.at(node.this)
    if how not in {"inner", "left"}:
        raise SqlError(
            f"a {how.upper()} temporal join is not offered: the versions of a table have no end to pad. Write LEFT or INNER, "
            "with the table that changes on the right.",
            code="TEMPORAL_SIDE",
            at=at,
        )
    raise SqlError("FOR SYSTEM_TIME AS OF is read and not planned yet: its stage is not there.", code="NOT_OFFERED", at=at)


def as_of_join(planner: JoinPlanner, node: exp.Join) -> View:
    """Join with the nearest row.

    Raises:
        SqlError: it cannot be joined so; the message says why.
    """
    at = planner.query.at(node.this)
    raise SqlError("ASOF JOIN is read and not planned yet: its stage is not there.", code="NOT_OFFERED", at=at)
