"""One history of a table is one table, whatever wrote it down and however that spells it.

A table with a column of every spelling is changed by inserts, updates, updates of its key, values that are not sent, deletes.
The history is written as Debezium does (with the schema beside each record, in any spelling of the envelope; without one, with
options
that describe it; by number, by text, by base64), as Canal, as Maxwell, and as keys with rows. Records of other tables
are in
between. Fed to a pipeline in epochs cut anywhere, as texts or parsed, every one of them leads to the same table; and where
no encoding is given the records are refused, never read as other values.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zset_join.changelog.formats import RecordOptions
from zset_join.changelog.formats.records import placeholders
from zset_join.pipeline import Pipeline
from zset_join.query.records import records
from zset_join.stages import StageOptions

COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "made": pa.timestamp("us"),
    "seen": pa.timestamp("us"),
    "price": pa.decimal128(12, 2),
    "raw": pa.binary(),
    "note": pa.string(),
    "ints": pa.list_(pa.int64()),
}
LOGICAL: dict[str, dict[str, Any]] = {
    "id": {"type": "int64"},
    "made": {"type": "int64", "name": "io.debezium.time.Timestamp"},
    "seen": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    "price": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "4"}},
    "raw": {"type": "bytes"},
    "note": {"type": "string"},
    "ints": {"type": "array", "items": {"type": "int64"}},
}
MARK = "__debezium_unavailable_value"
EPOCH = datetime.datetime(1970, 1, 1)
Row = dict[str, Any]
Change = tuple[str, Row | None, Row | None]  # what, the row before, the row after


def micros(at: datetime.datetime) -> int:
    return (at - EPOCH) // datetime.timedelta(microseconds=1)


def row_of(draw: random.Random, key: int) -> Row:
    made = EPOCH + datetime.timedelta(milliseconds=draw.randrange(2 * 10**12))
    return {
        "id": key,
        "made": made,
        "seen": made + datetime.timedelta(microseconds=draw.randrange(1000)),
        "price": decimal.Decimal(draw.choice([0, 1, -1, 2000, 10**9, -(10**10)])) / 4,
        "raw": draw.choice([b"", b"nine", b"\xff\x00\xe9", b"hash"]),
        "note": draw.choice(["", "n", 'q"\\\u00e9', "null"]),
        "ints": draw.choice([[], [1, 2]]),
    }


def history(seed: int) -> tuple[list[Change], dict[int, Row]]:
    draw = random.Random(seed)
    table: dict[int, Row] = {}
    made: list[Change] = []
    for _ in range(draw.randrange(1, 12)):
        key = draw.randrange(4)
        if key not in table:
            table[key] = row_of(draw, key)
            made.append(("insert", None, table[key]))
        elif draw.random() < 0.3:
            made.append(("delete", table.pop(key), None))
        else:
            new = draw.choice([key, *(one for one in range(4) if one not in table)])
            before = table.pop(key)
            table[new] = {**(row_of(draw, new) if draw.random() < 0.7 else before), "id": new}
            made.append(("update", before, table[new]))
    return made, table


def base64_of(number: decimal.Decimal, scale: int) -> str:
    unscaled = int(number.scaleb(scale))
    return base64.b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()


def debezium_row(row: Row | None, price: Callable[[decimal.Decimal], Any]) -> Row | None:
    if row is None:
        return None
    return {
        **row,
        "made": micros(row["made"]) // 1000,
        "seen": micros(row["seen"]),
        "price": price(row["price"]),
        "raw": base64.b64encode(row["raw"]).decode(),
    }


def debezium(draw: random.Random, change: Change, price: Callable[[decimal.Decimal], Any], *, has_key: bool) -> list[Row]:
    what, before, after = change
    source = {"db": "shop", "schema": "public", "table": "t"}
    old, new = debezium_row(before, price), debezium_row(after, price)
    if what == "update" and before is not None and after is not None and has_key and before["id"] != after["id"]:
        return [
            {"op": "d", "before": old, "after": None, "source": source},
            {"op": "c", "before": None, "after": new, "source": source},
        ]
    if what == "update" and before is not None and after is not None and new is not None and before["id"] == after["id"]:
        for column, spelled in (("note", placeholders(MARK)[0]), ("ints", list(MARK.encode()))):
            if before[column] == after[column] and draw.random() < 0.5:
                new[column] = spelled
    op = {"insert": draw.choice("cr"), "update": "u", "delete": "d"}[what]
    return [{"op": op, "before": old, "after": new, "source": source}]


def enveloped(draw: random.Random, payload: Row, schema: Any) -> str:
    members = [("schema", schema), ("payload", payload)]
    draw.shuffle(members)
    return draw.choice(["", " ", "\n"]) + json.dumps(dict(members), indent=draw.choice([None, 1]))


def connect_schema() -> Row:
    fields = [{"field": name, "optional": True, **kind} for name, kind in LOGICAL.items()]
    return {"type": "struct", "fields": [{"type": "struct", "field": side, "fields": fields} for side in ("before", "after")]}


def written(form: str, draw: random.Random, change: Change) -> list[Any]:
    """Return the values of the records of one change."""
    what, before, after = change
    if form == "schema":
        return [
            enveloped(draw, one, connect_schema()) for one in debezium(draw, change, lambda p: base64_of(p, 4), has_key=False)
        ]
    if form == "base64":
        return [enveloped(draw, one, None) for one in debezium(draw, change, lambda p: base64_of(p, 2), has_key=True)]
    if form == "numbers":
        return debezium(draw, change, float, has_key=False)
    if form == "variable":
        return debezium(draw, change, lambda p: {"scale": 3, "value": base64_of(p, 3)}, has_key=True)
    row = after if after is not None else before
    assert row is not None
    if form == "canal":
        texts = {name: spelled_by_mysql(value) for name, value in row.items()}
        old = (
            None
            if before is None or after is None
            else {k: str(v) for k, v in before.items() if k == "id" and v != after["id"]}
        )
        types = {"raw": draw.choice(["varbinary(20)", "blob"])}
        reported = {"database": "shop", "table": "t", "mysqlType": types, "type": what.upper(), "data": [texts]}
        return [{**reported, "old": None if old is None else [old]}]
    moved = before is not None and after is not None and before["id"] != after["id"]
    if form == "dms":
        texts = {**{name: str(value) for name, value in row.items()}, "raw": row["raw"].hex(), "ints": row["ints"]}
        operation = draw.choice(["load", "insert"]) if what == "insert" else what
        emitted = {"record-type": "data", "operation": operation, "schema-name": "shop", "table-name": "t"}
        old = {} if before is None or not (moved or draw.random() < 0.5) else {"before-image": {"id": before["id"]}}
        return [{"data": texts, "metadata": emitted, **(old if what == "update" else {})}]
    texts = {**{name: spelled_by_mysql(value) for name, value in row.items()}, "raw": base64.b64encode(row["raw"]).decode()}
    texts |= {"id": row["id"], "ints": row["ints"]}
    reported = {"database": "shop", "table": "t", "type": what, "data": texts}
    return [{**reported, "old": {"id": before["id"]} if before is not None and moved else {}} if what == "update" else reported]


def spelled_by_mysql(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return json.dumps(value) if isinstance(value, list) else str(value)


FORMS: dict[str, tuple[str, RecordOptions]] = {
    "schema": ("debezium-json", RecordOptions(time_unit="s", decimals="text")),  # the schema decides
    "base64": ("debezium-json", RecordOptions(time_unit={"made": "ms", "seen": "us"}, decimals="base64")),
    "numbers": ("debezium-json", RecordOptions(time_unit={"made": "ms", "seen": "us"})),
    "variable": ("debezium-json", RecordOptions(time_unit={"made": "ms", "seen": "us"})),
    "canal": ("canal-json", RecordOptions()),
    "maxwell": ("maxwell-json", RecordOptions()),
    "dms": ("dms-json", RecordOptions()),
}
FOREIGN: dict[str, Row] = {
    "debezium-json": {"op": "c", "after": {"id": 1, "note": "other"}, "source": {"db": "shop", "table": "other"}},
    "canal-json": {"type": "TRUNCATE", "database": "shop", "table": "other", "data": None},
    "maxwell-json": {"type": "delete", "database": "shop", "table": "other", "data": {"id": 1}},
    "dms-json": {"metadata": {"operation": "delete", "schema-name": "shop", "table-name": "other"}, "data": {"id": 1}},
}
QUARANTINE = StageOptions(on_bad_input="quarantine")


def law(form: str, seed: int, *, filters: bool) -> None:
    changes_made, table = history(seed)
    draw = random.Random(seed)
    format_name, options = FORMS[form]
    if filters:
        options = RecordOptions(
            decimals=options.decimals, time_unit=options.time_unit, table=draw.choice(["t", ("s", "t")]), database="shop"
        )
    fed: list[Any] = []
    foreign = 0
    for change in changes_made:
        fed += written(form, draw, change)
        if draw.random() < 0.3:
            fed.append(FOREIGN[format_name])
            foreign += 1
    fed = [json.dumps(one) if isinstance(one, dict) and draw.random() < 0.5 else one for one in fed]
    pipeline = Pipeline(records("t", format_name, COLUMNS, keys="id", options=options), options=QUARANTINE)
    begin, put_aside = 0, []
    while begin < len(fed):
        end = begin + draw.randrange(1, 20)
        pipeline.step({"t": fed[begin:end]})
        put_aside += pipeline.dead_letters["code"].to_pylist()
        begin = end
    assert put_aside == ([] if filters else ["FOREIGN_TABLE"] * foreign)
    assert {row["id"]: row for row in pipeline.view().to_pylist()} == table


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32), filters=st.booleans())
def test_every_writer_leads_to_the_same_table(form: str, seed: int, filters: bool) -> None:
    law(form, seed, filters=filters)


@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_an_undeclared_encoding_is_refused_and_never_read_as_another_value(seed: int) -> None:
    draw = random.Random(seed)
    row = row_of(draw, 1)
    price = draw.choice([2000, 15, "2000", "1500", "12", base64_of(row["price"], 2)])
    event = {"op": "c", "after": {"id": 1, "price": price}}
    columns = {"id": pa.int64(), "price": pa.decimal128(12, 2)}
    with Pipeline(records("t", "debezium-json", columns, keys="id"), options=QUARANTINE) as pipeline:
        pipeline.step({"t": [event]})
        meant = decimal.Decimal(price) if isinstance(price, int) or price.isdigit() else row["price"]
        assert pipeline.view().to_pylist() in ([], [{"id": 1, "price": meant}])
    timed = {"op": "c", "after": {"id": 1, "seen": micros(row["seen"])}}
    with Pipeline(
        records("t", "debezium-json", {"id": pa.int64(), "seen": pa.timestamp("us")}, keys="id"), options=QUARANTINE
    ) as pipeline:
        pipeline.step({"t": [timed]})
        assert pipeline.dead_letters["code"].to_pylist() == ["UNKNOWN_ENCODING"]
