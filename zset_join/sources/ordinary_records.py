"""Ordinary records of Debezium, read at once in the types of their columns by Arrow's parser of JSON.

A record is ordinary when it is one object without an envelope that inserts, reads or updates a whole row, keeps the key, is of
the table of the source, and has the JSON values of the columns' types. All others are left to `json_records`.

The law: what is read here, `json_records` reads the same. Arrow's parser raises where a value is not of the type of its column,
or a name comes twice; then none of the records of the chunk counts as ordinary.

Cost: one pass over the texts, without a copy where all records of a chunk are ordinary.

Limits: tables with a key whose columns are whole numbers of 16 bits and more, doubles, booleans, strings, decimals as text,
dates, timestamps with a declared unit and instants as text, read from records of any database and without other metadata than
the position and Kafka's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from zset_join.changelog.formats import METADATA, RecordFormat, RecordOptions
from zset_join.changelog.formats.record_sql import FIRST_DAY, LAST_DAY, first_and_last
from zset_join.changelog.formats.records import UNAVAILABLE, TimeUnit

__all__ = ["OrdinaryRecords", "ordinary_reader"]

_PLAIN = {pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.string()}
_OF_KAFKA = ("topic", "partition", "offset")
_UPSERTS = pa.array(["c", "r", "u"])
_INSTANT = r"^[1-9][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?Z$"
_CHUNK_ROWS = 1 << 16
_MOST_TABLES = 16


def ordinary_reader(
    record: RecordFormat, schema: pa.Schema, keys: Sequence[str], options: RecordOptions, source: str | None
) -> OrdinaryRecords | None:
    """Return what reads the ordinary records of a table; None where the table or its format has none.

    Args:
        record: the format.
        schema: the columns of the table.
        keys: its key columns.
        options: what the format leaves open.
        source: what the source is called; None: records of any table are read.
    """
    is_known = record.name == "debezium-json" and bool(keys) and options.tables is None and options.databases is None
    is_known &= options.unavailable == UNAVAILABLE and {*options.metadata} <= {"position", *_OF_KAFKA}
    values = {field.name: _value_of(field, options) for field in schema}
    if not is_known or None in values.values():
        return None
    return OrdinaryRecords(
        schema, tuple(keys), options.metadata, source, {name: one for name, one in values.items() if one is not None}
    )


@dataclass(frozen=True)
class _Value:
    """How the values of a column are written in JSON, and read.

    Args:
        written: the type they are parsed as.
        kind: the type of the column.
        unit: of a number that is a timestamp.
    """

    written: pa.DataType
    kind: pa.DataType
    unit: TimeUnit = "us"

    def read(self, column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """Return values, and which could be read; those that could not are NULL."""
        if self.written == self.kind:
            return column, np.ones(len(column), np.bool_)
        if self.written == pa.string():
            fits = pc.match_substring_regex(column, _decimal(self.kind) if pt.is_decimal(self.kind) else _INSTANT)
        else:
            first, last = (FIRST_DAY, LAST_DAY) if pt.is_date(self.kind) else first_and_last(self.unit)
            fits = pc.and_(pc.greater_equal(column, first), pc.less_equal(column, last))
        column = pc.if_else(fits, column, pa.scalar(None, column.type))
        if self.written != pa.string():
            column = column.cast(pa.int32() if pt.is_date(self.kind) else pa.timestamp(self.unit))
        try:
            return column.cast(self.kind), np.asarray(pc.fill_null(fits, True))
        except pa.ArrowInvalid:  # no such day
            return pa.nulls(len(column), self.kind), np.zeros(len(column), np.bool_)


def _value_of(field: pa.Field, options: RecordOptions) -> _Value | None:
    """Return how the values of a column are written; None where they have no single form."""
    kind, unit = field.type, options.unit_of(field.name)
    if kind in _PLAIN:
        return _Value(kind, kind)
    if pt.is_decimal128(kind) and kind.scale >= 0 and options.decimals == "text":
        return _Value(pa.string(), kind)
    if pt.is_date32(kind):
        return _Value(pa.int64(), kind)
    if pt.is_timestamp(kind) and kind.unit == "us" and kind.tz == "UTC" and unit is None:
        return _Value(pa.string(), kind)
    if pt.is_timestamp(kind) and kind.unit == "us" and kind.tz is None and unit in ("s", "ms", "us"):
        return _Value(pa.int64(), kind, unit)
    return None


def _decimal(kind: pa.Decimal128Type) -> str:
    """Return the texts of numbers that a type has without rounding."""
    fraction = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
    before = kind.precision - kind.scale
    return rf"^-?(0|[1-9][0-9]{{0,{before - 1}}}){fraction}$" if before else rf"^-?0{fraction}$"


@dataclass(frozen=True)
class OrdinaryRecords:
    """Read the ordinary ones among records.

    Args:
        schema: the columns of the table.
        keys: its key columns.
        metadata: the other fields of the record, to the name of its column.
        source: what the source is called; None: records of any table are read.
        values: by column, how its values are written.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    metadata: Mapping[str, str]
    source: str | None
    values: Mapping[str, _Value]

    def read(self, table: pa.Table) -> tuple[npt.NDArray[np.int64], list[pa.Array]]:
        """Return which records are ordinary, and the columns of the table and of the metadata of these.

        Args:
            table: `value` as text, and `topic`, `partition`, `offset` where they are known.
        """
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
        looks = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
        numbers = np.flatnonzero(np.asarray(pc.fill_null(looks, False)))
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
        after, before, place = (_one(parsed.column(name)) for name in ("after", "before", "source"))
        good = np.asarray(pc.fill_null(pc.is_in(_one(parsed.column("op")), _UPSERTS), False)) & np.asarray(after.is_valid())
        fields = {name: after.field(name) for name in self.schema.names}
        for field in self.schema:
            column = fields[field.name]
            if field.name in self.keys:
                good &= np.asarray(column.is_valid())
                old = before.field(field.name)
                same = pc.fill_null(pc.equal(old, column), False)
                good &= ~np.asarray(before.is_valid()) | ~np.asarray(old.is_valid()) | np.asarray(same)
            fields[field.name], is_read = self.values[field.name].read(column)
            good &= is_read
            if pt.is_string(field.type):
                good &= ~np.asarray(pc.fill_null(pc.equal(column, UNAVAILABLE), False))
            elif pt.is_floating(field.type):
                good &= np.asarray(pc.fill_null(pc.is_finite(column), True))
        given = table.take(pa.array(numbers)) if len(numbers) < table.num_rows else table
        if self.source is not None:
            good &= self._is_of_table(place, given)
        columns = [*fields.values(), *(self._metadata_of(name, place, given) for name in self.metadata)]
        if good.all():
            return numbers, columns
        chosen = np.flatnonzero(good)
        return numbers[chosen], [column.take(pa.array(chosen)) for column in columns]

    def _parsed(self, values: pa.StringArray) -> pa.Table:
        """Return records as the columns `op`, `before` with the key, `after` and `source`."""
        beside: list[Any] = [pa.field("table", pa.string())] if self.source is not None else []
        beside += [pa.field("lsn", pa.int64())]
        wanted = pa.schema(
            [
                ("op", pa.string()),
                ("before", pa.struct([pa.field(name, self.values[name].written) for name in self.keys])),
                ("after", pa.struct([pa.field(name, self.values[name].written) for name in self.schema.names])),
                ("source", pa.struct(beside)),
            ]
        )
        offsets, text = values.buffers()[1:]
        bounds = np.frombuffer(offsets, np.int32)[[values.offset, values.offset + len(values)]].tolist()
        read = pj.ReadOptions(use_threads=False, block_size=max(1, bounds[1] - bounds[0] + 1))
        parse = pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
        return pj.read_json(pa.BufferReader(text.slice(bounds[0], bounds[1] - bounds[0])), read, parse)

    def _is_of_table(self, place: pa.StructArray, given: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which records name no table, that of the source, or the one that their topic ends with."""
        table = place.field("table")
        good: npt.NDArray[np.bool_] = np.asarray(pc.fill_null(pc.equal(table, ""), True)) | ~np.asarray(place.is_valid())
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

    def _metadata_of(self, name: str, place: pa.StructArray, given: pa.Table) -> pa.Array:
        """Return the fields beside the rows."""
        if name == "position":
            return place.field("lsn")
        if name not in given.column_names:
            return pa.nulls(given.num_rows, METADATA[name])
        return _one(given.column(name)).cast(METADATA[name])


def _one(column: pa.ChunkedArray | pa.Array) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
