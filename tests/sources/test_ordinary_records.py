"""Ordinary records of Debezium are read in bulk, and mean what the statements read of them, with anything between them."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from zset_join.changelog.formats import RecordOptions
from zset_join.sources.json_records import JsonRecordReader, ReadRecords

TABLE = pa.schema(
    {
        "id": pa.int64(),
        "k": pa.string(),
        "n": pa.int16(),
        "w": pa.float64(),
        "b": pa.bool_(),
        "s": pa.string(),
        "price": pa.decimal128(7, 2),
        "part": pa.decimal128(3, 3),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "made": pa.timestamp("us"),
    }
)
VALUES = {
    "id": ["1", "-0", "1.0", "1e2", "9223372036854775807", "9223372036854775808", '"5"', "null", "true", "01"],
    "k": ['"a"', '"\\u00e4"', '"\\ud800"', "1", "null", '""', "{}", '"__debezium_unavailable_value"'],
    "n": ["1", "32767", "32768", "null", "1.5", '"3"'],
    "w": ["1", "0.1", "1e400", "-0.0", "0.30000000000000004", "12345678901234567890.123", "null", '"1.5"', "NaN", "5e-324"],
    "b": ["true", "false", "null", "1", '"true"'],
    "price": [
        '"1.50"',
        '"-0.00"',
        '"12345.6"',
        '"123456"',
        '"1.505"',
        '"01"',
        '"1e2"',
        '"+1"',
        '"1."',
        '""',
        "1.5",
        "null",
        '" 1"',
    ],
    "part": ['"0.125"', '"0"', '"-0.5"', '"1"', '".5"', '"0.1234"'],
    "day": ["19000", "0", "-719162", "-719163", "2932896", "2932897", '"2024-01-02"', "1.0", "null"],
    "at": [
        '"2024-01-02T03:04:05Z"',
        '"2024-01-02T03:04:05.123456Z"',
        '"2024-02-30T00:00:00Z"',
        '"2024-01-02T24:00:00Z"',
        '"2024-01-02T03:04:05+02:00"',
        '"2024-01-02 03:04:05"',
        '"0001-01-01T00:00:00Z"',
        '"2024-01-02T03:04:05.1Z"',
        "5",
        "null",
    ],
    "made": [
        "1700000000123",
        "0",
        "-62135596800000",
        "-62135596800001",
        "253402300799999",
        "253402300800000",
        "1.5",
        "null",
        '"5"',
    ],
    "s": ['"text"', '"__debezium_unavailable_value"', '"\\u0000"', "5", "null", "[1]", '"é😀"', '"1.50"', '"NaN"'],
}
WRITTEN: Any = {"decimals": "text", "time_unit": {"made": "ms"}}


def _row(draw: random.Random, odd: float) -> str:
    parts = []
    for name, choices in VALUES.items():
        if draw.random() >= 0.05 * odd:
            parts.append(f'"{name}":{draw.choice(choices) if draw.random() < 0.3 * odd else choices[0]}')
        if draw.random() < 0.03 * odd:
            parts.append(f'"{name}":{draw.choice(choices)}')
    if draw.random() < 0.2:
        parts.append('"extra":{"a":[1,2,{"b":null}]}')
        draw.shuffle(parts)
    return "{" + ",".join(parts) + "}"


def _record(draw: random.Random, odd: float) -> str | None:
    def rarely(share: float) -> bool:
        return draw.random() < share * odd

    operation = draw.choice("cudrtmxC") if rarely(0.4) else "u"
    table = draw.choice(['"o2"', '""', "null", '"shop"', "7"]) if rarely(0.2) else '"orders"'
    place = f'{{"lsn":{draw.choice(["null", "1.5"]) if rarely(0.1) else 6},"table":{table},"db":"d"}}'
    before = draw.choice([_row(draw, odd), '{"id":1,"k":"a"}', '{"id":2}', "5"]) if rarely(0.5) else "null"
    after = "null" if operation in "dt" else _row(draw, odd)
    text = f'{{"op":"{operation}","before":{before},"after":{after},"source":{"null" if rarely(0.05) else place}}}'
    others = [" " + text, text + text, text[: draw.randrange(len(text))], None, "{}", f'{{"schema":null,"payload":{text}}}']
    return draw.choice([*others, text.replace("{", "{\n ", 1)]) if rarely(0.15) else text


def _lines(read: ReadRecords) -> list[str]:
    columns = (read.records.tolist(), read.changes.to_pylist(), read.rejects.to_pylist(), read.unavailable.tolist())
    return [str(line) for line in zip(*columns, read.rows.to_pylist(), strict=True)]


@pytest.mark.parametrize("odd", [0.0, 0.02, 0.1, 1.0])
def test_they_mean_what_the_statements_read_of_them(odd: float) -> None:
    draw = random.Random(f"ordinary {odd}")
    given: Any = {"options": RecordOptions(**WRITTEN, metadata={"position": "p", "offset": "o"}), "source": "orders"}
    reader, statements = (JsonRecordReader("debezium-json", TABLE, ["id", "k"], **given) for _ in range(2))
    ordinary = reader._ordinary
    assert ordinary is not None
    statements._ordinary = None
    counts = [0, 0]

    for size in (1, 2, 60) * 4:
        values = pa.array([_record(draw, odd) for _ in range(size)], pa.string())
        topics = pa.array([draw.choice(["x.shop", "orders", "o2", None]) for _ in range(size)], pa.string())
        table = pa.table({"value": values, "topic": topics, "offset": pa.array(range(size), pa.int64())})
        counts = [counts[0] + len(ordinary.read(table)[0]), counts[1] + size]

        read, expected = reader.read(table), statements.read(table)

        assert read.rows.schema == expected.rows.schema
        assert _lines(read) == _lines(expected)
    assert counts[0] == counts[1] if not odd else 0 < counts[0] < counts[1] or odd == 1


def test_columns_that_json_has_no_value_for_are_left_to_the_statements() -> None:
    times = pa.schema({"id": pa.int64(), "at": pa.timestamp("us")})
    prices = pa.schema({"id": pa.int64(), "price": pa.decimal128(7, 2)})

    assert JsonRecordReader("debezium-json", times, ["id"])._ordinary is None
    assert JsonRecordReader("debezium-json", times, ["id"], RecordOptions(time_unit="ns"))._ordinary is None
    assert JsonRecordReader("debezium-json", prices, ["id"])._ordinary is None
    plain = RecordOptions(unavailable="-")
    assert JsonRecordReader("debezium-json", pa.schema({"id": pa.int64()}), ["id"], plain)._ordinary is None
    assert JsonRecordReader("debezium-json", TABLE, [], RecordOptions())._ordinary is None
    assert JsonRecordReader("maxwell-json", TABLE, ["id"])._ordinary is None
