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

from zset_join.changelog.formats import METADATA, RecordFormat, RecordOptions
from zset_join.changelog.formats.records import UNAVAILABLE
from zset_join.sources.ordinary_values import PLAIN, OrdinaryValue, value_of

__all__ = ["OrdinaryRecords", "ordinary_reader"]

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
