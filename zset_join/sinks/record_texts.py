"""The answer of an epoch as records of JSON: a key, a value, and what the record does, in every form that we write.

| form | value | read again as |
|---|---|---|
| `upsert` | the row, or nothing where the key is gone | `upsert-json` |
| `debezium` | `before`, `after` and `op` (c, u, d) | `debezium-json`, decimals as text |
| `weight` | the row and `_weight` | rows with a weight column |
| `row_kind` | the row and `_row_kind` (+I -U +U -D) | rows with a row kind |
| `append` | the row of a view that retracts none; a retraction is refused | rows |
| `change_data_feed` | the row, `_change_type`, `_commit_version`, `_commit_timestamp` | rows of a change feed |

The law: what is read again is the answer, for every type that JSON can hold (see `json_rows` for the values). For `upsert` it
is, relative to the rows that were present before. Without a key the record key is the whole row; `upsert` needs one.

Memory: the answer of the epoch and its texts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.changelog import (
    AppendFormat,
    ChangeDataFeedFormat,
    ChangelogFormat,
    RecordForm,
    RowKindFormat,
    UpsertFormat,
    WeightFormat,
    check_key,
    encode,
    encoded_schema,
)
from zset_join.sinks.json_rows import JsonWriter, representable
from zset_join.sinks.unfit_values import UnfitRows, sized_rows, unfit_values
from zset_join.zset import ZSet

__all__ = ["RECORD_FORMS", "RECORD_SCHEMA", "RecordWriter"]

RECORD_FORMS: Mapping[str, ChangelogFormat] = {
    "upsert": UpsertFormat(column="_deleted"),
    "weight": WeightFormat(column="_weight"),
    "row_kind": RowKindFormat(column="_row_kind"),
    "change_data_feed": ChangeDataFeedFormat(timestamp_column="_commit_timestamp"),
    "debezium": RowKindFormat(column="_row_kind"),
    "append": AppendFormat(),
}
RECORD_SCHEMA = pa.schema({"key": pa.string(), "value": pa.string()})

_MOST_GROWTH = 18  # a byte of text is at most six of JSON, and a record has the row at most three times
_BESIDE = 512  # names, numbers and marks, per column
_BARE_ROWS = ("append", "upsert", "debezium")


class RecordWriter:
    """Write answers as records.

    >>> writer = RecordWriter(pa.schema({"id": pa.int64(), "v": pa.string()}), "debezium", ["id"])
    >>> delta = ZSet.of({"id": [1, 1], "v": ["a", "b"]}, [-1, 1])
    >>> writer.records(delta, epoch=0)
    [('{"id":1}', '{"before":{"id":1,"v":"a"},"after":{"id":1,"v":"b"},"op":"u"}', False)]
    >>> writer.close()
    """

    def __init__(self, schema: pa.Schema, form: RecordForm, key: Sequence[str]) -> None:
        self.form = form
        self._key = list(key)
        self._format = RECORD_FORMS[form]
        written = encoded_schema(schema, self._format)
        check_key(schema, self._key, self._format)
        self._names = list(schema.names)
        self.written_as = self._key, self._format
        self._keys = JsonWriter(written, self._key or schema.names)
        self._values = JsonWriter(written, schema.names if form in _BARE_ROWS else written.names)

    def records(self, answer: ZSet, *, epoch: int, committed_at_us: int | None = None) -> list[tuple[str, str | None, bool]]:
        """Return key, value and whether it takes something away, per record."""
        key = self._key or (self._names if self.form == "debezium" else [])
        moment = time.time_ns() // 1000 if committed_at_us is None else committed_at_us
        rows = encode(answer, key, self._format, epoch=epoch, committed_at_us=moment)
        keys, values = self._keys.texts(rows), self._values.texts(rows)
        if self.form == "append":
            return [(one, row, False) for one, row in zip(keys, values, strict=True)]
        marks = rows.column(len(self._names))
        if self.form == "upsert":
            gone = marks.to_pylist()
            return [(one, None if goes else row, goes) for one, row, goes in zip(keys, values, gone, strict=True)]
        if self.form == "debezium":
            return list(_envelopes(keys, values, marks.to_pylist()))
        return list(zip(keys, values, self._takes_away(marks), strict=True))

    def table(self, answer: ZSet, *, epoch: int) -> pa.Table:
        """Return records as `RECORD_SCHEMA`; see `records`."""
        records = self.records(answer, epoch=epoch)
        return pa.table([[one[0] for one in records], [one[1] for one in records]], schema=RECORD_SCHEMA)

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        """Return the rows with a value that JSON texts cannot hold, see `json_rows.representable`."""
        return unfit_values(rows, representable)

    def oversized(self, rows: pa.RecordBatch, most_bytes: int) -> Sequence[UnfitRows]:
        """Return the rows whose record, key and value, may be longer than a bound, under their first column."""
        if rows.nbytes * _MOST_GROWTH + _BESIDE * len(rows.schema) < most_bytes:
            return ()
        flat = [name for name in rows.schema.names if not pt.is_nested(rows.schema.field(name).type)]
        if len(flat) == len(rows.schema):
            candidates = sized_rows(rows, flat) * _MOST_GROWTH + _BESIDE * len(rows.schema) >= most_bytes
        else:
            candidates = np.ones(rows.num_rows, np.bool_)
        for unsayable in self.unfit(rows):
            candidates &= ~unsayable.rows
        places = np.flatnonzero(candidates)
        if not len(places):
            return ()
        writer = JsonWriter(rows.schema)
        try:
            lengths = np.array([len(text.encode()) for text in writer.texts(rows.take(pa.array(places)))], np.int64)
        finally:
            writer.close()
        flags = np.zeros(rows.num_rows, np.bool_)
        copies = 3 if self.form == "debezium" else 2  # the row as key, as value before and after
        flags[places[lengths * copies + _BESIDE > most_bytes]] = True
        reason = f"makes a record of more than {most_bytes} bytes"
        return [UnfitRows(rows.schema.names[0], reason, flags)] if flags.any() else ()

    def close(self) -> None:
        """Release the database that makes the texts."""
        self._keys.close()
        self._values.close()

    def _takes_away(self, marks: pa.Array) -> list[bool]:
        if self.form == "weight":
            return list(pc.less(marks, 0).to_pylist())
        takes = ["-U", "-D", "update_preimage", "delete"]
        return list(pc.is_in(marks, pa.array(takes, marks.type)).to_pylist())


def _envelopes(keys: Sequence[str], values: Sequence[str], kinds: Sequence[str]) -> Iterator[tuple[str, str | None, bool]]:
    """Yield Debezium's envelopes: an update has both rows, and the -U of a key come before its +U, in the same order."""
    before: deque[str] = deque()
    for key, value, kind in zip(keys, values, kinds, strict=True):
        if kind == "-U":
            before.append(value)
        elif kind == "+U":
            yield key, f'{{"before":{before.popleft()},"after":{value},"op":"u"}}', False
        elif kind == "+I":
            yield key, f'{{"before":null,"after":{value},"op":"c"}}', False
        else:
            yield key, f'{{"before":{value},"after":null,"op":"d"}}', True
