"""A pipeline that is fed what a real Debezium wrote holds what the source table held."""

from __future__ import annotations

import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from tests.changelog.formats.records import ORDERS, debezium, table_of
from zset_join.changelog.formats import RecordOptions
from zset_join.changelog.formats.records import UNAVAILABLE
from zset_join.errors import BadInputError
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.pipeline.records import records

SMALL = pa.schema({"id": pa.int64(), "v": pa.string()})


def orders(**options: Any) -> Any:
    return records("orders", "debezium-json", ORDERS, keys="id", **options)


def test_the_table_before_its_truncate_holds_what_the_source_held() -> None:
    pipeline = Pipeline(orders().select("id", "customer_id", "amount", "note"))
    came = debezium("orders")

    pipeline.step({"orders": came.slice(0, came.num_rows - 1)})

    rows = {row["id"]: (row["customer_id"], row["amount"]) for row in pipeline.view().to_pylist()}
    assert rows == {1: (10, decimal.Decimal("12.34")), 33: (30, decimal.Decimal("100.01")), 5: (55, None), 6: (None, None)}


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_value_that_was_not_sent_is_taken_from_the_row_that_is_there(size: int) -> None:
    pipeline = Pipeline(orders().select("id", "note"))
    came = debezium("orders")

    for begin in range(0, came.num_rows - 1, size):
        pipeline.step({"orders": came.slice(begin, min(size, came.num_rows - 1 - begin))})

    (note,) = [row["note"] for row in pipeline.view().to_pylist() if row["id"] == 5]
    assert note.startswith("0123456789")
    assert "__debezium" not in str(pipeline.view().to_pylist())


def test_a_truncate_empties_the_table_and_what_follows_from_it() -> None:
    customers = changes("customers", {"customer_id": pa.int64(), "name": pa.string()}, keys="customer_id")
    pipeline = Pipeline(orders().join(customers, on="customer_id").groupBy("name").agg(F.count().alias("orders")))
    came = debezium("orders")
    pipeline.step({"customers": [{"customer_id": 10, "name": "Ada"}, {"customer_id": 30, "name": "Bob"}]})
    pipeline.step({"orders": came.slice(0, came.num_rows - 1)})
    assert {row["name"]: row["orders"] for row in pipeline.view().to_pylist()} == {"Ada": 1, "Bob": 1}

    pipeline.step({"orders": came.slice(came.num_rows - 1)})

    assert pipeline.view().num_rows == 0


def test_a_table_without_a_key_is_a_changelog_of_whole_rows() -> None:
    pipeline = Pipeline(records("nopk", "debezium-json", {"a": pa.int64(), "b": pa.string()}))

    pipeline.step({"nopk": debezium("nopk")})

    assert pipeline.view().to_pylist() == [{"a": 2, "b": "m"}]


def test_a_record_that_cannot_be_read_makes_the_epoch_fail_and_says_where_it_lies() -> None:
    pipeline = Pipeline(records("t", "debezium-json", SMALL, keys="id"))
    bad = table_of({"value": '{"op":"c","after":{"id":1}}'}, {"value": "nope", "topic": "shop", "partition": 3, "offset": 17})

    with pytest.raises(BadInputError, match="topic shop, partition 3, offset 17") as refused:
        pipeline.step({"t": bad})

    assert refused.value.code == "UNDECODABLE_RECORD"
    assert pipeline.view().num_rows == 0


def test_records_that_cannot_be_read_go_to_whoever_takes_them() -> None:
    aside: list[dict[str, Any]] = []
    pipeline = Pipeline(records("t", "debezium-json", SMALL, keys="id", dead_letters=lambda bad: aside.extend(bad.to_pylist())))

    pipeline.step(
        {"t": table_of({"value": '{"op":"c","after":{"id":1}}'}, {"value": "nope"}, {"value": '{"op":"c","after":{"id":"x"}}'})}
    )

    assert pipeline.view().to_pylist() == [{"id": 1, "v": None}]
    assert [(letter["value"], letter["code"]) for letter in aside] == [
        ("nope", "UNDECODABLE_RECORD"),
        ('{"op":"c","after":{"id":"x"}}', "UNDECODABLE_VALUE id"),
    ]


def test_metadata_may_order_the_changes_without_being_shown() -> None:
    source = records(
        "t",
        "debezium-json",
        SMALL,
        keys="id",
        sequence_by="lsn",
        except_column_list=["lsn"],
        options=RecordOptions(metadata={"position": "lsn"}),
    )
    pipeline = Pipeline(source)

    def change(v: str, lsn: int) -> dict[str, Any]:
        return {"value": f'{{"op":"u","after":{{"id":1,"v":"{v}"}},"source":{{"lsn":{lsn}}}}}'}

    pipeline.step({"t": table_of(change("new", 9), change("old", 5))})

    assert pipeline.view().to_pylist() == [{"id": 1, "v": "new"}]
    assert pipeline.step({"t": table_of(change("older", 3))}).to_pylist() == []


def test_a_value_that_nobody_knows_is_told() -> None:
    pipeline = Pipeline(records("t", "debezium-json", SMALL, keys="id"))

    with pytest.raises(BadInputError, match="REPLICA IDENTITY FULL") as refused:
        pipeline.step({"t": table_of({"value": '{"op":"u","after":{"id":1,"v":"__debezium_unavailable_value"}}'})})

    assert refused.value.code == "UNAVAILABLE_VALUE"


def test_what_debezium_sends_again_after_a_crash_is_known_to_be_old():
    def change(op, lsn, **row):
        return {
            "key": json.dumps({"id": row["id"]}),
            "value": json.dumps({"op": op, "after": row, "before": row, "source": {"lsn": lsn}}),
        }

    sent = [change("c", 1, id=1, v="a"), change("u", 2, id=1, v=UNAVAILABLE), change("d", 3, id=1)]
    options = RecordOptions(metadata={"position": "lsn"})
    plain = Pipeline(records("t", "debezium-json", {"id": pa.int64(), "v": pa.string()}, keys="id"))
    shown = Pipeline(records("t", "debezium-json", {"id": pa.int64(), "v": pa.string()}, keys="id", options=options))
    for pipeline in (plain, shown):
        pipeline.step({"t": sent})
        pipeline.step({"t": [*sent[1:], change("c", 4, id=1, v="b")]})

    assert plain.view().to_pylist() == [{"id": 1, "v": "b"}]
    assert shown.view().to_pylist() == [{"id": 1, "v": "b", "lsn": 4}]
