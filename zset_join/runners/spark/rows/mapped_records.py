"""JSON records decoded on executors by the reader of in-process pipelines, before any Spark operation on their rows.

    key, value, topic, partition, offset -> mapInArrow(LinesRead) -> kept columns, change, row, omitted, reject, metadata

Cost: one pass through a Python worker; ordinary records take some microseconds there, see `zset_join.sources.json_records`.
Columns that go along only for dead letters come back where one may be written, so a good record is sent one way.

Memory: a batch of Spark's and its rows.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from zset_join.changelog.formats import METADATA, RecordOptions
from zset_join.changelog.formats.record_sql import CHANGE, REJECT, UNAVAILABLE_BITS
from zset_join.core.extras import needed_for
from zset_join.runners.spark.rows.layout import fitted_batch
from zset_join.runners.spark.rows.schemas import spark_schema

if TYPE_CHECKING:
    from zset_join.sources.json_records import JsonRecordReader, ReadRecords

__all__ = ["LinesRead", "as_texts", "mapped_records"]

_SENT: Mapping[str, str | None] = {"topic": "string", "partition": "int", "offset": "bigint", "key": None, "value": None}
_MOST_READERS = 16


def mapped_records(
    records: DataFrame,
    format_name: str,
    schema: pa.Schema,
    keys: Sequence[str],
    options: RecordOptions,
    *,
    kept: Mapping[str, str],
    source: str,
) -> DataFrame:
    """Return the lines of records: `kept`, `__change`, the columns of the table, `__unavailable`, `__reject`, the metadata."""
    with needed_for(f'changes "{source}"'):
        from zset_join.sources.json_records import check_types
    check_types(format_name, schema)
    fields = [pa.field(name, pa.string()) for name in (*kept.values(), CHANGE)]
    fields += [*schema, pa.field(UNAVAILABLE_BITS, pa.int64()), pa.field(REJECT, pa.string())]
    fields += [pa.field(column, METADATA[name]) for name, column in options.metadata.items()]
    read = LinesRead(
        format_name=format_name,
        table=schema,
        keys=tuple(keys),
        options=options,
        kept=kept,
        source=source,
        lines=pa.schema(fields),
    )
    wanted = [f"CAST({name} AS {kind}) AS {name}" if kind else name for name, kind in _SENT.items() if name in records.columns]
    return records.selectExpr(*wanted).mapInArrow(read, spark_schema(read.lines))


@dataclass(frozen=True, kw_only=True)
class LinesRead:
    """Read the lines of records; callable, for `mapInArrow`."""

    format_name: str
    table: pa.Schema
    keys: tuple[str, ...]
    options: RecordOptions
    kept: Mapping[str, str]
    source: str
    lines: pa.Schema
    is_of_library: ClassVar[bool] = True

    def __hash__(self) -> int:
        return hash((self.format_name, self.keys, self.source))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader: JsonRecordReader | None = None
        for batch in batches:
            if batch.num_rows:
                reader = reader or _reader(self)
                texts, shown = as_texts(batch)
                yield self._lines(reader.read(texts), {**dict(zip(texts.column_names, texts.columns, strict=True)), **shown})

    def _lines(self, read: ReadRecords, given: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.RecordBatch:
        columns = dict(zip(read.rows.schema.names, read.rows.columns, strict=True))
        columns |= {CHANGE: read.changes, UNAVAILABLE_BITS: pa.array(read.unavailable), REJECT: read.rejects}
        is_shown = np.asarray(pc.is_valid(read.rejects)) | (read.unavailable != 0)
        is_shown |= np.asarray(pc.fill_null(pc.equal(read.changes, "truncate"), False))
        places = pa.array(read.records, pa.int64(), mask=~is_shown)
        for name, column in self.kept.items():
            if name in given:
                columns[column] = _whole(given[name]).cast(pa.string()).take(places)
        return fitted_batch(self.lines, columns, len(read.records))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


@lru_cache(maxsize=_MOST_READERS)
def _reader(read: LinesRead) -> JsonRecordReader:
    """Return the reader of a stream, which a worker keeps over its tasks."""
    from zset_join.sources.json_records import JsonRecordReader  # needs DuckDB, which not every driver has

    return JsonRecordReader(read.format_name, read.table, read.keys, read.options, source=read.source)


_NOT_UTF8 = "bytes that are no UTF-8"
_BYTES = (pa.binary(), pa.large_binary())


def as_texts(records: pa.RecordBatch) -> tuple[pa.Table, Mapping[str, pa.Array]]:
    """Return records with text in place of bytes, and what is shown of columns some of whose bytes are no UTF-8."""
    # Those bytes are a text that no format reads. Shown are the column itself, with a mark in place of what is no text, and
    # `{column}_base64`, NULL for bytes that are text.
    shown: dict[str, pa.Array] = {}
    table = pa.Table.from_batches([records])
    for at, field in enumerate(records.schema):
        if field.type not in _BYTES:
            continue
        column = records.column(at)
        try:
            texts = column.cast(pa.string())
        except pa.ArrowInvalid:
            decoded = [_text(one) for one in column.to_pylist()]
            texts, marked, coded = (pa.array(part, pa.string()) for part in zip(*decoded, strict=True))
            shown |= {field.name: marked, f"{field.name}_base64": coded}
        table = table.set_column(at, field.name, texts)
    return table, shown


def _text(given: bytes | None) -> tuple[str | None, str | None, str | None]:
    if given is None:
        return None, None, None
    try:
        text = given.decode()
    except UnicodeDecodeError:
        return _NOT_UTF8, given.decode(errors="replace"), base64.b64encode(given).decode()
    return text, text, None
