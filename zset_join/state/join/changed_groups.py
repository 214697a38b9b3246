"""The changes of one epoch on both sides of a join, grouped by join key and looked up in both states.

A large epoch is worked off in *parts*: its changes are sorted by the home of their join key's hash in the tables, so that the
groups of one part, with all facts about them, stay in the processor's cache. What it holds is scratch memory shared with
the operator: it is valid until the next epoch is prepared, and one part at a time.

It makes *steps*: functions that append output rows to the output arrays, return how far those are filled and whether they are
done, and continue where they stopped when they are called again.

Bytes: 64 per change, twice where there are parts, 104 per group of the largest part, and up to a quarter of a byte per state
row: one bit each to separate those that change from those that do not. Where memory is short, what large epochs take is given
back to the host: the listing when the parts are present, all of it when the epoch has been absorbed.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spill.row_bytes import UnpackedRows
from zset_join.kernels.join import pairs as p
from zset_join.kernels.join.groups import match_changes, partition_changes, range_changes
from zset_join.kernels.join.streamed_rows import emit_streamed_rows
from zset_join.kernels.rows import side as e
from zset_join.kernels.rows.changes import clear_marks
from zset_join.kernels.rows.side import H_ROWS_END
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.rows.host_memory import release
from zset_join.state.rows.keyed_rows import KeyRow, equal_keys
from zset_join.state.rows.side import PreparedSide, SideState

__all__ = ["ChangedGroups", "ChangedKey", "JoinParts", "OutputArrays", "Pairs", "Step"]

Step = Callable[[int], tuple[int, bool]]
Pairs = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Left and right record addresses (0: padded) and weights of output rows."""

_CHANGE_WORDS = (e.E_REFS, e.E_NUMBERS, e.E_BEFORE, e.E_AFTER, e.E_HASHES, e.E_MATCHABLE, e.E_NEXT_CHANGE)
_REF, _BEFORE, _AFTER, _HASH, _MATCHABLE = 0, 2, 3, 4, 5
_GROUPED_WORDS = (e.E_GROUP_REFS, e.E_GROUP_SIDES, e.E_GROUP_HASHES)
_GROUPED_SIDE_WORDS = (e.S_FIRST, e.S_LAST, e.S_HEAD, e.S_DEGREES_BEFORE, e.S_DEGREES_AFTER)
_GROUPED = len(_GROUPED_WORDS) + 2 * len(_GROUPED_SIDE_WORDS)
_START = (0, 0, -1, -1, 0, 0)  # of a cursor
_LEAST_ROWS = 1024
_MAX_PART_BITS = 12
_MOST_KEPT_LISTED = 1 << 18  # changes: some tens of MB in all working arrays
_MOST_KEPT_CHANGES = 1 << 15  # or output rows: more than a MB or two is worth giving back


class OutputArrays:
    """Record addresses of either side and weights of output rows; `words` may have lines for the positions of changes too."""

    def __init__(self, rows: int, *, with_changes: bool = False) -> None:
        self.rows = rows
        # Not from NumPy, which requests huge pages: each line would take 2 MB as soon as one row is in it.
        lines = 5 if with_changes else 3  # the last two: position of either change, -1 for an unchanged row
        self._memory = mmap.mmap(-1, 8 * lines * rows, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.words: npt.NDArray[np.int64] = np.frombuffer(self._memory, np.int64).reshape(lines, rows)
        self.addresses = tuple(int(line.ctypes.data) for line in self.words)
        self.left: npt.NDArray[np.int64] = self.words[0]
        self.right: npt.NDArray[np.int64] = self.words[1]
        self.weights: npt.NDArray[np.int64] = self.words[2]

    def partition_by_sign(self, rows: int, spare: OutputArrays) -> int:
        """Bring the retractions of so many rows to the front, by way of other arrays; return how many there are."""
        left, right, weights = self.addresses[:3]
        spare_left, spare_right, spare_weights = spare.addresses[:3]
        return p.partition_by_sign(left, right, weights, rows, spare_left, spare_right, spare_weights)

    def copying(self, parts: Iterator[Pairs]) -> Step:
        """Return a step that copies arrays of pairs (left and right refs, weights) into these, as far as there is room."""
        pending: list[Pairs] = []

        def step(filled: int) -> tuple[int, bool]:
            if not pending:
                following = next(parts, None)
                if following is None:
                    return filled, True
                pending.append(following)
            left, right, weights = pending.pop()
            count = min(len(weights), self.rows - filled)
            for line, array in zip(self.words[:3], (left, right, weights), strict=True):
                line[filled : filled + count] = array[:count]
            if count < len(weights):
                pending.append((left[count:], right[count:], weights[count:]))
            return filled + count, False

        return step

    def release(self, rows: int) -> int:
        """Give the memory of so many rows back, if it is more than a MB or two; return how many rows take memory then."""
        # They were filled, and nobody looks at them any more.
        if rows < _MOST_KEPT_CHANGES:
            return rows
        for line in self.words:
            release(line[:rows])
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedKey:
    """One join key and its changes on one side."""

    side: int
    row: KeyRow  # one that has the key
    code: int
    positions: npt.NDArray[np.int64]  # of the changes, among those of the side in its part
    refs: npt.NDArray[np.int64]  # record address of each change
    before: npt.NDArray[np.int64]  # weight of each before the epoch
    after: npt.NDArray[np.int64]
    was: int  # 1 if the side had rows of the key before, else 0; where the join reads degrees off it
    remains: int


class ChangedGroups:
    """Group the changes of an epoch."""

    def __init__(self, sides: Sequence[SideState], one_sided: tuple[int, int], *, part_changes: int, residual: bool) -> None:
        self._sides = sides
        self._part_changes = part_changes
        self._view = np.zeros(e.EPOCH_WORDS, np.int64)
        self._side_view = self._view[-2 * e.SIDE_WORDS :].reshape(2, e.SIDE_WORDS)
        self._epoch = int(self._view.ctypes.data)
        for side in (0, 1):
            self._side_view[side, e.S_READS_DEGREES] = not residual and one_sided[1 - side] != 0
            self._side_view[side, e.S_READ_BY_OWN] = one_sided[1 - side] != 0
        self._block = np.empty(2 * e.BLOCK_ROWS, np.int64)
        self._view[e.E_BLOCK] = self._block.ctypes.data
        self._parted: npt.NDArray[np.int64] = np.empty((0, e.CHANGE_WORDS), np.int64)
        self._keep_changes(0)
        self._grouped = np.empty((_GROUPED, 0), np.int64)
        self._table = np.empty(0, np.int64)
        self._pair_cursor = np.array(_START, np.int64)
        self._pair_cursor_at = int(self._pair_cursor.ctypes.data)
        self._marks: list[npt.NDArray[np.uint8]] = [np.zeros(0, np.uint8), np.zeros(0, np.uint8)]
        self._marked = True
        self.is_tight = False  # memory is short: working arrays of large epochs are freed
        self._bounds = np.zeros(3, np.int64)
        self._entered = (0, 0, 0)
        self._most = [0, 0]  # changes ever listed, and sorted into parts: what is behind has taken no memory
        self.parts = 0
        self.counts = (0, 0)  # of changes, on either side

    def list_changes(self, prepared: Sequence[PreparedSide | None]) -> None:
        """List the changes of an epoch and sort them into parts. Cost: the changes."""
        self._clear_marks()
        self._marked = False
        self._view[e.E_FAN_OUT] = 0
        size = sum(side.most_changes for side in prepared if side is not None)
        if len(self._listed) < size:
            self._keep_changes(size + size // 8)
            self._most = [0, 0]
        listed = self._listed_at
        end = 0
        counts = []
        for number, (side, delta) in enumerate(zip(self._sides, prepared, strict=True)):
            begin = end
            if delta is not None:
                end = side.list_changes(delta, begin, listed, self._marks_of(number))
            counts.append(end - begin)
        self.counts = (counts[0], counts[1])
        self._marked = True
        self._most[0] = max(self._most[0], end)
        part_bits = max(0, min(_MAX_PART_BITS, (end // self._part_changes).bit_length()))
        self.parts = 1 << part_bits if end else 0
        self._bounds = np.zeros(2 * self.parts + 1, np.int64)
        self._view[e.E_PART_BITS] = part_bits
        if part_bits:
            if len(self._parted) < end:
                self._parted = np.empty(self._listed.shape, np.int64)
                self._parted_at = int(self._parted.ctypes.data)
                self._most[1] = 0
            self._most[1] = max(self._most[1], end)
            partition_changes(counts[0], end, part_bits, listed, self._parted_at, self._bounds)
            if self.is_tight and self._most[0] >= _MOST_KEPT_CHANGES:
                release(self._listed[: self._most[0]])
                self._most[0] = 0
                self._marked = False  # only the parts have the bits that were set: all will be cleared
        elif end:
            self._bounds[1:] = (counts[0], end)

    def holds_far_more(self, rows: int) -> bool:
        """Return whether an earlier epoch was so large that its memory is worth giving back after one of so many rows."""
        return len(self._listed) > _MOST_KEPT_LISTED and 16 * max(rows, _LEAST_ROWS) < len(self._listed)

    def shrink(self, rows: int) -> None:
        """Give memory back when no epoch of so many rows is answered any more."""
        # That of all that it had no use for, because it takes less than an eighth; and where memory is short that of the
        # changes, if they were many, though not their room.
        if 16 * max(rows, _LEAST_ROWS) < len(self._listed):
            self._clear_marks()
            self._keep_changes(0)
            self._grouped = np.empty((_GROUPED, 0), np.int64)
            self._table = np.empty(0, np.int64)
            self._most = [0, 0]
        elif self.is_tight and sum(self._most) >= _MOST_KEPT_CHANGES:
            self._clear_marks()
            release(self._listed[: self._most[0]])
            release(self._parted[: self._most[1]])
            self._most = [0, 0]

    def _keep_changes(self, size: int) -> None:
        """Make room for listing so many changes; what is kept sorted into parts goes where there is none."""
        self._listed = np.empty((size, e.CHANGE_WORDS), np.int64)
        self._listed_at = int(self._listed.ctypes.data)
        if not size:
            self._parted, self._parted_at = self._listed, self._listed_at

    def _marks_of(self, side: int) -> int:
        """Return the address of zeroed bits, one per row number of a side's state."""
        rows = int(self._sides[side].header[H_ROWS_END])
        if 8 * len(self._marks[side]) <= rows:
            self._marks[side] = np.zeros(rows // 4 + 256, np.uint8)
            self._side_view[side, e.S_CHANGED] = self._marks[side].ctypes.data
        return int(self._side_view[side, e.S_CHANGED])

    def _clear_marks(self) -> None:
        """Clear the bits that the last listing set; all of them when that was broken off."""
        if not self._marked:
            for marks in self._marks:
                marks[:] = 0
        else:
            begin = self._listed_at
            for side, count in enumerate(self.counts):
                if count:
                    clear_marks(begin, count, int(self._side_view[side, e.S_CHANGED]))
                begin += 8 * e.CHANGE_WORDS * count
        self.counts = (0, 0)
        self._marked = True

    def _keep_room(self, size: int) -> None:
        """Make room for grouping a part of `size` changes."""
        if self._grouped.shape[1] < size + 2:
            self._grouped = np.empty((_GROUPED, size + size // 2 + 2), np.int64)
            lines = iter(int(line.ctypes.data) for line in self._grouped)
            for what in _GROUPED_WORDS:
                self._view[what] = next(lines)
            for side in (0, 1):
                for what in _GROUPED_SIDE_WORDS:
                    self._side_view[side, what] = next(lines)
        bits = _table_bits(size)
        if len(self._table) < 1 << bits:
            self._table = np.empty(1 << bits, np.int64)
            self._view[e.E_GROUP_TABLE] = self._table.ctypes.data

    def sort_by_range(self) -> None:
        """Sort the changes into as many parts again, by ranges of their hash. Cost: the changes."""
        self._range_bounds = self._bounds
        if self.parts > 1:
            self._range_bounds = np.zeros(2 * self.parts + 1, np.int64)
            source, target = self._parted_at, self._listed_at
            range_changes(self._bounds, self.parts.bit_length() - 1, source, target, self._range_bounds)
            self._most[0] = max(self._most[0], int(self._bounds[-1]))
            self._marked = False

    def enter(self, part: int, *, of_ranges: bool = False) -> None:
        """Group the changes of one part and look its join keys up. Cost: the changes of the part."""
        bounds = self._range_bounds if of_ranges else self._bounds
        self._entered = begin, middle, end = bounds[2 * part : 2 * part + 3].tolist()
        self._keep_room(end - begin)
        is_listed = self.parts == 1 or of_ranges
        self._entered_arrays = self._listed if is_listed else self._parted
        self._passed = np.zeros(end - begin if of_ranges else 0, np.int64)
        self._view[e.E_PART_BITS] = 0 if of_ranges else self.parts.bit_length() - 1
        address = (self._listed_at if is_listed else self._parted_at) + 8 * e.CHANGE_WORDS * begin
        for place, what in enumerate(_CHANGE_WORDS):
            self._view[what] = address + 8 * place
        self._view[e.E_GROUP_BITS] = _table_bits(end - begin)
        for side, (state, count) in enumerate(zip(self._sides, (middle - begin, end - middle), strict=True)):
            view = self._side_view[side]
            view[e.S_VIEW] = state.view
            view[e.S_KEY_COLUMNS] = state.join_columns.address
            view[e.S_COUNT] = count
        match_changes(self._epoch)

    def changed_keys(self, on_disk: Sequence[npt.NDArray[np.int64]]) -> Iterator[ChangedKey]:
        """Yield the keys that change in the part entered last whose rows on the other side stay on disk."""
        for side, codes in enumerate(reversed(on_disk)):
            if len(codes):
                yield from self._changed_keys(side, codes)

    def _changed_keys(self, side: int, codes: npt.NDArray[np.int64]) -> Iterator[ChangedKey]:
        begin, end = self._entered[side : side + 2]
        lines = self._entered_arrays[begin:end]
        groups = int(self._view[e.E_GROUPS])
        refs, sides, hashes = (line[:groups] for line in self._grouped[: len(_GROUPED_WORDS)])
        own = len(_GROUPED_WORDS) + side * len(_GROUPED_SIDE_WORDS)
        first, _, _, was, remains = (line[:groups] for line in self._grouped[own : own + len(_GROUPED_SIDE_WORDS)])
        for group in np.flatnonzero((first >= 0) & np.isin(hashes, codes)):
            row, code = KeyRow(self._sides[int(sides[group])], int(refs[group])), int(hashes[group])
            positions = np.flatnonzero((lines[:, _HASH] == code) & (lines[:, _MATCHABLE] != 0))
            positions = positions[equal_keys(row, self._sides[side], lines[positions, _REF].copy())]
            chosen = lines[positions]
            yield ChangedKey(
                side=side,
                row=row,
                code=code,
                positions=positions,
                refs=chosen[:, _REF].copy(),
                before=chosen[:, _BEFORE].copy(),
                after=chosen[:, _AFTER].copy(),
                was=int(was[group]),
                remains=int(remains[group]),
            )

    def note_fan_out(self, rows: int, key: ChangedKey) -> None:
        """Note how many output rows a key has made that no step has; they add up with those of the key that made most."""
        most, ref, side = self.largest_fan_out()
        if most and equal_keys(key.row, self._sides[side], np.array([ref], np.int64))[0]:
            rows += most
        if rows > most:
            self._view[e.E_FAN_OUT : e.E_FAN_OUT_SIDE + 1] = (rows, key.refs[0], key.side)

    def changes_of(self, side: int) -> tuple[int, npt.NDArray[np.int64]]:
        """Return the position of a side's first change in the part that was entered, and lines REFS, NUMBERS, BEFORE, AFTER."""
        begin, end = self._entered[side : side + 2]
        return begin - self._entered[0], self._entered_arrays[begin:end, : _AFTER + 1].T

    def weights_of_changes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the weights before and after of all changes of the part that was entered."""
        lines = self._entered_arrays[self._entered[0] : self._entered[2]]
        return lines[:, _BEFORE], lines[:, _AFTER]

    def pair_step(self, sign: int, output: OutputArrays) -> Step:
        """Return the step that appends the part's changed pairs: retractions (-1), insertions (+1) or both (0)."""
        # It ends the one before. The step raises OverflowError when a weight leaves int64.
        self._point_to(output)
        cursor, place = self._pair_cursor, self._pair_cursor_at
        cursor[:] = _START

        def step(filled: int) -> tuple[int, bool]:
            filled = p.emit_pairs(self._epoch, sign, place, filled)
            if cursor[0] == p.OVERFLOW:
                raise OverflowError("product of two weights")
            return filled, bool(cursor[0] == self._view[e.E_GROUPS])

        return step

    def one_sided_step(self, side: int, kind: int, sign: int, output: OutputArrays) -> Step:
        """Return the step that appends the part's one-sided rows of one side."""
        self._point_to(output)
        cursor = np.array(_START, np.int64)
        place = int(cursor.ctypes.data)

        def step(filled: int) -> tuple[int, bool]:
            filled = p.emit_one_sided_rows(self._epoch, side, kind, sign, place, filled)
            return filled, bool(cursor[0] == self._view[e.E_GROUPS] + 2)

        return step

    def changed_codes(self, side: int) -> npt.NDArray[np.int64]:
        """Return the join hashes of the changes of a side in the part that was entered."""
        begin, end = self._entered[side : side + 2]
        return self._entered_arrays[begin:end, _HASH]

    def streamed_step(
        self,
        side: int,
        codes: npt.NDArray[np.int64],
        rows: UnpackedRows,
        *,
        kind: int,
        pairs: bool,
        sign: int,
        output: OutputArrays,
    ) -> Step:
        """Return the step that appends the output of some rows of a side that are in no chain."""
        self._point_to(output)
        cursor = np.array([0, -1], np.int64)
        pair_counts = self._passed

        def step(filled: int) -> tuple[int, bool]:
            filled = emit_streamed_rows(self._epoch, side, rows.address, codes, kind, pairs, sign, cursor, pair_counts, filled)
            if cursor[0] == p.OVERFLOW:
                raise OverflowError("product of two weights")
            return filled, bool(cursor[0] == len(codes))

        return step

    def note_streamed(self) -> None:
        """Note the most pairs that a key of the part has made of rows that are in no chain."""
        group = int(np.argmax(self._passed)) if len(self._passed) else 0
        if len(self._passed) and self._passed[group] > self._view[e.E_FAN_OUT]:
            refs, sides = self._grouped[0, group], self._grouped[1, group]
            self._view[e.E_FAN_OUT : e.E_FAN_OUT_SIDE + 1] = (self._passed[group], refs, sides)

    def largest_fan_out(self) -> tuple[int, int, int]:
        """Return the most pairs that one key has made so far, the record address of a row with that key, and its side."""
        rows, ref, side = self._view[e.E_FAN_OUT : e.E_FAN_OUT_SIDE + 1].tolist()
        return rows, ref, side

    def _point_to(self, output: OutputArrays) -> None:
        self._view[e.E_CAPACITY] = output.rows
        self._view[e.E_OUT_WEIGHTS] = output.addresses[2]
        for side in (0, 1):
            self._side_view[side, e.S_OUT] = output.addresses[side]
            self._side_view[side, e.S_OUT_CHANGE] = output.addresses[3 + side] if len(output.addresses) == 5 else 0

    def resident_bytes(self) -> int:
        """Return the bytes of all working arrays, as far as they were used."""
        arrays: tuple[npt.NDArray[Any], ...] = (
            self._listed[: self._most[0]],
            self._parted[: self._most[1]],
            self._grouped,
            self._table,
            *self._marks,
            self._block,
        )
        return sum(array.nbytes for array in arrays)


def _table_bits(entries: int) -> int:
    return max(4, (entries + entries // 2).bit_length())


@dataclass(frozen=True, slots=True)
class JoinParts:
    sides: Sequence[SideState]
    groups: ChangedGroups
    cold: Sequence[ColdSide]  # per side; none without a budget
    one_sided: tuple[int, int]  # per side, what the join shows of its rows alone (0: nothing)
    pairs: bool
    # Which pairs of left and right record addresses pass the rest of the condition.
    passes: Callable[[Any, Any], npt.NDArray[np.bool_]]
    output: OutputArrays
