"""One view, or several as one plan: common parts are planned once.

The law: a source of one name is one source. Views that were written apart may each describe it, and must describe it alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from zset_join.core.errors import OptionError
from zset_join.core.options import KeepState
from zset_join.expressions import Expression
from zset_join.plan.planner import plan_query
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.tree import Views
from zset_join.query.binding import Binding
from zset_join.query.reading import Reading, readings_of
from zset_join.query.rows import Rows

__all__ = ["PlannedQuery", "bindings_of", "plan_of", "planned"]


@dataclass(frozen=True, kw_only=True)
class PlannedQuery:
    """A planned query, and the readings of its sources in process."""

    plan: QueryPlan
    readings: Mapping[str, Reading]
    has_several: bool = False  # made of a mapping of views, whose answers go by their names
    inputs: tuple[Mapping[str, Any], ...] = ()


def planned(query: Rows | Mapping[str, Rows] | PlannedQuery, *, keep_state: KeepState = "all") -> PlannedQuery:
    """Return a view, or several views by their names, as a planned query; a planned one is returned unchanged."""
    if isinstance(query, PlannedQuery):
        return query
    if isinstance(query, Mapping):
        plan = plan_of(query, keep_state=keep_state)
        return PlannedQuery(plan=plan, readings=readings_of(bindings_of(query)), has_several=True)
    return PlannedQuery(plan=query.plan(keep_state=keep_state), readings=readings_of(query.bindings))


def plan_of(views: Mapping[str, Rows], *, keep_state: KeepState = "all") -> QueryPlan:
    if not views or not all(str(name).strip() for name in views):
        raise OptionError(
            f"a pipeline of several views takes a mapping from names to views, and was given the names {list(views)}; "
            "give one view or more, each under a name that is not empty.",
            code="VIEW_NAME",
            names=list(views),
        )
    bindings_of(views)
    root = Views(tuple(views), tuple(view.node for view in views.values()))
    return plan_query(root, keep_state=keep_state)


def bindings_of(views: Mapping[str, Rows]) -> tuple[Binding, ...]:
    found: dict[str, tuple[str, Binding]] = {}
    merged: list[Binding] = []
    for name, view in views.items():
        for binding in view.bindings:
            first, before = found.setdefault(binding.source.name, (name, binding))
            if not _is_same(before, binding):
                raise OptionError(
                    f'the views "{first}" and "{name}" describe the source "{binding.source.name}" differently. Describe it '
                    "once and build both views from that, or give the sources different names.",
                    code="SAME_NAME",
                    name=binding.source.name,
                    views=(first, name),
                )
            merged.append(binding)
    return tuple(merged)


def _is_same(one: Binding, other: Binding) -> bool:
    """Return whether two bindings read the same rows in the same way; whether a row is a version may differ."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    one, other = one.of_versions(), other.of_versions()
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return all(a.same_as(b) if isinstance(a, Expression) else not isinstance(b, Expression) and a == b for a, b in pairs)
