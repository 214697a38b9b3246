"""What we write down in any form is read again as what it was: `in -> out -> in` is the identity on Z-sets.

A table with a column of every type that JSON can hold is changed by a delta; the delta is written as records and read again.

- `debezium` without a key, `weight`, `row_kind`, `change_data_feed`: what is read is the delta.
- `debezium` with a key, and `upsert`: what is read, applied to the table before, leaves the table after.

Values are compared bit by bit: NaN is NaN, and 0.0 is not -0.0. Planted bugs show that the law can fail.
"""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zset_join.changelog import decode
from zset_join.changelog.formats import RecordOptions
from zset_join.core.relation import Relation
from zset_join.sinks import record_texts
from zset_join.sinks.record_texts import RECORD_FORMS, RecordWriter
from zset_join.sources.json_records import JsonRecordReader
from zset_join.zset import ZSet

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["", "null", "NULL", '"', "\\", "{}", "[1]", "\x00", "\u2028", "0", "NaN", "true", "  a ", "\ud7ff\U0001f600"]
    ),
)
MOMENTS = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)).map(
    lambda one: one.replace(fold=0)
)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "b": (pa.bool_(), st.booleans()),
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "i64": (pa.int64(), INT64),
    "f32": (pa.float32(), st.floats(width=32)),
    "f64": (pa.float64(), st.floats()),
    "text": (pa.string(), TEXTS),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "d38": (
        pa.decimal128(38, 10),
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda one: decimal.Decimal(one).scaleb(-10, decimal.Context(prec=40))),
    ),
    "d9": (pa.decimal128(9, 0), st.integers(-(10**9) + 1, 10**9 - 1).map(decimal.Decimal)),
    "day": (pa.date32(), st.dates()),
    "at": (pa.timestamp("us"), MOMENTS),
    "utc": (pa.timestamp("us", tz="UTC"), MOMENTS.map(lambda one: one.replace(tzinfo=datetime.UTC))),
    "ints": (pa.list_(pa.int64()), st.lists(st.one_of(st.none(), INT64), max_size=3)),
    "texts": (pa.list_(pa.string()), st.lists(st.one_of(st.none(), TEXTS), max_size=3)),
}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), *(pa.field(name, reported[0]) for name, reported in TYPES.items())]
)
OPTIONS = RecordOptions(decimals="text")
ROW = st.tuples(*(st.one_of(st.none(), reported[1]) for reported in TYPES.values()))
TABLES = st.dictionaries(st.integers(-1, 4), ROW, max_size=4)
WRITTEN = {"weight": pa.int64(), "row_kind": pa.string(), "change_data_feed": pa.string()}


def bits(values: Any) -> tuple[str, ...]:
    return tuple(repr(value) for value in values)


def rows_of(batch: pa.RecordBatch) -> list[tuple[str, ...]]:
    return [bits(row.values()) for row in batch.to_pylist()]


def zset_of(lines: list[tuple[Any, int]]) -> ZSet:
    columns = [pa.array([line[0][at] for line in lines], field.type) for at, field in enumerate(SCHEMA)]
    return ZSet.of(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), [line[1] for line in lines])


def table_of(rows: dict[int, Any]) -> dict[int, tuple[str, ...]]:
    return dict(zip(rows, rows_of(zset_of([((key, *row), 1) for key, row in rows.items()]).rows), strict=True))


def delta_between(before: dict[int, Any], after: dict[int, Any]) -> ZSet:
    lines = [((key, *row), -1) for key, row in before.items()] + [((key, *row), 1) for key, row in after.items()]
    gone = {bits(line[0]) for line in lines if line[1] < 0} & {bits(line[0]) for line in lines if line[1] > 0}
    lines = [line for line in lines if bits(line[0]) not in gone]
    return zset_of(lines)


def contents(delta: ZSet) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for row, weight in zip(rows_of(delta.rows), delta.weights.tolist(), strict=True):
        found[row] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


WRITERS = {
    **{form: RecordWriter(SCHEMA, form, ["id"]) for form in RECORD_FORMS},
    "keyless": RecordWriter(SCHEMA, "debezium", []),
}
READERS = {
    "keyless": JsonRecordReader("debezium-json", SCHEMA, [], OPTIONS),
    "debezium": JsonRecordReader("debezium-json", SCHEMA, ["id"], OPTIONS),
    "upsert": JsonRecordReader("upsert-json", SCHEMA, ["id"], OPTIONS),
    **{
        form: JsonRecordReader("upsert-json", SCHEMA.append(pa.field(RECORD_FORMS[form].column, kind)), ["id"], OPTIONS)
        for form, kind in WRITTEN.items()
    },
}


def law_of_whole_rows(before: dict[int, Any], after: dict[int, Any], form: str) -> None:
    """What is read is the delta."""
    delta = delta_between(before, after)
    if form == "keyless":
        read = READERS[form].read(WRITERS[form].table(delta, epoch=3))
        weights = [-1 if one == "delete" else 1 for one in read.changes.to_pylist()]
        found = ZSet(read.rows, pa.array(weights, pa.int64()).to_numpy())
    else:
        read = READERS[form].read(WRITERS[form].table(delta, epoch=3))
        found = decode(read.rows, Relation(name="t", schema=SCHEMA, mode="changelog"), RECORD_FORMS[form]).delta
    assert read.rejects.null_count == len(read.rejects)
    assert contents(found) == contents(delta)


def law_of_keys(before: dict[int, Any], after: dict[int, Any], form: str) -> None:
    """What is read leads from the table before to the table after."""
    read = READERS[form].read(WRITERS[form].table(delta_between(before, after), epoch=3))
    assert read.rejects.null_count == len(read.rejects)
    table = table_of(before)
    for row, what in zip(read.rows.to_pylist(), read.changes.to_pylist(), strict=True):
        table.pop(row["id"], None)
        if what == "upsert":
            table[row["id"]] = bits(row.values())
    assert table == table_of(after)


@pytest.mark.parametrize("form", ["keyless", "weight", "row_kind", "change_data_feed"])
@given(before=TABLES, after=TABLES)
def test_whole_rows_come_back(form: str, before: dict[int, Any], after: dict[int, Any]) -> None:
    law_of_whole_rows(before, after, form)


@pytest.mark.parametrize("form", ["debezium", "upsert"])
@given(before=TABLES, after=TABLES)
def test_changes_by_key_lead_to_the_same_table(form: str, before: dict[int, Any], after: dict[int, Any]) -> None:
    law_of_keys(before, after, form)


PLAIN = (True, 1, 1, 1, 1, 1.0, 1.0, "a", b"a", decimal.Decimal(1), decimal.Decimal(1), None, None, None, [1], ["a"])
BUGS = {
    "an update is an insert": lambda keys, values, kinds: [
        (key, f'{{"before":null,"after":{value},"op":"c"}}', False)
        for key, value, kind in zip(keys, values, kinds, strict=True)
        if kind != "-U"
    ],
    "a delete is left out": lambda keys, values, kinds: [
        one for one in ORIGINAL(keys, values, kinds) if '"op":"d"' not in one[1]
    ],
}
ORIGINAL = record_texts._envelopes


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_texts, "_envelopes", BUGS[bug])
    with pytest.raises(AssertionError):
        law_of_whole_rows({1: PLAIN, 2: PLAIN}, {1: (False, *PLAIN[1:])}, "keyless")
