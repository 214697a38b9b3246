"""The page about a query inside Spark: its checkpoint, and what the process that started it can answer beside.

The law: opening and reading the page changes nothing. Epochs wait while a view is verified, a row is explained, or an output is
read, as they do for `verify()` and `explain_row()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

from zset_join.checkpoint.reading import stored_query_id
from zset_join.core.errors import StateError
from zset_join.core.extras import needed_for
from zset_join.core.options import QueryOptions
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.checkpoint.row_history import RowHistory
    from zset_join.console import Console
    from zset_join.evolution.differences import PlanDiff

__all__ = ["WatchableQuery", "open_query_console"]

_MOST_ROWS = 200


class WatchableQuery(Protocol):
    """The questions to a query; see `StoredQuery`."""

    def verify(self) -> Any: ...

    def explain_row(self, row: Mapping[str, Any], *, most_rows: int = ...) -> RowHistory: ...

    def diff(self, view: Any) -> PlanDiff: ...

    def view_rows(self, view: str, values: Mapping[str, Any], *, most_rows: int = ...) -> tuple[ZSet, int]: ...


def open_query_console(
    query: WatchableQuery, options: QueryOptions, dead_letters: str, *, port: int, other: Any = None
) -> Console:
    with needed_for("console()"):
        from zset_join.console import QueryAnswers, WatchedCheckpoint, open_console
    location = options.checkpoint_location
    if stored_query_id(location) is None:
        raise StateError(
            f"there is no checkpoint in {location} that this process can read. Where Spark runs on another machine, run "
            f"zset-join console {location} there.",
            code="NO_CHECKPOINT",
            checkpoint=location,
        )

    def verified(view: str | None, on_step: Callable[[str], None]) -> Any:  # noqa: ARG001 - a report is of all outputs
        on_step("epochs wait; running the batch query over all input, and comparing it with the outputs")
        begun = time.perf_counter()
        report = query.verify()
        on_step(f"compared in {time.perf_counter() - begun:.1f} s")
        return report

    answers = QueryAnswers(
        verify=verified,
        explain_row=lambda view, row: query.explain_row(row),  # noqa: ARG005 - of the only view
        view_rows=lambda view, values: query.view_rows(view, values, most_rows=_MOST_ROWS),
        diff=None if other is None else lambda: query.diff(other),
        options={one.name: _plain(getattr(options, one.name)) for one in fields(options)},
    )
    return open_console(WatchedCheckpoint(location, answers, dead_letters=dead_letters), port=port)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
