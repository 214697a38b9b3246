"""Records of JSON in files, one file per epoch, in every form of `record_texts`.

    <directory>/header.json                         whose it is, form, key and columns
    <directory>/<epoch>-<digest>.jsonl              {"key": "...", "value": "..."} per record

Key and value are texts, as they would be in a Kafka topic, so whatever reads the topic reads the files: a pipeline's
`records`, Spark's `json` source with `changes(df, format=...)`.

The law: as every sink. A file is present whole or not at all, by one atomic rename; its name contains epoch and digest.

Limits: those of `epoch_files`; a file per epoch, empty ones included, and nothing removes them: move away what readers are done
with, but for the newest hundred.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pyarrow as pa

from zset_join.changelog import RecordForm, encoded_schema
from zset_join.core.errors import OptionError, SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.epoch_files import EpochFiles, EpochFilesSink
from zset_join.sinks.record_texts import RECORD_FORMS, RecordWriter
from zset_join.sinks.sink import check_output
from zset_join.sinks.unfit_values import UnfitRows
from zset_join.zset import ZSet

__all__ = ["JsonLinesSink"]


class JsonLinesSink(EpochFilesSink):
    """Write every answer to a file of JSON lines.

    Args:
        directory: where; made where it is missing.
        form: upsert, weight, row_kind, change_data_feed or debezium.
        key: columns that identify a row; default: the primary key of the output relation. `upsert` needs one.

    Raises:
        OptionError: an argument that is not allowed.
    """

    def __init__(self, directory: str | Path, form: RecordForm = "upsert", key: Sequence[str] | None = None) -> None:
        if form not in get_args(RecordForm) or isinstance(key, str):
            raise OptionError(
                f"form={form!r}, key={key!r}: a form is one of {', '.join(get_args(RecordForm))}, a key is a list of column "
                "names.",
                code="SINK_OPTION",
                form=form,
                key=key,
            )
        self.directory = Path(directory)
        self.form: RecordForm = form
        self.key = None if key is None else tuple(key)
        self._writer: RecordWriter | None = None
        described = f"the output of JSON lines in {self.directory}"
        super().__init__(
            described, EpochFiles(described, self.directory, header="header.json", prefix="", width=20, suffix=".jsonl")
        )

    def __repr__(self) -> str:
        return f"JsonLinesSink({str(self.directory)!r}, form={self.form!r}, key={self.key!r})"

    def open(self, output: Relation, query_id: str) -> None:
        check_output(self._described, output)
        self.close()
        key = self.key if self.key is not None else output.primary_key
        missing = [name for name in key if name not in output.schema.names]
        if missing or (self.form == "upsert" and not key):
            raise SinkError(
                f"{self._described} needs a key among the columns {output.schema.names}, got {list(key)}. Name the columns "
                "that identify a row in key=, or write another form.",
                code="SINK_COLUMNS",
                missing=missing,
            )
        encoded_schema(output.schema, RECORD_FORMS[self.form])
        columns = [f"{field.name}: {field.type}" for field in output.schema]
        self._files.attach({"query_id": query_id, "form": self.form, "key": list(key), "columns": columns})
        self._writer = RecordWriter(output.schema, self.form, key)
        self.written_as = self._writer.written_as
        self._output = output

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return () if self._writer is None else self._writer.unfit(rows)

    def _written(self, epoch: int, delta: ZSet) -> tuple[bytes | None, int, int]:
        delta = delta.consolidated()
        records = self._writer.records(delta, epoch=epoch) if self._writer is not None and len(delta) else []
        lines = [json.dumps({"key": key, "value": value}, ensure_ascii=False) + "\n" for key, value, _ in records]
        return "".join(lines).encode(), len(records), sum(one[2] for one in records)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        super().close()
