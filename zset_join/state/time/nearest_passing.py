"""The nearest right row of each left row that passes the rest of ON, before an epoch and after it.

The law: what is found for a left row is what evaluating the condition on all its right rows and taking the nearest that passes
would find. Right rows are evaluated nearest first, for many left rows at once: one of each, then two, four and so on, until
each left row has found what it wants.

Cost: per left row, at most twice as many evaluations as right rows up to the one that passes. A right row that comes or goes
has the kept left rows in its reach searched as far back as it is, and no further than a row that passes both before and after.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.kernels.time import candidates as c
from zset_join.state.time.joined_pairs import JoinedPairs, Transitions
from zset_join.state.time.key_runs import KeyRuns
from zset_join.state.time.pending_rows import DueRows
from zset_join.state.time.version_epoch import VersionEpoch
from zset_join.state.time.versioned_rows import PreparedRows, VersionedRows

__all__ = ["NearestPassing"]

_Words = npt.NDArray[np.int64]
_PAIRS_AT_ONCE = 1 << 16


def _changes(right: PreparedRows) -> tuple[Any, ...]:
    removed = right.removed_begin, right.removed_at, right.removed_weight
    return (right.address, right.left, right.begin, right.order, *removed)


class NearestPassing:
    def __init__(self, keys: KeyRuns, left: VersionedRows, right: VersionedRows, pairs: JoinedPairs, reach: int) -> None:
        self._keys, self._left, self._right, self._pairs, self._reach = keys, left, right, pairs, reach

    @property
    def _state(self) -> tuple[int, int, int]:
        return self._keys.view, self._right.place, self._right.view  # views move when a state is cleared

    def transitions(self, epoch: VersionEpoch, left: PreparedRows, gone: tuple[_Words, _Words], come: DueRows) -> Transitions:
        groups = np.repeat(np.arange(epoch.groups.count), np.diff(left.removed_begin))
        past = DueRows(gone[0], epoch.groups.numbers[groups], groups, gone[1])
        kept = self._touched(epoch, left)
        before, _ = self._search(epoch, past, c.BEFORE)
        befores, afters = self._search(epoch, kept, c.BEFORE | c.AFTER)
        _, after = self._search(epoch, come, c.AFTER)
        c.equal_rows_as_one(self._right.view, self._right.columns.address, befores, afters)
        return Transitions.added(
            [
                Transitions(past.refs, before, np.full(len(before), -1), past.weights),
                Transitions(kept.refs, befores, afters, kept.weights, corrects=True),
                Transitions(come.refs, np.full(len(after), -1), after, come.weights),
            ]
        )

    def _touched(self, epoch: VersionEpoch, left: PreparedRows) -> DueRows:
        kept, removed = (self._left.place, self._left.view), (left.removed_begin, left.removed_at, left.removed_weight)
        numbers, room = epoch.groups.numbers, 1024
        while True:
            refs, groups, weights = np.empty((3, room), np.int64)
            changes, reach = _changes(epoch.right), self._reach
            lines = int(
                c.touched_probes(self._state, kept, numbers, epoch.groups.count, changes, removed, reach, refs, groups, weights)
            )
            if lines <= room:
                return DueRows(refs[:lines], numbers[groups[:lines]], groups[:lines], weights[:lines])
            room = lines

    def _search(self, epoch: VersionEpoch, rows: DueRows, wanted: int) -> tuple[_Words, _Words]:
        """Return with what left rows are joined before and after, 0 for nothing, or where both are the same."""
        count, changes, probes = len(rows.refs), _changes(epoch.right), (rows.refs, rows.keys, rows.groups)
        time_at = self._left.layout.sequence_offset
        joined = {c.BEFORE: np.zeros(count, np.int64), c.AFTER: np.zeros(count, np.int64)}
        wants, entries, places = np.full(count, wanted), np.full(count, c.UNSTARTED), np.zeros(count, np.int64)
        unfinished, width = np.arange(count if self._reach >= 0 else 0), 1
        while len(unfinished):
            going_on = []
            step = max(1, _PAIRS_AT_ONCE // width)
            for begin in range(0, len(unfinished), step):
                chosen = unfinished[begin : begin + step]
                found, times = np.zeros((2, len(chosen), width), np.int64)
                given, flat = (wants, entries, places, chosen), (found.reshape(-1), times.reshape(-1))
                c.next_candidates(self._state, changes, time_at, probes, *given, self._reach, width, *flat)
                passing = self._pairs.passing(np.repeat(rows.refs[chosen], width), found.reshape(-1)).reshape(found.shape)
                had = wants[chosen]
                for time, matches in joined.items():
                    there = np.where(times & time, passing, 0)
                    first = there[np.arange(len(chosen)), (there != 0).argmax(axis=1)]
                    is_found = (first != 0) & (had & time != 0)
                    matches[chosen[is_found]] = first[is_found]
                    wants[chosen[is_found]] &= ~time
                still = wants[chosen]
                going_on.append(chosen[(still != 0) & ((found[:, -1] != 0) | (still != had))])
            unfinished, width = np.concatenate(going_on), min(2 * width, _PAIRS_AT_ONCE)
        return joined[c.BEFORE], joined[c.AFTER]
