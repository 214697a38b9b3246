"""Records as systems write them: those of a real Debezium (long texts are shortened), and small ones of every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.changelog.formats import RecordOptions

__all__ = ["CASES", "ORDERS", "debezium", "table_of"]

ORDERS = pa.schema(
    {
        "id": pa.int64(),
        "customer_id": pa.int64(),
        "amount": pa.decimal128(12, 2),
        "note": pa.string(),
        "created": pa.timestamp("us", "UTC"),
        "d": pa.date32(),
        "ts": pa.timestamp("us"),
        "flag": pa.bool_(),
        "f": pa.float64(),
        "b": pa.binary(),
        "j": pa.string(),
        "arr": pa.list_(pa.int32()),
        "u": pa.string(),
        "t": pa.int64(),
    }
)
_SMALL = pa.schema({"id": pa.int64(), "v": pa.string(), "x": pa.float64(), "n": pa.decimal128(20, 3), "d": pa.date32()})
_FILE = Path(__file__).parent / "debezium_postgres.jsonl"
_META = RecordOptions(
    time_unit="us", metadata={"operation_time": "changed_at", "position": "lsn", "offset": "at", "topic": "from"}
)


def debezium(table: str) -> pa.Table:
    """Return what a real Debezium wrote of a table, in order."""
    records = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
    return table_of(*(record for record in records if record["topic"] == f"plain.public.{table}"))


def table_of(*records: dict[str, Any]) -> pa.Table:
    """Return records as a table; what is not named is NULL, offsets count up."""
    return pa.table(
        {
            "key": pa.array([record.get("key") for record in records], pa.string()),
            "value": pa.array([record.get("value") for record in records], pa.string()),
            "topic": pa.array([record.get("topic", "t") for record in records], pa.string()),
            "partition": pa.array([record.get("partition", 0) for record in records], pa.int32()),
            "offset": pa.array([record.get("offset", at) for at, record in enumerate(records)], pa.int64()),
        }
    )


def _values(*values: str | None) -> pa.Table:
    return table_of(*({"value": value} for value in values))


_DEEP = pa.struct(
    {"s": pa.string(), "n": pa.int16(), "price": pa.decimal128(6, 2), "more": pa.list_(pa.struct({"d": pa.date32()}))}
)
CASES: dict[str, tuple[str, pa.Schema, list[str], RecordOptions, pa.Table]] = {
    "structs, maps, and lists of decimals and bytes": (
        "debezium-json",
        pa.schema(
            {
                "id": pa.int64(),
                "deep": _DEEP,
                "counts": pa.map_(pa.string(), pa.decimal128(6, 2)),
                "days": pa.map_(pa.int64(), pa.date32()),
                "bytes": pa.list_(pa.binary()),
                "prices": pa.list_(pa.decimal128(6, 2)),
            }
        ),
        ["id"],
        RecordOptions(),
        _values(
            *(
                f'{{"op":"c","after":{{"id":{number},{row}}}}}'
                for number, row in enumerate(
                    [
                        '"deep":{"s":"a","n":1,"price":"1.50","more":[{"d":"2024-01-02"},null]},"counts":{"a":1.5,"b":null}',
                        '"days":{"1":"2024-01-02"},"bytes":["YQ==",null],"prices":["1.5",2.25,null]',
                        '"deep":{"s":1.50,"n":null},"counts":{},"days":null,"bytes":[],"prices":[]',
                        '"deep":{"n":40000}',
                        '"deep":{"price":1.505}',
                        '"deep":{"more":[{"d":19000}]}',
                        '"deep":[]',
                        '"deep":"text"',
                        '"counts":{"a":"x"}',
                        '"days":{"x":"2024-01-02"}',
                        '"bytes":["?"]',
                        '"prices":[123456]',
                        '"deep":"__debezium_unavailable_value","prices":["__debezium_unavailable_value"]',
                        '"counts":{"__debezium_unavailable_value":"__debezium_unavailable_value"}',
                    ]
                )
            )
        ),
    ),
    "a real table": ("debezium-json", ORDERS, ["id"], _META, debezium("orders")),
    "a real table without a key": (
        "debezium-json",
        pa.schema({"a": pa.int64(), "b": pa.string()}),
        [],
        RecordOptions(),
        debezium("nopk"),
    ),
    "bad records": (
        "debezium-json",
        _SMALL,
        ["id"],
        _META,
        _values(
            "nope",
            '{"op":"x"}',
            '{"op":"c"}',
            '{"op":"c","after":{"id":"q"}}',
            "[1]",
            '{"op":null}',
            "{}",
            '{"op":"u","after":{"id":1,"n":"AAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}',
            '{"op":"u","after":{"id":1,"n":"fwAAAAAAAAAAAAAAAAAAAA=="}}',
            '{"op":"u","after":{"id":1,"d":"yesterday"}}',
        ),
    ),
    "decimals of any size": (
        "debezium-json",
        pa.schema({"id": pa.int64(), "n": pa.decimal128(38, 3)}),
        ["id"],
        RecordOptions(decimals="base64"),
        _values(
            *(
                f'{{"op":"c","after":{{"id":{at},"n":"{text}"}}}}'
                for at, text in enumerate(("AA==", "/w==", "gA==", "f/8=", "Szs0xcn/////////", "tMTLOjYAAAAAAAAB"))
            )
        ),
    ),
    "times of Debezium before 2.5": (
        "debezium-json",
        pa.schema({"id": pa.int64(), "v": pa.string()}),
        ["id"],
        RecordOptions(metadata={"operation_time": "changed_at", "record_time": "written_at"}),
        _values(
            '{"op":"c","after":{"id":1,"v":"a"},"source":{"ts_ms":1700000000123},"ts_ms":1700000000456}',
            '{"op":"u","after":{"id":1,"v":"b"},"source":{"ts_ms":1700000000123,"ts_us":1700000000123456}}',
            '{"op":"u","after":{"id":1,"v":"c"},"source":{"ts_ms":9223372036854775807}}',
            '{"op":"u","after":{"id":1,"v":"d"},"source":{"ts_ms":"soon"},"ts_ms":null}',
        ),
    ),
    "canal": (
        "canal-json",
        _SMALL,
        ["id"],
        RecordOptions(metadata={"operation_time": "changed_at"}),
        _values(
            '{"data":[{"id":"1","v":"a","n":"1.5","d":"2024-01-02"},{"id":"2","v":null}],"type":"INSERT","es":1700000000000}',
            '{"data":[{"id":"1","v":"b"}],"old":[{"v":"a"}],"type":"UPDATE","es":1700000000001}',
            '{"data":[{"id":"1","v":"b"}],"type":"DELETE","es":9223372036854775807}',
            '{"data":null,"type":"TRUNCATE","isDdl":true}',
            '{"data":null,"type":"ALTER","isDdl":true}',
            '{"data":[],"type":"TRUNCATE"}',
            '{"data":[],"type":"INSERT"}',
            '{"data":[],"type":"ALTER"}',
            '{"data":null,"type":"INSERT"}',
            "nope",
        ),
    ),
    "maxwell": (
        "maxwell-json",
        _SMALL,
        ["id"],
        RecordOptions(metadata={"operation_time": "changed_at", "record_time": "written_at", "position": "at"}),
        _values(
            '{"type":"bootstrap-start","data":{}}',
            '{"type":"bootstrap-insert","ts":1477053217,"data":{"id":1,"x":2.5}}',
            '{"type":"update","ts":9223372036854775807,"data":{"id":1,"x":3,"n":12.125},"old":{"x":2.5}}',
            '{"type":"delete","ts":"1477053218","data":{"id":1,"x":3}}',
            '{"type":"insert"}',
        ),
    ),
    "keys and values": (
        "upsert-json",
        _SMALL,
        ["id"],
        RecordOptions(metadata={"offset": "at"}),
        table_of(
            {"key": '{"id":1}', "value": '{"id":1,"x":"NaN"}'},
            {"key": '{"id":2}', "value": '{"v":"key only"}'},
            {"key": '{"id":1}'},
            {"key": '{"id":3}', "value": "nope"},
        ),
    ),
}
"""Name to format, columns, keys, options and records."""
