"""How many bytes an append-only join holds, and the refusal of an epoch that would reach its limit.

A row counts its record and the heap blocks of its long values (`zset_join.kernels.rows.storing`), once, whatever its weight,
and the same on disk. Hash tables and working arrays are not counted. The header of a side holds the sums of its rows in
memory and of those on disk, so counting costs the delta.

`largest_key`: the join key whose rows have the most bytes, for an error message. Cost: one pass over the rows, and a sort of
their hashes.

Rows are first summed by the hash of their key; then the heaviest hashes are taken apart by value, until no other hash can hold
a larger key. So the answer is exact, also where hashes collide. Rows on disk come a MB at a time; 16 bytes per hash are
remembered while it is looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from spill.row_bytes import UnpackedRows
from zset_join.core.epochs import Tick
from zset_join.core.errors import ResourceError
from zset_join.core.options import BufferLimit
from zset_join.core.shown_values import counted, shown_key
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.changes import OK
from zset_join.kernels.rows.storing import accepted_bytes
from zset_join.kernels.values import keys as c
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.join.residual_pairs import JudgedEpoch
from zset_join.state.rows.keyed_rows import KeyRow, equal_keys
from zset_join.state.rows.side import PreparedSide, SideState
from zset_join.zset import ZSet

__all__ = ["AppendBuffer", "BufferedEpoch", "PreparedEpoch", "buffer_full", "largest_key"]

_Numbers = npt.NDArray[np.int64]
_Largest = tuple[tuple[Any, ...], int, int]
_SUMMED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that have a key: those of a state, those of a delta, or rows on disk (`owner` is their memory)."""

    side: SideState
    refs: _Numbers
    codes: _Numbers
    sizes: _Numbers
    owner: object = None

    def with_code(self, code: int) -> _Rows:
        return self.among(self.codes == code)

    def among(self, kept: npt.NDArray[np.bool_]) -> _Rows:
        refs = np.ascontiguousarray(self.refs[kept])
        return _Rows(self.side, refs, self.codes[kept], self.sizes[kept], self.owner)

    def first(self) -> KeyRow:
        return KeyRow(self.side, int(self.refs[0]), self.owner)


@dataclass(slots=True)
class _Tally:
    """How many rows have the key of `pivot`, and how many bytes they count for."""

    pivot: KeyRow
    rows: int = 0
    size: int = 0


def largest_key(
    sides: Sequence[SideState], accepted: Sequence[PreparedSide | None], cold: Sequence[ColdSide] = ()
) -> _Largest | None:
    """Return the key whose rows of both sides have the most bytes, its rows and bytes; None without a key that can match."""
    hot = [_live_rows(side) for side in sides]
    hot += [_new_rows(side, prepared) for side, prepared in zip(sides, accepted, strict=True) if prepared is not None]
    scanned = (_cold_rows(side.side, codes, rows) for side in cold for codes, rows in side.scan_codes())
    codes, sums = _summed(chain(hot, scanned))
    best: _Largest | None = None
    for at in np.argsort(-sums, kind="stable"):
        if best is not None and sums[at] <= best[2]:
            break
        code = int(codes[at])
        streamed = (_cold_rows(side.side, accepted.codes, rows) for side in cold for accepted, rows in side.stream(code))
        for tally in _taken_apart(chain((part.with_code(code) for part in hot), streamed)):
            if best is None or tally.size > best[2]:
                best = (_values(tally.pivot), tally.rows, tally.size)
    return best


def _summed(parts: Iterable[_Rows]) -> tuple[_Numbers, _Numbers]:
    codes, sums = np.empty(0, np.int64), np.empty(0, np.int64)
    waiting: list[_Rows] = []
    for part in parts:
        waiting.append(_Rows(part.side, part.refs[:0], part.codes, part.sizes))
        if sum(len(each.codes) for each in waiting) > max(_SUMMED_AT_ONCE, len(codes)):
            codes, sums = _added(codes, sums, waiting)
            waiting = []
    return _added(codes, sums, waiting)


def _added(codes: _Numbers, sums: _Numbers, parts: Sequence[_Rows]) -> tuple[_Numbers, _Numbers]:
    every, inverse = np.unique(np.concatenate([codes, *(part.codes for part in parts)]), return_inverse=True)
    added = np.zeros(len(every), np.int64)
    np.add.at(added, inverse, np.concatenate([sums, *(part.sizes for part in parts)]))
    return every, added


def _taken_apart(parts: Iterable[_Rows]) -> list[_Tally]:
    """Count rows by the value of their key."""
    tallies: list[_Tally] = []
    for part in parts:
        at = 0
        while len(part.refs):
            if at == len(tallies):
                tallies.append(_Tally(part.first()))
            tally = tallies[at]
            equal = equal_keys(tally.pivot, part.side, part.refs)
            tally.rows += int(equal.sum())
            tally.size += int(part.sizes[equal].sum())
            part = part.among(~equal)
            at += 1
    return tallies


def _values(key: KeyRow) -> tuple[Any, ...]:
    side, refs = key.side, np.array([key.ref], np.int64)
    plan = side.layout.gather_plan(side.relation.field_indices(side.relation.join_key))
    return shown_key(plan.gather(int(refs.ctypes.data), 1, side.arena.heap_address), 0)


def _live_rows(side: SideState) -> _Rows:
    end = int(side.header[s.H_ROWS_END])
    numbers = np.flatnonzero(side.record_words("u1", c.FLAGS, end) & c.FLAG_ARRANGED) + 1
    refs = side.refs_of(numbers)
    codes = side.record_words("<u4", c.HASH, end)[numbers - 1].astype(np.int64)
    return _Rows(side, refs, codes, side.sizes_of(refs))


def _new_rows(side: SideState, prepared: PreparedSide) -> _Rows:
    count = prepared.count
    kept = np.flatnonzero((prepared.status[:count] == OK) & (prepared.unmatchable[:count] == 0))
    refs = prepared.encoded.address + kept * side.layout.stride
    return _Rows(side, refs, prepared.join_codes[kept], side.sizes_of(refs))


def _cold_rows(side: SideState, codes: _Numbers, rows: UnpackedRows) -> _Rows:
    refs = rows.refs(side.layout.stride)
    return _Rows(side, refs, codes, side.sizes_of(refs), rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedEpoch:
    before: tuple[int, int]  # bytes of the left and of the right side
    after: tuple[int, int]


class AppendBuffer:
    """Count the bytes of an append-only join, and enforce its limit."""

    def __init__(self, sides: Sequence[SideState], limit: BufferLimit, cold: Sequence[ColdSide] = ()) -> None:
        self.limit = limit
        self._cold = cold
        self._sides = sides

    def plan(self, prepared: Sequence[PreparedSide | None]) -> BufferedEpoch:
        """Return the size of the join after an epoch. Cost: the delta."""
        before = (self._sides[0].held_bytes, self._sides[1].held_bytes)
        arriving = [
            0 if side is None else _arriving_bytes(state, side) for state, side in zip(self._sides, prepared, strict=True)
        ]
        return BufferedEpoch(before=before, after=(before[0] + arriving[0], before[1] + arriving[1]))

    def refuse_if_full(self, epoch: BufferedEpoch, prepared: Sequence[PreparedSide | None], tick: Tick) -> None:
        """Raise where an epoch would reach the limit and the policy is `abort`."""
        if not self.limit.refuses or sum(epoch.after) < self.limit.max_bytes:
            return
        relations = self._sides[0].relation, self._sides[1].relation
        raise buffer_full(
            (relations[0].name, relations[1].name),
            epoch.after,
            self.limit.max_bytes,
            largest_key(self._sides, prepared, self._cold),
            tick.epoch,
        )


def buffer_full(
    names: tuple[str, str],
    held: tuple[int, int],
    limit: int,
    largest: tuple[tuple[object, ...], int, int] | None,
    epoch: int,
) -> ResourceError:
    """Return the error for a join that would reach its limit."""
    key, rows, key_bytes = largest or ((), 0, 0)
    largest_text = (
        f"The largest key is {key!r} with {counted(rows, 'row')} and {counted(key_bytes, 'byte')}. " if largest else ""
    )
    return ResourceError(
        f'the append-only join of "{names[0]}" and "{names[1]}" would hold {held[0]} + {held[1]} bytes after epoch {epoch}, '
        f"and join_max_buffered_bytes is {limit}; the epoch was not applied. {largest_text}Both sides of such a join keep "
        "every row for ever: raise join_max_buffered_bytes (0: no limit), declare keys so that rows are replaced and deleted, "
        'or move rows to disk with join_buffer_policy="spill".',
        code="JOIN_BUFFER_FULL",
        left_bytes=held[0],
        right_bytes=held[1],
        limit=limit,
        key=key,
        key_rows=rows,
        key_bytes=key_bytes,
        epoch=epoch,
    )


def _arriving_bytes(state: SideState, side: PreparedSide) -> int:
    return int(accepted_bytes(side.arrays.address, state.layout.stride, state.variables_address))


@dataclass(slots=True)
class PreparedEpoch:
    tick: Tick
    deltas: tuple[ZSet, ZSet]
    sides: tuple[PreparedSide | None, PreparedSide | None]  # None for an empty delta
    rejected: int
    buffered: BufferedEpoch | None = None
    oversized_codes: tuple[npt.NDArray[np.int64], ...] = ()  # per side, hashes of keys whose rows stay on disk
    streams: tuple[bool, ...] = ()  # per side, whether rows on disk are read as they are needed
    judged: JudgedEpoch = field(default_factory=JudgedEpoch)
