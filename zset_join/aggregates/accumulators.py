"""Aggregate state of a group: counts and exact sums.

An *accumulator* owns some state words of every group and adds the rows of a delta to them. Several aggregates may read one
accumulator: sum(x), avg(x) and count(x) share one. Its first word always counts the values that are not NULL (and pass
its filter), so a retraction that takes more than there is shows.

| accumulator | state words | for |
|---|---|---|
| `CountOf` | 1 | count |
| `SumOfIntegers` | 3 | sum, avg of integers and of decimals of up to 18 digits |
| `SumOfIntegers`, wide | 5 | sum, avg of wider decimals |
| `SumOfFloats` | 6 | sum, avg of floats |
| `MomentsOfFloats` | 13 | variance and standard deviation of anything, which are floats to Spark |
| `BitCounts` | 1 and one per bit | bitwise and, or, xor |
| `zset_join.aggregates.value_codecs.ValuesOf` | 3 | min, max, count distinct, lists and sets |

The law: the words after an epoch depend on the live rows of the group and on nothing else, neither on their order nor on rows
that arrived and went.

`Cells`, `Lines`: the groups that one delta touches, as dense copies that accumulators write to.

Line e of `before` and of `after` holds the row count of entry e and then the state words of every accumulator, in their order.
`before` is the value of the state, `after` starts as a copy of it.

Bytes: twice the state words of the touched groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from zset_join.core.key_types import storage_type
from zset_join.core.row_conversion import plain
from zset_join.kernels.aggregate import floats
from zset_join.kernels.aggregate.numbers import add_counts, add_integers, add_partial_words

__all__ = [
    "Accumulator",
    "BitCounts",
    "Cells",
    "CountOf",
    "Lines",
    "MomentsOfFloats",
    "Source",
    "StateHeap",
    "SumOfFloats",
    "SumOfIntegers",
    "WorkingArrays",
]

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Cells:
    """Effect of a delta on the multisets of one accumulator; see `zset_join.kernels.aggregate.tree`."""

    bounds: Int64s  # `bounds[e] .. bounds[e + 1]` are the cells of entry e
    keys: int  # address of the key words of the first cell
    weights: Int64s  # net, of each cell
    before: Int64s  # copies before the epoch
    cell_of: Int64s  # of each row of the delta, -1 for none
    count: int  # of cells
    owners: list[Any] = field(default_factory=list)  # what the keys point into
    limits: tuple[Int64s, Int64s] | None = None  # other cells of rows, and what these had, by which rows are refused


@dataclass(slots=True)
class Lines:
    """The entries of one delta."""

    count: int  # rows of the delta
    entries: int  # groups it touches
    line_words: int  # the row count included
    entry_of: Int64s  # of each row
    keys: Int64s  # address of a record with the key of each entry
    key_codes: Int64s
    found: Int64s  # row number in the state, 0 where new
    before: Int64s  # lines as the state has them
    after: Int64s  # with the delta folded in
    heap: int  # where that of the state starts
    scratch: WorkingArrays
    group_of: Callable[[int], tuple[Any, ...]]  # the group key of an entry, for messages
    cells: dict[int, Cells] = field(default_factory=dict)

    @property
    def before_address(self) -> int:
        return int(self.before.ctypes.data)

    @property
    def after_address(self) -> int:
        return int(self.after.ctypes.data)

    def reset(self) -> None:
        self.after[:] = self.before
        self.cells.clear()


_LEAST_SIZE = 256


class WorkingArrays:
    """Return arrays by name; a name's next array takes the place of its last one.

    Bytes kept: the largest size requested per name, at most doubled.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._addresses: dict[str, int] = {}

    def array(self, name: str, size: int, dtype: Any = np.int64) -> npt.NDArray[Any]:
        """Return at least `size` elements with arbitrary content."""
        kept = self._arrays.get(name)
        if kept is None or len(kept) < size:
            kept = np.empty(max(size, _LEAST_SIZE, 0 if kept is None else min(2 * len(kept), 2 * size)), dtype)
            self._arrays[name] = kept
            self._addresses[name] = int(kept.ctypes.data)
        return kept

    def address(self, name: str) -> int:
        return self._addresses[name]

    def table(self, name: str, entries: int) -> tuple[int, int]:
        """Return the address of a zeroed open-addressing table for up to `entries` entries, and its bits."""
        bits = max(4, (entries + entries // 2).bit_length())
        array = self.array(name, 1 << bits)
        array[: 1 << bits] = 0
        return self._addresses[name], bits

    def resident_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())


NARROW_DECIMAL_DIGITS = 18
"""Decimals of so many digits are added as integers of 64 bits."""

_MAX_DIGITS = 38
_EXACT_INTEGERS, _EXACT_POWERS = 1 << 53, 22  # integers and powers of ten that a double holds exactly


@dataclass(frozen=True, slots=True)
class Source:
    """Inputs of an accumulator."""

    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    filter: int = -1  # number of the filter whose rows count, -1 for all rows


class StateHeap(Protocol):
    """The heap of a state, as far as an accumulator needs it."""

    view: int

    def make_heap_room(self, size: int) -> int:
        """Make room for so many bytes and return the heap offset up to which there is room; `view` holds its address."""


class Accumulator(Protocol):
    """Some state words of every group."""

    source: Source
    words: int
    at: int

    def add(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s) -> bool:
        """Add the rows of a delta to `after`; return whether a count may have fallen below 0."""

    def columns(self) -> list[pa.Field]:
        """Return the columns in which the words of a group are written down."""

    def write(self, lines: Int64s, heap: int) -> list[pa.Array]:
        """Return these columns for some lines."""

    def merge(self, lines: Lines, columns: Sequence[pa.Array]) -> None:
        """Add words that were written down before."""

    def leftover(self, lines: Lines) -> int:
        """Return an entry that has no rows but still a sum, or -1."""

    def store(self, heap: StateHeap, lines: Lines) -> None:
        """Move the values of `after` that lie outside the lines into the heap."""

    def copy(self, old: int, new: int, groups: int, copied: int, state_offset: int) -> None:
        """Copy the heap values of copied groups from one state to another."""


def counted_flags(array: pa.Array) -> tuple[int, int, int]:
    """Return the addresses of validity and values of an array, and its offset."""
    buffers = array.buffers()
    validity = buffers[0].address if buffers[0] is not None and array.null_count else 0
    values = buffers[1].address if len(buffers) > 1 and buffers[1] is not None else 0
    return validity, values, array.offset


class _Linear:
    """Words that are added up, with nothing in the heap."""

    def __init__(self, source: Source, words: int) -> None:
        self.source = source
        self.words = words
        self.at = 0

    def columns(self) -> list[pa.Field]:
        return [pa.field(f"_zset_{self.at}_{word}", pa.int64()) for word in range(self.words)]

    def write(self, lines: Int64s, heap: int) -> list[pa.Array]:  # noqa: ARG002 - part of the protocol
        return [pa.array(np.ascontiguousarray(lines[:, self.at + word])) for word in range(self.words)]

    def merge(self, lines: Lines, columns: Sequence[pa.Array]) -> None:
        # The count is in a word of its own; what follows is one number.
        self._merge_words(lines, columns[:1], 0)
        self._merge_words(lines, columns[1 : self.words], 1)

    def _merge_words(self, lines: Lines, columns: Sequence[pa.Array], word: int) -> None:
        if columns:
            values = np.empty((lines.count, len(columns)), np.int64)
            for place, column in enumerate(columns):
                values[:, place] = column.to_numpy(zero_copy_only=False)
            place = lines.after_address + 8 * (self.at + word)
            address = int(values.ctypes.data)
            add_partial_words(lines.count, lines.entry_of, address, len(columns), lines.line_words, place)

    def leftover(self, lines: Lines) -> int:
        if self.words == 1:
            return -1
        after = lines.after
        gone = np.flatnonzero(after[:, 0] == 0)
        left = after[gone, self.at + 1 : self.at + self.words].any(axis=1)
        return int(gone[left][0]) if left.any() else -1

    def store(self, heap: StateHeap, lines: Lines) -> None:
        """Do nothing: all words are in the lines."""

    def copy(self, old: int, new: int, groups: int, copied: int, state_offset: int) -> None:
        """Do nothing: all words were copied with the record."""


class CountOf(_Linear):
    """Count the rows that pass a filter, or the values of a column that are not NULL."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, 1)

    def add(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s) -> bool:
        validity, start = 0, 0
        array = None
        if self.source.columns:
            array = plain(rows.column(self.source.columns[0]), storage_type(self.source.types[0]))
            if pt.is_null(array.type):
                return False
            validity, _, start = counted_flags(array)
        place = lines.after_address + 8 * self.at
        return bool(add_counts(lines.count, lines.entry_of, weights, validity, start, lines.line_words, place))


class BitCounts(_Linear):
    """Count, bit by bit, in how many integers it is set: what goes can be taken out of each bitwise function again."""

    def __init__(self, source: Source) -> None:
        self.bits = storage_type(source.types[0]).bit_width
        super().__init__(source, 1 + self.bits)

    def add(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s) -> bool:
        array = plain(rows.column(self.source.columns[0]), storage_type(self.source.types[0]))
        chosen = np.asarray(weights[: lines.count], np.int64)
        if array.null_count:
            chosen = np.where(array.is_valid().to_numpy(zero_copy_only=False), chosen, 0)
            array = array.fill_null(0)
        values = array.to_numpy(zero_copy_only=False).astype(np.int64)
        added = np.empty((lines.count, self.words), np.int64)
        added[:, 0] = chosen
        added[:, 1:] = ((values[:, None] >> np.arange(self.bits)) & 1) * chosen[:, None]
        words = lines.after[:, self.at : self.at + self.words]
        np.add.at(words, lines.entry_of[: lines.count], added)
        return bool((words[:, 0] < 0).any())

    @override
    def merge(self, lines: Lines, columns: Sequence[pa.Array]) -> None:
        for word, column in enumerate(columns[: self.words]):
            self._merge_words(lines, [column], word)


class SumOfIntegers(_Linear):
    """Add integers, or decimals of up to 18 digits, in 128 bits; wider decimals in 256."""

    def __init__(self, source: Source, *, is_wide: bool = False) -> None:
        super().__init__(source, 5 if is_wide else 3)
        self._is_wide = is_wide
        kind = storage_type(source.types[0])
        self._kind = pa.decimal128(kind.precision, kind.scale) if pt.is_decimal(kind) else pa.int64()
        self._step = 16 if pt.is_decimal(kind) else 8

    def add(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s) -> bool:
        array = plain(rows.column(self.source.columns[0]), storage_type(self.source.types[0]))
        array = array if array.type == self._kind else array.cast(self._kind)
        validity, values, start = counted_flags(array)
        place = lines.after_address + 8 * self.at
        return bool(
            add_integers(
                lines.count,
                lines.entry_of,
                weights,
                validity,
                values,
                self._step,
                self._is_wide,
                start,
                lines.line_words,
                place,
            )
        )


def _as_floats(array: pa.Array) -> pa.Array:
    """Return numbers as the nearest doubles. Cost: decimals that have more than 53 bits are written as text and read."""
    kind = array.type
    if kind == pa.float64():
        return array
    if not pt.is_decimal(kind):
        return array.cast(pa.float64(), safe=False)
    if len(array) and kind.scale <= _EXACT_POWERS:
        wide = array.cast(pa.decimal128(_MAX_DIGITS, kind.scale))
        halves = np.frombuffer(wide.buffers()[1], np.int64)[2 * wide.offset : 2 * (wide.offset + len(wide))]
        low, high = halves[0::2], halves[1::2]
        if not ((high != low >> 63) | (low > _EXACT_INTEGERS) | (low < -_EXACT_INTEGERS)).any():
            # Both are exact, so their quotient is rounded once.
            return pa.array(low / float(10**kind.scale), mask=_null_mask(array))
    return array.cast(pa.string()).cast(pa.float64())


def _null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return which values are NULL, None when no value is."""
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False)) if array.null_count else None


class SumOfFloats:
    """Add floats exactly."""

    squares = False

    def __init__(self, source: Source) -> None:
        self.source = source
        self.at = 0
        self.words = 2 + floats.WINDOW_WORDS + (floats.SQUARE_WORDS if self.squares else 0)
        self._block_bytes = floats.SQUARE_BLOCK_BYTES if self.squares else floats.BLOCK_BYTES
        self._owners: npt.NDArray[np.uint8] | None = None

    @property
    def block_at(self) -> int:
        """Return the position of the block word in a line."""
        return self.at + self.words - 1

    def add(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s) -> bool:
        array = _as_floats(plain(rows.column(self.source.columns[0]), storage_type(self.source.types[0])))
        validity, values, start = counted_flags(array)
        special = int(floats.count_special(lines.count, validity, values, start))
        return bool(
            floats.add_floats(
                lines.count,
                lines.entry_of,
                weights,
                validity,
                values,
                start,
                lines.line_words,
                lines.after_address + 8 * self.at,
                self.squares,
                lines.heap,
                self._blocks(special),
            )
        )

    def _blocks(self, count: int) -> int:
        """Return the address of room for so many blocks; it lives as long as the lines do."""
        self._owners = np.empty(count * self._block_bytes, np.uint8) if count else None
        return 0 if self._owners is None else int(self._owners.ctypes.data)

    def columns(self) -> list[pa.Field]:
        words = [pa.field(f"_zset_{self.at}_{word}", pa.int64()) for word in range(self.words - 1)]
        return [*words, pa.field(f"_zset_{self.at}_block", pa.binary())]

    def write(self, lines: Int64s, heap: int) -> list[pa.Array]:
        words = [pa.array(np.ascontiguousarray(lines[:, self.at + word])) for word in range(self.words - 1)]
        blocks = np.ascontiguousarray(lines[:, self.block_at])
        offsets = np.empty(len(lines) + 1, np.int32)
        count, total = len(lines), 0
        for content in (0, 1):
            target = np.empty(total * content, np.uint8)
            address = int(target.ctypes.data) if content else 0
            total = floats.write_blocks(count, blocks, heap, self.squares, int(offsets.ctypes.data), address)
        validity = pa.array(blocks != 0).buffers()[1]
        written = pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(target)])
        return [*words, written]

    def merge(self, lines: Lines, columns: Sequence[pa.Array]) -> None:
        count, last = lines.count, 1 + floats.WINDOW_WORDS
        for begin, end in ((0, 1), (1, last), (last, self.words - 1)):
            if begin < end:
                values = np.empty((count, end - begin), np.int64)
                for word in range(begin, end):
                    values[:, word - begin] = columns[word].to_numpy(zero_copy_only=False)
                place = lines.after_address + 8 * (self.at + begin)
                address = int(values.ctypes.data)
                add_partial_words(count, lines.entry_of, address, end - begin, lines.line_words, place)
        blocks = columns[self.words - 1].cast(pa.binary())
        present = count - blocks.null_count
        if present:
            validity, offsets, content = blocks.buffers()
            floats.merge_blocks(
                count,
                lines.entry_of,
                validity.address if validity is not None and blocks.null_count else 0,
                offsets.address,
                content.address,
                blocks.offset,
                lines.line_words,
                lines.after_address + 8 * self.block_at,
                self.squares,
                lines.heap,
                self._blocks(present),
            )

    def leftover(self, lines: Lines) -> int:
        gone = np.flatnonzero(lines.after[:, 0] == 0)
        left = lines.after[gone, self.at + 1 : self.block_at].any(axis=1)
        if left.any():
            return int(gone[left][0])
        return int(floats.find_leftover(lines.entries, lines.line_words, lines.after_address, self.block_at, lines.heap))

    def store(self, heap: StateHeap, lines: Lines) -> None:
        heap.make_heap_room(0 if self._owners is None else 2 * len(self._owners))
        floats.store_float_blocks(
            heap.view, lines.entries, lines.line_words, lines.before_address, lines.after_address, self.block_at, self.squares
        )

    def copy(self, old: int, new: int, groups: int, copied: int, state_offset: int) -> None:
        floats.copy_float_blocks(old, new, groups, copied, state_offset + 8 * (self.block_at - 1), self.squares)


class MomentsOfFloats(SumOfFloats):
    """Add floats and their squares exactly."""

    squares = True
