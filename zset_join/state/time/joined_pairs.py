"""From transitions of left rows to the lines of an answer.

A transition holds with what a left row was joined and with what it is: the address of a right row, 0 for nothing, -1 where
the left row is absent. The rest of ON is evaluated on every right row that occurs, unless it has chosen the row; one that does
not pass is nothing. An inner join emits no row for nothing.

`NearestPassing`: the nearest right row of each left row that passes the rest of ON, before an epoch and after it.

The law: what is found for a left row is what evaluating the condition on all its right rows and taking the nearest that passes
would find. Right rows are evaluated nearest first, for many left rows at once: one of each, then two, four and so on, until
each left row has found what it wants.

Cost: per left row, at most twice as many evaluations as right rows up to the one that passes. A right row that comes or goes
has the kept left rows in its reach searched as far back as it is, and no further than a row that passes both before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.expressions import evaluate, references
from zset_join.kernels.time import candidates as c
from zset_join.shapes.timed_join import VersionJoinShape
from zset_join.state.time.expiries import DueRows
from zset_join.state.time.key_runs import KeyRuns, RowStore
from zset_join.state.time.late_rows import VersionEpoch
from zset_join.state.time.versioned_rows import PreparedRows, VersionedRows
from zset_join.zset import ZSet
from zset_join.zset.row_layout import RowLayout

__all__ = ["JoinedPairs", "NearestPassing", "Transitions"]

_Words = npt.NDArray[np.int64]
_ABSENT = -1
_AT_ONCE = 1 << 16


@dataclass(slots=True)
class Transitions:
    refs: _Words  # record addresses of left rows
    befores: _Words  # what each was joined with
    afters: _Words
    weights: _Words
    corrects: bool = False  # only the right side has changed: the left rows were present before and stay
    corrected: slice = field(default_factory=lambda: slice(0))  # their positions among the transitions

    @classmethod
    def added(cls, parts: Sequence[Transitions]) -> Transitions:
        if len(parts) == 1:
            return parts[0]
        names = ("refs", "befores", "afters", "weights")
        refs, befores, afters, weights = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
        whole = cls(refs, befores, afters, weights)
        begin = 0
        for part in parts:
            if part.corrects:
                whole.corrected = slice(begin, begin + len(part.refs))
            begin += len(part.refs)
        return whole


class JoinedPairs:
    def __init__(
        self,
        shape: VersionJoinShape,
        left_layout: RowLayout,
        left_rows: RowStore | None,
        right_rows: RowStore,
        *,
        chunk_rows: int,
    ) -> None:
        self.corrections = 0
        self._schema, self._sources = shape.schema, list(shape.sources)
        self._left_rows, self._right_rows = left_rows, right_rows
        self._is_outer, self._residual, self._chunk_rows = shape.how == "left", shape.residual, chunk_rows
        self._is_chosen = shape.condition_chooses
        shown = [
            [relation.schema.get_field_index(name) for side, name in shape.sources if side == wanted]
            for wanted, relation in (("left", shape.left), ("right", shape.right))
        ]
        self._plans = (left_layout.gather_plan(shown[0]), right_rows.layout.gather_plan(shown[1]))
        if shape.residual is not None:
            self._names = tuple(sorted(names) for names in references(shape.residual))
            self._asked = (
                left_layout.gather_plan(shape.left.field_indices(self._names[0])),
                right_rows.layout.gather_plan(shape.right.field_indices(self._names[1])),
            )

    def _heap(self, side: int) -> int:
        if side == 1:
            return self._right_rows.heap_address
        return 0 if self._left_rows is None else self._left_rows.heap_address

    def passing(self, refs: _Words, matches: _Words) -> _Words:
        """Return the matches, those that do not pass the rest of ON as 0."""
        if self._residual is None:
            return matches
        requested = np.flatnonzero(matches > 0)
        passing = matches.copy()
        for begin in range(0, len(requested), _AT_ONCE):
            places = requested[begin : begin + _AT_ONCE]
            columns = []
            for side, addresses in enumerate((refs[places], matches[places])):
                addresses = np.ascontiguousarray(addresses)
                arrays = self._asked[side].gather(int(addresses.ctypes.data), len(addresses), self._heap(side))
                columns.append(dict(zip(self._names[side], arrays, strict=True)))
            passes = evaluate(self._residual, columns[0], columns[1], len(places))
            passing[places[~passes]] = 0
        return passing

    def lines(self, transitions: Transitions) -> Iterator[ZSet]:
        """Yield retractions, then insertions."""
        befores, afters = transitions.befores, transitions.afters
        if not self._is_chosen:
            befores, afters = self.passing(transitions.refs, befores), self.passing(transitions.refs, afters)
        if not self._is_outer:
            befores, afters = np.where(befores == 0, _ABSENT, befores), np.where(afters == 0, _ABSENT, afters)
        changed = befores != afters
        retracted = (changed & (befores != _ABSENT))[transitions.corrected]
        self.corrections = int(transitions.weights[transitions.corrected][retracted].sum())
        for matches, sign in ((befores, -1), (afters, 1)):
            shown = np.flatnonzero(changed & (matches != _ABSENT))
            for begin in range(0, len(shown), self._chunk_rows):
                places = shown[begin : begin + self._chunk_rows]
                yield self._gathered(transitions.refs[places], matches[places], sign * transitions.weights[places])

    def _gathered(self, refs: _Words, matches: _Words, weights: _Words) -> ZSet:
        columns = []
        for side, addresses in enumerate((refs, matches)):
            addresses = np.ascontiguousarray(addresses)
            columns.append(iter(self._plans[side].gather(int(addresses.ctypes.data), len(addresses), self._heap(side))))
        ordered = [next(columns[0 if side == "left" else 1]) for side, _ in self._sources]
        return ZSet(pa.RecordBatch.from_arrays(ordered, schema=self._schema), weights)


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
