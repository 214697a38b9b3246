"""Rows of JSON are read as they are written, by us and by others."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from zset_join.sinks.record_texts import JsonWriter
from zset_join.sources.json_values import part_json_rows

DAY, MOMENT = datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3, 4, 5, 678901)
ROWS: dict[str, tuple[pa.DataType, Any]] = {
    "i8": (pa.int8(), -128),
    "i64": (pa.int64(), 2**63 - 1),
    "f": (pa.float64(), 0.1),
    "inf": (pa.float64(), float("-inf")),
    "dec": (pa.decimal128(38, 2), decimal.Decimal("123456789012345678901234567890.12")),
    "text": (pa.string(), 'a "quoted"\nline \u00e9'),
    "ok": (pa.bool_(), True),
    "day": (pa.date32(), DAY),
    "at": (pa.timestamp("us"), MOMENT),
    "instant": (pa.timestamp("us", tz="UTC"), MOMENT.replace(tzinfo=datetime.UTC)),
    "bytes": (pa.binary(), b"\x00\xff"),
    "list": (pa.list_(pa.int32()), [1, None, 3]),
}


@pytest.mark.parametrize("name", list(ROWS))
def test_what_is_written_as_json_is_read_as_the_same_row(name: str) -> None:
    kind, value = ROWS[name]
    rows = pa.RecordBatch.from_pydict({name: [value, None]}, schema=pa.schema({name: kind}))
    writer = JsonWriter(rows.schema)
    texts = [text.encode() for text in writer.texts(rows)]
    writer.close()

    read, unread = part_json_rows(texts, rows.schema)
    assert (read.to_pylist(), unread) == (rows.to_pylist(), [])


def test_numbers_in_texts_texts_of_numbers_and_names_that_are_more_or_missing_are_read() -> None:
    schema = pa.schema({"id": pa.int32(), "name": pa.string(), "day": pa.date32()})
    texts = [b'{"id": "1", "name": 5, "more": {"x": 1}}', b'{"day": "2024-01-02"}']

    assert part_json_rows(texts, schema)[0].to_pylist() == [
        {"id": 1, "name": "5", "day": None},
        {"id": None, "name": None, "day": DAY},
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"id": oops}', "UNDECODABLE_RECORD"),
        (b'{"id": 1}{"id": 2}', "UNDECODABLE_RECORD"),
        (b'{"id": "x"}, "more": {}', "UNDECODABLE_RECORD"),
        (b"[1]", "UNDECODABLE_RECORD"),
        (b'{"id": 99999999999}', "UNDECODABLE_VALUE"),
        (b'{"at": 1704067200000}', "UNDECODABLE_VALUE"),
        (b'{"at": "soon"}', "UNDECODABLE_VALUE"),
    ],
)
def test_a_text_that_is_no_row_is_refused_with_its_number(text: bytes, code: str) -> None:
    schema = pa.schema({"id": pa.int32(), "at": pa.timestamp("us")})
    read, unread = part_json_rows([b'{"id": 1}', text], schema)

    assert read.to_pylist() == [{"id": 1, "at": None}]
    assert [(one.code, one.number) for one in unread] == [(code, 1)]


def test_a_number_with_more_digits_than_its_decimal_is_no_value() -> None:
    schema = pa.schema({"price": pa.decimal128(7, 2)})

    rows, unread = part_json_rows([b'{"price": -99999.99}', b'{"price": 123456}', b'{"price": null}'], schema)

    assert rows.to_pylist() == [{"price": decimal.Decimal("-99999.99")}, {"price": None}]
    assert [one.number for one in unread] == [1]
