"""Ordinary records are read in bulk, and mean what the statements read of them, with anything between them."""

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
        "deep": pa.struct(
            {
                "s": pa.string(),
                "price": pa.decimal128(7, 2),
                "w": pa.list_(pa.float64()),
                "more": pa.list_(pa.struct({"at": pa.timestamp("us", "UTC"), "day": pa.date32(), "b": pa.bool_()})),
            }
        ),
        "bytes": pa.list_(pa.binary()),
        "prices": pa.list_(pa.decimal128(4, 1)),
        "words": pa.large_list(pa.string()),
        "codes": pa.list_(pa.int64()),
    }
)
NOT_SENT = "__debezium_unavailable_value"
NESTED = {
    "deep": [
        '{"s":"a","price":"1.50","w":[0.5,null],"more":[{"at":"2024-01-02T03:04:05Z","day":"2024-01-02","b":true}]}',
        '{"price":1.5,"w":[1e400],"more":[]}',
        '{"s":"","price":123456}',
        '{"s":1.50,"w":null,"more":[null,{}]}',
        '{"s":"b","w":[-0]}',
        '{"s":"b","w":[0.30000000000000004,-0.0],"more":[{"day":19000}]}',
        '{"s":"b","more":[{"at":"2024-01-02T03:04:05+01:00"},{"b":null}]}',
        '{"more":[{"day":"2024-02-30"}]}',
        '{"more":[{"b":1}],"s":"c","s":"d"}',
        "{}",
        f'{{"{NOT_SENT}":"{NOT_SENT}"}}',
        f'{{"s":"{NOT_SENT}"}}',
        "null",
        '"text"',
        "[1]",
    ],
    "bytes": ['["YQ==",null,""]', '["YQ"]', "[]", '["a*"]', "[1]", "null", "{}", f'["{NOT_SENT}"]', f'"{NOT_SENT}"'],
    "prices": ["[1.5,-0.0]", '["1.5"]', "[1.55]", "[12345]", "null", "[null]", '["1e2"]'],
    "words": ['["a","b"]', "[]", "[null]", "[1,true]", f'["{NOT_SENT}"]', f'["a","{NOT_SENT}"]', "null", '["\\u00e4"]'],
    "codes": ["[1,2]", str([*NOT_SENT.encode()]), str([*NOT_SENT.encode()][::-1]), "[1.0]", "[1.5]", "null", '["1"]'],
}
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
    **NESTED,
    "s": ['"text"', '"__debezium_unavailable_value"', '"\\u0000"', "5", "null", "[1]", '"é😀"', '"1.50"', '"NaN"'],
}
TEXTS = {
    **VALUES,
    "price": [
        '"1.50"',
        "1.5",
        "1.50",
        "-0.0",
        "1.505",
        "1e2",
        "123456",
        '"01"',
        '"1e2"',
        '"+1"',
        '"1."',
        '".5"',
        '" 1"',
        "null",
    ],
    "part": ['"0.125"', "0.125", "0", '"1"', "1e-400", "0.1234"],
    "day": ['"2024-01-02"', '"2024-02-30"', '"2024-1-2"', '"0000-01-01"', '"2024-01-02T00:00:00"', "19000", "null"],
    "made": [
        '"2024-01-02 03:04:05"',
        '"2024-01-02T03:04:05.123456"',
        '"2024-01-02 03:04:05.1234567"',
        '"2024-01-02 03:04:05Z"',
        '"2024-02-30 00:00:00"',
        '"2024-01-02"',
        "5",
        "null",
    ],
}
"""What a format writes that has times as texts; decimals may be numbers."""
CANALS = {
    **TEXTS,
    "id": [
        '"1"',
        '"-0"',
        '"1.0"',
        '"1e2"',
        '"01"',
        '"+1"',
        '"9223372036854775807"',
        '"9223372036854775808"',
        '""',
        "5",
        "null",
    ],
    "n": ['"1"', '"9999"', '"32767"', '"32768"', '"1.5"', '" 1"', "3", "null"],
    "w": [
        '"1"',
        '"0.1"',
        '"-0.0"',
        '"0.30000000000000004"',
        '"1e400"',
        '"NaN"',
        '"1."',
        '"123456789012345678.5"',
        "1.5",
        "null",
    ],
}
WRAPPED = {
    "maxwell-json": ("insert", '{"database":"d","table":%(table)s,"type":"%(what)s","ts":1,"data":%(row)s,"old":%(old)s}'),
    "dms-json": (
        "update",
        '{"data":%(row)s,"before-image":%(old)s,"metadata":{"operation":"%(what)s","table-name":%(table)s,"schema-name":"d"}}',
    ),
    "canal-json": (
        "UPDATE",
        '{"data":%(rows)s,"database":"d","old":%(olds)s,"table":%(table)s,"type":"%(what)s","mysqlType":{"id":"bigint"}}',
    ),
    "upsert-json": ("", "%(row)s"),
}
WRITTEN: Any = {"decimals": "text", "time_unit": {"made": "ms"}}


def _row(draw: random.Random, odd: float, values: dict[str, list[str]] = VALUES) -> str:
    parts = []
    for name, choices in values.items():
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


def _wrapped(draw: random.Random, odd: float, format_name: str, values: dict[str, list[str]]) -> str | None:
    def rarely(share: float) -> bool:
        return draw.random() < share * odd

    word, text = WRAPPED[format_name]
    row = "null" if rarely(0.1) else _row(draw, odd, values)
    key = f'{{"id":{values["id"][0]},"k":"a"}}'
    old = draw.choice([key, key.replace("1", "2"), _row(draw, odd, values), "5", "{}"]) if rarely(0.5) else "null"
    parts = {
        "row": row,
        "rows": draw.choice([f"[{row},{row}]", "[]", "null", row]) if rarely(0.3) else f"[{row}]",
        "old": old,
        "olds": draw.choice([f"[{old},{old}]", "[]", "null", old]) if rarely(0.3) else "null" if old == "null" else f"[{old}]",
        "what": draw.choice(["delete", "Insert", "truncate", "bootstrap-start", "noise", "load"]) if rarely(0.3) else word,
        "table": draw.choice(['"o2"', '""', "null", "7"]) if rarely(0.2) else '"orders"',
    }
    written = text % parts
    others = [" " + written, written + written, written[:-2], None, f'{{"schema":{{"fields":[]}},"payload":{written}}}']
    return draw.choice(others) if rarely(0.1) else written


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


@pytest.mark.parametrize("format_name", sorted(WRAPPED))
def test_those_of_other_formats_do_too(format_name: str) -> None:
    draw = random.Random(format_name)
    is_list = format_name == "canal-json"
    table = pa.schema(
        [field for field in TABLE if not (is_list and (pa.types.is_boolean(field.type) or pa.types.is_nested(field.type)))]
    )
    given: Any = {"options": RecordOptions(metadata={"position": "p", "offset": "o"}), "source": "orders"}
    reader, statements = (JsonRecordReader(format_name, table, ["id", "k"], **given) for _ in range(2))
    ordinary = reader._ordinary
    assert ordinary is not None
    statements._ordinary = None
    values = {name: one for name, one in (CANALS if is_list else TEXTS).items() if name in table.names}
    for odd, share in ((0.0, 1.0), (0.02, 0.2), (0.1, 0.0), (1.0, 0.0)):
        counts = [0, 0]
        for size in (1, 20, 20):
            texts = pa.array([_wrapped(draw, odd, format_name, values) for _ in range(size)], pa.string())
            keys = pa.array([None if draw.random() < 0.5 else '{"id":1,"k":"b"}' for _ in range(size)], pa.string())
            records = pa.table({"key": keys, "value": texts, "offset": pa.array(range(size), pa.int64())})
            counts = [counts[0] + len(ordinary.read(records)[0]), counts[1] + size]

            read, expected = reader.read(records), statements.read(records)

            assert read.rows.schema == expected.rows.schema
            assert _lines(read) == _lines(expected)
        assert counts[0] >= share * counts[1]


def test_two_records_in_one_text_are_no_row_of_one_that_goes_over_two_texts() -> None:
    reader = JsonRecordReader("upsert-json", pa.schema({"id": pa.int64()}), ["id"])

    read = reader.read(pa.table({"value": ['{"a":"}', '{"}', '{"id":1} {"id":2}', '{"id":3}']}))

    assert read.changes.to_pylist() == [None, None, None, "upsert"]


def test_columns_that_json_has_no_value_for_are_left_to_the_statements() -> None:
    times = pa.schema({"id": pa.int64(), "at": pa.timestamp("us")})
    prices = pa.schema({"id": pa.int64(), "price": pa.decimal128(7, 2)})

    assert JsonRecordReader("debezium-json", times, ["id"])._ordinary is None
    assert JsonRecordReader("debezium-json", times, ["id"], RecordOptions(time_unit="ns"))._ordinary is None
    assert JsonRecordReader("debezium-json", prices, ["id"])._ordinary is None
    plain = RecordOptions(unavailable="-")
    assert JsonRecordReader("debezium-json", pa.schema({"id": pa.int64()}), ["id"], plain)._ordinary is None
    assert JsonRecordReader("debezium-json", TABLE, [], RecordOptions())._ordinary is None
    assert JsonRecordReader("canal-json", pa.schema({"id": pa.int64(), "b": pa.bool_()}), ["id"])._ordinary is None
    deep = pa.field("deep", pa.struct({"n": pa.int64()}))
    assert JsonRecordReader("canal-json", pa.schema([("id", pa.int64()), deep]), ["id"])._ordinary is None
    assert JsonRecordReader("debezium-json", pa.schema([("id", pa.int64()), deep]), ["deep"])._ordinary is None
    counts = pa.schema([("id", pa.int64()), ("counts", pa.map_(pa.string(), pa.int64()))])
    assert JsonRecordReader("debezium-json", counts, ["id"])._ordinary is None
    assert JsonRecordReader("maxwell-json", prices, ["id"], RecordOptions(decimals="base64"))._ordinary is None
