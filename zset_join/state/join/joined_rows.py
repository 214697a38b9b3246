"""The columns of a join's output, gathered from pairs of record addresses.

Order: left columns, then right columns (semi and anti joins: left only). With `using`, the key columns come first and once,
as Spark's `USING` puts them; where either side may be missing (FULL) they are coalesced.

Few rows are gathered into one message (`zset_join.zset.row_layout`), many column by column: then their copy would cost more
than the calls it saves.

`ListedRows`: all rows that a join shows, as pairs of record addresses, from the state of its two sides.

The law: what is listed is the sum of all answers so far. No row is fed to anything, and nothing of the state changes.

The side with more rows is walked record by record, the other one is looked up; rows of the other side alone take a second
walk. Behind a residual predicate every pair with equal keys is judged, and rows alone follow from their degree.

Memory: arrays of one chunk. Cost: a look-up per row, plus the pairs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.errors import WeightOverflowError
from zset_join.kernels.join.pairs import OVERFLOW
from zset_join.kernels.join.streamed_rows import LISTED_CURSOR_WORDS, emit_listed_rows
from zset_join.kernels.rows.side import H_LIVE_ROWS, H_ROWS_END
from zset_join.state.join.changed_groups import Pairs
from zset_join.state.rows.side import SideState
from zset_join.zset.row_layout import SPARE_BYTES, Allocate, BatchMessage, GatherPlan

__all__ = ["JoinedRows", "ListedRows", "from_c_library"]

_MOST_FEW = 1 << 10
_ALIGNED = 64


class JoinedRows:
    def __init__(self, left: SideState, right: SideState, schema: pa.Schema, sources: Sequence[tuple[str, str]]) -> None:
        self._left, self._right, self._schema = left, right, schema
        self._plan: list[tuple[int, int]] = []
        self._left_positions: list[int] = []
        self._right_positions: list[int] = []
        for side, name in sources:
            left_at = right_at = -1
            if side != "right":
                left_at = len(self._left_positions)
                self._left_positions.append(left.relation.schema.get_field_index(name))
            if side != "left":
                right_at = len(self._right_positions)
                self._right_positions.append(right.relation.schema.get_field_index(name))
            self._plan.append((left_at, right_at))

        self._left_plan = left.layout.gather_plan(self._left_positions)
        self._right_plan = right.layout.gather_plan(self._right_positions)
        is_plain = self._left_plan.is_plain and self._right_plan.is_plain
        has_own_columns = all(left_at < 0 or right_at < 0 for left_at, right_at in self._plan)
        self._few: _FewRows | None = None
        if is_plain and has_own_columns and self._plan:
            order = [left_at if right_at < 0 else len(self._left_positions) + right_at for left_at, right_at in self._plan]
            plans = (left.layout.gather_plan(self._left_positions), right.layout.gather_plan(self._right_positions))
            self._few = _FewRows((left, right), plans, schema, order)

    def gather(self, left_refs: int, right_refs: int, count: int, *, keeps_none: bool = False) -> pa.RecordBatch:
        """Return the output rows of `count` pairs whose record addresses are at two addresses; 0 is a padded side."""
        # `keeps_none`: memory is counted, so Arrow should keep none of batches that are gone.
        allocate = from_c_library if keeps_none else pa.allocate_buffer
        if self._few is not None and 0 < count <= _MOST_FEW:
            return self._few.gather(left_refs, right_refs, count, allocate)
        left = self._left_plan.gather(left_refs, count, self._left.arena.heap_address, allocate)
        right = self._right_plan.gather(right_refs, count, self._right.arena.heap_address, allocate)
        columns = []
        for left_at, right_at in self._plan:
            if right_at < 0:
                columns.append(left[left_at])
            elif left_at < 0:
                columns.append(right[right_at])
            else:
                kind = self._schema.field(len(columns)).type
                own = left[left_at].cast(kind)
                columns.append(pc.coalesce(own, right[right_at].cast(kind)) if own.null_count else own)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def batches(
        self, left_refs: int, right_refs: int, begin: int, count: int, *, keeps_none: bool
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield output rows from pair `begin` on in as few batches as hold their strings, each with its first row's place."""
        try:
            rows = self.gather(left_refs + 8 * begin, right_refs + 8 * begin, count, keeps_none=keeps_none)
        except OverflowError:
            if count == 1:
                raise
            half = count // 2
            yield from self.batches(left_refs, right_refs, begin, half, keeps_none=keeps_none)
            yield from self.batches(left_refs, right_refs, begin + half, count - half, keeps_none=keeps_none)
            return
        yield begin, rows

    def resident_bytes(self) -> int:
        return 0 if self._few is None else self._few.resident_bytes()


class _FewRows:
    """Gather few rows by way of a message: all but the bytes of strings is filled in and copied, as is the message."""

    def __init__(
        self, sides: tuple[SideState, SideState], plans: tuple[GatherPlan, GatherPlan], schema: pa.Schema, order: Sequence[int]
    ) -> None:
        self._sides, self._plans, self._schema, self._order = sides, plans, schema, tuple(order)
        self._message = BatchMessage(schema)
        is_variable = [variable for plan in plans for variable in plan.variable]
        of_left = len(plans[0].variable)
        column_of = [(0, at) if at < of_left else (1, at - of_left) for at in order]
        self._contents: list[tuple[int, int, int, int]] = []  # of strings: place among both plans, side, column, buffer
        buffers = 0
        for at, (side, column) in zip(order, column_of, strict=True):
            if is_variable[at]:
                self._contents.append((at, side, column, buffers + 2))
            buffers += 3 if is_variable[at] else 2
        self._is_variable = is_variable
        self._made: dict[int, _Places] = {}
        self._places: _Places | None = None
        self._filled: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._filled_at = 0

    def gather(self, left_refs: int, right_refs: int, count: int, allocate: Allocate) -> pa.RecordBatch:
        places = self._enter((count - 1).bit_length())
        refs, message, head = (left_refs, right_refs), self._message, self._message.head_bytes
        nulls, sizes = self._plans[0].fill(left_refs, count)
        right_nulls, right_sizes = self._plans[1].fill(right_refs, count)
        nulls += right_nulls
        sizes += right_sizes
        end, body = places.end, places.end
        starts = []
        for at, _, _, buffer in self._contents:
            size = sizes[at]
            message.buffers[2 * buffer : 2 * buffer + 2] = body - head, size
            starts.append(body)
            body += (size + _ALIGNED - 1) // _ALIGNED * _ALIGNED
        message.write(count, [nulls[at] for at in self._order], body - head)
        made = allocate(body + SPARE_BYTES)
        address = made.address
        ctypes.memmove(address, message.address, head)
        ctypes.memmove(address + head, self._filled_at + head, end - head)
        for (_, side, column, _), begin in zip(self._contents, starts, strict=True):
            heap = self._sides[side].arena.heap_address
            self._plans[side].fill_content(column, refs[side], count, heap, address + begin)
        return pa.ipc.read_record_batch(made, self._schema)

    def resident_bytes(self) -> int:
        return self._filled.nbytes

    def _enter(self, bits: int) -> _Places:
        """Return the places of the columns of so many rows or half as many, once the plans fill them in there."""
        places = self._made.get(bits)
        if places is self._places and places is not None:
            return places
        if places is None:
            places = self._made[bits] = self._laid_out(1 << bits)
        if len(self._filled) < places.end:
            self._filled = np.empty(places.end, np.uint8)
            self._filled_at = int(self._filled.ctypes.data)
        for plan, own in zip(self._plans, places.of_sides, strict=True):
            plan.point(self._filled_at, own)
        self._message.buffers[:] = places.buffers
        self._places = places
        return places

    def _laid_out(self, rows: int) -> _Places:
        head, bitmap_bytes = self._message.head_bytes, (rows + 7) // 8
        left, end = self._plans[0].places(rows, head)
        right, end = self._plans[1].places(rows, end)
        both, buffers = left + right, list[int]()
        for at in self._order:
            validity_at, values_at, values_bytes = both[at]
            buffers += (validity_at - head, bitmap_bytes, values_at - head, values_bytes)
            if self._is_variable[at]:
                buffers += (0, 0)
        return _Places((left, right), end, buffers)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the columns of so many rows go: of each side as `GatherPlan.places` has them, their end, and as buffers."""

    of_sides: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]
    end: int
    buffers: list[int]


def from_c_library(size: int) -> pa.Buffer:
    """Return memory that the next batch gets when this one is gone; Arrow's allocator keeps 10 to 20 MB of such."""
    return pa.py_buffer(np.empty(size, np.uint8))


class ListedRows:
    def __init__(
        self,
        sides: Sequence[SideState],
        one_sided: tuple[int, int],
        *,
        pairs: bool,
        passes: Callable[[Any, Any], npt.NDArray[np.bool_]] | None,
    ) -> None:
        self._sides, self._one_sided, self._pairs, self._passes = sides, one_sided, pairs, passes

    def pieces(self, rows: int) -> Iterator[Pairs]:
        """Yield left and right record addresses (0: padded) and weights, at most so many; each is valid until the next."""
        words = np.empty((3, rows), np.int64)
        alone = list(self._one_sided)
        if self._pairs:
            walked = int(self._sides[1].header[H_LIVE_ROWS] > self._sides[0].header[H_LIVE_ROWS])
            if self._passes is None:
                yield from self._walk(walked, words, pairs=True, kind=alone[walked])
                alone[walked] = 0
            else:
                for left, right, weights in self._walk(walked, words, pairs=True, kind=0):
                    kept = np.flatnonzero(self._passes(left, right))
                    if len(kept):
                        yield left[kept], right[kept], weights[kept]
        for side, kind in enumerate(alone):
            if kind:
                yield from self._walk(side, words, pairs=False, kind=kind)

    def _walk(self, side: int, words: npt.NDArray[np.int64], *, pairs: bool, kind: int) -> Iterator[Pairs]:
        own, other = self._sides[side], self._sides[1 - side]
        cursor = np.zeros(LISTED_CURSOR_WORDS, np.int64)
        count, capacity = int(own.header[H_ROWS_END]), words.shape[1]
        lines = [int(line.ctypes.data) for line in words]
        while cursor[0] < count:
            filled = emit_listed_rows(
                own.view,
                own.join_columns.address,
                other.view,
                other.join_columns.address,
                own.first_record,
                count,
                pairs,
                kind,
                int(cursor.ctypes.data),
                lines[side],
                lines[1 - side],
                lines[2],
                0,
                capacity,
            )
            if cursor[0] == OVERFLOW:
                left, right = (side.relation.name for side in self._sides)
                raise WeightOverflowError(
                    f'the rows of the join of "{left}" and "{right}": the product of two weights does not fit an int64, and '
                    "they cannot be read from its state. Retract duplicate rows on one side; a weight is the number of copies.",
                    code="WEIGHT_OVERFLOW",
                )
            if filled:
                yield words[0, :filled], words[1, :filled], words[2, :filled]
