"""A query that is bound, for a view, a subquery and a running query.

It names the rows and what represents its columns; how it was bound and which runner it has are no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from zset_join.query import StateTtl, View

__all__ = ["BoundQuery", "FirstRows"]


@dataclass(frozen=True)
class FirstRows:
    """A ROW_NUMBER() that a query around it may turn into the first rows of each key.

    Args:
        name: what the number is called.
        keys: columns of PARTITION BY.
        order_by: columns of ORDER BY, as `"t"` or `"price desc"`.
        state_ttl: how long a key is remembered after its last row.
        place: columns of the SELECT list before it.
    """

    name: str
    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    state_ttl: StateTtl | None = None
    place: int = 0


@dataclass(frozen=True, eq=False)
class BoundQuery:
    """A query that can run.

    Args:
        view: its rows.
        reads: the declared tables below.
        names: the tables and views that its text names.
        processing_times: names of its SELECT list that represent the processing time; one that is no column of `view` can be
            used in FOR SYSTEM_TIME AS OF alone.
        is_bounded: it reads what is stored, and ends.
        shows_delta: `_tp_delta` is among its columns.
        order_by: of a bounded query: columns, each with whether it is descending, and whether NULLs come first.
        limit: of a bounded query.
        first_rows: a ROW_NUMBER() that nothing has used.
        warnings: what was requested and cannot be honoured.
        lookups: hints, by the table they name.
    """

    view: View
    reads: frozenset[str]
    is_bounded: bool = False
    shows_delta: bool = False
    order_by: tuple[tuple[str, bool, bool], ...] = ()
    limit: int | None = None
    first_rows: FirstRows | None = None
    warnings: tuple[str, ...] = ()
    shown: tuple[str, ...] | None = None
    names: frozenset[str] = frozenset()
    processing_times: frozenset[str] = frozenset()

    @property
    def virtual(self) -> list[str]:
        """Return the names of its SELECT list that are no columns."""
        return sorted(self.processing_times - set(self.columns))

    @property
    def columns(self) -> list[str]:
        """Return the names of its columns."""
        return self.view.columns if self.shown is None else list(self.shown)
