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


def _of_dms(emitted: tuple[str | None, dict[str, Any]]) -> str:
    operation, members = emitted
    metadata = {"timestamp": "2024-07-29T00:30:47.258815Z", "record-type": "data", "operation": operation,
                "partition-key-type": "schema-table", "schema-name": "public", "table-name": "t"}  # fmt: skip
    metadata |= {name: value for name, value in members.items() if name in metadata or name == "commit-timestamp"}
    body = {name: value for name, value in members.items() if name not in metadata}
    return json.dumps({**body, "metadata": metadata})


_LOGICAL = [
    ("int64", None, "id"),
    ("int64", "io.debezium.time.Timestamp", "made"),
    ("int64", "io.debezium.time.MicroTimestamp", "seen"),
    ("string", "io.debezium.time.ZonedTimestamp", "utc"),
    ("int32", "io.debezium.time.Date", "day"),
    ("bytes", "org.apache.kafka.connect.data.Decimal", "price"),
    ("struct", "io.debezium.data.VariableScaleDecimal", "free"),
    ("bytes", None, "raw"),
    ("string", None, "note"),
]
_FIELDS = [
    {"type": kind, "field": column, "optional": True}
    | ({} if name is None else {"name": name, "version": 1})
    | ({"parameters": {"scale": "3"}} if column == "price" else {})
    for kind, name, column in _LOGICAL
]
CONNECT_SCHEMA = {
    "type": "struct",
    "fields": [{"type": "struct", "fields": _FIELDS, "field": side} for side in ("before", "after")],
}
"""What Kafka Connect writes beside a record of the table `LOGICAL`."""
LOGICAL = pa.schema(
    {
        "id": pa.int64(),
        "made": pa.timestamp("us"),
        "seen": pa.timestamp("us"),
        "utc": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "price": pa.decimal128(12, 2),
        "free": pa.decimal128(20, 4),
        "raw": pa.binary(),
        "note": pa.string(),
    }
)
LOGICAL_ROW = {
    "id": 1,
    "made": 1_700_000_000_123,
    "seen": 1_700_000_000_123_456,
    "utc": "2024-01-02T03:04:05Z",
    "day": 19_000,
    "price": "MDQ=",
    "free": {"scale": 1, "value": "fQ=="},
    "raw": "AQI=",
    "note": "n",
}


def _spelled(**changed: Any) -> dict[str, Any]:
    return {"op": "c", "before": None, "after": {**LOGICAL_ROW, **changed}, "source": {"db": "shop", "table": "logical"}}


def _enveloped(payload: Any, schema: Any = CONNECT_SCHEMA, **more: Any) -> str:
    return json.dumps({"schema": schema, "payload": payload}, **more)


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
    "a schema beside the record decides": (
        "debezium-json",
        LOGICAL,
        ["id"],
        RecordOptions(time_unit="ns", decimals="text", binary="hex"),
        _values(
            _enveloped(_spelled()),
            " " + _enveloped(_spelled(price=12.5), indent=1),
            json.dumps({"payload": _spelled(free={"scale": -2, "value": "/w=="}), "schema": CONNECT_SCHEMA}),
            _enveloped(_spelled(price="MDU=")),
            _enveloped(_spelled(free={"scale": 6, "value": "AQ=="})),
            _enveloped(_spelled(made="2024-01-01T00:00:00")),
            _enveloped(None),
            _enveloped({"op": "d", "before": LOGICAL_ROW}),
        ),
    ),
    "without a schema an option decides, or nothing": (
        "debezium-json",
        LOGICAL,
        ["id"],
        RecordOptions(time_unit={"made": "ms"}, table="logical"),
        _values(
            json.dumps(_spelled(seen=None)),
            json.dumps(_spelled()),
            _enveloped(_spelled(seen=None), None),
            json.dumps(_spelled(seen=None, price=2000, free=-7)),
            json.dumps(_spelled(seen=None, price="2000")),
            json.dumps(_spelled(seen=None, price="1e10")),
            json.dumps(_spelled(seen=None) | {"source": {"table": "others"}}),
            json.dumps(_spelled(seen=None) | {"source": {}}),
            json.dumps({"op": "t", "source": {"table": "others"}}),
        ),
    ),
    "rows that are no objects": (
        "debezium-json",
        pa.schema({"id": pa.int64(), "v": pa.string()}),
        ["id"],
        RecordOptions(),
        table_of(
            *(
                {"key": '{"id":1}', "value": json.dumps({"op": "c", "before": None, "after": row})}
                for row in ('{"id":1}', [1], 7, {}, {"v": None})
            )
        ),
    ),
    "values that were not sent, by type": (
        "debezium-json",
        pa.schema(
            {
                "id": pa.int64(),
                "v": pa.string(),
                "n": pa.decimal128(9, 2),
                "ints": pa.list_(pa.int64()),
                "texts": pa.list_(pa.string()),
            }
        ),
        ["id"],
        RecordOptions(unavailable="no"),
        _values(
            *(
                json.dumps({"op": "u", "after": {"id": 1, column: value}})
                for column, value in [
                    ("v", "no"),
                    ("v", '{"no": "no"}'),
                    ("v", "__debezium_unavailable_value"),
                    ("n", "bm8="),
                    ("ints", [110, 111]),
                    ("texts", ["no"]),
                    ("texts", ["7fa3b767-c460-354a-abe4-d49030b349c7"]),
                ]
            )
        ),
    ),
    "updates that hold no old row, without a key": (
        "debezium-json",
        pa.schema({"id": pa.int64(), "v": pa.string()}),
        [],
        RecordOptions(),
        _values(
            '{"op":"c","before":null,"after":{"id":1,"v":"a"}}',
            '{"op":"u","before":null,"after":{"id":1,"v":"b"}}',
            '{"op":"u","before":{"id":1,"v":"a"},"after":{"id":1,"v":"c"}}',
            '{"op":"d","before":null}',
        ),
    ),
    "keys that change": (
        "debezium-json",
        pa.schema({"a": pa.int64(), "b": pa.decimal128(9, 1), "v": pa.string()}),
        ["a", "b"],
        RecordOptions(decimals="text"),
        table_of(
            {"value": '{"op":"u","before":{"a":1,"b":1.5,"v":"x"},"after":{"a":2,"b":1.5,"v":"y"}}'},
            {"value": '{"op":"u","before":{"a":1,"b":1.5,"v":"x"},"after":{"a":1,"b":1.5,"v":"y"}}'},
            {"key": '{"a":2,"b":1.5}', "value": '{"op":"u","before":{"a":0,"b":0},"after":{"a":2,"b":1.5,"v":"z"}}'},
        ),
    ),
    "keys that change, canal": (
        "canal-json",
        pa.schema({"id": pa.int64(), "v": pa.string(), "raw": pa.binary()}),
        ["id"],
        RecordOptions(database=["shop"], table=("t", "u")),
        _values(
            *(
                json.dumps({"database": "shop", "table": "t", **line})
                for line in [
                    {
                        "type": "UPDATE",
                        "data": [{"id": "3", "v": "a"}, {"id": "2", "v": "b"}],
                        "old": [{"id": "2"}, {"id": "1"}],
                    },
                    {"type": "UPDATE", "data": [{"id": "3", "v": "c"}], "old": [{"v": "b"}]},
                    {"type": "UPDATE", "data": [{"id": "3", "v": "c"}], "old": None},
                    {"type": "INSERT", "data": [{"id": "4", "raw": "\xff\x00\xe9nine"}], "mysqlType": {"raw": "varbinary(20)"}},
                    {"type": "INSERT", "data": [{"id": "5", "raw": "\u0100"}]},
                    {"type": "INSERT", "data": [{"id": "6", "raw": "nine"}], "mysqlType": {"raw": "varchar(9)"}},
                    {"type": "INSERT", "data": [{"id": "7"}], "table": "v"},
                    {"type": "INSERT", "data": [{"id": "8"}], "database": None},
                    {"type": "ALTER", "data": None, "table": None},
                ]
            )
        ),
    ),
    "keys that change, maxwell": (
        "maxwell-json",
        pa.schema({"id": pa.int64(), "v": pa.string()}),
        ["id"],
        RecordOptions(),
        _values(
            '{"type":"update","data":{"id":2,"v":"a"},"old":{"id":1}}',
            '{"type":"update","data":{"id":2,"v":"b"},"old":{"v":"a"}}',
            '{"type":"update","data":{"id":2,"v":"b"},"old":{"id":2}}',
        ),
    ),
    "a real table": ("debezium-json", ORDERS, ["id"], _META, debezium("orders")),
    "a real table with full old rows": ("debezium-json", ORDERS, ["id"], _META, debezium("orders_full")),
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
    "envelopes with a schema": (
        "debezium-json",
        _SMALL,
        ["id"],
        _META,
        table_of(
            {
                "key": '{"schema":{"type":"struct"},"payload":{"id":4}}',
                "value": '{"schema":{"type":"struct"},"payload":{"op":"c","after":{"id":4,"v":"x"},"source":{"lsn":7,"ts_us":8}}}',
            },
            {
                "key": '{"schema":{"type":"struct"},"payload":{"id":4}}',
                "value": '{"schema":{},"payload":{"op":"d","before":null}}',
            },
            {"key": '{"schema":{"type":"struct"},"payload":{"id":4}}'},
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
    "records that break off, and quotes of another language": (
        "debezium-json",
        pa.schema({"id": pa.int64(), "v": pa.string()}),
        ["id"],
        RecordOptions(),
        _values(
            '{"op":"m","source":{"lsn"after":{}}',
            '{"op":"m","message":{}}',
            '{"op":"u","after":{"id":1,"v":"a"}',
            """{'op':'c','after':{'id':1,'v':'a'}}""",
            """{'op':'m','message':{}}""",
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
    "times in seconds": (
        "maxwell-json",
        pa.schema({"id": pa.int64(), "at": pa.timestamp("us"), "instant": pa.timestamp("us", "UTC"), "day": pa.date32()}),
        ["id"],
        RecordOptions(time_unit="s"),
        _values(
            *(
                json.dumps({"type": "insert", "data": {"id": number, "at": at, "instant": at, "day": day}})
                for number, (at, day) in enumerate(
                    [(1477053217, 17095), (-1, -1), (2**63 - 1, None), (-(2**63), None), (None, 2**31 - 1), (None, 2**40)]
                )
            ),
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
    "dms": (
        "dms-json",
        pa.schema({"id": pa.int64(), "v": pa.string(), "raw": pa.binary(), "at": pa.timestamp("us", "UTC")}),
        ["id"],
        RecordOptions(table="t", database="public", metadata={"operation_time": "changed_at", "record_time": "written_at"}),
        _values(
            *map(
                _of_dms,
                [
                    ("load", {"data": {"id": 1, "v": "a", "at": "2020-01-09T04:13:38Z"}}),
                    (
                        "insert",
                        {"data": {"id": 2, "v": None, "raw": "ff00"}, "commit-timestamp": "2024-07-29T00:30:46.000000Z"},
                    ),
                    ("update", {"data": {"id": 3, "v": "b"}, "before-image": {"id": 2}}),
                    ("update", {"data": {"id": 3, "v": "c"}, "before-image": {"id": 3}}),
                    ("update", {"data": {"id": 3, "v": "d"}, "before-image": {"v": "c"}}),
                    ("delete", {"data": {"id": 3, "v": "d"}}),
                    ("create-table", {"control": {"table-def": {}}, "record-type": "control"}),
                    ("drop-table", {"control": {}, "record-type": "control", "table-name": "awsdms_apply_exceptions"}),
                    ("insert", {"data": {"id": 4}, "table-name": "other"}),
                    ("insert", {"data": {"id": 4}, "schema-name": "other"}),
                    ("insert", {"data": {"id": 5, "raw": "0xff"}}),
                    ("truncate", {"control": {}, "record-type": "control"}),
                    ("insert", {}),
                    (None, {"data": {"id": 6}}),
                ],
            )
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
