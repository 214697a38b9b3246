"""JSON records decoded in process by DuckDB: records of Debezium, Canal and Maxwell become changes of a table.

The law: lines out + records that mean no change = records in, but for Canal's, of which one may have several rows; a record
that cannot be read is a line with the reason. The lines are in the order of the records.

Cost: ordinary records of Debezium are read by one pass of Arrow's parser, see `ordinary_records`. Others by one pass in DuckDB,
which parses every record twice, its key where the record itself does not have it, and a record in an
envelope of schema and payload twice more; a regular expression per record.

Numbers that DuckDB's parser would change are marked before, see `zset_join.changelog.formats.exact_numbers`. Of a name that an
object has twice the last value counts, as in Spark.
"""

# ruff: noqa: S608 - every name in the statements is ours.

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from typing_extensions import override

from zset_join.changelog.formats import METADATA, RecordFormat, RecordOptions, record_format
from zset_join.changelog.formats.exact_numbers import MARK, MARKED
from zset_join.changelog.formats.record_spellings import EXACT, Dialect, Fields, is_exact
from zset_join.changelog.formats.record_sql import (
    CHANGE,
    PER_SECOND,
    REJECT,
    UNAVAILABLE_BITS,
    RecordStatements,
)
from zset_join.conversions import read_texts
from zset_join.core.errors import PlanError
from zset_join.core.extras import needed_for
from zset_join.sources.json_texts import ExactRecords, NestedValues, read_json_texts
from zset_join.sources.json_values import parsed_json, text_of_value
from zset_join.sources.ordinary_records import ordinary_reader
from zset_join.zset import single_batch

with needed_for("reading records of JSON"):
    import duckdb

__all__ = ["JsonRecordReader", "ReadRecords", "check_types"]

_RECORDS = "records_to_read"
_ROW = "__row_number"
_AS_ARROW: Any = {"type": "arrow", "null_handling": "special"}
_AS_TEXT = "json_as_text"
_NOT_UTF8 = "bytes that are no UTF-8"


@dataclass(frozen=True, kw_only=True)
class ReadRecords:
    """Result of reading n records."""

    rows: pa.RecordBatch  # the columns of the table, then those of the metadata; a row per line
    changes: pa.Array  # per line `upsert`, `delete` or `truncate`; NULL for a line that cannot be read
    unavailable: np.ndarray  # int64, per line the columns that were not sent, as bits
    rejects: pa.Array  # per line the error code, for a bad value followed by the name of its column; else NULL
    records: np.ndarray  # int64, the record that each line comes from


class JsonRecordReader:
    """Read the records of one table.

    >>> reader = JsonRecordReader("debezium-json", pa.schema({"id": pa.int64(), "v": pa.string()}), ["id"])
    >>> read = reader.read(pa.table({"key": ['{"id":1}'], "value": ['{"op":"c","after":{"id":1,"v":"a"}}']}))
    >>> read.changes.to_pylist(), read.rows.to_pylist()
    (['upsert'], [{'id': 1, 'v': 'a'}])
    >>> reader.close()
    """

    def __init__(
        self,
        format_name: str,
        schema: pa.Schema,
        keys: Sequence[str] = (),
        options: RecordOptions | None = None,
        *,
        source: str | None = None,
    ) -> None:
        self.format: RecordFormat = record_format(format_name)
        self.schema = schema
        self.keys = tuple(keys)
        self.options = options or RecordOptions()
        self._source = source
        missing = [name for name in self.keys if name not in schema.names]
        if missing or not (keys or self.format.old):
            raise PlanError(
                f"format {format_name}: keys={list(keys)} must name columns of {schema.names}; only records with whole "
                "old rows, "
                "as those of debezium-json, can do without.",
                code="UNKNOWN_COLUMN",
                missing=missing,
            )
        check_types(format_name, schema)
        self._queries = {
            (opens, has_marks): RecordStatements(
                record=self.format,
                schema=schema,
                keys=self.keys,
                options=self.options,
                dialect=_DuckDBDialect(counts_days=self.format.counts_times, has_marks=has_marks),
                source=source,
                opens=opens,
            ).query(_RECORDS, [_ROW])
            for opens in (False, True)
            for has_marks in (False, True)
        }
        self._connection = duckdb.connect(":memory:", config={"threads": 1})
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET preserve_insertion_order = true")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        self._nested = {kind: NestedValues(kind) for kind in schema.types if pt.is_nested(kind)}
        _add_functions(self._connection, [*schema.types, *METADATA.values()], self._nested)
        self._exact = ExactRecords(self._connection, self.format)
        self._ordinary = ordinary_reader(self.format, schema, self.keys, self.options, source)

    def __eq__(self, other: object) -> bool:
        """Return whether another one reads the same records in the same way."""
        return isinstance(other, JsonRecordReader) and self._description == other._description

    def __hash__(self) -> int:
        return hash((self.format.name, self.keys, self._source))

    @property
    def _description(self) -> tuple[Any, ...]:
        return self.format, self.schema, self.keys, self.options, self._source

    def read(self, records: pa.Table | pa.RecordBatch) -> ReadRecords:
        table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
        table, undecodable = self._as_text(table)
        if self._ordinary is None:
            return self._read_all(table, undecodable)
        ordinary, columns = self._ordinary.read(table)
        if not len(ordinary):
            return self._read_all(table, undecodable)
        read = self._read_ordinary(ordinary, columns)
        if len(ordinary) == table.num_rows:
            return read
        others = np.setdiff1d(np.arange(table.num_rows), ordinary, assume_unique=True)
        return _merged(read, self._read_all(table.take(pa.array(others)), undecodable[others]), others)

    def _read_ordinary(self, numbers: np.ndarray, columns: Sequence[pa.Array]) -> ReadRecords:
        names = [*self.schema.names, *self.options.metadata.values()]
        return ReadRecords(
            rows=pa.RecordBatch.from_arrays(columns, names=names),
            changes=pa.array(np.full(len(numbers), "upsert")),
            unavailable=np.zeros(len(numbers), np.int64),
            rejects=pa.nulls(len(numbers), pa.string()),
            records=numbers,
        )

    def _read_all(self, table: pa.Table, undecodable: np.ndarray) -> ReadRecords:
        """Read records by the statements, which give each bad one a reason."""
        table = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
        has_marks = False
        for name in ("key", "value"):
            texts, is_marked = self._exact(_whole(table.column(name)))
            table = table.set_column(table.column_names.index(name), name, texts)
            has_marks |= is_marked
        self._connection.register(_RECORDS, table)
        try:
            lines = self._connection.sql(self._query_of(table, has_marks=has_marks)).to_arrow_table().combine_chunks()
            columns = [self._column(lines, field) for field in self.schema]
        finally:
            self._connection.unregister(_RECORDS)
            for nested in self._nested.values():
                nested.clear()
        numbers = np.asarray(lines.column(_ROW))
        rejects = lines.column(REJECT)
        if undecodable.any():
            rejects = pc.if_else(pa.array(undecodable[numbers]), pa.scalar("UNDECODABLE_RECORD"), rejects)
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

    def _column(self, lines: pa.Table, field: pa.Field) -> pa.Array | pa.ChunkedArray:
        column = lines.column(field.name)
        return self._nested[field.type].at(_whole(column)) if pt.is_nested(field.type) else column.cast(field.type)

    def _query_of(self, table: pa.Table, *, has_marks: bool) -> str:
        """Return the shorter query where no record is in an envelope: DuckDB takes its time to bind the other one."""
        texts = [table.column(name) for name in ("key", "value")] if self.format.enveloped else []
        may_be_envelope = any(pc.any(pc.match_substring(one, "payload")).as_py() for one in texts)
        return self._queries[may_be_envelope, has_marks]

    def _as_text(self, table: pa.Table) -> tuple[pa.Table, np.ndarray]:
        """Return key and value as text, and which records are no UTF-8."""
        bad = np.zeros(table.num_rows, bool)
        if "topic" not in table.column_names:
            table = table.append_column("topic", pa.nulls(table.num_rows, pa.string()))
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
        """Return bytes as text; those that are no UTF-8 as a text with a mark."""
        self._connection.register(_RECORDS, pa.table({"bytes": column}))
        text = f"CASE WHEN bytes IS NOT NULL THEN coalesce(TRY(decode(bytes)), '{_NOT_UTF8}') END"
        try:
            return _whole(self._connection.sql(f"SELECT {text} AS text FROM {_RECORDS}").to_arrow_table().column("text"))
        finally:
            self._connection.unregister(_RECORDS)

    def close(self) -> None:
        self._connection.close()


def _merged(ordinary: ReadRecords, others: ReadRecords, numbers: np.ndarray) -> ReadRecords:
    """Return the lines of both in the order of their records."""
    records = np.concatenate([ordinary.records, numbers[others.records]])
    order = np.argsort(records, kind="stable")
    places = pa.array(order)
    batches = [ordinary.rows, pa.RecordBatch.from_arrays(others.rows.columns, schema=ordinary.rows.schema)]
    return ReadRecords(
        rows=single_batch(pa.Table.from_batches(batches)).take(places),
        changes=pa.concat_arrays([ordinary.changes, others.changes]).take(places),
        unavailable=np.concatenate([ordinary.unavailable, others.unavailable])[order],
        rejects=pa.concat_arrays([ordinary.rejects, others.rejects]).take(places),
        records=records[order],
    )


def check_types(format_name: str, schema: pa.Schema) -> None:
    """Reject columns of types that are not read from JSON."""
    for field in schema:
        if duckdb_type(field.type) is None:
            raise PlanError(
                f'format {format_name}: column "{field.name}" is of type {field.type}, which is not read from JSON; '
                "declare it as a string and cast it.",
                code="UNSUPPORTED_TYPE",
                column=field.name,
            )


def duckdb_type(data_type: pa.DataType) -> str | None:
    """Return the DuckDB type that a text is read as, of nested types their places; None where it is not read from JSON."""
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
    if pt.is_map(data_type):
        # Bytes would be base64 as a value, but are a text as a name.
        inside = [None if pt.is_binary(data_type.key_type) else data_type.key_type, data_type.item_type]
    elif pt.is_list(data_type) or pt.is_large_list(data_type):
        inside = [data_type.value_type]
    else:
        inside = [field.type for field in data_type] if pt.is_struct(data_type) else []
    return "BIGINT" if inside and all(one is not None and duckdb_type(one) for one in inside) else None


class _DuckDBDialect(Dialect):
    def __init__(self, *, counts_days: bool, has_marks: bool) -> None:
        self._counts_days, self._has_marks = counts_days, has_marks

    @override
    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    @override
    def parsed(self, text: str, fields: Fields) -> str:
        spec = self.literal(json.dumps(_structure(fields)))
        return f"CASE WHEN json_valid({text}) AND json_type({text}) = 'OBJECT' THEN json_transform({text}, {spec}) END"

    @override
    def parsed_lists(self, lists: Sequence[tuple[str, str, Fields]]) -> str:
        parsed = [self._list(text, fields) for _, text, fields in lists]
        # No row is a line too, as in Spark.
        first = f"coalesce(CASE WHEN len({parsed[0]}) > 0 THEN {parsed[0]} END, [NULL])"
        at = "range(len(" + first + "))"
        parts = ", ".join(f"{name}: {one}[i + 1]" for (name, _, _), one in zip(lists, [first, *parsed[1:]], strict=True))
        return f"unnest(list_transform({at}, lambda i: {{{parts}}}))"

    @override
    def is_bad(self, struct: str) -> str:
        return f"{struct} IS NULL"

    @override
    def is_no_object(self, text: str, path: Sequence[str], row: str, names: Sequence[str]) -> str:
        place = self.literal("$." + ".".join(json.dumps(name) for name in path))
        nothing = " AND ".join(f"{row}.{self.quoted(name)} IS NULL" for name in names)  # is cheap, and rarely true
        return f"({row} IS NOT NULL AND {nothing} AND coalesce(json_type({text}, {place}) NOT IN ('OBJECT', 'NULL'), false))"

    @override
    def exact_text(self, value: str) -> str:
        text = f"nullif(CAST({value} AS VARCHAR), 'null')"
        if not self._has_marks:
            return text
        is_marked = f"starts_with({text}, {self.literal(chr(34) + MARK)})"
        return f"CASE WHEN {is_marked} THEN {text}[{len(MARK) + 2}:-2] ELSE {text} END"

    @override
    def keeps_json(self, data_type: pa.DataType) -> bool:
        return is_exact(data_type) or pt.is_string(data_type) or pt.is_large_string(data_type)

    @override
    def text_of(self, value: str, data_type: pa.DataType) -> str:
        if is_exact(data_type):
            return self.exact_text(value)
        if self.keeps_json(data_type):
            text = f"CAST({value} AS VARCHAR)"
            inside = f"CASE WHEN contains({text}, chr(92)) THEN {value} ->> '$' ELSE {text}[2:-2] END"
            is_marked = (
                f"WHEN starts_with({text}, {self.literal(chr(34) + MARK)}) THEN {_AS_TEXT}({text}) " if self._has_marks else ""
            )
            is_plain = f"regexp_full_match({text}, '-?[0-9]+|true|false')"
            other = f"WHEN {text} = 'null' THEN NULL WHEN {is_plain} THEN {text} ELSE {_AS_TEXT}({text})"
            return f"CASE {is_marked}WHEN starts_with({text}, '\"') THEN {inside} {other} END"
        if not self._has_marks:
            return value
        if pt.is_nested(data_type):
            return f"regexp_replace({value}, {self.literal(MARKED)}, '\\1', 'g')"
        return f"CASE WHEN starts_with({value}, {self.literal(MARK)}) THEN {value}[{len(MARK) + 1}:] ELSE {value} END"

    @override
    def inside(self, text: str) -> str:
        return f"CASE WHEN {text} LIKE '\"%' THEN json_extract_string({text}, '$') END"

    @override
    def exploded(self, values: str) -> str:
        return f"unnest({values})"

    @override
    def listed(self, *values: str) -> str:
        return f"[{', '.join(values)}]"

    @override
    def is_envelope(self, text: str) -> str:
        is_object = f"contains({text}, 'payload') AND json_valid({text}) AND json_type({text}) = 'OBJECT'"
        both = f"json_exists({text}, '$.payload') AND json_exists({text}, '$.schema')"
        return f"coalesce(CASE WHEN {is_object} THEN {both} END, false)"

    @override
    def payload(self, text: str) -> str:
        return f"nullif(CAST(json_extract({text}, '$.payload') AS VARCHAR), 'null')"

    @override
    def spellings(self, text: str, side: str | None) -> str:
        column = {"field": "VARCHAR", "type": "VARCHAR", "name": "VARCHAR", "parameters": {"scale": "VARCHAR"}}
        inside: object = column if side is None else {"field": "VARCHAR", "fields": [column]}
        spec = self.literal(json.dumps({"fields": [inside]}))
        fields = f"json_transform(json_extract({text}, '$.schema'), {spec}).fields"
        return fields if side is None else f"list_filter({fields}, lambda f: f.field = {self.literal(side)})[1].fields"

    @override
    def spelling(self, spellings: str, column: str) -> str:
        found = f"list_filter({spellings}, lambda f: f.field = {self.literal(column)})[1]"
        scale = f"coalesce(':' || {found}.parameters.scale, '')"
        return f"CASE WHEN {spellings} IS NOT NULL THEN coalesce({found}.name || {scale}, {found}.type) END"

    @override
    def matches(self, text: str, pattern: str) -> str:
        return f"regexp_matches({text}, {self.literal(pattern)})"

    @override
    def replaced(self, text: str, pattern: str, by: str) -> str:
        return f"regexp_replace({text}, {self.literal(pattern)}, {self.literal(by)}, 'g')"

    @override
    def unscaled(self, text: str) -> str:
        data = f"TRY(from_base64({text}))"
        digits = f"hex({data})"
        fill = f"CASE WHEN {digits} >= '8' THEN 'F' ELSE '0' END"
        wide = f"CASE WHEN octet_length({data}) BETWEEN 1 AND 16 THEN lpad({digits}, 32, {fill}) END"
        return f"CAST(CAST(unhex({wide}) AS BIT) AS HUGEINT)"

    @override
    def placed(self, unscaled: str, scale: str) -> str:
        number = f"ltrim(CAST({unscaled} AS VARCHAR), '-')"
        shown = f"lpad({number}, CAST(greatest(length({number}), {scale} + 1) AS INTEGER), '0')"
        shown = f"CASE WHEN {unscaled} < 0 THEN '-' ELSE '' END || {shown}"
        whole = f"{shown} || CASE WHEN {unscaled} = 0 THEN '' ELSE repeat('0', -{scale}) END"
        point = f"regexp_replace({shown}, '(.{{' || {scale} || '}})$', '.\\1')"
        return f"CASE WHEN {scale} BETWEEN 1 AND 76 THEN {point} WHEN {scale} BETWEEN -38 AND 0 THEN {whole} END"

    @override
    def bytes_of(self, text: str, encoding: str) -> str:
        if encoding == "hex":
            return f"TRY(unhex({text}))"
        if encoding == "latin1":
            codes = f"list_transform(string_split({text}, ''), lambda c: format('{{:02x}}', unicode(c)))"
            return (
                f"CASE WHEN {text} = '' THEN ''::BLOB WHEN {self._is_latin1(text)} THEN unhex(array_to_string({codes}, '')) END"
            )
        if encoding == "base64-url":
            plain = f"translate({text}, '-_', '+/')"
            text = f"rpad({plain}, CAST(ceil(length({plain}) / 4.0) * 4 AS INTEGER), '=')"
        missing = f"CASE WHEN {text} LIKE '%=' THEN 0 ELSE -length({text}) % 4 END"  # of the padding, which may be omitted
        return f"TRY(from_base64({text} || repeat('=', CAST(({missing} + 4) % 4 AS INTEGER))))"

    def _is_latin1(self, text: str) -> str:
        return f"regexp_full_match({text}, {self.literal('(?s)[' + chr(92) + 'x{00}-' + chr(92) + 'x{FF}]*')})"

    def _list(self, text: str, fields: Fields) -> str:
        spec = self.literal(json.dumps([_structure(fields)]))
        return f"CASE WHEN json_valid({text}) AND json_type({text}) = 'ARRAY' THEN json_transform({text}, {spec}) END"

    @override
    def converted(self, text: str, data_type: pa.DataType, options: RecordOptions) -> str:
        if pt.is_string(data_type) or pt.is_large_string(data_type):
            return text
        days = self._counts_days and pt.is_date(data_type)
        unit = options.time_unit if isinstance(options.time_unit, str) else None
        return f"{_function_of(data_type, unit, counts_days=days)}({text})"


def _function_of(data_type: pa.DataType, unit: str | None, *, counts_days: bool) -> str:
    """Return the name of the function of SQL that reads JSON values as values of a type."""
    if pt.is_nested(data_type):  # names of fields may differ by case, or by a letter that no name has
        return f"json_nested_{hashlib.blake2b(str(data_type).encode(), digest_size=16).hexdigest()}"
    kind = "".join(letter if letter.isalnum() else "_" for letter in str(data_type))
    if pt.is_timestamp(data_type):
        return f"json_{kind}_of_{unit or 'text'}"
    return f"json_{kind}_of_days" if counts_days else f"json_{kind}"


def _shown(texts: Any) -> Any:
    """Return the texts of JSON values that are neither strings nor integers."""
    given = (None if one is None else re.sub(MARKED, r"\1", one) for one in _whole(texts).to_pylist())
    return pa.array([None if one is None else _text_of_json(one) for one in given], pa.string())


def _text_of_json(text: str) -> str:
    try:
        return text_of_value(parsed_json(text))
    except ValueError:  # nested more deeply than Python's parser follows: it stays as DuckDB's has written it
        return text


def _add_functions(
    connection: duckdb.DuckDBPyConnection, types: Sequence[pa.DataType], nested: Mapping[pa.DataType, NestedValues]
) -> None:
    """Give DuckDB the functions that read JSON values, each once."""
    connection.create_function(_AS_TEXT, _shown, ["VARCHAR"], "VARCHAR", **_AS_ARROW)
    for kind in dict.fromkeys(types):
        for unit in (None, *PER_SECOND) if pt.is_timestamp(kind) else (None,):
            for counts_days in (False, True) if pt.is_date(kind) else (False,):
                name = _function_of(kind, unit, counts_days=counts_days)
                read = nested.get(kind) or _reader(kind, unit, counts_days=counts_days)
                returned: Any = duckdb_type(kind)
                connection.create_function(name, read, ["VARCHAR"], returned, **_AS_ARROW)


def _reader(kind: pa.DataType, unit: Any, *, counts_days: bool) -> Callable[[Any], Any]:
    def read(texts: Any) -> Any:
        array = _whole(texts)
        if not is_exact(kind):
            return read_texts(array, kind).values
        return read_json_texts(array, kind, unit=unit, counts_days=counts_days).values

    return read


def _structure(fields: Fields) -> dict[str, object]:
    """Return fields in the words of `json_transform`."""
    return {
        name: _structure(inner) if isinstance(inner, Mapping) else "JSON" if inner == EXACT else "VARCHAR"
        for name, inner in fields.items()
    }


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    return column
