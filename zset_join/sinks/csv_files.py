"""The changes of a query as plain CSV files, one per epoch.

    changes/epoch-000000000012-5f0c....csv      "id","total","_weight"
                                                1,30,-1
                                                1,40,1

The law: as every sink. A file is present whole or not at all, by one atomic rename; its name contains epoch and digest. What is
read again is the answer, for every row that the sink takes. An epoch without rows has no file that a reader would see, and
counts.

A line shows its kind of change in a form: `weight` (`_weight`), `row_kind` (`_row_kind`; a line per copy) or `change_data_feed`
(`_change_type`, `_commit_version`, `_commit_timestamp`), as in the other changelogs; `tp_delta` is `weight` in the column
`_tp_delta`; `append` is the row alone, of a query that retracts none.

Values: text is quoted, so `""` is empty and nothing is NULL; instants are in UTC with a `Z`; bytes are written as they are.

Limits: those of `epoch_files`; local directories. Nested values and durations have no text in CSV and are refused when the
sink is opened. Text and bytes that are no UTF-8 do not fit, nor times outside the years 1 to 9999 (nanoseconds: before 1677),
nor NULL in the only column of `append`, whose line would be empty.

Memory and cost: the rows of the epoch.

Source: RFC 4180.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as pt
from typing_extensions import override

from zset_join.changelog import AppendFormat, ChangelogFormat, WeightFormat, encode, encoded_schema, format_named
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.epoch_files import EpochFilesSink
from zset_join.sinks.epoch_sink import check_names
from zset_join.sinks.sink import holds_duration
from zset_join.sinks.unfit_values import UnfitRows, unfit_values
from zset_join.zset import ZSet

__all__ = ["CsvFilesSink", "CsvForm"]

CsvForm: TypeAlias = Literal["weight", "row_kind", "change_data_feed", "tp_delta", "append"]

_FORMATS: Mapping[str, ChangelogFormat] = {"append": AppendFormat(), "tp_delta": WeightFormat(column="_tp_delta")}
_GONE = ("-U", "-D", "update_preimage", "delete")
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
_FIRST_SECOND_OF_NANOSECONDS = -9_223_372_036  # the first whole second that 64 bits of nanoseconds hold; readers need it
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


class CsvFilesSink(EpochFilesSink):
    """Write the answer of every epoch to a CSV file of its own.

    Args:
        path: the directory; created if it does not exist.
        form: see the module; with the key of the output relation, retraction and insertion of one key are an update.

    >>> import tempfile
    >>> ones = ZSet.of({"k": [1, 2]}, [-1, 1])
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     sink = CsvFilesSink(directory)
    ...     sink.open(Relation(name="answer", schema=ones.schema, mode="changelog"), "doctest")
    ...     sink.write(0, [ones]).retractions, sink.read().to_pylist()
    (1, [{'k': 1, '_weight': -1}, {'k': 2, '_weight': 1}])
    """

    def __init__(self, path: str | Path, form: CsvForm = "weight") -> None:
        super().__init__(path, form, get_args(CsvForm), suffix=".csv")
        self.form = form
        self._format = _FORMATS[form] if form in _FORMATS else format_named(form)
        self.written_as = (), self._format

    def __repr__(self) -> str:
        return f"CsvFilesSink({str(self.path)!r}, {self.form!r})"

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        texts = [pa.array(column.cast(pa.large_binary())).view(pa.large_string()) if _is_bytes(column.type) else column
                 for column in rows.columns]  # fmt: skip
        found = unfit_values(pa.RecordBatch.from_arrays(texts, names=rows.schema.names), _years_of_four_digits)
        if self.form == "append" and rows.num_columns == 1 and rows.column(0).null_count:
            reason = "is the only column, so its line would be empty, which readers pass over"
            found.append(UnfitRows(rows.schema.names[0], reason, np.asarray(rows.column(0).is_null())))
        return found

    @override
    def _encoded(self, epoch: int, delta: ZSet) -> tuple[bytes | None, int, int]:
        moment = time.time_ns() // 1000
        lines = encode(delta, self._opened().primary_key, self._format, epoch=epoch, committed_at_us=moment)
        gone = delta.weights[delta.weights < 0]
        retractions = len(gone) if isinstance(self._format, WeightFormat) else -int(gone.sum(dtype=np.int64))
        return _bytes(lines) if len(delta) else None, lines.num_rows, retractions

    def read(self) -> pa.Table:
        """Return the contents of the files: the rows, and `_weight`, in the order of their epochs."""
        output = self._opened()
        written = encoded_schema(output.schema, self._format)
        types = {field.name: _written_type(field.type) for field in written}
        convert = pa.csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        )
        parse = pa.csv.ParseOptions(newlines_in_values=True)
        tables = [
            pa.csv.read_csv(path, convert_options=convert, parse_options=parse) for path in sorted(self.path.glob("epoch-*"))
        ]
        lines = pa.concat_tables([pa.schema(types.items()).empty_table(), *tables])
        rows = lines.select(output.schema.names).cast(output.schema)
        if isinstance(self._format, WeightFormat):
            weights = lines.column(self._format.column)
        elif isinstance(self._format, AppendFormat):
            weights = pa.array(np.ones(len(lines), np.int64))
        else:
            gone = pc.is_in(lines.column(len(output.schema)), value_set=pa.array(_GONE))
            weights = pc.if_else(gone, pa.scalar(-1, pa.int64()), pa.scalar(1, pa.int64()))
        return rows.append_column("_weight", weights)

    @override
    def _take(self, output: Relation) -> None:
        rows = output.schema
        if self.form == "tp_delta":
            check_names(repr(self), rows.names, (), refused=["_tp_delta"], why="it is the weight of a row")
        encoded_schema(rows, self._format)
        for field in rows:
            if pt.is_nested(field.type) or holds_duration(field.type):
                raise SinkError(
                    f'{self!r} cannot keep column "{field.name}" of type {field.type}, which has no text in CSV. Take its '
                    "fields apart or cast it to a text in the query, or write JSON lines or Parquet.",
                    code="SINK_TYPE",
                    column=field.name,
                    type=str(field.type),
                )


def _bytes(lines: pa.RecordBatch) -> bytes:
    """Return a file: a header, and the lines."""
    sink = pa.BufferOutputStream()
    plain = [column.cast(_written_type(column.type)) for column in lines.columns]
    pa.csv.write_csv(pa.Table.from_arrays(plain, names=lines.schema.names), sink)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _written_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column is written and read as."""
    if pt.is_dictionary(kind):
        return _written_type(kind.value_type)
    if pt.is_string_view(kind):
        return pa.string()
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def _years_of_four_digits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the first and the last date, time or timestamp of a type that CSV can express.

    >>> _years_of_four_digits(pa.time32("s")), _years_of_four_digits(pa.date32())
    ((0, 86399), (-719162, 2932896))
    """
    if pt.is_date32(kind):
        return _FIRST_DAY, _LAST_DAY
    if pt.is_time(kind):
        return 0, _PER_DAY.get(kind.unit, 86_400_000_000_000) - 1
    if pt.is_timestamp(kind) and kind.unit == "ns":
        return _FIRST_SECOND_OF_NANOSECONDS * 1_000_000_000, 2**63 - 1
    if pt.is_date64(kind) or pt.is_timestamp(kind):
        per_day = _PER_DAY["ms" if pt.is_date64(kind) else kind.unit]
        return _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1
    return None


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind))
