"""Records of JSON whose values have the types of their columns: Spark's parser reads them at once, without texts.

The law: a line is reported only where `RecordStatements`would report the same. Whatever is out of the ordinary - no object,
another operation than an upsert or a delete, a key that only the record's key has, or that an update changed, another table, a
value of another kind than the column's, digits that may be base64, one that does not convert, a schema beside the record - is
left for the statements, which read texts and report what is wrong.

It is for formats with one row per record and tables with a key. What it is good for: Spark writes every number that it is to
read as a text with a generator of JSON of its own, 0.7 us each, and three quarters of what reading a record cost were those and
conversions that were computed twice.

A column of a type that JSON has no value for is read as what the format writes by default: dates and times without a zone as
numbers in Debezium's records, as texts in others. Where a table has it the other way, its records are read as texts, and cost
three times as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.changelog.formats import RecordFormat, RecordOptions
from zset_join.changelog.formats.record_spellings import EXACT
from zset_join.changelog.formats.record_sql import (
    CHANGE,
    IN_KAFKA,
    MOST_MARKED,
    UNAVAILABLE_BITS,
    RecordStatements,
)
from zset_join.changelog.formats.records import METADATA
from zset_join.runners.spark.rows.conversions import counted_day, counted_instant, of_text
from zset_join.runners.spark.rows.names import literal, quoted

__all__ = [
    "CORRUPT",
    "IS_TYPED",
    "LINE",
    "TOO_LONG",
    "TypedRecords",
    "can_read_values",
    "parsed_json",
    "struct_fields",
]

CORRUPT, IS_TYPED, LINE = "__corrupt", "__is_typed", "__line"
_RECORD = "__typed"
_SAME = {pa.bool_(): "BOOLEAN", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT", pa.float64(): "DOUBLE"}
"""Types whose values in JSON are read by Spark as they are, or not at all; a TINYINT would take 200."""
_FRACTION = r"[0-9]([.][0-9]|[eE])|NaN|Infinity"
_NO_BYTES = r'^(-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?|true|false|[{\["].*)$'
"""What may have been a JSON number, boolean, list or object."""
_NO_STRING = (
    r"^(-?0[.]0|-?[0-9]+[.][0-9]{15,}|-?[0-9]{8,}[.][0-9]{8,}|-?[0-9][.][0-9]+E(-[0-9]+|[0-9]{3,})|-?[0-9][.][0-9]{13,}E[0-9]+)$"
    r'|^"-?(NaN|Infinity)"$|^[{\[].*([0-9]([.][0-9]|[eE])|NaN|Infinity)'
)
"""What may have been a JSON number that Spark's reader has put through a double, and changed."""
TOO_LONG = "|".join(
    [
        *(f"[0-9]{{{whole}}}[.][0-9]{{{18 - whole},}}" for whole in range(2, 18)),
        "[1-9][.][0-9]{17}|0[.][0-9]{18}|[0-9]{18}[.eE]|[0-9][eE][+-]?[0-9]{3}",
    ]
)
"""What a record matches that has a number of more digits, or another exponent, than doubles have: it may become a short one."""


def can_read_values(record: RecordFormat, keys: Sequence[str]) -> bool:
    """Return whether records of a format, of a table with these keys, can be read this way."""
    return bool(keys) and not record.is_list


@dataclass(frozen=True, kw_only=True)
class TypedRecords:
    """Make the expressions that read the ordinary records of one table.

    Args:
        statements: that read the others.
    """

    statements: RecordStatements

    @property
    def record(self) -> RecordFormat:
        """Return the format."""
        return self.statements.record

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the table."""
        return self.statements.schema

    @property
    def keys(self) -> Sequence[str]:
        """Return its key columns."""
        return self.statements.keys

    @property
    def options(self) -> RecordOptions:
        """Return what the format leaves open."""
        return self.statements.options

    def steps(self, through: Sequence[str], text: str) -> list[list[str]]:
        """Return what to select, step by step; at last `through`, `__is_typed`, `__line`, and the other records.

        Args:
            through: columns that go through all steps, beside `key` and `value`; those of Kafka's metadata are among them.
            text: expression for the text of a record.
        """
        every = [*through, "key", "value"]
        values = [f"__v{at}" for at in range(len(self.schema))]
        raw = [f"__r{at}" for at in range(len(self.schema))]
        times = [f"__t_{name}" for name in self._times()]
        line = ", ".join(f"{literal(name)}, {value}" for name, value in self._line())
        others = ", ".join(f"'{name}', CASE WHEN NOT {IS_TYPED} THEN {name} END" for name in ("key", "value"))
        columns = f"'{IS_TYPED}', {IS_TYPED}, '{LINE}', CASE WHEN {IS_TYPED} THEN named_struct({line}) END, {others}"
        return [
            [*every, f"{self._parsed(text)} AS {_RECORD}"],
            [*every, _RECORD, f"{self._what()} AS __what"],
            [*every, _RECORD, "__what", *self._raw()],
            [*every, _RECORD, "__what", *raw, *self._values(), *self._read_times()],
            [*every, _RECORD, "__what", *raw, *values, *times, f"coalesce({self._is_typed()}, false) AS {IS_TYPED}"],
            # Spark's optimizer moves conditions through projections and computes them again, but never through a generator.
            [*through, f"inline(array(named_struct({columns})))"],
        ]

    def _parsed(self, text: str) -> str:
        record = self.record
        row = {field.name: self._spark_type(field) for field in self.schema}
        fields: _Fields = {}
        if not record.row:
            fields |= row
        elif record.row == record.deleted:
            _put(fields, record.row, row)
        else:
            _put(fields, record.row, row)
            _put(fields, record.deleted, {name: row[name] for name in self.keys})
        if record.moved and record.moved != record.deleted:
            _put(fields, record.moved, {name: row[name] for name in self.keys})
        for column in (record.operation, *self.statements.table_paths):
            if column:
                _put(fields, column, "STRING")
        for name in self._times():
            path, unit = record.times[name]
            _put(fields, path, "STRING" if unit is None else "BIGINT")
        for older in (*map(record.older_times.get, self._times()), record.position):
            if older:
                _put(fields, older, "BIGINT")
        return parsed_json(text, fields)

    def _what(self) -> str:
        """Return what an ordinary record does; NULL for others."""
        good = f"{_RECORD} IS NOT NULL AND {_RECORD}.{CORRUPT} IS NULL"
        if not self.record.operation:
            return f"CASE WHEN {good} THEN 'upsert' END"
        operation = f"lower({_path(self.record.operation)})"
        cases = " ".join(
            f"WHEN {literal(word)} THEN '{means}'"
            for word, means in self.record.operations.items()
            if means in ("upsert", "delete")
        )
        return f"CASE WHEN {good} THEN CASE {operation} {cases} END END"

    def _raw(self) -> list[str]:
        """Return every column as the record has it: of the row that comes, or, for the key, of the one that goes."""
        texts = []
        for at, name in enumerate(self.schema.names):
            comes, goes = (f"{_path(path)}.{quoted(name)}" for path in (self.record.row, self.record.deleted))
            other = f"WHEN __what = 'delete' THEN {goes} " if name in self.keys and self.record.operation else ""
            texts.append(f"CASE WHEN __what = 'upsert' THEN {comes} {other}END AS __r{at}")
        return texts

    def _values(self) -> list[str]:
        return [f"{self._value(f'__r{at}', field)} AS __v{at}" for at, field in enumerate(self.schema)]

    def _value(self, raw: str, field: pa.Field) -> str:
        if self._spark_type(field) != "BIGINT" or pt.is_int64(field.type):
            return self._of_text(raw, field) if self._spark_type(field) == "STRING" else raw
        if pt.is_date(field.type):
            return counted_day(raw)
        unit = self.options.unit_of(field.name)
        return f"CAST(NULL AS {TIMESTAMP_NTZ})" if unit is None else counted_instant(raw, unit, with_zone=False)

    def _of_text(self, raw: str, field: pa.Field) -> str:
        statements = self.statements
        spelling = statements.spelling(self.schema.names.index(field.name), raw)
        if pt.is_decimal(field.type) and (self.options.decimals or self.record.decimals) == "base64":
            digits = statements.dialect.placed(f"({statements.dialect.unscaled(raw)})", str(field.type.scale))
            value = of_text(digits, field.type)
            return f"CASE WHEN NOT {raw} RLIKE '^([-+0-9.eE]*|true|false)$' THEN {value} END"
        if pt.is_binary(field.type) or pt.is_large_binary(field.type):
            value = spelling.value(f"concat('\"', {raw}, '\"')")
            return f"CASE WHEN NOT {raw} RLIKE {literal(_NO_BYTES)} THEN {value} END"
        if pt.is_nested(field.type):
            return f"CASE WHEN NOT {raw} RLIKE {literal(_FRACTION)} THEN {spelling.value(raw)} END"
        if pt.is_string(field.type) or pt.is_large_string(field.type):
            return f"CASE WHEN NOT {raw} RLIKE {literal(_NO_STRING)} THEN {spelling.value(raw)} END"
        return spelling.value(raw)

    def _read_times(self) -> list[str]:
        return [f"{self._time(name, *self.record.times[name])} AS __t_{name}" for name in self._times()]

    def _time(self, name: str, path: Sequence[str], unit: str | None) -> str:
        if unit is None:
            return of_text(_path(path), METADATA[name])
        return counted_instant(self._counted(name), unit, with_zone=True)

    def _counted(self, name: str) -> str:
        """Return a time as the record counts it; that of an older writer too."""
        path, older = _path(self.record.times[name][0]), self.record.older_times.get(name)
        return path if older is None else f"coalesce({path}, try_multiply({_path(older)}, 1000L))"

    def _is_typed(self) -> str:
        """Return the condition that all of an ordinary record was read."""
        left_out, unsaid = self.statements.other_table(_path, "topic")
        needed = ["__what IS NOT NULL", f"NOT ({left_out})", f"NOT ({unsaid})"]
        if self.record.moved:
            for at, name in enumerate(self.schema.names):
                old = f"{_path(self.record.moved)}.{quoted(name)}"
                needed += [f"({old} IS NULL OR {old} = __r{at} OR __what = 'delete')"] if name in self.keys else []
        for at, field in enumerate(self.schema):
            if field.name in self.keys:
                needed.append(f"__r{at} IS NOT NULL")
            unread = f"__r{at} IS NULL OR __v{at} IS NOT NULL"
            if self._may_be_marked(at, field):
                needed.append(f"({unread} OR {self._is_marked(at)})")
            elif self._spark_type(field) in ("STRING", "BIGINT"):
                needed.append(f"({unread})")
        for name in self._times():
            paths = [path for path in (self.record.times[name][0], self.record.older_times.get(name)) if path]
            needed.append(f"(coalesce({', '.join(map(_path, paths))}) IS NULL OR __t_{name} IS NOT NULL)")
        return " AND ".join(needed)

    def _line(self) -> list[tuple[str, str]]:
        """Return the columns of a line."""
        line, bits = [(CHANGE, "__what")], []
        for at, field in enumerate(self.schema):
            value = f"__v{at}"
            if self._may_be_marked(at, field):
                mark = self._is_marked(at)
                bits.append(f"CASE WHEN {mark} THEN {1 << at}L ELSE 0L END")
                value = f"CASE WHEN NOT {mark} THEN {value} END"
            line.append((field.name, value))
        line.append((UNAVAILABLE_BITS, " + ".join(bits) or "0L"))
        return line + [(column, self._metadata(name)) for name, column in self.options.metadata.items()]

    def _metadata(self, name: str) -> str:
        if name == "position" and self.record.position:
            return _path(self.record.position)
        if name in self._times():
            return f"__t_{name}"
        if name in IN_KAFKA:
            return quoted(name)
        return self.statements.dialect.converted("CAST(NULL AS STRING)", METADATA[name], self.options)

    def _times(self) -> list[str]:
        return [name for name in self.options.metadata if name in self.record.times]

    def _may_be_marked(self, at: int, field: pa.Field) -> bool:
        return self._spark_type(field) == "STRING" and at <= MOST_MARKED

    def _is_marked(self, at: int) -> str:
        return f"coalesce({self.statements.dialect.is_placeholder(f'__r{at}', self.options.unavailable)}, false)"

    def _spark_type(self, field: pa.Field) -> str:
        counted = pt.is_date(field.type) or (pt.is_timestamp(field.type) and field.type.tz is None)
        return "BIGINT" if counted and self.record.counts_times else _SAME.get(field.type, "STRING")


_Fields = dict[str, Any]
TIMESTAMP_NTZ = "TIMESTAMP_NTZ"


def _path(path: Sequence[str]) -> str:
    return ".".join([_RECORD, *map(quoted, path)])


def _put(fields: _Fields, path: Sequence[str], inner: Any) -> None:
    for name in path[:-1]:
        fields = fields.setdefault(name, {})
    fields[path[-1]] = inner


def parsed_json(text: str, fields: Mapping[str, object]) -> str:
    """Return an expression that reads an object of JSON; what cannot be read is in its field `CORRUPT`."""
    wanted = literal(struct_fields({**fields, CORRUPT: "STRING"}))
    options = f"'mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}', 'allowSingleQuotes', 'false'"
    return f"from_json({text}, {wanted}, map({options}))"


def struct_fields(fields: Mapping[str, object], between: str = " ") -> str:
    """Return the fields of a struct, by type or by their own fields, None for text; inside STRUCT<> they have colons."""
    return ", ".join(
        f"{quoted(name)}{between}"
        + (
            f"STRUCT<{struct_fields(inner, ': ')}>"
            if isinstance(inner, Mapping)
            else "VARIANT"
            if inner == EXACT
            else str(inner or "STRING")
        )
        for name, inner in fields.items()
    )
