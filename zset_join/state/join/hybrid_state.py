"""Both sides of a join with a budget: what it looks at beside the rows that a delta names, and how that is read into memory.

The law: with any budget, also none at all, a join answers after every epoch what it answers with everything in memory.

Before the kernels run, `fetch` brings in (side X, other side Y):

1. the rows that X's delta replaces or retracts, by identity (`zset_join.state.cold.hybrid_rows`);
2. all rows of X whose join key changes on Y: the keys of Y's delta, and those of the old rows that 1 found on Y;
3. where Y's rows are shown or hidden by whether X has rows of their key, one row of each key that changes on X, unless one is
   in memory that does not change (`zset_join.state.join.match_witnesses`). If that is all X is requested, 2 is no more, either.

So chains are whole where they are walked, and may be in memory in part elsewhere.

Of keys that are too large (`zset_join.state.join.oversized_keys`) 2 and 3 bring in no row, or one where it matters whether
there is one: the answer streams them (`zset_join.state.join.oversized_rows`). Where memory is full of what the epoch needs,
the rest of 2 is left on disk, but for 3, and passes through memory while the answer is made
(`zset_join.state.join.streamed_rows`); not so with small budgets in bytes.

An epoch that is answered again on rebuilt state, or after an answer about other changes, has the same rows, but those of one
key perhaps in another order: it is that in which they came into memory. So does, in rare cases, a second answer at once, where
another row has the hash of one that is named: on disk it comes along, in memory it may go to make room.

Known limits. The rows of 3 stay in memory until the delta is absorbed, and with a small budget all, large keys excepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spill.cold_store import Int64s
from zset_join.core.options import HotBudget
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.cold.hybrid_rows import HybridRows
from zset_join.state.join.match_witnesses import MatchWitnesses
from zset_join.state.join.oversized_keys import BYTES_BESIDE_ON_DISK, OversizedKeys
from zset_join.state.rows.side import PreparedSide, SideState

__all__ = ["HybridState"]

_NONE = np.empty(0, np.int64)


class HybridState(HybridRows):
    """Keep the hot rows of both sides of a join in memory and the others on disk.

    Args:
        sides: left and right.
        fetched_by_own: per side, whether it is looked at where its own join key changes (3 above).
        shown: per side, whether its rows are paired or shown alone (2 above).
        budget: of both together.
        directory: where the state is mapped; None where it is in memory only, and then the cold rows go with the process.

    Attributes:
        left: keys whose rows the epoch that was fetched last leaves on disk.

    Raises:
        StateError: cold rows that do not belong to these sides, or are at another epoch.
    """

    def __init__(
        self,
        sides: Sequence[SideState],
        fetched_by_own: Sequence[bool],
        shown: Sequence[bool],
        budget: HotBudget,
        directory: str | None,
    ) -> None:
        super().__init__(sides, budget, directory)
        self._fetched_by_own = tuple(fetched_by_own)
        self._shown = tuple(shown)
        self.oversized = OversizedKeys(self._opened, fetched_by_own, budget)
        self._witnesses = MatchWitnesses(self._opened)

    def fetch(self, prepared: Sequence[PreparedSide | None]) -> None:
        """Bring in what an epoch looks at, as `HybridRows.fetch`; `left` is what is not brought in."""
        self.oversized.begin()
        super().fetch(prepared)

    def _bring_in(self, prepared: Sequence[PreparedSide | None]) -> None:
        changed = self._fetch_named(prepared)
        own = [codes if is_requested else _NONE for codes, is_requested in zip(changed, self._fetched_by_own, strict=True)]
        requested = [np.concatenate([changed[1 - number], own[number]]) for number in (0, 1)]
        for side, codes in zip(self._opened, requested, strict=True):
            side.hot.touch_chains(codes, self._stamp, self._clock)
        for number, codes in enumerate(requested):
            self.oversized.leave(number, codes, prepared, self._room, self._stamp, self._clock)
        for number, codes in enumerate(reversed(changed)):
            if self._shown[number]:
                self._fetch_keys(number, self.oversized.others(number, codes))
            if self._fetched_by_own[number]:
                self._fetch_witnesses(number, prepared)

    def _fetch_keys(self, number: int, codes: Int64s) -> None:
        """Bring in the rows with some join hashes; where there is no room for more, they are left to pass."""
        side = self._opened[number]
        for rows in side.find_keys(codes) if not self.oversized.streams[number] else ():
            self._make_room_for(side, rows, *self._witnesses.expected())
            if self._is_crowded and not self._limit.spared:
                self.oversized.streams[number] = True
                break
            side.take(rows, self._stamp, self._clock)

    def _fetch_witnesses(self, number: int, prepared: Sequence[PreparedSide | None]) -> None:
        """Bring in one row of each key of which only matters whether a side has rows."""
        with_other, without = self.oversized.streams[number] or not self._shown[number], self.oversized.codes[number]
        for rows in self._witnesses.find(number, prepared, with_other, without, self._stamp, self._clock):
            self._take(self._opened[number], rows)

    def _room(self, side: ColdSide) -> int:
        """Return how many bytes on disk of a side have room beside the rows that the epoch needs. Cost: the rows in memory."""
        on_disk, in_memory = side.side.layout.stride + BYTES_BESIDE_ON_DISK, side.hot.bytes_per_row()
        unneeded = [sizes[sizes >= 0] for _, sizes in (each.hot.measure(self._stamp) for each in self._opened)]
        tombstones = [each.hot.tombstones for each in self._opened]
        rooms = []
        if self._budget.max_hot_keys is not None:
            rooms.append((self._budget.max_hot_keys - self._hot_rows() + sum(map(len, unneeded)) + sum(tombstones)) * on_disk)
        if self._limit.rows is not None:
            free = self._limit.rows - self._hot_bytes() + sum(int(sizes.sum(dtype=np.int64)) for sizes in unneeded)
            free += sum(count * each.hot.bytes_per_row() for count, each in zip(tombstones, self._opened, strict=True))
            rooms.append(free * on_disk // in_memory)
        return min(rooms)

    def spill_to_budget(self, working_bytes: int) -> None:
        """Spill down to the budget, as `HybridRows` does; oversized keys and match witnesses are forgotten."""
        self.oversized.forget()
        self._witnesses.end_epoch()
        super().spill_to_budget(working_bytes)
