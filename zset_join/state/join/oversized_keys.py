"""Which keys of an epoch are too large to be brought into memory, so that its answer streams their rows (`oversized_rows`).

A key is left on disk whose rows there take half of the budget, and 1 MB at least: so many would not stay in memory, since
spilling frees half of it. So are the largest keys, of 256 KB and more, that have no room together beside the rows in memory
that the epoch needs: they would come and go in every epoch, and memory would exceed the budget meanwhile. Both go by what is on
disk; a key that is in memory has nothing to stream, and memory stays filled with what fits.

Of all other keys a side brings rows in as long as there is room; where there is none, and memory is full of rows that the epoch
needs, what is still on disk passes through memory (`streamed_rows`).

A key that is left on disk stays there until an epoch is absorbed: an answer again at once has its rows in the same chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from spill.cold_store import Int64s
from zset_join.core.options import HotBudget
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.join.oversized_rows import one_of_each
from zset_join.state.rows.side import PreparedSide

__all__ = ["BYTES_BESIDE_ON_DISK", "OversizedKeys"]

BYTES_BESIDE_ON_DISK = 12
"""Code, subcode and length of a row on disk, without the links of its record."""
_LEAST_LONG_BYTES = 1 << 20
_LEAST_LARGE_BYTES = 1 << 18  # to stream a key costs a millisecond beside its rows
_PART_WITH_ROOM = 4  # of what makes one key long: keys that take no more together are taken to have room
_NONE = np.empty(0, np.int64)


class OversizedKeys:
    def __init__(self, opened: Sequence[ColdSide], fetched_by_own: Sequence[bool], budget: HotBudget) -> None:
        self._opened = opened
        self._fetched_by_own = tuple(fetched_by_own)
        # Per side: a key with so many bytes on disk stays there whatever room there is.
        self.least_bytes = [_least_bytes(side, budget) for side in opened]
        self.forget()

    def begin(self) -> None:
        self.codes = [_NONE, _NONE]

    def forget(self) -> None:
        """Clear the remainder after an epoch was absorbed."""
        self.codes = [_NONE, _NONE]  # per side, the join hashes whose rows stay on disk, ascending
        self.streams = [False, False]  # per side, whether what is on disk of other requested keys passes through memory
        self._asked = [_NONE, _NONE]  # codes that were left since an epoch was absorbed
        self._witnesses = [_NONE, _NONE]  # numbers of rows that were brought in for them; in memory, unless spilled meanwhile

    def leave(
        self,
        number: int,
        codes: Int64s,
        prepared: Sequence[PreparedSide | None],
        room: Callable[[ColdSide], int],
        stamp: int,
        clock: float,
    ) -> None:
        """Leave rows of one side on disk, or of each key all but one, which is brought in, where degrees are read."""
        side, requested = self._opened[number], self._asked[number]
        if not (side.row_count() or len(requested)):
            return
        least = self.least_bytes[number]
        large, sizes = side.oversized_keys(codes, min(least, _LEAST_LARGE_BYTES))
        is_long = sizes >= least
        others = sizes[~is_long]
        if others.sum() > least // _PART_WITH_ROOM:
            is_long[~is_long] = _without_room(others, room(side))
        long = large[is_long]
        if len(requested):
            long = np.union1d(long, codes[np.isin(codes, requested)])
        if not len(long):
            return
        self.codes[number] = long
        self._asked[number] = np.union1d(requested, long)
        if self._fetched_by_own[number]:
            witnesses = one_of_each(number, long, self._opened, prepared, self._witnesses[number], stamp, clock)
            if witnesses is not None:
                self._witnesses[number] = np.union1d(self._witnesses[number], side.take(witnesses, stamp, clock))

    def others(self, number: int, codes: Int64s) -> Int64s:
        """Return those of some join hashes whose rows are not left on one side's disk, but for passing through memory."""
        left = self.codes[number]
        return codes[~np.isin(codes, left)] if len(left) else codes


def _without_room(sizes: Int64s, room: int) -> npt.NDArray[np.bool_]:
    """Return which of some keys must be left so that the others have room: the largest.

    >>> _without_room(np.array([30, 10, 50, 20]), 65).tolist()
    [False, False, True, False]
    """
    order = np.argsort(sizes)
    without = np.empty(len(sizes), np.bool_)
    without[order] = np.cumsum(sizes[order]) > room
    return without


def _least_bytes(side: ColdSide, budget: HotBudget) -> int:
    """Return the bytes on disk from which on the rows of a key would take most of the budget, and a chunk at least."""
    on_disk = side.side.layout.stride + BYTES_BESIDE_ON_DISK
    limits = [
        limit // 2 * unit for limit, unit in ((budget.max_hot_bytes, 1), (budget.max_hot_keys, on_disk)) if limit is not None
    ]
    return max(_LEAST_LONG_BYTES, min(limits))
