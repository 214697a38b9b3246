"""The changes of one epoch on both sides of a join, grouped by join key and looked up in both states.

What it holds is scratch memory shared with the operator: it is valid until the next epoch is prepared. It makes *steps*:
functions that append output rows to the output arrays, say how far those are filled and whether they are done, and go on where
they stopped when they are called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zset_join.kernels import pairs as p
from zset_join.kernels.groups import find_group_rows, group_changes, group_degrees, make_changed_set
from zset_join.state.scratch import Scratch
from zset_join.state.side import PreparedSide, SideState

__all__ = ["CANDIDATE_NAMES", "CHANGE_NAMES", "OUTPUT_NAMES", "ChangedGroups", "Step"]

Step = Callable[[int], tuple[int, bool]]

OUTPUT_NAMES = ("out_left", "out_right", "out_weights")
CANDIDATE_NAMES = ("candidate_left", "candidate_right", "candidate_weights")
CHANGE_NAMES = ("candidate_left_change", "candidate_right_change")

_CHANGES = ("refs", "numbers", "before", "after", "hashes", "matchable")
_FIRST = ("first_left", "first_right")
_HEAD = ("head_left", "head_right")


class ChangedGroups:
    """Group the changes of an epoch. Cost: the changes.

    Args:
        sides: state of the left and of the right side.
        prepared: what the epoch's delta does to each side, None for an empty delta.
        scratch: arrays of the operator.
        lone: per side, what the join says about its lone rows (`LONE_MISSING`, `LONE_MATCHED` or 0 for nothing).
        residual: whether matching means more than an equal key, so that degrees cannot be read off the other side.
    """

    def __init__(
        self,
        sides: Sequence[SideState],
        prepared: Sequence[PreparedSide | None],
        scratch: Scratch,
        lone: tuple[int, int],
        *,
        residual: bool,
    ) -> None:
        self._sides = sides
        self._scratch = scratch
        self._reads_degrees = tuple(not residual and lone[1 - side] != 0 for side in (0, 1))
        self._changed: list[tuple[int, int, int]] = []
        self.groups = 0
        size = 2 * sum(side.count for side in prepared if side is not None) + 2
        arrays = [scratch.array(name, size) for name in _CHANGES]
        end = 0
        counts = []
        for side, found in zip(sides, prepared, strict=True):
            begin = end
            if found is not None:
                end = side.list_changes(found, begin, arrays)
            counts.append(end - begin)
        self.counts = (counts[0], counts[1])
        if end:
            self._group(lone)
        if end and any(self._reads_degrees):
            self._read_degrees()

    def _group(self, lone: tuple[int, int]) -> None:
        scratch = self._scratch
        left, right = self._sides
        total = sum(self.counts)
        size = total + 2
        refs, numbers, _, _, hashes, matchable = (scratch.array(name, 0) for name in _CHANGES)
        first = [scratch.array(name, size) for name in _FIRST]
        heads = [scratch.array(name, size) for name in _HEAD]
        last = [scratch.array("last_left", size), scratch.array("last_right", size)]
        of_group = [scratch.array(name, size) for name in ("group_refs", "group_sides", "group_hashes")]
        next_change = scratch.array("next_change", size)
        table, bits = scratch.table("groups", total)
        keys = (left.join_columns.address, right.join_columns.address)
        self.groups = group_changes(
            *self.counts,
            refs,
            hashes,
            matchable,
            left.arena.heap_address,
            keys[0],
            right.arena.heap_address,
            keys[1],
            table,
            bits,
            next_change,
            *first,
            *last,
            *of_group,
        )
        for side, begin in ((0, 0), (1, self.counts[0])):
            changed, changed_bits = scratch.table(f"changed{side}", self.counts[side])
            count = make_changed_set(begin, begin + self.counts[side], numbers, changed, changed_bits)
            self._changed.append((changed, changed_bits, count))
        find_group_rows(left.view, right.view, self.groups, *first, lone[1] != 0, lone[0] != 0, *of_group, *keys, *heads)

    def _read_degrees(self) -> None:
        scratch = self._scratch
        for side, state in enumerate(self._sides):
            if self._reads_degrees[side]:
                changed, bits, _ = self._changed[side]
                degrees = [scratch.array(f"degree_{when}{side}", self.groups + 2) for when in ("before", "after")]
                chains = [scratch.array(name, 0) for name in (_FIRST[side], _HEAD[side])]
                lists = [scratch.array(name, 0) for name in ("next_change", "after")]
                group_degrees(self.groups, *chains, state.view, *lists, changed, bits, *degrees)

    def pair_step(self, sign: int, names: tuple[str, str, str], capacity: int, changes: tuple[str, str] | None = None) -> Step:
        """Return the step that appends changed pairs: retractions (-1), insertions (+1) or both (0).

        Args:
            sign: which pairs.
            names: scratch arrays for left refs, right refs and weights.
            capacity: how many rows these arrays take.
            changes: scratch arrays for the position of either change, where they are wanted.

        The step raises OverflowError when a weight leaves int64.
        """
        view = self._epoch_view(names, capacity, changes)
        cursor = np.array([0, 0, -1, -1, 0], np.int64)
        epoch, place = int(view.ctypes.data), int(cursor.ctypes.data)

        def step(filled: int) -> tuple[int, bool]:
            filled = p.emit_pairs(epoch, sign, place, filled)
            if cursor[0] == p.OVERFLOW:
                raise OverflowError("product of two weights")
            return filled, bool(cursor[0] == view[p.E_GROUPS])

        return step

    def lone_step(self, side: int, kind: int, sign: int, capacity: int) -> Step:
        """Return the step that appends the lone rows of one side to the output arrays."""
        view = self._epoch_view(OUTPUT_NAMES, capacity, None)
        cursor = np.array([0, 0, -1, -1, 0], np.int64)
        epoch, place = int(view.ctypes.data), int(cursor.ctypes.data)

        def step(filled: int) -> tuple[int, bool]:
            filled = p.emit_lone_rows(epoch, side, kind, sign, place, filled)
            return filled, bool(cursor[0] == view[p.E_GROUPS] + 2)

        return step

    def _epoch_view(self, names: tuple[str, str, str], capacity: int, changes: tuple[str, str] | None) -> Any:
        """Write down where the arrays of the epoch are, for the kernels."""
        address = self._scratch.address
        block = self._scratch.array("block", 2 * p.BLOCK_ROWS)
        words = [self.groups, *(address(name) for name in ("next_change", "refs", "before", "after")), address(names[2])]
        words += [capacity, int(block.ctypes.data)]
        for side, state in enumerate(self._sides):
            words += [state.view, address(_FIRST[side]), address(_HEAD[side]), *self._changed[side]]
            reads = self._reads_degrees[side]
            words += [address(f"degree_{when}{side}") if reads else 0 for when in ("before", "after")]
            words += [address(names[side]), address(changes[side]) if changes else 0]
        return np.array(words, np.int64)
