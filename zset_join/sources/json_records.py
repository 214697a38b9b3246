"""Records of JSON read in process, by DuckDB: what Debezium, Canal and Maxwell write becomes changes of a table.

The law: lines out + records that mean no change = records in, but for Canal's, of which one may have several rows; a record
that cannot be read is a line that says why. The lines stand in the order of the records.

Cost: one pass in DuckDB, which parses every record and its key once; base64 decimals are put together by NumPy.

Limits: JSON numbers go through double precision, so a decimal that is written as a number (Maxwell's, and Debezium's with
`decimal.handling.mode=double`) keeps 15 digits; one with more is a bad value. As text or base64 all 38 are kept.
"""

# ruff: noqa: S608 - every name in the statements is ours.

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.changelog.formats import METADATA, RecordFormat, RecordOptions, record_format
from zset_join.changelog.formats.record_sql import (
    CHANGE,
    PER_SECOND,
    REJECT,
    UNAVAILABLE_BITS,
    Dialect,
    RecordStatements,
)
from zset_join.errors import PlanError
from zset_join.sources.json_texts import read_json_texts

__all__ = ["JsonRecordReader", "ReadRecords"]

_RECORDS = "records_to_read"
_ROW = "__row_number"
_NOT_UTF8 = "bytes that are no UTF-8"


@dataclass(frozen=True, kw_only=True)
class ReadRecords:
    """What was read of n records.

    Args:
        rows: the columns of the table, then those of the metadata; one row per line.
        changes: per line `upsert`, `delete` or `truncate`; NULL for a line that cannot be read.
        unavailable: int64, per line the columns that were not sent, as bits.
        rejects: per line the code of what is wrong, for a bad value followed by the name of its column; else NULL.
        records: int64, the record that each line comes from.
    """

    rows: pa.RecordBatch
    changes: pa.Array
    unavailable: np.ndarray
    rejects: pa.Array
    records: np.ndarray


class JsonRecordReader:
    """Read the records of one table.

    Args:
        format_name: one of `RECORD_FORMATS`.
        schema: the columns of the table.
        keys: its key columns; none for a table without a key, whose old rows then come with every change.
        options: what the format leaves open.

    Raises:
        OptionError: there is no such format.
        PlanError: a key column that is not in the schema, or a column type that JSON cannot be read as.

    >>> reader = JsonRecordReader("debezium-json", pa.schema({"id": pa.int64(), "v": pa.string()}), ["id"])
    >>> read = reader.read(pa.table({"key": ['{"id":1}'], "value": ['{"op":"c","after":{"id":1,"v":"a"}}']}))
    >>> read.changes.to_pylist(), read.rows.to_pylist()
    (['upsert'], [{'id': 1, 'v': 'a'}])
    >>> reader.close()
    """

    def __init__(
        self, format_name: str, schema: pa.Schema, keys: Sequence[str] = (), options: RecordOptions | None = None
    ) -> None:
        self.format: RecordFormat = record_format(format_name)
        self.schema = schema
        self.keys = tuple(keys)
        self.options = options or RecordOptions()
        missing = [name for name in self.keys if name not in schema.names]
        if missing or not (keys or self.format.old):
            raise PlanError(
                f"format {format_name}: keys={list(keys)} must name columns of {schema.names}; only records with whole "
                "old rows, "
                "as those of debezium-json, can do without.",
                code="UNKNOWN_COLUMN",
                missing=missing,
            )
        for field in schema:
            if duckdb_type(field.type) is None:
                raise PlanError(
                    f'format {format_name}: column "{field.name}" is of type {field.type}, which is not read from JSON; '
                    "declare it "
                    "as a string and cast it.",
                    code="UNSUPPORTED_TYPE",
                    column=field.name,
                )
        decimals = self.options.decimals or self.format.decimals
        self._as_bytes = [f.name for f in schema if pt.is_decimal(f.type) and decimals == "base64"]
        exact = [field.name for field in schema if not _is_text(field.type)]
        statements = RecordStatements(
            record=self.format,
            schema=schema,
            keys=self.keys,
            options=self.options,
            dialect=_DuckDBDialect(schema.names, [name for name in exact if name not in self._as_bytes], self.keys, self.format),
        )
        self._query = statements.query(_RECORDS, [_ROW])
        self._connection = duckdb.connect(":memory:", config={"threads": 1})
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET preserve_insertion_order = true")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        _add_functions(self._connection, [*schema.types, *METADATA.values()])

    def read(self, records: pa.Table | pa.RecordBatch) -> ReadRecords:
        """Read records.

        Args:
            records: `key` and `value` as text or bytes, NULL for a tombstone; `topic`, `partition` and `offset` where their
            metadata are asked for.
        """
        table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
        table, undecodable = self._as_text(table)
        table = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
        self._connection.register(_RECORDS, table)
        try:
            lines = self._connection.sql(self._query).to_arrow_table().combine_chunks()
        finally:
            self._connection.unregister(_RECORDS)
        numbers = np.asarray(lines.column(_ROW))
        rejects = lines.column(REJECT)
        if undecodable.any():
            rejects = pc.if_else(pa.array(undecodable[numbers]), pa.scalar("UNDECODABLE_RECORD"), rejects)
        columns = []
        for field in self.schema:
            column = lines.column(field.name)
            if field.name in self._as_bytes:
                column, bad = _decimals(column.combine_chunks(), field.type)
                rejects = pc.if_else(bad, pc.coalesce(rejects, pa.scalar(f"UNDECODABLE_VALUE {field.name}")), rejects)
            columns.append(column.cast(field.type))
        names = [*self.schema.names, *self.options.metadata.values()]
        columns += [lines.column(name) for name in self.options.metadata.values()]
        rows = pa.table(columns, names=names).combine_chunks().to_batches()
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, column.type) for column in columns], names=names)
        changes = pc.if_else(pc.is_valid(rejects), pa.scalar(None, pa.string()), lines.column(CHANGE))
        return ReadRecords(
            rows=rows[0] if rows else empty,
            changes=_whole(changes),
            unavailable=np.asarray(lines.column(UNAVAILABLE_BITS), np.int64),
            rejects=_whole(rejects),
            records=numbers,
        )

    def _as_text(self, table: pa.Table) -> tuple[pa.Table, np.ndarray]:
        """Return key and value as text, and which records are no UTF-8."""
        bad = np.zeros(table.num_rows, bool)
        for name in ("key", "value"):
            column = table.column(name) if name in table.column_names else pa.nulls(table.num_rows, pa.string())
            column = _whole(column)
            if pt.is_binary(column.type) or pt.is_large_binary(column.type):
                try:
                    column = column.cast(pa.string())
                except pa.ArrowInvalid:
                    column = self._decoded(column)
                    bad |= np.asarray(pc.fill_null(pc.equal(column, _NOT_UTF8), False))
            elif pt.is_null(column.type):
                column = column.cast(pa.string())
            at = table.column_names.index(name) if name in table.column_names else -1
            table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
        if bad.any():  # the value is replaced by what no format reads, so that the record is not passed over
            value = pc.if_else(pa.array(bad), pa.scalar(_NOT_UTF8), table.column("value"))
            table = table.set_column(table.column_names.index("value"), "value", value)
        return table, bad

    def _decoded(self, column: pa.Array) -> pa.Array:
        """Return bytes as text; those that are no UTF-8 as a text that says so."""
        self._connection.register(_RECORDS, pa.table({"bytes": column}))
        text = f"CASE WHEN bytes IS NOT NULL THEN coalesce(TRY(decode(bytes)), '{_NOT_UTF8}') END"
        try:
            return _whole(self._connection.sql(f"SELECT {text} AS text FROM {_RECORDS}").to_arrow_table().column("text"))
        finally:
            self._connection.unregister(_RECORDS)

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()


def duckdb_type(data_type: pa.DataType) -> str | None:
    """Return the DuckDB type that a text is cast to; None where none of it is read from JSON."""
    plain = {
        pa.bool_(): "BOOLEAN",
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.string(): "VARCHAR",
        pa.large_string(): "VARCHAR",
        pa.binary(): "BLOB",
        pa.date32(): "DATE",
    }
    if data_type in plain:
        return plain[data_type]
    if pt.is_decimal128(data_type):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if pt.is_timestamp(data_type) and data_type.unit == "us":
        return "TIMESTAMP" if data_type.tz is None else "TIMESTAMPTZ"
    if pt.is_list(data_type):
        inner = duckdb_type(data_type.value_type)
        return None if inner is None or "DECIMAL" in inner or inner == "BLOB" else f"{inner}[]"
    return None


class _DuckDBDialect(Dialect):
    """DuckDB's words.

    Args:
        columns: of the table, in order.
        exact: those whose texts keep their quotes, so that a number is told from a text of digits.
        keys: of the table.
        record: the format.
    """

    def __init__(self, columns: Sequence[str], exact: Collection[str], keys: Sequence[str], record: RecordFormat) -> None:
        self._rows = [list(columns), list(keys)]
        self._exact = frozenset(exact)
        self._counts_days = record.counts_times

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def parsed(self, text: str, fields: Mapping[str, object]) -> str:
        spec = self.literal(json.dumps(self._structure(fields)))
        return f"CASE WHEN json_valid({text}) AND json_type({text}) = 'OBJECT' THEN json_transform({text}, {spec}) END"

    def parsed_list(self, text: str, fields: Mapping[str, object]) -> str:
        spec = self.literal(json.dumps([self._structure(fields)]))
        listed = f"CASE WHEN json_valid({text}) AND json_type({text}) = 'ARRAY' THEN json_transform({text}, {spec}) END"
        return f"unnest(coalesce(CASE WHEN len({listed}) > 0 THEN {listed} END, [NULL]))"  # no row is a line too, as in Spark

    def is_bad(self, struct: str) -> str:
        return f"{struct} IS NULL"

    def as_text(self, value: str, column: str) -> str:
        return f"nullif(CAST({value} AS VARCHAR), 'null')" if column in self._exact else value

    def exploded(self, *values: str) -> str:
        return f"unnest([{', '.join(values)}])"

    def member(self, text: str, name: str) -> str:
        member = f"CAST(json_extract({text}, {self.literal(f'$.{name}')}) AS VARCHAR)"
        return f"coalesce(CASE WHEN json_valid({text}) THEN {member} END, {text})"  # without it the record is bad, not empty

    def converted(self, text: str, data_type: pa.DataType, options: RecordOptions, decimals: str) -> str:
        if _is_text(data_type) and not pt.is_decimal(data_type):
            if pt.is_string(data_type) or pt.is_large_string(data_type):
                return text
            ends = f"CASE WHEN {text} LIKE '%=' THEN '' WHEN length({text}) % 4 = 2 THEN '==' WHEN length({text}) % 4 = 3 THEN '=' ELSE '' END"
            return f"TRY(from_base64({text} || {ends}))"
        if pt.is_decimal(data_type) and decimals == "base64":
            return f"TRY(from_base64({text}))"
        days = self._counts_days and pt.is_date(data_type)
        return f"{function_of(data_type, options.time_unit, counts_days=days)}({text})"

    def _structure(self, fields: Mapping[str, object]) -> dict[str, object]:
        exact = self._exact if list(fields) in self._rows else frozenset()
        return {
            name: self._structure(inner) if isinstance(inner, Mapping) else "JSON" if name in exact else "VARCHAR"
            for name, inner in fields.items()
        }


def _is_text(data_type: pa.DataType) -> bool:
    """Return whether values of a type are read from the text inside of a JSON string."""
    return bool(
        pt.is_string(data_type) or pt.is_large_string(data_type) or pt.is_binary(data_type) or pt.is_large_binary(data_type)
    )


def function_of(data_type: pa.DataType, unit: str | None, *, counts_days: bool) -> str:
    """Return the name of the function of SQL that reads JSON texts as values of a type."""
    kind = "".join(letter if letter.isalnum() else "_" for letter in str(data_type))
    if pt.is_timestamp(data_type):
        return f"json_{kind}_of_{unit or 'text'}"
    return f"json_{kind}_of_days" if counts_days else f"json_{kind}"


def _add_functions(connection: duckdb.DuckDBPyConnection, types: Sequence[pa.DataType]) -> None:
    """Give DuckDB the functions that read JSON texts, each once."""
    for kind in dict.fromkeys(types):
        if _is_text(kind):
            continue
        for unit in (None, *PER_SECOND) if pt.is_timestamp(kind) else (None,):
            for counts_days in (False, True) if pt.is_date(kind) else (False,):
                read = _reader(kind, unit, counts_days=counts_days)
                name = function_of(kind, unit, counts_days=counts_days)
                connection.create_function(
                    name, read, ["VARCHAR"], duckdb_type(kind), type="arrow", null_handling="special"
                )


def _reader(kind: pa.DataType, unit: Any, *, counts_days: bool) -> Callable[[Any], Any]:
    def read(texts: Any) -> Any:
        return read_json_texts(_whole(texts), kind, unit=unit, counts_days=counts_days).values

    return read


def _decimals(column: pa.Array, data_type: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return unscaled big-endian bytes as decimals, and which of them are none."""
    plain = column.cast(pa.large_binary())
    lengths = np.asarray(pc.fill_null(pc.binary_length(plain), 0), np.int64)
    bad = (lengths > 16) | ((lengths == 0) & np.asarray(pc.is_valid(plain)))
    offsets = np.frombuffer(plain.buffers()[1] or b"", np.int64)[plain.offset : plain.offset + len(plain) + 1]
    data = np.frombuffer(plain.buffers()[2] or b"", np.uint8)
    wide = np.zeros((len(plain), 16), np.uint8)
    for place in range(16):  # the last byte first, as decimals are kept
        has = (lengths > place) & ~bad
        wide[has, place] = data[offsets[1:][has] - 1 - place]
    negative = np.zeros(len(plain), bool)
    some = (lengths > 0) & ~bad
    negative[some] = data[offsets[:-1][some]] >= 128
    for place in range(1, 16):
        wide[negative & (lengths <= place), place] = 255
    valid = np.asarray(pc.is_valid(plain)) & ~bad
    bitmap = pa.array(valid).buffers()[1]
    widest = pa.decimal128(38, data_type.scale)
    decimals = pa.Array.from_buffers(widest, len(plain), [bitmap, pa.py_buffer(wide.tobytes())])
    fitting = pa.array(np.ones(len(plain), bool))
    if data_type != widest:
        limit = pa.scalar(10**data_type.precision - 1, pa.decimal128(38, 0))
        unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(plain), decimals.buffers())
        fitting = pc.fill_null(pc.less_equal(pc.abs(unscaled), limit), True)
        decimals = pc.if_else(fitting, decimals, pa.scalar(None, widest)).cast(data_type)
    return decimals, pc.or_(pa.array(bad), pc.invert(fitting))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    return column
