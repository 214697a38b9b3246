"""The answer of an epoch as records of JSON: a key, a value, and what the record does, in every form that we write.

| form | value | read again as |
|---|---|---|
| `upsert` | the row, or nothing where the key is gone | `upsert-json` |
| `debezium` | `before`, `after` and `op` (c, u, d) | `debezium-json`, decimals as text |
| `weight` | the row and `_weight` | rows with a weight column |
| `row_kind` | the row and `_row_kind` (+I -U +U -D) | rows with a row kind |
| `append` | the row of a view that retracts none; a retraction is refused | rows |
| `change_data_feed` | the row, `_change_type`, `_commit_version`, `_commit_timestamp` | rows of a change feed |

The law: what is read again is the answer, for every type that JSON can hold. For `upsert` it is, relative to the rows that were
present before. Without a key the record key is the whole row; `upsert` needs one.

Numbers are JSON numbers and exact to their last digit; decimals are strings, because readers take numbers for floating point;
NaN and infinities are strings, JSON has no others; dates and timestamps are ISO 8601 text, instants in UTC with a `Z`; bytes
are base64. A NULL is `null`.

Memory: the answer of the epoch and its texts. Cost: one pass in DuckDB.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.changelog import (
    AppendFormat,
    ChangeDataFeedFormat,
    ChangelogFormat,
    RecordForm,
    RowKindFormat,
    UpsertFormat,
    WeightFormat,
    check_key,
    encode,
    encoded_schema,
)
from zset_join.core.extras import needed_for
from zset_join.sinks.duckdb_file import quote
from zset_join.sinks.unfit_values import UnfitRows, sized_rows, unfit_values, within_microseconds
from zset_join.zset import ZSet

__all__ = ["RECORD_FORMS", "RECORD_SCHEMA", "JsonWriter", "RecordWriter", "representable"]

# ruff: noqa: S608 - names cannot be parameters of a statement; each one here goes through `quote`.


with needed_for("writing rows as JSON"):
    import duckdb


_ROWS = "rows_to_write"
_FIRST_DAY, _INFINITE_DAY = -719_162, 2**31 - 1  # 0001-01-01, and the date that DuckDB calls infinity
_INFINITE_TIME = 2**63 - 1
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def representable(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the first and the last date, time or timestamp of a type that has a text in ISO 8601; None for other types.

    >>> representable(pa.time32("s")), representable(pa.timestamp("ms"))
    ((0, 86400), (-9223372036854775, 9223372036854775))
    """
    if pt.is_date32(kind):
        return _FIRST_DAY, _INFINITE_DAY - 1
    if pt.is_time(kind):
        return 0, _PER_DAY[kind.unit]
    if pt.is_timestamp(kind):
        return within_microseconds(kind) or (1 - _INFINITE_TIME, _INFINITE_TIME - 1)
    return None


class JsonWriter:
    """Write record batches of one schema as JSON texts.

    >>> writer = JsonWriter(pa.schema({"id": pa.int64(), "x": pa.float64()}))
    >>> writer.texts(pa.RecordBatch.from_pydict({"id": [1, None], "x": [0.5, float("nan")]}))
    ['{"id":1,"x":0.5}', '{"id":null,"x":"NaN"}']
    >>> writer.close()
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str] | None = None) -> None:
        names = schema.names if columns is None else list(columns)
        written = [f"{quote(name)} := {_written(quote(name), schema.field(name).type)}" for name in names]
        self._query = f"SELECT CAST(to_json(struct_pack({', '.join(written)})) AS VARCHAR) FROM {_ROWS}"
        self._connection = duckdb.connect(":memory:", config={"threads": 1})
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def texts(self, rows: pa.RecordBatch) -> list[str]:
        self._connection.register(_ROWS, pa.Table.from_batches([rows]))
        try:
            texts: list[str] = self._connection.sql(self._query).to_arrow_table().column(0).to_pylist()
            return texts
        finally:
            self._connection.unregister(_ROWS)

    def close(self) -> None:
        """Release the database."""
        self._connection.close()


def _written(value: str, data_type: pa.DataType, depth: int = 0) -> str:
    """Return the SQL expression whose JSON is that of a value."""
    if pt.is_floating(data_type):
        return f"CASE WHEN {value} IS NULL OR isfinite({value}) THEN to_json({value}) ELSE to_json({_float_name(value)}) END"
    if pt.is_decimal(data_type):
        return f"CAST({value} AS VARCHAR)"
    if pt.is_timestamp(data_type):
        zone = "Z" if data_type.tz is not None else ""
        plain = f"({value} AT TIME ZONE 'UTC')" if zone else value
        return f"strftime(CAST({plain} AS TIMESTAMP), '%Y-%m-%dT%H:%M:%S.%f{zone}')"
    if pt.is_binary(data_type) or pt.is_large_binary(data_type) or pt.is_fixed_size_binary(data_type):
        return f"base64({value})"
    if pt.is_struct(data_type):
        fields = (
            f"{quote(field.name)} := {_written(f'{value}.{quote(field.name)}', field.type, depth)}" for field in data_type
        )
        return f"CASE WHEN {value} IS NULL THEN NULL ELSE struct_pack({', '.join(fields)}) END"
    if pt.is_list(data_type) or pt.is_large_list(data_type) or pt.is_fixed_size_list(data_type):
        element = f"element{depth}"
        return f"list_transform({value}, lambda {element}: {_written(element, data_type.value_type, depth + 1)})"
    return value


def _float_name(value: str) -> str:
    return f"CASE WHEN isnan({value}) THEN 'NaN' WHEN {value} > 0 THEN 'Infinity' ELSE '-Infinity' END"


RECORD_FORMS: Mapping[str, ChangelogFormat] = {
    "upsert": UpsertFormat(column="_deleted"),
    "weight": WeightFormat(column="_weight"),
    "row_kind": RowKindFormat(column="_row_kind"),
    "change_data_feed": ChangeDataFeedFormat(timestamp_column="_commit_timestamp"),
    "debezium": RowKindFormat(column="_row_kind"),
    "append": AppendFormat(),
}
RECORD_SCHEMA = pa.schema({"key": pa.string(), "value": pa.string()})

_MOST_GROWTH = 18  # a byte of text is at most six of JSON, and a record has the row at most three times
_BESIDE = 512  # names, numbers and marks, per column
_BARE_ROWS = ("append", "upsert", "debezium")


class RecordWriter:
    """Write answers as records.

    >>> writer = RecordWriter(pa.schema({"id": pa.int64(), "v": pa.string()}), "debezium", ["id"])
    >>> delta = ZSet.of({"id": [1, 1], "v": ["a", "b"]}, [-1, 1])
    >>> writer.records(delta, epoch=0)
    [('{"id":1}', '{"before":{"id":1,"v":"a"},"after":{"id":1,"v":"b"},"op":"u"}', False)]
    >>> writer.close()
    """

    def __init__(self, schema: pa.Schema, form: RecordForm, key: Sequence[str]) -> None:
        self.form = form
        self._key = list(key)
        self._format = RECORD_FORMS[form]
        written = encoded_schema(schema, self._format)
        check_key(schema, self._key, self._format)
        self._names = list(schema.names)
        self.written_as = self._key, self._format
        self._keys = JsonWriter(written, self._key or schema.names)
        self._values = JsonWriter(written, schema.names if form in _BARE_ROWS else written.names)

    def records(self, answer: ZSet, *, epoch: int, committed_at_us: int | None = None) -> list[tuple[str, str | None, bool]]:
        """Return key, value and whether it takes something away, per record."""
        key = self._key or (self._names if self.form == "debezium" else [])
        moment = time.time_ns() // 1000 if committed_at_us is None else committed_at_us
        rows = encode(answer, key, self._format, epoch=epoch, committed_at_us=moment)
        keys, values = self._keys.texts(rows), self._values.texts(rows)
        if self.form == "append":
            return [(one, row, False) for one, row in zip(keys, values, strict=True)]
        marks = rows.column(len(self._names))
        if self.form == "upsert":
            gone = marks.to_pylist()
            return [(one, None if goes else row, goes) for one, row, goes in zip(keys, values, gone, strict=True)]
        if self.form == "debezium":
            return list(_envelopes(keys, values, marks.to_pylist()))
        return list(zip(keys, values, self._takes_away(marks), strict=True))

    def table(self, answer: ZSet, *, epoch: int) -> pa.Table:
        """Return records as `RECORD_SCHEMA`; see `records`."""
        records = self.records(answer, epoch=epoch)
        return pa.table([[one[0] for one in records], [one[1] for one in records]], schema=RECORD_SCHEMA)

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        """Return the rows with a value that JSON texts cannot hold, see `json_rows.representable`."""
        return unfit_values(rows, representable)

    def oversized(self, rows: pa.RecordBatch, most_bytes: int) -> Sequence[UnfitRows]:
        """Return the rows whose record, key and value, may be longer than a bound, under their first column."""
        if rows.nbytes * _MOST_GROWTH + _BESIDE * len(rows.schema) < most_bytes:
            return ()
        flat = [name for name in rows.schema.names if not pt.is_nested(rows.schema.field(name).type)]
        if len(flat) == len(rows.schema):
            candidates = sized_rows(rows, flat) * _MOST_GROWTH + _BESIDE * len(rows.schema) >= most_bytes
        else:
            candidates = np.ones(rows.num_rows, np.bool_)
        for unsayable in self.unfit(rows):
            candidates &= ~unsayable.rows
        places = np.flatnonzero(candidates)
        if not len(places):
            return ()
        writer = JsonWriter(rows.schema)
        try:
            lengths = np.array([len(text.encode()) for text in writer.texts(rows.take(pa.array(places)))], np.int64)
        finally:
            writer.close()
        flags = np.zeros(rows.num_rows, np.bool_)
        copies = 3 if self.form == "debezium" else 2  # the row as key, as value before and after
        flags[places[lengths * copies + _BESIDE > most_bytes]] = True
        reason = f"makes a record of more than {most_bytes} bytes"
        return [UnfitRows(rows.schema.names[0], reason, flags)] if flags.any() else ()

    def close(self) -> None:
        """Release the database that makes the texts."""
        self._keys.close()
        self._values.close()

    def _takes_away(self, marks: pa.Array) -> list[bool]:
        if self.form == "weight":
            return list(pc.less(marks, 0).to_pylist())
        takes = ["-U", "-D", "update_preimage", "delete"]
        return list(pc.is_in(marks, pa.array(takes, marks.type)).to_pylist())


def _envelopes(keys: Sequence[str], values: Sequence[str], kinds: Sequence[str]) -> Iterator[tuple[str, str | None, bool]]:
    """Yield Debezium's envelopes: an update has both rows, and the -U of a key come before its +U, in the same order."""
    before: deque[str] = deque()
    for key, value, kind in zip(keys, values, kinds, strict=True):
        if kind == "-U":
            before.append(value)
        elif kind == "+U":
            yield key, f'{{"before":{before.popleft()},"after":{value},"op":"u"}}', False
        elif kind == "+I":
            yield key, f'{{"before":null,"after":{value},"op":"c"}}', False
        else:
            yield key, f'{{"before":{value},"after":null,"op":"d"}}', True
