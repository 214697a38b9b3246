"""How much of a budget in bytes the rows in memory may take, beside the working arrays and what an epoch takes and frees.

The law: with budgets of 64 MB and more, rows and all that an epoch needs beside them keep within the budget, a delta and a
tenth, after every epoch and within it; unless one epoch needs more than two thirds of the budget beside the rows, or looks at
more rows than fit that cannot pass through memory (`zset_join.state.join.streamed_rows`).

What an epoch needs is foreseen from the rows of its delta: the present content while rows are fetched, or while the answer is
made, which never is present at once. Small budgets are spared: each item counts only beyond 16 MB (less as the budget grows,
nothing from 64 MB on), since the rows would have no room at all. So does the index of the rows on disk, and what allocators
keep.

Where several states with the same budget share a process, as the buckets of a query do, their budgets count together: 8 of
32 MB are not small. Only one of them is at work at a time, so each leaves an equal part of the room for what an epoch takes and
frees; and of 4 MB for what allocators keep, since what one of them frees the next one can use in part only.

Remembers a few numbers.
"""

from __future__ import annotations

__all__ = ["WHOLE_BUDGET_BYTES", "RowLimit"]

_SPARED_BYTES = 16 << 20
_SPARED_PART = 3
WHOLE_BUDGET_BYTES = 64 << 20
"""From here on a budget is that of all a process holds; below, some of what an epoch needs comes on top."""

_SPARE_PART = 32
_LEAST_SPARE_BYTES = 4 << 20
_TEMPORARY_BYTES = 10 << 20  # a group of rows that are fetched, a piece that is spilled, a chunk of the answer
_TEMPORARY_BYTES_PER_ROW = 300  # rows looked for, and rows found; or changes, groups and the answer
_LOOKED_AT_BYTES = 8 << 20  # of an index, beside what allocators may keep; a host may map up to 2 MB around what is looked at
_LEAST_PART = 3  # of the budget is for rows, whatever an epoch needs
_WORKING_BYTES_PER_ROW = 200  # the encoded delta, which is present from the beginning to the end


class RowLimit:
    """Describe how many bytes the rows in memory may take.

    >>> limit = RowLimit(120 << 20)
    >>> limit.foresee(delta_rows=100_000, working_bytes=0, unreckoned_bytes=0)
    >>> limit.rows >> 20
    62
    """

    def __init__(self, budget_bytes: int | None) -> None:
        self._budget_bytes = budget_bytes
        self.rows = self.held = budget_bytes
        self._spare_as_of(budget_bytes or 0)

    def _spare_as_of(self, all_budgets: int) -> None:
        """Set the spared bytes for common budgets of so many bytes."""
        short = 0 if self._budget_bytes is None else max(0, WHOLE_BUDGET_BYTES - all_budgets)
        self.spared = min(_SPARED_BYTES, short // _SPARED_PART)
        self.spare = max((self._budget_bytes or 0) // _SPARE_PART, _LEAST_SPARE_BYTES) + self.spared

    def foresee(
        self,
        *,
        delta_rows: int,  # of both sides
        working_bytes: int,
        unreckoned_bytes: int,  # of tables and arrays beside the rows
        index_bytes: int = 0,
        shared_budgets: tuple[int, int] = (1, 0),  # states with this budget in the process, and their budgets together
    ) -> None:
        budget = self._budget_bytes
        if budget is None:
            return
        states, all_budgets = shared_budgets
        self._spare_as_of(max(budget, all_budgets))
        working = max(working_bytes, _WORKING_BYTES_PER_ROW * delta_rows)
        temporary = (_TEMPORARY_BYTES + _TEMPORARY_BYTES_PER_ROW * delta_rows) // states
        looked_at = min(index_bytes, _LOOKED_AT_BYTES) // states
        beside = sum(max(0, item - self.spared) for item in (working, temporary, looked_at))
        beside += max(0, budget // _SPARE_PART - _LEAST_SPARE_BYTES)
        if states > 1 and not self.spared:
            beside += _LEAST_SPARE_BYTES // states
        self.held = max(budget - beside, budget // _LEAST_PART)
        self.rows = max(0, self.held - max(0, unreckoned_bytes - self.spared))
