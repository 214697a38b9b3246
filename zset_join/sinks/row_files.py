"""Rows in files, one per epoch: JSON lines or Parquet in a directory.

    orders/epoch-000000000012-5f0c....json      {"id":1,"total":30,"_tp_delta":1}

The law: as every sink. A file is present whole or not at all, by one atomic rename; its name has epoch and digest (the digest
only where the epoch has one: a session in memory has none). An epoch without rows has no file that a reader would see, and
still counts. A view that is append-only is written as it is; any other with its weights, in the column `_tp_delta`.

Limits: those of `epoch_files`; local directories.

Cost: the rows of the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.changelog import AppendFormat, WeightFormat, encode
from zset_join.core.errors import OptionError, SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.epoch_files import EpochFiles, EpochFilesSink
from zset_join.sinks.json_rows import JsonWriter, representable
from zset_join.sinks.sink import check_output
from zset_join.sinks.unfit_values import UnfitRows, fitting, unfit_values, within_microseconds
from zset_join.zset import ZSet

__all__ = ["RowFilesSink", "RowForm"]

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
        if form not in get_args(RowForm) or not str(path):
            raise OptionError(
                f"path={str(path)!r}, form={form!r}: a form is one of {', '.join(get_args(RowForm))}; name a directory.",
                code="SINK_OPTION",
                form=form,
            )
        self.path = Path(path)
        self.form = form
        self._with_weights = with_weights
        self.written_as = (), WeightFormat() if with_weights else AppendFormat()
        self._json: JsonWriter | None = None
        described = repr(self)
        super().__init__(
            described, EpochFiles(described, self.path, header="_query.json", prefix="epoch-", width=12, suffix=f".{self.form}")
        )

    def __repr__(self) -> str:
        return f"RowFilesSink({str(self.path)!r}, {self.form!r})"

    def open(self, output: Relation, query_id: str) -> None:
        check_output(repr(self), output)
        self.close()
        if self._with_weights and _WEIGHT in output.schema.names:
            raise SinkError(
                f"{self!r} writes the weight of a row as {_WEIGHT}, which is a column of the view too. Give it another name.",
                code="SINK_COLUMNS",
                column=_WEIGHT,
            )
        self._files.attach(
            {
                "query_id": query_id,
                "form": self.form,
                "with_weights": self._with_weights,
                "columns": [f"{field.name}: {field.type}" for field in output.schema],
            }
        )
        self._output = output
        self._json = JsonWriter(self._schema(output.schema)) if self.form == "json" else None

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return unfit_values(rows, representable if self.form == "json" else within_microseconds)

    def _written(self, epoch: int, delta: ZSet) -> tuple[bytes | None, int, int]:
        delta = fitting(self, delta, drops=False, epoch=epoch)
        try:
            data = self._bytes(self._lines(delta)) if len(delta) else None
        except pa.ArrowException as error:
            raise SinkError(f"{self!r}: epoch {epoch} cannot be written: {error}.", code="SINK_IO", epoch=epoch) from error
        return data, len(delta), int((delta.weights < 0).sum())

    def close(self) -> None:
        if self._json is not None:
            self._json.close()
        self._json = None
        super().close()

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
        pq.write_table(pa.Table.from_batches([lines]), sink)
        written: bytes = sink.getvalue().to_pybytes()
        return written
