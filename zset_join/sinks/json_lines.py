"""Records of JSON in files, one file per epoch, in every form of `record_texts`.

    <directory>/header.json                         whose it is, form, key and columns
    <directory>/<epoch>-<digest>.jsonl              {"key": "...", "value": "..."} per record

Key and value are texts, as they would stand in a Kafka topic, so whatever reads the topic reads the files: a pipeline's
`records`, Spark's `json` source with `changes(df, format=...)`.

The law: as every sink. A file is there whole or not at all, by one atomic rename; its name says epoch and digest.

Limits: a file per epoch, empty ones included, and nothing removes them: move away what readers are done with, but for the
newest hundred. One file system that renames in one step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

from zset_join.changelog import encoded_schema
from zset_join.epoch_chain import ChainLink
from zset_join.errors import OptionError, SinkError
from zset_join.relation import Relation
from zset_join.sinks.record_texts import RECORD_FORMS, RecordForm, RecordWriter
from zset_join.sinks.sink import SinkProgress, check_chunk, check_output, is_same_epoch
from zset_join.storage.local import write_atomic
from zset_join.zset import ZSet

__all__ = ["JsonLinesSink"]

_HEADER = "header.json"
_NAME = re.compile(r"(\d{20})-([0-9a-zA-Z]*)\.jsonl")


class JsonLinesSink:
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

    def __repr__(self) -> str:
        return f"JsonLinesSink({str(self.directory)!r}, form={self.form!r}, key={self.key!r})"

    def open(self, output: Relation, query_id: str) -> None:
        """Attach the sink to a query.

        Raises:
            SinkError: the directory belongs to another query, was written with other columns, key or form, or cannot be used;
                or `upsert` without a key.
        """
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
        self._schema = output.schema
        columns = [f"{field.name}: {field.type}" for field in output.schema]
        self._attach({"query_id": query_id, "form": self.form, "key": list(key), "columns": columns})
        self._writer = RecordWriter(output.schema, self.form, key)

    def last_epoch(self) -> int | None:
        """Return the last epoch the directory has; None before the first."""
        return max(self._epochs(), default=None)

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        """Say whether an epoch is there already.

        Raises:
            SinkError: an epoch before it is missing, or the directory has epochs of another chain.
        """
        epochs = self._epochs()
        return is_same_epoch(self._described, max(epochs, default=None), lambda one: epochs.get(one) or None, epoch, link)

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        """Add the answer of one epoch.

        Raises:
            SinkError: see the module; nothing of the epoch is there.
        """
        started = perf_counter()
        if self._writer is None:
            raise SinkError(f"{self._described} is closed; call open first.", code="SINK_CLOSED")
        if self.has(epoch, link):
            return SinkProgress(epoch, 0, 0, perf_counter() - started, replayed=True)
        parts = []
        for chunk in chunks:
            check_chunk(self._described, epoch, self._schema, chunk)
            parts.append(chunk)
        records = self._writer.records(ZSet.concat(parts, schema=self._schema).consolidated(), epoch=epoch)
        lines = [json.dumps({"key": key, "value": value}, ensure_ascii=False) + "\n" for key, value, _ in records]
        self._put(f"{epoch:020d}-{'' if link is None else link.digest}.jsonl", "".join(lines))
        return SinkProgress(epoch, len(records), sum(one[2] for one in records), perf_counter() - started)

    def close(self) -> None:
        """Let go; what was written stays."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    @property
    def _described(self) -> str:
        return f"the JSON lines in {self.directory}"

    def _epochs(self) -> dict[int, str]:
        """Return the epochs that are there, with their digests."""
        if not self.directory.is_dir():
            return {}
        found = (_NAME.fullmatch(path.name) for path in self.directory.iterdir())
        return {int(match[1]): match[2] for match in found if match is not None}

    def _attach(self, header: dict[str, Any]) -> None:
        path = self.directory / _HEADER
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        except (OSError, ValueError) as error:
            raise SinkError(f"{self._described} cannot be opened: {error}.", code="SINK_IO", path=str(path)) from error
        if stored is None:
            self._put(_HEADER, json.dumps(header))
        elif stored != header:
            code = "SINK_QUERY_ID" if stored.get("query_id") != header["query_id"] else "SINK_SCHEMA"
            raise SinkError(
                f"{self._described} belong to {stored}; the query now is {header}. Write to another directory, or bring the "
                "query back.",
                code=code,
                expected=stored,
                actual=header,
            )

    def _put(self, name: str, text: str) -> None:
        path = self.directory / name
        try:
            write_atomic(path, text.encode())
        except OSError as error:
            raise SinkError(
                f"{self._described} could not be written: {error}. Nothing of the epoch is there; mend the place and start "
                "again.",
                code="SINK_IO",
                path=str(path),
            ) from error
