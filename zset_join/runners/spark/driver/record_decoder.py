"""Records that Spark collected as they came, read here: rows of their table, and what is known of those that cannot be read.

    key, value, topic, partition, offset -> JsonRecordReader -> rows, weights, order, control | rejected rows, raw

The law: the same rows, codes and texts as Spark reads for executors (`zset_join.runners.spark.rows.record_streams`).

Cost: as `zset_join.sources.json_records`: some microseconds for an ordinary record, some more for the others.

Memory: the rows of a batch beside its records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.row_conversion import take_rows
from zset_join.runners.spark.rows.layout import as_type
from zset_join.runners.spark.rows.mapped_records import as_texts
from zset_join.runners.spark.rows.undecoded_records import IN_RECORD, RecordsRead
from zset_join.shapes.deduplicate import MOST_COLUMNS, TRUNCATE
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.sources.json_records import JsonRecordReader, ReadRecords

__all__ = ["RecordDecoder", "SourceRows"]


@dataclass(frozen=True)
class SourceRows:
    delta: ZSet
    rejected: ZSet
    raw: Sequence[str]


_CONTROL = re.compile(r"(?<!\\)((?:\\\\)*)\\u00([01][0-9a-f])")
_FIRST = -1
"""The position of a record that has none."""


class RecordDecoder:
    """Read the records of one stream; it can be pickled, and opens its reader with the first records."""

    def __init__(self, read: RecordsRead) -> None:
        self._read = read
        self._reader: JsonRecordReader | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (RecordDecoder, (self._read,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordDecoder) and self._read == other._read

    def __hash__(self) -> int:
        return hash(self._read.name)

    def rows(self, records: pa.RecordBatch) -> SourceRows:
        """Return the rows that records mean."""
        read = self._read
        if self._reader is None:
            from zset_join.sources.json_records import JsonRecordReader  # needs DuckDB, which not every driver has

            self._reader = JsonRecordReader(read.format_name, read.table, read.keys, read.options, source=read.name)
        texts, not_text = as_texts(records)
        lines = self._reader.read(texts)
        control = _control(lines, self._places())
        codes = self._codes(lines, control)
        weights = np.where(np.asarray(pc.fill_null(pc.equal(lines.changes, "delete"), False)), np.int64(-1), np.int64(1))
        batch = self._columns(lines, control)
        if codes.null_count == len(codes):
            return SourceRows(ZSet(batch, weights), ZSet.empty(read.schema), ())
        is_bad = np.asarray(pc.is_valid(codes))
        bad, good = np.flatnonzero(is_bad), np.flatnonzero(~is_bad)
        raw = _raw(codes.take(pa.array(bad)), lines, bad, texts, not_text)
        return SourceRows(ZSet(take_rows(batch, good), weights[good]), ZSet(take_rows(batch, bad), weights[bad]), raw)

    def _places(self) -> list[int | None]:
        """Return the place in the table of every column that `control` has a bit for."""
        read = self._read
        names = read.table.names
        if read.control is None:
            return [*range(len(names))]
        places = {name: at for at, name in enumerate(names)}
        hidden = {*read.order, read.control}
        return [places.get(name) for name in read.schema.names if name not in hidden]

    def _codes(self, lines: ReadRecords, control: npt.NDArray[np.int64]) -> pa.Array:
        """Return per line the code of what is wrong, as Spark has it."""
        codes = pc.replace_substring_regex(lines.rejects, " .*", "")
        if self._read.control is not None:
            return codes
        lacking = pc.if_else(pa.array(control > 0), "UNAVAILABLE_VALUE", pa.scalar(None, pa.string()))
        return pc.coalesce(codes, pc.if_else(pa.array(control < 0), "TRUNCATED", lacking))

    def _columns(self, lines: ReadRecords, control: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return the columns of the rows, hidden ones included."""
        read = self._read
        columns = []
        for at in read.schema:
            if at.name == read.control:
                columns.append(pa.array(control))
            elif at.name in read.order:
                columns.append(pc.fill_null(lines.rows.column(read.order[at.name]), _FIRST))
            else:
                columns.append(as_type(lines.rows.column(at.name), at.type))
        return pa.RecordBatch.from_arrays(columns, schema=read.schema)


def _control(lines: ReadRecords, places: list[int | None]) -> npt.NDArray[np.int64]:
    """Return the omitted columns of lines, as bits of some columns of the table; a truncate is negative."""
    known = [(place, at) for at, place in enumerate(places) if place is not None and place < MOST_COLUMNS]
    bits = lines.unavailable
    if not bits.any():
        found = np.zeros(len(bits), np.int64)
    elif all(place == at for place, at in known):
        found = bits & np.int64(sum(1 << place for place, _ in known))
    else:
        found = np.zeros(len(bits), np.int64)
        for place, at in known:
            found |= ((bits >> place) & 1) << at
    is_delete, is_truncate = (np.asarray(pc.fill_null(pc.equal(lines.changes, what), False)) for what in ("delete", "truncate"))
    return np.where(is_truncate, np.int64(TRUNCATE), np.where(is_delete, np.int64(0), found))


def _raw(
    codes: pa.Array, lines: ReadRecords, bad: npt.NDArray[np.int64], texts: pa.Table, not_text: Mapping[str, pa.Array]
) -> list[str]:
    """Return per rejected line its code with the record as JSON, as Spark writes it."""
    numbers = pa.array(lines.records[bad])
    columns = {"said": lines.rejects.take(pa.array(bad))}
    columns |= {name: texts.column(name).take(numbers).cast(pa.string()) for name in IN_RECORD if name in texts.column_names}
    columns |= {name: shown.take(numbers) for name, shown in not_text.items()}
    rows = pa.table(columns).to_pylist()
    return [f"{code}:{_as_json(row)}" for code, row in zip(codes.to_pylist(), rows, strict=True)]


def _as_json(row: dict[str, Any]) -> str:
    given = {name: value for name, value in row.items() if value is not None}
    text = json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    return _CONTROL.sub(lambda found: f"{found[1]}\\u00{found[2].upper()}", text)
