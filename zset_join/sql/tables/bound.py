"""A query that is bound, for a view, a subquery and a running query.

It names the rows and what represents its columns; how it was bound and which runner it has are no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from zset_join.query import StateTtl, View

__all__ = ["BoundQuery", "FirstRows"]


@dataclass(frozen=True)
class FirstRows:
    """A ROW_NUMBER() that a query around it may turn into the first rows of each key."""

    name: str
    keys: tuple[str, ...]
    order_by: tuple[str, ...]  # as `t` or `price desc`
    state_ttl: StateTtl | None = None
    place: int = 0  # columns of the SELECT list before it


@dataclass(frozen=True, eq=False)
class BoundQuery:
    view: View
    reads: frozenset[str]
    is_bounded: bool = False  # it reads what is stored, and ends
    shows_delta: bool = False
    order_by: tuple[tuple[str, bool, bool], ...] = ()  # column, is descending, NULLs come first
    limit: int | None = None
    first_rows: FirstRows | None = None
    shown: tuple[str, ...] | None = None
    names: frozenset[str] = frozenset()
    processing_times: frozenset[str] = frozenset()  # names in its SELECT list

    @property
    def virtual(self) -> list[str]:
        """Return the names of its SELECT list that are no columns."""
        return sorted(self.processing_times - set(self.columns))

    @property
    def columns(self) -> list[str]:
        return self.view.columns if self.shown is None else list(self.shown)
