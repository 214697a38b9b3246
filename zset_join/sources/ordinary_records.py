"""Ordinary records, read at once in the types of their columns by Arrow's parser of JSON.

A record is ordinary when it is one object without an envelope that inserts, reads or updates one whole row, keeps the key,
is of the table of the source, and has the JSON values of the columns' types, or, of Canal, their texts. All others are left
to `json_records`.

The law: what is read here, `json_records` reads the same. Arrow's parser raises where a value is not of the type of its column,
or a name comes twice; then none of the records of the chunk counts as ordinary.

Cost: one pass over the texts, without a copy where all records of a chunk are ordinary.

Limits: tables with a key whose columns are whole numbers of 16 bits and more, doubles, booleans (not of Canal), strings,
decimals that are no bytes, dates, timestamps with a declared unit or as text, and instants as text; beside the key also lists
and structs, whose times are texts (not of Canal); of records of any database and without other metadata than the position and
Kafka's.

`OrdinaryValue`: how the values of a column are written in ordinary records, and read at once: plain ones, lists and structs of
them.

The law: what is read here, `json_records` reads the same; a value that it may read otherwise is no ordinary one.

Cost: some passes in Arrow for each type in a column; value by value for bytes in lists and structs, which are base64.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from zset_join.changelog.formats import METADATA, RecordFormat, RecordOptions
from zset_join.changelog.formats.record_sql import FIRST_DAY, LAST_DAY, first_and_last
from zset_join.changelog.formats.records import UNAVAILABLE, TimeUnit, placeholders
from zset_join.sources.json_values import bytes_of_base64, within_precision

__all__ = ["ordinary_reader"]

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


_OF_KAFKA = ("topic", "partition", "offset")
_TWO = r"\}[ \t\r\n]*\{"
_CHUNK_ROWS = 1 << 16
_MOST_TABLES = 16


def ordinary_reader(
    record: RecordFormat, schema: pa.Schema, keys: Sequence[str], options: RecordOptions, source: str | None
) -> OrdinaryRecords | None:
    """Return a reader of the ordinary records of a table; None where the table or its format has none."""
    is_known = bool(keys) and options.tables is None and options.databases is None
    is_known &= options.unavailable == UNAVAILABLE and {*options.metadata} <= {"position", *_OF_KAFKA}
    is_known &= not any(pa.types.is_nested(schema.field(name).type) for name in keys)
    values = {field.name: value_of(field, record, options) for field in schema}
    if not is_known or None in values.values():
        return None
    known = {name: one for name, one in values.items() if one is not None}
    return OrdinaryRecords(record, schema, tuple(keys), options.metadata, source if record.table else None, known)


@dataclass(frozen=True)
class OrdinaryRecords:
    record: RecordFormat
    schema: pa.Schema
    keys: tuple[str, ...]
    metadata: Mapping[str, str]
    source: str | None
    values: Mapping[str, OrdinaryValue]

    def read(self, table: pa.Table) -> tuple[npt.NDArray[np.int64], list[pa.Array]]:
        """Return which records are ordinary, and the columns of the table and of the metadata of these."""
        numbers: list[npt.NDArray[np.int64]] = []
        columns: list[list[pa.Array]] = []
        for begin in range(0, table.num_rows, _CHUNK_ROWS):
            found, values = self._chunk(table.slice(begin, _CHUNK_ROWS))
            if len(found):
                numbers.append(found + begin)
                columns.append(values)
        if not numbers:
            return np.zeros(0, np.int64), []
        if len(numbers) == 1:
            return numbers[0], columns[0]
        return np.concatenate(numbers), [pa.concat_arrays(pieces) for pieces in zip(*columns, strict=True)]

    def _chunk(self, table: pa.Table) -> tuple[npt.NDArray[np.int64], list[pa.Array]]:
        nothing: tuple[npt.NDArray[np.int64], list[pa.Array]] = (np.zeros(0, np.int64), [])
        values = _one(table.column("value"))
        looks = np.asarray(pc.fill_null(pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}")), False))
        # Without two objects in one text, as many objects as texts mean one each: none goes over two.
        looks &= ~np.asarray(pc.fill_null(pc.match_substring_regex(values, _TWO), False))
        numbers = np.flatnonzero(looks & self._is_open(table))
        if not len(numbers):
            return nothing
        if len(numbers) < len(values):
            values = values.take(pa.array(numbers))
        try:
            parsed = self._parsed(values)
        except pa.ArrowInvalid:
            return nothing
        if parsed.num_rows != len(numbers):
            return nothing
        fields, good = self._row(parsed, self.record.row)
        before, has_before = self._row(parsed, self.record.moved) if self.record.moved else ({}, good)
        good = good & self._is_upsert(parsed)
        if self.record.is_list and self.record.moved:
            good &= has_before | ~np.asarray(_one(parsed.column(self.record.moved[0])).is_valid())
        for field in self.schema:
            column = fields[field.name]
            if field.name in self.keys:
                good &= np.asarray(column.is_valid())
                if before:
                    old = before[field.name]
                    same = pc.fill_null(pc.equal(old, column), False)
                    good &= ~has_before | ~np.asarray(old.is_valid()) | np.asarray(same)
            fields[field.name], is_read = self.values[field.name].read(column)
            good &= is_read
        given = table.take(pa.array(numbers)) if len(numbers) < table.num_rows else table
        if self.source is not None:
            good &= self._is_of_table(_at(parsed, self.record.table), given)
        columns = [
            *(fields[name] for name in self.schema.names),
            *(self._metadata_of(name, parsed, given) for name in self.metadata),
        ]
        if good.all():
            return numbers, columns
        chosen = np.flatnonzero(good)
        return numbers[chosen], [column.take(pa.array(chosen)) for column in columns]

    def _parsed(self, values: pa.StringArray) -> pa.Table:
        """Return the parsed records, as columns and the structs that contain them."""
        record, written = self.record, {name: one.written for name, one in self.values.items()}
        fields: _Fields = {}
        for path, names in ((record.moved, self.keys), (record.row, self.schema.names)):
            row: pa.DataType = pa.struct([pa.field(name, written[name]) for name in names])
            _put(fields, path, pa.list_(row) if record.is_list else row)
        if not record.row:
            fields |= written
        _put(fields, record.operation, pa.string())
        _put(fields, record.table if self.source is not None else (), pa.string())
        _put(fields, record.position if "position" in self.metadata else (), pa.int64())
        wanted = pa.schema([pa.field(name, _type_of(inner)) for name, inner in fields.items()])
        offsets, text = values.buffers()[1:]
        bounds = np.frombuffer(offsets, np.int32)[[values.offset, values.offset + len(values)]].tolist()
        read = pj.ReadOptions(use_threads=False, block_size=max(1, bounds[1] - bounds[0] + 1))
        parse = pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
        return pj.read_json(pa.BufferReader(text.slice(bounds[0], bounds[1] - bounds[0])), read, parse)

    def _is_open(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which records have no schema beside them that may define how a value is written."""
        # A record of a format with operations has none then, for it would be in the envelope.
        found = np.ones(table.num_rows, np.bool_)
        if not self.record.enveloped:
            return found
        beside = [] if self.record.operation else ["value"]
        if beside or not {self.schema.field(name).type for name in self.keys} <= PLAIN:
            beside += ["key"] if "key" in table.column_names else []
        for name in beside:
            found &= ~np.asarray(pc.fill_null(pc.match_substring(_one(table.column(name)), "payload"), False))
        return found

    def _row(self, parsed: pa.Table, path: Sequence[str]) -> tuple[dict[str, pa.Array], npt.NDArray[np.bool_]]:
        """Return the columns of a row of records, and which have it, and no other one."""
        if not path:
            return {name: _one(parsed.column(name)) for name in self.schema.names}, np.ones(parsed.num_rows, np.bool_)
        rows = _at(parsed, path)
        if self.record.is_list:
            is_one = np.asarray(pc.fill_null(pc.equal(pc.list_value_length(rows), 1), False))
            places = pa.array(np.asarray(rows.offsets)[:-1], mask=~is_one)
            rows = rows.values.take(places)
        kind: pa.StructType = rows.type
        return {field.name: rows.field(field.name) for field in kind}, np.asarray(rows.is_valid())

    def _is_upsert(self, parsed: pa.Table) -> npt.NDArray[np.bool_]:
        if not self.record.operation:
            return np.ones(parsed.num_rows, np.bool_)
        upserts = pa.array([word for word, means in self.record.operations.items() if means == "upsert"])
        words = pc.ascii_lower(_at(parsed, self.record.operation))
        return np.asarray(pc.fill_null(pc.is_in(words, upserts), False))

    def _is_of_table(self, table: pa.StringArray, given: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which records name no table, that of the source, or the one that their topic ends with."""
        good: npt.NDArray[np.bool_] = np.asarray(pc.fill_null(pc.equal(table, ""), True))
        names = [name for name in table.unique().to_pylist() if name]
        for name in names[:_MOST_TABLES]:
            own = np.asarray(pc.fill_null(pc.equal(table, name), False))
            if name != self.source and "topic" in given.column_names:
                topic = _one(given.column("topic"))
                of_topic = pc.or_(pc.equal(topic, name), pc.ends_with(topic, f".{name}"))
                own &= np.asarray(pc.fill_null(of_topic, False))
            elif name != self.source:
                continue
            good |= own
        return good

    def _metadata_of(self, name: str, parsed: pa.Table, given: pa.Table) -> pa.Array:
        """Return the fields beside the rows."""
        if name == "position" and self.record.position:
            return _at(parsed, self.record.position)
        if name not in given.column_names:
            return pa.nulls(given.num_rows, METADATA[name])
        return _one(given.column(name)).cast(METADATA[name])


_Fields = dict[str, Any]


def _put(fields: _Fields, path: Sequence[str], kind: pa.DataType) -> None:
    """Add a field at a path; none where the path is empty."""
    for name in path[:-1]:
        fields = fields.setdefault(name, {})
    if path:
        fields[path[-1]] = kind


def _type_of(inner: _Fields | pa.DataType) -> pa.DataType:
    if isinstance(inner, dict):
        return pa.struct([pa.field(name, _type_of(one)) for name, one in inner.items()])
    return inner


def _at(parsed: pa.Table, path: Sequence[str]) -> Any:
    """Return the value at a path of records; NULL if a part of the path is absent."""
    column = _one(parsed.column(path[0]))
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _one(column: pa.ChunkedArray | pa.Array) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
