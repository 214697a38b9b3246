"""How the values of a column are written in ordinary records, and read at once: plain ones, lists and structs of them.

The law: what is read here, `json_records` reads the same; a value that it may read otherwise is no ordinary one.

Cost: some passes in Arrow for each type in a column; value by value for bytes in lists and structs, which are base64.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.changelog.formats import RecordFormat, RecordOptions
from zset_join.changelog.formats.record_sql import FIRST_DAY, LAST_DAY, first_and_last
from zset_join.changelog.formats.records import UNAVAILABLE, TimeUnit, placeholders
from zset_join.sources.json_values import bytes_of_base64, within_precision

__all__ = ["PLAIN", "OrdinaryValue", "value_of"]

PLAIN = {pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.string()}
"""Types whose values are the same in JSON."""
_DAY = "[1-9][0-9]{3}-[01][0-9]-[0-3][0-9]"
_TIME = r"[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_DIGITS = {pa.int16(): 4, pa.int32(): 9, pa.int64(): 18}
"""As many as every number has room for."""
_FLOAT = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?$"
_NOT_SENT = placeholders(UNAVAILABLE)
_IN_LISTS = [json.loads(one) for one in _NOT_SENT if one.startswith("[")]
_PLACEHOLDERS = pa.array([*_NOT_SENT, *(one[0] for one in _IN_LISTS if isinstance(one[0], str))])
_OF_NUMBERS = next(one for one in _IN_LISTS if isinstance(one[0], int))
_Read: TypeAlias = tuple[pa.Array, npt.NDArray[np.bool_]]


class OrdinaryValue(Protocol):
    """How the values of a column are written in JSON, and read."""

    @property
    def written(self) -> pa.DataType:
        """Return the type they are parsed as."""

    def read(self, column: pa.Array) -> _Read:
        """Return values, and which could be read; those that could not may have any value."""


def value_of(field: pa.Field, record: RecordFormat, options: RecordOptions) -> OrdinaryValue | None:
    """Return how the values of a column are written; None where they have no single form."""
    kind, unit = field.type, options.unit_of(field.name)
    if pt.is_nested(kind):
        inside = None if record.is_list else _nested(kind)
        return None if inside is None else _Column(inside)
    if kind == pa.string():
        return _Plain(kind, kind)
    if pt.is_decimal128(kind) and kind.scale >= 0 and (options.decimals or record.decimals) == "text":
        may_be_number = not (record.counts_times or record.is_list)
        return _Plain(kind, kind) if may_be_number else _Plain(pa.string(), kind, _decimal(kind))
    if pt.is_date32(kind):
        return _Plain(pa.int64(), kind) if record.counts_times else _Plain(pa.string(), kind, f"^{_DAY}$")
    if pt.is_timestamp(kind) and kind.unit == "us" and unit is None:
        return None if kind.tz is None and record.counts_times else _text_of_time(kind)
    if record.is_list:
        return _text_of_number(kind)
    if kind in PLAIN:
        return _Plain(kind, kind)
    if pt.is_timestamp(kind) and kind.unit == "us" and kind.tz is None and unit in ("s", "ms", "us"):
        return _Plain(pa.int64(), kind, unit=unit)
    return None


def _text_of_time(kind: pa.TimestampType) -> OrdinaryValue | None:
    if kind.tz is None:
        return _Plain(pa.string(), kind, f"^{_DAY}[T ]{_TIME}$")
    return _Plain(pa.string(), kind, f"^{_DAY}T{_TIME}Z$") if kind.tz == "UTC" else None


def _text_of_number(kind: pa.DataType) -> OrdinaryValue | None:
    """Return how Canal writes the values of a column: as texts."""
    if kind in _DIGITS:
        return _Plain(pa.string(), kind, f"^-?(0|[1-9][0-9]{{0,{_DIGITS[kind] - 1}}})$")
    return _Plain(pa.string(), kind, _FLOAT) if kind == pa.float64() else None


def _decimal(kind: pa.Decimal128Type) -> str:
    """Return the texts of numbers that a type has without rounding."""
    fraction = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
    before = kind.precision - kind.scale
    return rf"^-?(0|[1-9][0-9]{{0,{before - 1}}}){fraction}$" if before else rf"^-?0{fraction}$"


def _nested(kind: pa.DataType) -> OrdinaryValue | None:
    """Return how values in lists and structs are written, where a number is no time and bytes are base64."""
    if pt.is_struct(kind):
        parts = [_nested(field.type) for field in kind]
        known = tuple(one for one in parts if one is not None)
        names = {field.name for field in kind}
        return _Struct(kind, known) if known and len(known) == len(parts) == len(names) else None
    if pt.is_list(kind) or pt.is_large_list(kind):
        member = _nested(kind.value_type)
        return None if member is None else _List(kind, member)
    if kind in PLAIN or (pt.is_decimal128(kind) and kind.scale >= 0):
        return _Plain(kind, kind, is_inside=True)
    if pt.is_binary(kind):
        return _Bytes()
    if pt.is_date32(kind):
        return _Plain(pa.string(), kind, f"^{_DAY}$")
    return _text_of_time(kind) if pt.is_timestamp(kind) and kind.unit == "us" else None


@dataclass(frozen=True)
class _Plain:
    """A value that is not nested."""

    written: pa.DataType
    kind: pa.DataType
    pattern: str | None = None
    unit: TimeUnit = "us"
    is_inside: bool = False

    def read(self, column: pa.Array) -> _Read:
        """Return values, and which could be read; those that could not are NULL, texts of a value not sent excepted."""
        if pt.is_decimal128(self.written):
            return column, np.asarray(pc.fill_null(within_precision(column), True))
        if pt.is_string(self.kind):
            return column, _is_sent(column)
        if pt.is_floating(self.kind) and self.pattern is None:
            good = np.asarray(pc.fill_null(pc.is_finite(column), True))
            if self.is_inside:
                numbers = np.asarray(pc.fill_null(column, 1.0))
                good = good & ~((numbers == 0) & np.signbit(numbers))
            return column, good
        if self.written == self.kind:
            return column, np.ones(len(column), np.bool_)
        if self.pattern is not None:
            fits = pc.match_substring_regex(column, self.pattern)
        else:
            first, last = (FIRST_DAY, LAST_DAY) if pt.is_date(self.kind) else first_and_last(self.unit)
            fits = pc.and_(pc.greater_equal(column, first), pc.less_equal(column, last))
        column = pc.if_else(fits, column, pa.scalar(None, column.type))
        if self.pattern is None:
            column = column.cast(pa.int32() if pt.is_date(self.kind) else pa.timestamp(self.unit))
        try:
            values = column.cast(self.kind)
        except pa.ArrowInvalid:  # no such day
            return pa.nulls(len(column), self.kind), np.zeros(len(column), np.bool_)
        found = np.asarray(pc.fill_null(fits, True))
        return values, found & np.asarray(pc.fill_null(pc.is_finite(values), True)) if pt.is_floating(self.kind) else found


def _is_sent(column: pa.Array) -> npt.NDArray[np.bool_]:
    was_not = pc.or_(pc.is_in(column, _PLACEHOLDERS), pc.match_substring(column, UNAVAILABLE))
    return ~np.asarray(pc.fill_null(was_not, False))


@dataclass(frozen=True)
class _Bytes:
    """Bytes inside of a nested value: base64."""

    written: pa.DataType = pa.string()

    def read(self, column: pa.Array) -> _Read:
        """Return values, and which could be read."""
        values = pa.array([None if one is None else bytes_of_base64(one) for one in column.to_pylist()], pa.binary())
        return values, _is_sent(column) & np.asarray(pc.equal(values.is_valid(), column.is_valid()))


@dataclass(frozen=True)
class _Struct:
    kind: pa.StructType
    parts: tuple[OrdinaryValue, ...]

    @property
    def written(self) -> pa.DataType:
        return pa.struct([pa.field(field.name, part.written) for field, part in zip(self.kind, self.parts, strict=True)])

    def read(self, column: pa.StructArray) -> _Read:
        good, arrays = np.ones(len(column), np.bool_), []
        for part, inside in zip(self.parts, column.flatten(), strict=True):
            values, is_read = part.read(inside)
            arrays.append(values)
            good &= is_read
        return pa.StructArray.from_arrays(arrays, fields=list(self.kind), mask=column.is_null()), good


@dataclass(frozen=True)
class _List:
    kind: pa.ListType
    member: OrdinaryValue

    @property
    def written(self) -> pa.DataType:
        return pa.list_(self.member.written)

    def read(self, column: pa.ListArray) -> _Read:
        values, is_read = self.member.read(column.flatten())
        good = np.ones(len(column), np.bool_)
        good[np.asarray(pc.list_parent_indices(column))[~is_read]] = False
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        made = pa.LargeListArray if pt.is_large_list(self.kind) else pa.ListArray
        places = pa.array(offsets, pa.int64() if pt.is_large_list(self.kind) else pa.int32())
        return made.from_arrays(places, values, type=self.kind, mask=column.is_null()), good


@dataclass(frozen=True)
class _Column:
    """A nested column, whose value may be one that was not sent."""

    inside: OrdinaryValue

    @property
    def written(self) -> pa.DataType:
        return self.inside.written

    def read(self, column: pa.Array) -> _Read:
        values, good = self.inside.read(column)
        if pt.is_struct(column.type):
            has_field = np.zeros(len(column), np.bool_)
            for one in column.flatten():
                has_field |= np.asarray(one.is_valid())
            return values, good & (has_field | np.asarray(column.is_null()))
        is_as_long = np.asarray(pc.fill_null(pc.equal(pc.list_value_length(column), len(_OF_NUMBERS)), False))
        if is_as_long.any():
            kept = [one != _OF_NUMBERS for one in column.filter(pa.array(is_as_long)).to_pylist()]
            good[np.flatnonzero(is_as_long)] &= kept
        return values, good
