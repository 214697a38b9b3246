"""Bindings of named sources to their rows; they are stored beside the tree of the query, never in it.

A runner makes its own kind: `Reading` turns fed rows into changes in process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from zset_join.plan.query_plan import PlanSource

__all__ = ["Binding"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Binding:
    """Bind a source of a plan to its rows."""

    source: PlanSource
    is_of_versions: bool = False

    def of_versions(self) -> Self:
        """Return the same rows, each change of which is a version."""
        return replace(self, is_of_versions=True)
