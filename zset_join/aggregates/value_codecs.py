"""Column values as key words that order like Spark orders them, and back.

The multisets behind min, max, count distinct and their like keep values as key words (`zset_join.kernels.aggregate.tree`).
Numbers, dates and booleans take the words of `zset_join.state.rows.order_words`; strings and binaries three words, compared as
unsigned bytes; nested values the three words of their canonical bytes, whose order is fixed but means nothing.

Ties and edge cases: NaN is the largest float; every NaN is kept as one, and -0.0 as 0.0 but for min and max, which show a value
that is there. So a value read back may have other bits than its input, but is equal to it.

Bytes: 8 per number (16 for decimals of more than 18 digits), 24 per string and its bytes beyond 8.

`ValuesOf`: state of min, max, count distinct, lists and sets: every value of a group, in order, with its number of copies.

A maximum that is retracted must give way to the next one, however far down it is: after 10, 9, 8, 7, 6 come and 10, 9, 8 go,
the maximum is 7. So nothing is cut off and nothing is guessed.

The law: a multiset holds exactly the values of the live rows of its group (NULLs and rows that fail the filter omitted).

Cost: see `zset_join.kernels.aggregate.tree`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from zset_join.aggregates.accumulators import Cells, Lines, Source, StateHeap
from zset_join.core.errors import ResourceError
from zset_join.core.key_types import is_bytes, is_nested, storage_type
from zset_join.core.row_conversion import plain
from zset_join.kernels.aggregate import tree
from zset_join.kernels.aggregate.read import list_state
from zset_join.kernels.aggregate.store import copy_values, store_cells
from zset_join.kernels.aggregate.tree import TEXT_WORDS, fill_text_keys, gather_texts, match_cells, sort_cells
from zset_join.kernels.values.nested import canonical_nested, decode_nested
from zset_join.state.rows.order_words import sequence_words

__all__ = ["CompositeCodec", "ValuesOf", "codec_of", "valid_flags"]

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]

_NARROW_DECIMAL_DIGITS = 18
_MAX_ARROW_BYTES = (1 << 31) - 1
_TEXT = 1


class ValueCodec(Protocol):
    """Turn values of one type into key words, and back.

    `words` is how many a value takes, `texts` has a bit for each word that begins a string.
    """

    words: int
    texts: int

    def encode(self, array: pa.Array, keys: Int64s, at: int, owners: list[Any]) -> None:
        """Write the words of every value into the columns of `keys` from `at` on; those of a NULL are arbitrary.

        Whatever the words point into is added to `owners`.
        """

    def decode(self, keys: Int64s, valid: Flags | None, heap: int) -> pa.Array:
        """Return the values that some words represent."""


NEGATIVE_ZERO = -1
"""The word of -0.0 where zeros are parted; that of 0.0 is 0."""


def valid_flags(array: pa.Array) -> Flags | None:
    """Return one byte per value, 0 where it is NULL; None when no value is."""
    if not array.null_count:
        return None
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False).view(np.uint8))


def codec_of(declared: pa.DataType, *, parts_zeros: bool = False) -> ValueCodec:
    """Return the codec of a column type, which is orderable or nested; `parts_zeros`: -0.0 is a value of its own, below 0.0."""
    kind = storage_type(declared)
    if is_nested(kind):
        return _NestedCodec(declared, kind)
    if is_bytes(kind) or pt.is_fixed_size_binary(kind):
        return _TextCodec(declared, kind)
    return _NumberCodec(declared, kind, parts_zeros=parts_zeros and pt.is_floating(kind))


def _declared(array: pa.Array, declared: pa.DataType) -> pa.Array:
    if array.type == declared:
        return array
    if isinstance(declared, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(declared, array.cast(declared.storage_type))
    return array.cast(declared)


class _NumberCodec:
    """Integers, floats, booleans, decimals, dates and times."""

    texts = 0

    def __init__(self, declared: pa.DataType, kind: pa.DataType, *, parts_zeros: bool) -> None:
        self._declared, self._kind, self._parts_zeros = declared, kind, parts_zeros
        self.words = 2 if pt.is_decimal(kind) and kind.precision > _NARROW_DECIMAL_DIGITS else 1

    def encode(self, array: pa.Array, keys: Int64s, at: int, owners: list[Any]) -> None:  # noqa: ARG002 - as the protocol has it
        array = plain(array, self._kind)
        for place, line in enumerate(sequence_words([array])):
            keys[:, at + place] = line
        if self._parts_zeros:  # the words of other negative numbers are below -1
            values = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
            keys[np.signbit(values) & (values == 0), at] = NEGATIVE_ZERO

    def decode(self, keys: Int64s, valid: Flags | None, heap: int) -> pa.Array:  # noqa: ARG002 - as the protocol has it
        mask = None if valid is None else valid == 0
        if pt.is_decimal(self._kind):
            return _declared(self._decimals(keys, mask), self._declared)
        words = np.ascontiguousarray(keys[:, 0])
        kind = self._kind
        if pt.is_floating(kind):
            bits = np.where(words < 0, words ^ np.int64((1 << 63) - 1), words)
            return _declared(pa.array(bits.view(np.float64), mask=mask).cast(kind), self._declared)
        if pt.is_uint64(kind):
            raw = words.view(np.uint64) ^ np.uint64(1 << 63)
            return _declared(pa.array(raw, mask=mask), self._declared)
        if pt.is_boolean(kind):
            return _declared(pa.array(words != 0, mask=mask), self._declared)
        if pt.is_temporal(kind):
            plain_type = pa.int64() if kind.bit_width == 64 else pa.int32()
            return _declared(pa.array(words, mask=mask).cast(plain_type).view(kind), self._declared)
        return _declared(pa.array(words, mask=mask).cast(kind), self._declared)

    def _decimals(self, keys: Int64s, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
        halves = np.empty((len(keys), 2), np.int64)
        if self.words == 1:
            halves[:, 0] = keys[:, 0]
            halves[:, 1] = keys[:, 0] >> 63
        else:
            halves[:, 0] = keys[:, 1] ^ np.int64(-(1 << 63))
            halves[:, 1] = keys[:, 0]
        kind = pa.decimal128(self._kind.precision, self._kind.scale)
        validity = None if mask is None else pa.array(~mask).buffers()[1]
        decimals = pa.Array.from_buffers(kind, len(keys), [validity, pa.py_buffer(halves)])
        return decimals.cast(self._kind)


class _TextCodec:
    """Strings and binaries."""

    words = TEXT_WORDS
    texts = _TEXT

    def __init__(self, declared: pa.DataType, kind: pa.DataType) -> None:
        self._declared = declared
        self._kind = pa.binary() if pt.is_fixed_size_binary(kind) else kind
        self._narrow = pa.string() if pt.is_string(kind) or pt.is_large_string(kind) else pa.binary()

    def encode(self, array: pa.Array, keys: Int64s, at: int, owners: list[Any]) -> None:
        array = plain(array, storage_type(array.type))
        if array.type != self._kind:
            array = array.cast(self._kind)
        if not len(array):
            return
        validity, offsets, values = array.buffers()
        owners.append(array)
        wide = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
        fill_text_keys(
            offsets.address,
            8 if wide else 4,
            0 if values is None else values.address,
            validity.address if validity is not None and array.null_count else 0,
            array.offset,
            len(array),
            int(keys.ctypes.data) + 8 * at,
            keys.shape[1],
        )

    def decode(self, keys: Int64s, valid: Flags | None, heap: int) -> pa.Array:
        return _declared(self.decode_bytes(keys, valid, heap), self._declared)

    def decode_bytes(self, keys: Int64s, valid: Flags | None, heap: int) -> pa.Array:
        """Return the values as strings or binaries, whatever was declared."""
        count = len(keys)
        keys = np.ascontiguousarray(keys)
        flags = np.ones(count, np.uint8) if valid is None else np.ascontiguousarray(valid)
        total = int((keys[:, 1] * (flags != 0)).sum())
        if total > _MAX_ARROW_BYTES:
            raise ResourceError(
                f"the strings of one column of an answer would take {total} bytes, more than an Arrow array holds; set "
                "chunk_rows to fewer rows.",
                code="STRING_BYTES",
                bytes=total,
            )
        offsets, content = np.empty(count + 1, np.int32), np.empty(total, np.uint8)
        gather_texts(
            int(keys.ctypes.data),
            keys.shape[1],
            count,
            int(flags.ctypes.data),
            heap,
            int(offsets.ctypes.data),
            int(content.ctypes.data),
        )
        validity = None if valid is None else pa.array(flags != 0).buffers()[1]
        return pa.Array.from_buffers(self._narrow, count, [validity, pa.py_buffer(offsets), pa.py_buffer(content)])


class _NestedCodec:
    """Structs and lists, by their canonical bytes."""

    words = TEXT_WORDS
    texts = _TEXT

    def __init__(self, declared: pa.DataType, kind: pa.DataType) -> None:
        self._declared, self._kind = declared, kind
        self._text = _TextCodec(pa.binary(), pa.large_binary())

    def encode(self, array: pa.Array, keys: Int64s, at: int, owners: list[Any]) -> None:
        self._text.encode(canonical_nested(plain(array, self._kind)), keys, at, owners)

    def decode(self, keys: Int64s, valid: Flags | None, heap: int) -> pa.Array:
        return _declared(decode_nested(self._text.decode_bytes(keys, valid, heap), self._kind), self._declared)


class CompositeCodec:
    """Several values side by side."""

    def __init__(self, parts: Sequence[ValueCodec], may_be_null: Sequence[bool]) -> None:
        self.parts, self.may_be_null = tuple(parts), tuple(may_be_null)
        self.words = self.texts = 0
        self.places = []
        for part, nullable in zip(self.parts, self.may_be_null, strict=True):
            self.words += nullable
            self.places.append(self.words)
            self.texts |= part.texts << self.words
            self.words += part.words

    def encode(self, arrays: Sequence[pa.Array], keys: Int64s, owners: list[Any]) -> None:
        for array, part, place, nullable in zip(arrays, self.parts, self.places, self.may_be_null, strict=True):
            part.encode(array, keys, place, owners)
            if nullable:
                flags = valid_flags(array)
                keys[:, place - 1] = 1 if flags is None else flags
                if flags is not None:
                    keys[flags == 0, place : place + part.words] = 0

    def span(self, number: int) -> tuple[int, int, int]:
        """Return where the words of one of the values begin and end, its NULL flag included, and its strings among them."""
        begin = self.places[number] - self.may_be_null[number]
        end = self.places[number] + self.parts[number].words
        return begin, end, self.parts[number].texts << (self.places[number] - begin)

    def decode(self, number: int, keys: Int64s, valid: Flags | None, heap: int) -> pa.Array:
        place, part = self.places[number], self.parts[number]
        if self.may_be_null[number]:
            inside = (keys[:, place - 1] != 0).view(np.uint8)
            valid = inside if valid is None else valid & inside
        return part.decode(keys[:, place : place + part.words], valid, heap)


_MORE_HEAP = 1 << 20
_LEAF_BYTES = 8192


@dataclass(frozen=True)
class _Rows:
    """The values of a delta, the entry of the group of each, which are valid, and their weights."""

    entry_of: Int64s
    keys: Int64s
    valid: Any
    weights: Int64s
    moved: Any = ()  # those of the first rows to which the last ones belong

    def of_other_zeros(self, cells: Cells) -> _Rows:
        """Return them with retractions of a zero that is not there as such of the other one, to which it is equal."""
        after, moved = cells.before[: cells.count] + cells.weights[: cells.count], np.zeros(len(self.keys), np.int64)
        for row in np.flatnonzero((self.weights < 0) & np.isin(self.keys[:, 0], (NEGATIVE_ZERO, 0))):
            cell = cells.cell_of[row]
            if cell >= 0 and after[cell] < 0:
                moved[row] = min(-after[cell], -self.weights[row])
                after[cell] += moved[row]
        (at,) = moved.nonzero()
        left = self.weights + moved
        keys, weights = np.concatenate([self.keys, NEGATIVE_ZERO - self.keys[at]]), np.concatenate([left, -moved[at]])
        valid = np.concatenate([self.valid, self.valid[at]])
        return _Rows(np.concatenate([self.entry_of, self.entry_of[at]]), keys, valid, weights, at)

    def limits(self, cells: Cells, count: int) -> tuple[Int64s, Int64s]:
        """Return the cell of each of the first rows, and the copies that each cell had, where both zeros of a group are one."""
        cell_of, before = cells.cell_of[:count].copy(), cells.before[: cells.count].copy()
        cell_of[self.moved] = cells.cell_of[count:]
        (zeros,) = (np.isin(self.keys[:, 0], (NEGATIVE_ZERO, 0)) & (cells.cell_of >= 0)).nonzero()
        root: dict[int, int] = {}
        for cell, entry in sorted({(int(cells.cell_of[row]), int(self.entry_of[row])) for row in zeros}):
            if root.setdefault(entry, cell) != cell:
                before[root[entry]] += before[cell]
                cell_of[cell_of == cell] = root[entry]
        return cell_of, before


class ValuesOf:
    """Keep the values of some columns."""

    words = tree.V_WORDS

    def __init__(self, source: Source, may_be_null: Sequence[bool], *, parts_zeros: bool = False) -> None:
        self.source = source
        self.at = 0
        self.may_be_null = tuple(may_be_null)
        self._parts_zeros = parts_zeros
        self.codec = CompositeCodec([codec_of(kind, parts_zeros=parts_zeros) for kind in source.types], may_be_null)

    @property
    def total_at(self) -> int:
        """Return the position in a line of the number of copies of all values."""
        return self.at + tree.V_TOTAL

    @property
    def distinct_at(self) -> int:
        """Return the position in a line of the number of distinct values."""
        return self.at + tree.V_DISTINCT

    def add(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s) -> bool:
        return self.add_values(lines, [rows.column(name) for name in self.source.columns], weights)

    def add_values(self, lines: Lines, arrays: Sequence[pa.Array], weights: Int64s) -> bool:
        """Net the values of a delta into cells and look them up; return whether one falls below 0 copies."""
        count = lines.count
        keys: Int64s = np.empty((count, self.codec.words), np.int64)
        owners: list[Any] = [keys]
        self.codec.encode(arrays, keys, owners)
        valid = np.ones(count, np.uint8)
        for array, nullable in zip(arrays, self.may_be_null, strict=True):
            flags = None if nullable else valid_flags(array)
            if flags is not None:
                valid &= flags
        rows = _Rows(lines.entry_of[:count], keys, valid, weights)
        is_below = self._matched(lines, rows, owners)
        if is_below and self._parts_zeros:
            counts = [self.distinct_at, self.total_at]
            lines.after[:, counts] = lines.before[:, counts]
            other = rows.of_other_zeros(lines.cells[self.at])
            is_below = self._matched(lines, other, owners)
            if is_below:  # row by row, both zeros of a group are one cell
                lines.cells[self.at].limits = other.limits(lines.cells[self.at], count)
        return is_below

    def _matched(self, lines: Lines, rows: _Rows, owners: list[Any]) -> bool:
        count, words = len(rows.keys), self.codec.words
        cell_keys = np.empty((max(count, 1), words), np.int64)
        owners.append(cell_keys)
        cells = Cells(
            bounds=np.empty(lines.entries + 2, np.int64),
            keys=int(cell_keys.ctypes.data),
            weights=np.empty(count, np.int64),
            before=np.empty(count, np.int64),
            cell_of=np.empty(count, np.int64),
            count=0,
            owners=[*owners, rows],
        )
        cells.count = sort_cells(
            lines.entries,
            count,
            rows.entry_of,
            rows.weights,
            rows.valid,
            int(rows.keys.ctypes.data),
            words,
            self.codec.texts,
            cells.bounds,
            lines.scratch.array("cell_order", count),
            lines.scratch.array("cell_spare", count),
            cells.cell_of,
            cells.keys,
            cells.weights,
        )
        lines.cells[self.at] = cells
        return bool(
            match_cells(
                lines.heap,
                lines.entries,
                lines.line_words,
                self.at,
                lines.after_address,
                cells.bounds,
                cells.keys,
                cells.weights,
                cells.before,
                words,
                self.codec.texts,
            )
        )

    def columns(self) -> list[pa.Field]:
        return []

    def write(self, lines: Int64s, heap: int) -> list[pa.Array]:  # noqa: ARG002 - part of the protocol
        return []

    def merge(self, lines: Lines, columns: Sequence[pa.Array]) -> None:
        """Do nothing, see `add_values`."""

    def value_columns(self) -> list[pa.Field]:
        """Return the columns that a value is written down in."""
        return [pa.field(f"_zset_value_{number}", kind) for number, kind in enumerate(self.source.types)]

    def write_values(self, groups: Int64s, place: int, total: int, heap: int) -> tuple[Int64s, list[pa.Array], Int64s]:
        """Return every value of some groups: the record of its group, the value, and the number of copies."""
        refs, copies = np.empty(total, np.int64), np.empty(total, np.int64)
        keys = np.empty((total, self.codec.words), np.int64)
        list_state(heap, groups, len(groups), place, self.codec.words, self.codec.texts, refs, int(keys.ctypes.data), copies)
        return refs, [self.codec.decode(number, keys, None, heap) for number in range(len(self.source.types))], copies

    def leftover(self, lines: Lines) -> int:  # noqa: ARG002 - part of the protocol
        return -1

    def store(self, heap: StateHeap, lines: Lines) -> None:
        cells = lines.cells.get(self.at)
        if cells is None or not cells.count:
            return
        spare = np.empty(_LEAF_BYTES + (cells.count + 16) * (8 * self.codec.words + 8), np.uint8)
        entry, cell = 0, 0
        needed = cells.count * (8 * self.codec.words + 8)
        while entry < lines.entries:
            limit = heap.make_heap_room(needed + _MORE_HEAP)
            entry, cell, needed = store_cells(
                heap.view,
                entry,
                lines.entries,
                lines.line_words,
                self.at,
                lines.after_address,
                cells.bounds,
                cell,
                cells.keys,
                cells.weights,
                cells.before,
                self.codec.words,
                self.codec.texts,
                limit,
                int(spare.ctypes.data),
            )

    def copy(self, old: int, new: int, groups: int, copied: int, state_offset: int) -> None:
        place = state_offset + 8 * (self.at - 1)
        copy_values(old, new, groups, copied, place, self.codec.words, self.codec.texts)
