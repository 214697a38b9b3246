"""The Parquet files of a Delta table: their types, how they are written, and their statistics in the commit.

The law: reading a file back gives the rows that were written, value for value. Types that Delta does not have are refused and
not converted: unsigned and half-precision numbers, nanoseconds, durations, times of day, intervals. A column's statistics
(least, most, how many NULLs) are true; where JSON cannot hold them without loss (floats, decimals, long texts, nested
values), they are omitted.

Ties and edge cases: column names that differ only by case are refused, Delta has no such columns. Milliseconds are all the
precision the statistics of a timestamp have: the least is rounded down, the most up.

Memory: one row group, 128k rows.

Source: the Delta transaction protocol (schema serialization, per-file statistics).
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from zset_join.core.errors import SinkError
from zset_join.sinks.changelog_directory import NewParquetFile
from zset_join.storage.folder import Folder

__all__ = ["DataFile", "delta_schema", "read_data_file", "write_data_files"]

_MOST_DIGITS = 38
_ROW_GROUP_ROWS = 128 * 1024
_STATISTICS_COLUMNS = 32
_STATISTICS_TEXT = 32


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of the table."""

    name: str
    bytes: int
    rows: int | None
    least: Mapping[str, Any] = field(default_factory=dict)
    most: Mapping[str, Any] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)

    def statistics(self) -> str:
        statistics: dict[str, Any] = {
            "numRecords": self.rows,
            "minValues": {name: _in_json(value, up=False) for name, value in self.least.items()},
            "maxValues": {name: _in_json(value, up=True) for name, value in self.most.items()},
            "nullCount": dict(self.nulls),
        }
        return json.dumps(statistics)


def delta_schema(described: str, schema: pa.Schema) -> pa.Schema:
    """Return the columns as Delta has them.

    >>> delta_schema("table", pa.schema({"s": pa.large_string()})).field("s").type
    DataType(string)
    """
    folded = [name.lower() for name in schema.names]
    clashes = sorted({name for name in schema.names if folded.count(name.lower()) > 1})
    if clashes or "" in schema.names or not schema.names:
        raise SinkError(
            f"{described} cannot have the columns {schema.names}: names must be there and differ by more than case"
            + (f"; {clashes} clash" if clashes else "")
            + ". Rename the columns of the output.",
            code="SINK_COLUMNS",
            columns=schema.names,
            clashes=clashes,
        )
    fields = []
    for column in schema:
        kind = _delta_type(column.type)
        if kind is None:
            raise SinkError(
                f'{described} cannot keep column "{column.name}": Delta has no type for {column.type}. Cast it in the query.',
                code="SINK_TYPE",
                column=column.name,
                type=str(column.type),
            )
        fields.append(pa.field(column.name, kind))
    return pa.schema(fields)


def write_data_files(
    folder: Folder, prefix: str, schema: pa.Schema, pieces: Iterable[pa.RecordBatch], *, target_bytes: int
) -> list[DataFile]:
    """Write rows to new files, on the disk when this returns; none for no rows."""
    files: list[DataFile] = []
    opened: NewParquetFile | None = None
    try:
        for piece in _row_groups(pieces, schema):
            opened = opened or NewParquetFile(folder, f"{prefix}-{uuid.uuid4().hex}.parquet", schema)
            opened.add(piece)
            if opened.bytes >= target_bytes:
                files.append(_finished(opened, schema))
                opened = None
        if opened is not None:
            files.append(_finished(opened, schema))
    except BaseException:
        if opened is not None:
            opened.discard()
        for file in files:
            folder.remove(file.name)
        raise
    return files


def read_data_file(folder: Folder, file: DataFile, schema: pa.Schema) -> pa.Table:
    content = folder.view(file.name)
    if content is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder.uri(file.name))
    parquet = pq.ParquetFile(pa.BufferReader(content))
    have = set(parquet.schema_arrow.names)
    read = parquet.read(columns=[name for name in schema.names if name in have])
    columns = [read.column(field.name) if field.name in have else pa.nulls(read.num_rows, field.type) for field in schema]
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)


def _finished(file: NewParquetFile, schema: pa.Schema) -> DataFile:
    file.finish()
    return DataFile(file.name, file.bytes, file.rows, *_stated(file.metadata[0], schema))


def _row_groups(pieces: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Put small pieces together and cut large ones, so that every row group but the last is of one size."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for piece in pieces:
        rest = piece
        while count + rest.num_rows >= _ROW_GROUP_ROWS:
            taken = _ROW_GROUP_ROWS - count
            yield pa.concat_batches([*waiting, rest.slice(0, taken)]).cast(schema)
            rest, waiting, count = rest.slice(taken), [], 0
        if rest.num_rows:
            waiting.append(rest)
            count += rest.num_rows
    if count:
        yield pa.concat_batches(waiting).cast(schema)


def _delta_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which Delta keeps every value of this one; None when there is none."""
    if pt.is_boolean(kind) or pt.is_signed_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind) or pt.is_date32(kind):
        return kind
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_decimal(kind) and kind.precision <= _MOST_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pt.is_map(kind):
        key, item = _delta_type(kind.key_type), _delta_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pt.is_list(kind) or pt.is_large_list(kind):
        item = _delta_type(kind.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if pt.is_struct(kind):
        fields = [(column.name, _delta_type(column.type)) for column in kind]
        return None if any(inner is None for _, inner in fields) else pa.struct(fields)
    return None


def _stated(metadata: Any, schema: pa.Schema) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Return the statistics of every row group: minimum, maximum and NULLs of each plain column."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaf = 0
    for column in list(schema)[:_STATISTICS_COLUMNS]:
        if not pt.is_nested(column.type):
            per_group = [group.column(leaf).statistics for group in groups]
            if all(statistics is not None and statistics.has_null_count for statistics in per_group):
                nulls[column.name] = sum(statistics.null_count for statistics in per_group)
            if _has_statistics(column.type):
                _statistic(column.name, per_group, least, most)
        leaf += _leaves(column.type)
    return least, most, nulls


def _statistic(name: str, per_group: list[Any], least: dict[str, Any], most: dict[str, Any]) -> None:
    """Note the bounds of one column, where every row group has them and they fit."""
    if not all(statistics is not None and statistics.has_min_max for statistics in per_group):
        return
    try:
        low, high = min(statistics.min for statistics in per_group), max(statistics.max for statistics in per_group)
    except (OverflowError, ValueError):
        return  # a moment that Python's datetime does not reach: no statistics
    if not (isinstance(low, str) and max(len(low), len(high)) > _STATISTICS_TEXT):
        least[name], most[name] = low, high


def _has_statistics(kind: pa.DataType) -> bool:
    return bool(pt.is_signed_integer(kind) or pt.is_string(kind) or pt.is_date32(kind) or pt.is_timestamp(kind))


def _leaves(kind: pa.DataType) -> int:
    if not pt.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields))


def _in_json(value: Any, *, up: bool) -> Any:
    if isinstance(value, dt.datetime):
        over = dt.timedelta(microseconds=value.microsecond % 1000)
        rounded = value - over
        if up and over:
            rounded += dt.timedelta(milliseconds=1)
        moment = rounded.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return moment if value.tzinfo is None else f"{moment}Z"
    return value.isoformat() if isinstance(value, dt.date) else value
