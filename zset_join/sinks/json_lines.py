"""Rows and records in files, one per epoch: JSON lines or Parquet in a directory.

    orders/epoch-000000000012-5f0c....json      {"id":1,"total":30,"_tp_delta":1}
    records/00000000000000000012-5f0c....jsonl  {"key": "...", "value": "..."} per record, in every form of `record_texts`

The law: as every sink. A file is present whole or not at all, by one atomic rename; its name has epoch and digest (the digest
only where the epoch has one: a session in memory has none). An epoch without rows counts; of rows it has no file that a reader
would see. A view that is append-only is written as it is; any other with its weights, in the column `_tp_delta`.

Key and value of records are texts, as they would be in a Kafka topic, so whatever reads the topic reads the files: a pipeline's
`records`, Spark's `json` source with `changes(df, format=...)`.

Limits: those of `epoch_files`; local directories. Nothing removes the files of records: move away what readers are done with,
but for the newest hundred.

Cost: the rows of the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from zset_join.changelog import AppendFormat, RecordForm, WeightFormat, encode, encoded_schema
from zset_join.core.relation import Relation
from zset_join.sinks.epoch_files import EpochFilesSink
from zset_join.sinks.epoch_sink import check_names, given_key
from zset_join.sinks.record_texts import RECORD_FORMS, JsonWriter, RecordWriter, representable
from zset_join.sinks.unfit_values import UnfitRows, unfit_values, within_microseconds
from zset_join.zset import ZSet

__all__ = ["JsonLinesSink", "RowFilesSink", "RowForm"]

RowForm = Literal["json", "parquet"]
_WEIGHT = "_tp_delta"


class RowFilesSink(EpochFilesSink):
    """Write the answer of every epoch to a file of its own.

    Args:
        path: the directory; created if it does not exist.
        form: json (lines) or parquet.
        with_weights: write the weight of each row, as `_tp_delta`; without, a retraction is refused.

    Raises:
        OptionError: no such form.

    >>> import tempfile
    >>> ones = ZSet.of({"k": [1, 2]})
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     sink = RowFilesSink(directory, "parquet", with_weights=True)
    ...     sink.open(Relation(name="answer", schema=ones.schema, mode="changelog"), "doctest")
    ...     sink.write(0, [ones]).rows
    2
    """

    def __init__(self, path: str | Path, form: RowForm = "json", *, with_weights: bool = False) -> None:
        super().__init__(path, form, get_args(RowForm), suffix=f".{form}")
        self.form = form
        self._with_weights = with_weights
        self.written_as = (), WeightFormat() if with_weights else AppendFormat()
        self._json: JsonWriter | None = None

    def __repr__(self) -> str:
        return f"RowFilesSink({str(self.path)!r}, {self.form!r})"

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return unfit_values(rows, representable if self.form == "json" else within_microseconds)

    @override
    def close(self) -> None:
        if self._json is not None:
            self._json.close()
        self._json = None
        super().close()

    @override
    def _take(self, output: Relation) -> None:
        rows = output.schema
        if self._with_weights:
            check_names(repr(self), rows.names, (), refused=[_WEIGHT], why="it is the weight of a row")
            rows = rows.append(pa.field(_WEIGHT, pa.int64()))
        self._lines = rows
        self._json = JsonWriter(rows) if self.form == "json" else None

    @override
    def _layout(self) -> dict[str, object]:
        return {**super()._layout(), "with_weights": self._with_weights}

    @override
    def _encoded(self, epoch: int, delta: ZSet) -> tuple[bytes | None, int, int]:
        if self._with_weights:
            lines = pa.RecordBatch.from_arrays([*delta.rows.columns, pa.array(delta.weights)], schema=self._lines)
        else:
            lines = encode(delta, [], AppendFormat())
        return self._bytes(lines) if len(delta) else None, len(delta), int((delta.weights < 0).sum())

    def _bytes(self, lines: pa.RecordBatch) -> bytes:
        if self._json is not None:
            return "".join(f"{text}\n" for text in self._json.texts(lines)).encode()
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches([lines]), sink)
        written: bytes = sink.getvalue().to_pybytes()
        return written


class JsonLinesSink(EpochFilesSink):
    """Write every answer to a file of JSON lines.

    Args:
        path: the directory; created if it does not exist.
        form: upsert, weight, row_kind, change_data_feed, debezium or append.
        key: columns that identify a row; default: the primary key of the output relation. `upsert` needs one.

    Raises:
        OptionError: an argument that is not allowed.
    """

    header = "header.json"
    prefix, width = "", 20

    def __init__(self, path: str | Path, form: RecordForm = "upsert", key: Sequence[str] | None = None) -> None:
        super().__init__(path, form, get_args(RecordForm), suffix=".jsonl")
        self.form: RecordForm = form
        self.key = given_key(key)
        self._writer: RecordWriter | None = None

    def __repr__(self) -> str:
        return f"JsonLinesSink({str(self.path)!r}, form={self.form!r}, key={self.key!r})"

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return () if self._writer is None else self._writer.unfit(rows)

    @override
    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        super().close()

    @override
    def _take(self, output: Relation) -> None:
        check_names(repr(self), output.schema.names, self._key, needs_key=self.form == "upsert")
        encoded_schema(output.schema, RECORD_FORMS[self.form])
        self._writer = RecordWriter(output.schema, self.form, self._key)
        self.written_as = self._writer.written_as

    @override
    def _encoded(self, epoch: int, delta: ZSet) -> tuple[bytes | None, int, int]:
        delta = delta.consolidated()
        records = self._writer.records(delta, epoch=epoch) if self._writer is not None and len(delta) else []
        lines = [json.dumps({"key": key, "value": value}, ensure_ascii=False) + "\n" for key, value, _ in records]
        return "".join(lines).encode(), len(records), sum(one[2] for one in records)
