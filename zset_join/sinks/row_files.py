"""Rows in files, one per epoch: JSON lines, CSV or Parquet in a directory.

    orders/epoch-000000000012.json      {"id":1,"total":30,"_tp_delta":1}

The law: a file is there whole or not at all (it is written beside, and then renamed), one of an epoch is never written twice,
and an epoch without rows has none. A view that only ever gets rows is written as it is; any other with its weights, in the
column `_tp_delta`.

Known limits: local directories. Epochs are told apart by number, not by their chain: an older checkpoint beside a newer
directory is not noticed; `JsonLinesSink` and the other sinks notice it. What an epoch without rows was, is not kept: it may
be handed over again, which writes nothing.

Cost: the rows of the epoch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from zset_join.changelog import AppendFormat, encode
from zset_join.errors import OptionError, SinkError
from zset_join.relation import Relation
from zset_join.sinks.json_rows import JsonWriter
from zset_join.sinks.sink import SinkProgress, check_chunk, check_output
from zset_join.storage.local import write_atomic
from zset_join.zset import ZSet

__all__ = ["RowFilesSink", "RowForm"]

RowForm = Literal["json", "csv", "parquet"]
_WEIGHT = "_tp_delta"
_OWNER = "_query.json"


class RowFilesSink:
    """Write the answer of every epoch to a file of its own.

    Args:
        path: the directory; made when it is not there.
        form: json (lines), csv (with a header) or parquet.
        with_weights: write the weight of each row, as `_tp_delta`; without, a retraction is refused.

    Raises:
        OptionError: no such form.

    >>> import tempfile
    >>> ones = ZSet.of({"k": [1, 2]})
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     sink = RowFilesSink(directory, "csv", with_weights=True)
    ...     sink.open(Relation(name="answer", schema=ones.schema, mode="changelog"), "doctest")
    ...     sink.write(0, [ones]).rows
    2
    """

    def __init__(self, path: str | Path, form: RowForm = "json", *, with_weights: bool = False) -> None:
        if form not in get_args(RowForm) or not str(path):
            raise OptionError(
                f"path={str(path)!r}, form={form!r}: a form is one of {', '.join(get_args(RowForm))}; name a directory.",
                code="SINK_OPTION",
                form=form,
            )
        self.path = Path(path)
        self.form = form
        self._with_weights = with_weights
        self._output: Relation | None = None
        self._json: JsonWriter | None = None

    def __repr__(self) -> str:
        return f"RowFilesSink({str(self.path)!r}, {self.form!r})"

    def open(self, output: Relation, query_id: str) -> None:
        """Make the directory, or go on with it.

        Raises:
            SinkError: it belongs to another query, has other columns, holds files of somebody else, or cannot be made.
        """
        check_output(repr(self), output)
        wanted = {
            "query_id": query_id,
            "form": self.form,
            "with_weights": self._with_weights,
            "columns": [f"{field.name}: {field.type}" for field in output.schema],
        }
        owner = self.path / _OWNER
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not owner.exists():
                strangers = [one.name for one in self.path.iterdir() if not one.name.startswith(f".{_OWNER}.")]
                if strangers:
                    raise SinkError(
                        f"{self!r}: the directory holds {strangers[0]}, which no query has written. Name an empty one.",
                        code="SINK_NAME_TAKEN",
                        path=str(self.path),
                    )
                write_atomic(owner, json.dumps(wanted).encode())
            found = json.loads(owner.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SinkError(f"{self!r} cannot be opened: {error}.", code="SINK_IO", path=str(self.path)) from error
        different = [name for name in wanted if found.get(name) != wanted[name]]
        if different:
            raise SinkError(
                f"{self!r} was written with another {different[0]}: {found.get(different[0])}. Name another directory.",
                code="SINK_QUERY_ID" if different == ["query_id"] else "SINK_SCHEMA",
                path=str(self.path),
                different=different,
            )
        for half in (*self.path.glob(".epoch-*"), *self.path.glob(f".{_OWNER}.*")):
            half.unlink()  # of a process that was killed while it wrote
        self._output = output
        self._json = JsonWriter(self._schema(output.schema)) if self.form == "json" else None

    def last_epoch(self) -> int | None:
        """Return the last epoch that had rows; None before the first."""
        numbers = [int(one.stem.removeprefix("epoch-")) for one in self.path.glob(f"epoch-*.{self.form}")]
        return max(numbers, default=None)

    def write(self, epoch: int, chunks: Iterable[ZSet]) -> SinkProgress:
        """Write a file, unless the epoch has no rows or a file already.

        Raises:
            SinkError: a retraction where no weights are written, or the file cannot be written.
        """
        started = time.perf_counter()
        if self._output is None:
            raise SinkError(f"{self!r} was given an epoch before it was opened.", code="SINK_CLOSED", epoch=epoch)
        target = self.path / f"epoch-{epoch:012}.{self.form}"
        if target.exists():
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        parts = []
        for chunk in chunks:
            check_chunk(repr(self), epoch, self._output.schema, chunk)
            parts.append(chunk)
        delta = ZSet.concat(parts, schema=self._output.schema)
        retractions = int((delta.weights < 0).sum())
        if len(delta):
            try:
                write_atomic(target, self._bytes(self._lines(delta)))
            except (OSError, pa.ArrowException) as error:
                raise SinkError(f"{self!r}: epoch {epoch} cannot be written: {error}.", code="SINK_IO", epoch=epoch) from error
        return SinkProgress(epoch, len(delta), retractions, time.perf_counter() - started)

    def close(self) -> None:
        """Let go of what writes."""
        if self._json is not None:
            self._json.close()
        self._json = self._output = None

    def _schema(self, rows: pa.Schema) -> pa.Schema:
        return rows.append(pa.field(_WEIGHT, pa.int64())) if self._with_weights else rows

    def _lines(self, delta: ZSet) -> pa.RecordBatch:
        if self._with_weights:
            columns = [*delta.rows.columns, pa.array(delta.weights)]
            return pa.RecordBatch.from_arrays(columns, schema=self._schema(delta.schema))
        return encode(delta, [], AppendFormat())

    def _bytes(self, lines: pa.RecordBatch) -> bytes:
        if self._json is not None:
            return "".join(f"{text}\n" for text in self._json.texts(lines)).encode()
        sink = pa.BufferOutputStream()
        table = pa.Table.from_batches([lines])
        if self.form == "csv":
            pc.write_csv(table, sink)
        else:
            pq.write_table(table, sink)
        made: bytes = sink.getvalue().to_pybytes()
        return made
