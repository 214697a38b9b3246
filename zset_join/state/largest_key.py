"""The join key whose rows have the most bytes, for an error message. Cost: one pass over the live rows, and a sort of them.

Rows are first summed by the hash of their key; then the heaviest hashes are taken apart by value, until no other hash can hold
a larger key. So the answer is exact, also where hashes collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.kernels import columns as c
from zset_join.kernels import side as s
from zset_join.kernels.changes import OK
from zset_join.kernels.eviction import mark_equal_keys
from zset_join.state.side import PreparedSide, SideState

__all__ = ["largest_key"]

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that have a key: those of a state, or those of a delta (`heap` is 0)."""

    side: SideState
    heap: int
    refs: _Numbers
    codes: _Numbers
    sizes: _Numbers

    def with_code(self, code: int) -> _Rows:
        return self.among(self.codes == code)

    def among(self, kept: npt.NDArray[np.bool_]) -> _Rows:
        return _Rows(self.side, self.heap, np.ascontiguousarray(self.refs[kept]), self.codes[kept], self.sizes[kept])

    def key_of_first(self) -> tuple[Any, ...]:
        side = self.side
        plan = side.layout.gather_plan(side.relation.field_indices(side.relation.join_key))
        return tuple(column[0].as_py() for column in plan.gather(int(self.refs.ctypes.data), 1, self.heap))

    def equal_to(self, pivot: _Rows) -> npt.NDArray[np.bool_]:
        """Return which rows have the key of the first row of `pivot`."""
        marks = np.zeros(len(self.refs), np.uint8)
        mark_equal_keys(
            int(pivot.refs[0]),
            pivot.heap,
            pivot.side.join_columns.address,
            int(self.refs.ctypes.data),
            len(self.refs),
            self.heap,
            self.side.join_columns.address,
            int(marks.ctypes.data),
        )
        return marks.view(np.bool_)


def largest_key(sides: Sequence[SideState], found: Sequence[PreparedSide | None]) -> tuple[tuple[Any, ...], int, int] | None:
    """Return the key whose rows of both sides, live or accepted from a delta, have the most bytes; its rows and bytes.

    None where no row has a key that can match.
    """
    rows = [_live_rows(side) for side in sides]
    rows += [_new_rows(side, prepared) for side, prepared in zip(sides, found, strict=True) if prepared is not None]
    codes, inverse = np.unique(np.concatenate([part.codes for part in rows]), return_inverse=True)
    sums = np.zeros(len(codes), np.int64)
    np.add.at(sums, inverse, np.concatenate([part.sizes for part in rows]))
    best: tuple[tuple[Any, ...], int, int] | None = None
    for at in np.argsort(-sums, kind="stable"):
        if best is not None and sums[at] <= best[2]:
            break
        parts = [part.with_code(int(codes[at])) for part in rows]
        while any(len(part.refs) for part in parts):
            pivot = next(part for part in parts if len(part.refs))
            equal = [part.equal_to(pivot) for part in parts]
            count = sum(int(mask.sum()) for mask in equal)
            size = sum(int(part.sizes[mask].sum()) for part, mask in zip(parts, equal, strict=True))
            if best is None or size > best[2]:
                best = (pivot.key_of_first(), count, size)
            parts = [part.among(~mask) for part, mask in zip(parts, equal, strict=True)]
    return best


def _live_rows(side: SideState) -> _Rows:
    end = int(side.header[s.H_ROWS_END])
    numbers = np.flatnonzero(side.record_words("u1", c.FLAGS, end) & c.FLAG_ARRANGED) + 1
    refs = side.refs_of(numbers)
    codes = side.record_words("<u4", c.HASH, end)[numbers - 1].astype(np.int64)
    return _Rows(side, side.arena.heap_address, refs, codes, side.sizes_of(refs))


def _new_rows(side: SideState, prepared: PreparedSide) -> _Rows:
    count = prepared.count
    kept = np.flatnonzero((prepared.status[:count] == OK) & (prepared.unmatchable[:count] == 0))
    refs = prepared.encoded.address + kept * side.layout.stride
    return _Rows(side, 0, refs, prepared.join_codes[kept], side.sizes_of(refs))
