"""From what groups remember to the columns of an answer, before and after an epoch.

A *result* reads its accumulator in the lines of an epoch and gives, per entry, the old and the new value of its column. A sum
or an average that does not fit its type is refused here, when the true value is known; what a sum passes through on its way
does not matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from zset_join.aggregates.accumulators import Accumulator, BitCounts, Int64s, Lines, MomentsOfFloats, SumOfFloats
from zset_join.aggregates.value_codecs import ValuesOf
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, ResourceError
from zset_join.kernels.aggregate import floats
from zset_join.kernels.aggregate.numbers import average_decimals, average_integers, sum_decimals
from zset_join.kernels.aggregate.read import differing_keys, list_values, read_ends
from zset_join.shapes.aggregate import AggregateCall

__all__ = ["Reading", "Result", "result_of"]

Flags = npt.NDArray[Any]
_MAX_ITEMS = (1 << 31) - 1


class Reading(Protocol):
    """A column of the answer, per entry, before and after an epoch."""

    def differs(self) -> Flags:
        """Return for every entry whether the column changes."""

    def column(self, old: Int64s, new: Int64s) -> pa.Array:
        """Return the column before the epoch for the entries `old`, then after it for `new`."""


class Result(Protocol):
    """One output column."""

    def check(self, lines: Lines, tick: Tick, relation: str) -> None:  # noqa: ARG002 - most columns always fit
        """Refuse an epoch after which the column does not fit its type."""
        return

    def read(self, lines: Lines) -> Reading:
        """Read the column."""


@dataclass(slots=True)
class _Words:
    """Values of fixed width, as one or two words each; what is in place of a NULL is 0."""

    old: Int64s
    new: Int64s
    old_valid: Flags | None
    new_valid: Flags | None
    build: Callable[[Int64s, Flags | None], pa.Array]

    def differs(self) -> Flags:
        differ = self.old != self.new
        if differ.ndim == 2:
            differ = differ.any(axis=1)
        if self.old_valid is None or self.new_valid is None:
            return np.asarray(differ)
        return np.asarray((differ & (self.new_valid != 0)) | (self.old_valid != self.new_valid))

    def column(self, old: Int64s, new: Int64s) -> pa.Array:
        values = np.concatenate([self.old[old], self.new[new]])
        if self.old_valid is None or self.new_valid is None:
            return self.build(values, None)
        return self.build(values, np.concatenate([self.old_valid[old], self.new_valid[new]]))


def _array(kind: pa.DataType, values: Int64s, valid: Flags | None) -> pa.Array:
    """Wrap values that nobody else writes to."""
    validity = None if valid is None or valid.all() else pa.array(valid != 0).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(values)])


def _integers(values: Int64s, valid: Flags | None) -> pa.Array:
    return _array(pa.int64(), values, valid)


def _floats(values: Int64s, valid: Flags | None) -> pa.Array:
    return _array(pa.float64(), values, valid)


def _refuse(call: AggregateCall, lines: Lines, entry: int, tick: Tick, relation: str, kind: pa.DataType) -> BadInputError:
    group = lines.group_of(entry)
    return BadInputError(
        f'the aggregate over "{relation}", epoch {tick.epoch}: {call.name} of the group {group} does not fit {kind}; nothing '
        "of the epoch was applied. Cast the column to a wider type before the aggregate.",
        code="AGGREGATE_OVERFLOW",
        relation=relation,
        group=group,
        aggregate=call.name,
        epoch=tick.epoch,
    )


class _Count(Result):
    def __init__(self, at: int) -> None:
        self._at = at

    @override
    def read(self, lines: Lines) -> Reading:
        return _Words(lines.before[:, self._at], lines.after[:, self._at], None, None, _integers)


class _IntegerSum:
    def __init__(self, call: AggregateCall, accumulator: Accumulator) -> None:
        self._call, self._at = call, accumulator.at

    def check(self, lines: Lines, tick: Tick, relation: str) -> None:
        low, high = lines.after[:, self._at + 1], lines.after[:, self._at + 2]
        beyond = (high != low >> 63) & (lines.after[:, self._at] != 0)
        if beyond.any():
            raise _refuse(self._call, lines, int(np.flatnonzero(beyond)[0]), tick, relation, pa.int64())

    def read(self, lines: Lines) -> Reading:
        value = self._at + 1
        old_valid, new_valid = lines.before[:, self._at] > 0, lines.after[:, self._at] > 0
        return _Words(lines.before[:, value], lines.after[:, value], old_valid, new_valid, _integers)


class _FloatResult(Result, ABC):
    """A float per line, made by a kernel."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._at = accumulator.at
        self._spare = np.zeros(1024, np.int64)

    @override
    def read(self, lines: Lines) -> Reading:
        halves = []
        for block in (lines.before, lines.after):
            values = np.empty(lines.entries, np.float64)
            place = int(block.ctypes.data) + 8 * self._at
            halves.append((values.view(np.int64), self._fill(lines, place, values, block)))
        (old, old_valid), (new, new_valid) = halves
        return _Words(old, new, old_valid, new_valid, _floats)

    @abstractmethod
    def _fill(self, lines: Lines, place: int, values: npt.NDArray[np.float64], block: Int64s) -> Flags: ...


class _IntegerAverage(_FloatResult):
    @override
    def _fill(self, lines: Lines, place: int, values: npt.NDArray[np.float64], block: Int64s) -> Flags:
        average_integers(lines.entries, lines.line_words, place, values)
        return block[:, self._at] > 0


class _FloatSum(_FloatResult):
    def __init__(self, accumulator: SumOfFloats, *, average: bool) -> None:
        super().__init__(accumulator)
        self._squares = accumulator.squares
        self._kernel = floats.average_floats if average else floats.sum_floats

    @override
    def _fill(self, lines: Lines, place: int, values: npt.NDArray[np.float64], block: Int64s) -> Flags:
        spare = int(self._spare.ctypes.data)
        self._kernel(lines.entries, lines.line_words, place, self._squares, lines.heap, spare, values)
        return block[:, self._at] > 0


class _Variance(_FloatResult):
    def __init__(self, accumulator: MomentsOfFloats, *, sample: bool, root: bool) -> None:
        super().__init__(accumulator)
        self._sample, self._root = sample, root

    @override
    def _fill(
        self,
        lines: Lines,
        place: int,
        values: npt.NDArray[np.float64],
        block: Int64s,
    ) -> Flags:
        valid = np.empty(lines.entries, np.uint8)
        spare = int(self._spare.ctypes.data)
        floats.variance_floats(
            lines.entries, lines.line_words, place, self._sample, self._root, lines.heap, spare, values, valid
        )
        return valid


class _Bits(Result):
    """A bitwise function of the values whose bits were counted."""

    def __init__(self, kind: str, accumulator: BitCounts, declared: pa.DataType) -> None:
        self._kind, self._at, self._bits, self._declared = kind, accumulator.at, accumulator.bits, declared

    @override
    def read(self, lines: Lines) -> Reading:
        old_valid, new_valid = lines.before[:, self._at] > 0, lines.after[:, self._at] > 0
        return _Words(self._fill(lines.before), self._fill(lines.after), old_valid, new_valid, self._build)

    def _fill(self, block: Int64s) -> Int64s:
        values, counts = block[:, self._at], block[:, self._at + 1 : self._at + 1 + self._bits]
        if self._kind == "bit_and":
            is_set = (counts == values[:, None]) & (values > 0)[:, None]
        else:
            is_set = counts > 0 if self._kind == "bit_or" else counts % 2 == 1
        powers = np.left_shift(np.uint64(1), np.arange(self._bits, dtype=np.uint64))
        whole: Int64s = (is_set * powers).sum(axis=1, dtype=np.uint64).view(np.int64)
        unused = 64 - self._bits
        signed: Int64s = (whole << unused) >> unused  # what was negative is so again
        return signed

    def _build(self, values: Int64s, valid: Flags | None) -> pa.Array:
        return _integers(values, valid).cast(self._declared)


class _DecimalResult:
    """A sum or an average of decimals, as 128 bits."""

    def __init__(self, call: AggregateCall, accumulator: Accumulator, kind: pa.DataType, *, factor: int) -> None:
        self._call, self._at, self._kind, self._factor = call, accumulator.at, kind, factor
        self._words = accumulator.words - 1
        bound = 10**kind.precision
        self._bound = np.array([(bound >> 64 * at) & ((1 << 64) - 1) for at in range(4)], np.uint64).view(np.int64)
        self._spare = np.zeros(16, np.int64)

    def _fill(self, lines: Lines, block: Int64s) -> tuple[Int64s, int]:
        values = np.empty((lines.entries, 2), np.int64)
        place = int(block.ctypes.data) + 8 * self._at
        bound, spare, target = (int(array.ctypes.data) for array in (self._bound, self._spare, values))
        if self._call.kind == "sum":
            beyond = sum_decimals(lines.entries, lines.line_words, place, self._words, bound, spare, target)
        else:
            beyond = average_decimals(lines.entries, lines.line_words, place, self._words, self._factor, bound, spare, target)
        return values, int(beyond)

    def check(self, lines: Lines, tick: Tick, relation: str) -> None:
        _, beyond = self._fill(lines, lines.after)
        if beyond >= 0:
            raise _refuse(self._call, lines, beyond, tick, relation, self._kind)

    def read(self, lines: Lines) -> Reading:
        old_valid, new_valid = lines.before[:, self._at] > 0, lines.after[:, self._at] > 0
        return _Words(self._fill(lines, lines.before)[0], self._fill(lines, lines.after)[0], old_valid, new_valid, self._build)

    def _build(self, values: Int64s, valid: Flags | None) -> pa.Array:
        return _array(self._kind, values, valid)


class _End(Result):
    """The first or last value of a multiset, or the value that is beside it."""

    def __init__(self, values: ValuesOf, *, high: bool, shown: int) -> None:
        self._values, self._high, self._shown = values, high, shown

    @override
    def read(self, lines: Lines) -> Reading:
        codec, cells = self._values.codec, lines.cells[self._values.at]
        shape = (lines.entries, codec.words)
        old, new = np.empty(shape, np.int64), np.empty(shape, np.int64)
        old_valid, new_valid = np.empty(lines.entries, np.uint8), np.empty(lines.entries, np.uint8)
        read_ends(
            lines.heap,
            lines.entries,
            lines.line_words,
            self._values.at,
            lines.before_address,
            cells.bounds,
            cells.keys,
            cells.weights,
            cells.before,
            codec.words,
            codec.texts,
            self._high,
            int(old.ctypes.data),
            int(new.ctypes.data),
            old_valid,
            new_valid,
        )
        return _EndReading(old, new, old_valid, new_valid, self._values, self._shown, lines.heap)


@dataclass(slots=True)
class _EndReading:
    old: Int64s
    new: Int64s
    old_valid: Flags
    new_valid: Flags
    values: ValuesOf
    shown: int
    heap: int

    def differs(self) -> Flags:
        begin, end, texts = self.values.codec.span(self.shown)
        differ = np.empty(len(self.old), np.uint8)
        old, new = np.ascontiguousarray(self.old[:, begin:end]), np.ascontiguousarray(self.new[:, begin:end])
        differing_keys(int(old.ctypes.data), int(new.ctypes.data), len(old), end - begin, texts, differ)
        was, is_ = self.old_valid != 0, self.new_valid != 0
        if self.values.codec.may_be_null[self.shown]:  # what is beside a value may be NULL, as where there is no value
            was, is_ = was & (old[:, 0] != 0), is_ & (new[:, 0] != 0)
        return np.asarray(((differ != 0) & is_) | (was != is_))

    def column(self, old: Int64s, new: Int64s) -> pa.Array:
        keys = np.concatenate([self.old[old], self.new[new]])
        valid = np.concatenate([self.old_valid[old], self.new_valid[new]])
        return self.values.codec.decode(self.shown, keys, None if valid.all() else valid, self.heap)


class _Collected:
    """All values of a multiset, in order."""

    def __init__(self, call: AggregateCall, values: ValuesOf, kind: pa.DataType) -> None:
        self._call, self._values, self._kind = call, values, kind
        self._repeated = call.kind == "collect_list"

    @property
    def _size_at(self) -> int:
        return self._values.total_at if self._repeated else self._values.distinct_at

    def check(self, lines: Lines, tick: Tick, relation: str) -> None:
        beyond = lines.after[:, self._size_at] > self._call.limit
        if not beyond.any():
            return
        entry = int(np.flatnonzero(beyond)[0])
        group, size = lines.group_of(entry), int(lines.after[entry, self._size_at])
        raise ResourceError(
            f'the aggregate over "{relation}", epoch {tick.epoch}: {self._call.name} of the group {group} would hold {size} '
            f"values, more than its limit of {self._call.limit}; nothing of the epoch was applied. Raise limit=..., or group "
            "by more columns.",
            code="COLLECT_LIMIT",
            relation=relation,
            group=group,
            aggregate=self._call.name,
            values=size,
            limit=self._call.limit,
        )

    def read(self, lines: Lines) -> Reading:
        return _CollectedReading(lines, self._values, self._size_at, self._repeated, self._kind)


@dataclass(slots=True)
class _CollectedReading:
    lines: Lines
    values: ValuesOf
    size_at: int
    repeated: bool
    kind: pa.DataType

    def differs(self) -> Flags:
        cells = self.lines.cells[self.values.at]
        count = cells.count
        before, after = cells.before[:count], cells.before[:count] + cells.weights[:count]
        changed = before != after if self.repeated else (before > 0) != (after > 0)
        sums = np.concatenate([[0], np.cumsum(changed)])
        bounds = cells.bounds[: self.lines.entries + 1]
        return np.asarray(sums[bounds[1:]] != sums[bounds[:-1]])

    def column(self, old: Int64s, new: Int64s) -> pa.Array:
        lines, codec, cells = self.lines, self.values.codec, self.lines.cells[self.values.at]
        sizes = np.concatenate([lines.before[old, self.size_at], lines.after[new, self.size_at]])
        ends = np.concatenate([[0], np.cumsum(sizes)])
        if ends[-1] > _MAX_ITEMS:
            raise ResourceError(
                f"one chunk of an answer would hold {ends[-1]} values in lists, more than an Arrow array takes; set chunk_rows "
                "to fewer rows.",
                code="LIST_VALUES",
                values=int(ends[-1]),
            )
        keys = np.empty((int(ends[-1]), codec.words), np.int64)
        for chosen, is_after, first in ((old, False, 0), (new, True, int(ends[len(old)]))):
            list_values(
                lines.heap,
                chosen,
                len(chosen),
                lines.line_words,
                self.values.at,
                lines.before_address,
                cells.bounds,
                cells.keys,
                cells.weights,
                cells.before,
                codec.words,
                codec.texts,
                is_after,
                self.repeated,
                int(keys.ctypes.data) + 8 * first * codec.words,
            )
        items = codec.decode(0, keys, None, lines.heap)
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), items).cast(self.kind)


def result_of(call: AggregateCall, accumulator: Accumulator | None, kind: pa.DataType) -> Result:
    """Return the result of a call, given the accumulator it reads (None: the row count) and its type."""
    if accumulator is None:
        return _Count(0)
    if isinstance(accumulator, ValuesOf):
        return _multiset_result(call, accumulator, kind)
    if call.kind == "count":
        return _Count(accumulator.at)
    if isinstance(accumulator, BitCounts):
        return _Bits(call.kind, accumulator, kind)
    if isinstance(accumulator, MomentsOfFloats) and call.kind not in ("sum", "avg"):
        return _Variance(accumulator, sample=call.kind.endswith("samp"), root=call.kind.startswith("stddev"))
    if isinstance(accumulator, SumOfFloats):
        return _FloatSum(accumulator, average=call.kind == "avg")
    if not pa.types.is_decimal(kind):
        return _IntegerSum(call, accumulator) if call.kind == "sum" else _IntegerAverage(accumulator)
    factor = 10 ** (kind.scale - accumulator.source.types[0].scale)
    return _DecimalResult(call, accumulator, kind, factor=factor)


def _multiset_result(call: AggregateCall, values: ValuesOf, kind: pa.DataType) -> Result:
    if call.kind == "count_distinct":
        return _Count(values.distinct_at)
    if call.kind in ("collect_list", "collect_set"):
        return _Collected(call, values, kind)
    by_order = call.kind.endswith("_by")
    return _End(values, high=call.kind.startswith("max"), shown=1 if by_order else 0)
