"""Rows as JSON objects, one text per row.

Numbers are JSON numbers and exact to their last digit; decimals are strings, because readers take numbers for floating point;
NaN and infinities are strings, JSON has no others; dates and timestamps are ISO 8601 text, instants in UTC with a `Z`; bytes
are base64. A NULL is `null`.

Cost: one pass in DuckDB.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; each one here goes through `quote`.

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.extras import needed_for
from zset_join.sinks.duckdb_sql import quote
from zset_join.sinks.unfit_values import within_microseconds

with needed_for("writing rows as JSON"):
    import duckdb

__all__ = ["JsonWriter", "representable"]

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
        """Return one JSON object per row."""
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
