"""Records of JSON become changes of a table, and unreadable ones get a reason."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pyarrow as pa
import pytest

from tests.changelog.formats.records import CASES, ORDERS, debezium, table_of
from zset_join.changelog.formats import RecordOptions
from zset_join.core.errors import OptionError, PlanError
from zset_join.sources.json_records import JsonRecordReader, ReadRecords

MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)


def read(name: str) -> ReadRecords:
    format_name, schema, keys, options, records = CASES[name]
    reader = JsonRecordReader(format_name, schema, keys, options)
    try:
        return reader.read(records)
    finally:
        reader.close()


def lines(found: ReadRecords) -> list[tuple[Any, ...]]:
    changes = zip(found.records.tolist(), found.changes.to_pylist(), found.rejects.to_pylist(), strict=True)
    return [(*reported, row["id"]) for reported, row in zip(changes, found.rows.to_pylist(), strict=True)]


def test_every_type_of_a_real_table_is_what_the_table_held() -> None:
    first = read("a real table").rows.to_pylist()[0]

    assert {name: first[name] for name in ORDERS.names} == {
        "id": 1,
        "customer_id": 10,
        "amount": decimal.Decimal("12.34"),
        "note": "snap1",
        "created": MOMENT.replace(tzinfo=datetime.UTC),
        "d": MOMENT.date(),
        "ts": MOMENT,
        "flag": True,
        "f": 1.5,
        "b": b"\x00\xff",
        "j": '{"k": [1, 2]}',
        "arr": [1, 2, None],
        "u": "00000000-0000-0000-0000-000000000001",
        "t": 45296789000,
    }


def test_a_column_that_was_not_sent_is_marked_and_shows_nothing() -> None:
    found = read("a real table")

    (line,) = [at for at, bits in enumerate(found.unavailable.tolist()) if bits]
    assert found.unavailable[line] == 1 << ORDERS.get_field_index("note")
    assert found.rows.to_pylist()[line] | {} == found.rows.to_pylist()[line] | {"id": 5, "customer_id": 55, "note": None}


def test_times_of_an_older_debezium_are_read_from_its_milliseconds() -> None:
    moments = read("times of Debezium before 2.5").rows.column("changed_at").cast(pa.int64()).to_pylist()

    assert moments == [1_700_000_000_123_000, 1_700_000_000_123_456, None, None]


def test_a_delete_shows_its_key_alone_though_debezium_writes_defaults() -> None:
    found = read("a real table")

    deletes = [row for row, what in zip(found.rows.to_pylist(), found.changes.to_pylist(), strict=True) if what == "delete"]
    assert [row["id"] for row in deletes] == [3, 2, 4]
    assert {row["created"] for row in deletes} == {None}


def test_nan_of_a_real_table_is_a_number_and_a_truncate_is_reported() -> None:
    found = read("a real table")

    assert math.isnan(found.rows.to_pylist()[1]["f"])
    assert found.changes.to_pylist()[-1] == "truncate"


def test_metadata_become_columns() -> None:
    last = read("a real table").rows.to_pylist()[-1]

    assert (last["lsn"], last["at"], last["from"]) == (22295448, 16, "plain.public.orders")
    assert last["changed_at"] == datetime.datetime(2026, 11, 24, 22, 11, 14, 580532, tzinfo=datetime.UTC)


def test_maxwell_counts_seconds() -> None:
    assert read("maxwell").rows.to_pylist()[0]["changed_at"] == datetime.datetime(2016, 10, 21, 12, 33, 37, tzinfo=datetime.UTC)


def test_a_table_without_a_key_has_its_old_rows_as_deletes() -> None:
    found = read("a real table without a key")

    reported = zip(found.changes.to_pylist(), [(row["a"], row["b"]) for row in found.rows.to_pylist()], strict=True)
    assert list(reported) == [
        ("upsert", (1, "snap")),
        ("upsert", (1, "snap")),
        ("upsert", (2, "n")),
        ("delete", (2, "n")),
        ("upsert", (2, "m")),
        ("delete", (1, "snap")),
        ("delete", (1, "snap")),
    ]


def test_a_record_that_cannot_be_read_is_a_line_that_names_the_reason() -> None:
    assert [reject for _, _, reject, _ in lines(read("bad records"))] == [
        "UNDECODABLE_RECORD",
        "UNDECODABLE_OP",
        "UNDECODABLE_RECORD",
        "UNDECODABLE_VALUE id",
        "UNDECODABLE_RECORD",
        "NULL_OP",
        "NULL_OP",
        "UNDECODABLE_VALUE n",
        "UNDECODABLE_VALUE n",
        "UNDECODABLE_VALUE d",
    ]


def test_decimals_keep_every_digit_and_their_sign() -> None:
    found = read("decimals of any size").rows.column(1).to_pylist()

    unscaled = [0, -1, -128, 32767, int.from_bytes(bytes.fromhex("4b3b34c5c9ffffffffffffff"), "big")]
    unscaled.append(int.from_bytes(bytes.fromhex("b4c4cb3a3600000000000001"), "big", signed=True))
    assert found == [decimal.Decimal(value).scaleb(-3, decimal.Context(prec=60)) for value in unscaled]


def test_canal_writes_several_rows_at_once() -> None:
    assert lines(read("canal")) == [
        (0, "upsert", None, 1),
        (0, "upsert", None, 2),
        (1, "upsert", None, 1),
        (2, "delete", None, 1),
        (3, "truncate", None, None),
        (5, "truncate", None, None),
        (6, None, "UNDECODABLE_RECORD", None),
        (8, None, "UNDECODABLE_RECORD", None),
        (9, None, "UNDECODABLE_RECORD", None),
    ]


def test_maxwell_writes_one_row_at_a_time() -> None:
    found = read("maxwell")

    assert lines(found) == [
        (1, "upsert", None, 1),
        (2, "upsert", None, 1),
        (3, "delete", None, 1),
        (4, None, "UNDECODABLE_RECORD", None),
    ]
    assert found.rows.column(3).to_pylist()[1] == decimal.Decimal("12.125")


def test_a_key_without_a_value_is_a_delete() -> None:
    assert lines(read("keys and values")) == [
        (0, "upsert", None, 1),
        (1, "upsert", None, 2),
        (2, "delete", None, 1),
        (3, None, "UNDECODABLE_RECORD", 3),
    ]


def test_bytes_that_are_no_text_are_reported() -> None:
    reader = JsonRecordReader("debezium-json", ORDERS, ["id"])
    good = b'{"op":"c","after":{"id":1}}'

    found = reader.read(pa.table({"key": pa.array([None, None], pa.binary()), "value": pa.array([b"\xff\xfe", good])}))

    assert found.rejects.to_pylist() == ["UNDECODABLE_RECORD", None]
    reader.close()


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_integers_are_timestamps_in_the_unit_of_the_options(unit: Any) -> None:
    factor = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    reader = JsonRecordReader("maxwell-json", pa.schema({"t": pa.timestamp("us")}), ["t"], RecordOptions(time_unit=unit))

    found = reader.read(table_of({"value": f'{{"type":"insert","data":{{"t":{1_700_000_000 * factor}}}}}'}))

    assert found.rows.column(0).to_pylist() == [datetime.datetime(2023, 11, 14, 22, 13, 20)]
    reader.close()


def test_no_records_are_no_lines() -> None:
    reader = JsonRecordReader("debezium-json", ORDERS, ["id"])

    found = reader.read(debezium("orders").slice(0, 0))

    assert (len(found.changes), found.rows.schema.names) == (0, ORDERS.names)
    reader.close()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("avro", ORDERS, ["id"]), OptionError),
        (("maxwell-json", ORDERS, []), PlanError),
        (("debezium-json", ORDERS, ["nothing"]), PlanError),
        (("debezium-json", pa.schema({"m": pa.map_(pa.binary(), pa.string())}), ["m"]), PlanError),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        JsonRecordReader(*arguments)


def test_a_record_that_is_cut_short_is_rejected_wherever_the_message_about_it_cuts_a_character() -> None:
    reader = JsonRecordReader("debezium-json", pa.schema({"id": pa.int64(), "v": pa.string()}), ["id"])
    texts = ['{"op":"c","after":{"id":1,"v":"' + "a" * length + "é" * 90 for length in range(4)]

    for text in texts:
        assert reader.read(pa.table({"value": [text]})).rejects.to_pylist() == ["UNDECODABLE_RECORD"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.string(), "[1e99999999999999999999]", "[1e99999999999999999999]"),
        (pa.string(), "[" * 3000 + "]" * 3000, "[" * 3000 + "]" * 3000),
        (pa.struct({"s": pa.string()}), '{"s":' + "[" * 700 + "]" * 700 + "}", {"s": "[" * 700 + "]" * 700}),
        (pa.struct({"s": pa.string()}), '{"s":' + "[" * 3000 + "]" * 3000 + "}", None),
        (pa.list_(pa.float64()), "[1e99999999999999999999,-1e-99999999999999999999]", [math.inf, -0.0]),
        (pa.list_(pa.decimal128(9, 2)), "[0e99999999999999999999]", [decimal.Decimal(0)]),
        (pa.int64(), "1e99999999999999999999", None),
        (pa.map_(pa.string(), pa.int64()), '[["a",1]]', None),
        (pa.map_(pa.int32(), pa.int64()), '{"1":1,"2":2,"01":3}', [(1, 3), (2, 2)]),
    ],
    ids=["exponent", "deep", "deep inside", "deeper inside", "exponents", "zero", "integer", "no map", "one key twice"],
)
def test_an_odd_value_is_read_or_rejects_its_record_alone(kind: pa.DataType, value: str, expected: Any) -> None:
    reader = JsonRecordReader("debezium-json", pa.schema({"id": pa.int64(), "v": kind}), ["id"])
    texts = [f'{{"op":"c","after":{{"id":{number},"v":{one}}}}}' for number, one in enumerate(["null", value])]

    found = reader.read(pa.table({"value": texts}))
    reader.close()

    assert found.rejects.to_pylist() == [None, None if expected is not None else "UNDECODABLE_VALUE v"]
    assert found.rows.column("v").to_pylist() == [None, expected]
