"""A pipeline that is fed what a real Debezium wrote holds what the source table held."""

from __future__ import annotations

import datetime
import decimal
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.changelog.formats.altered_tables import BAD, COLUMNS, ROWS, altered
from tests.changelog.formats.records import ORDERS, debezium, table_of
from zset_join.changelog.formats import RecordOptions
from zset_join.changelog.formats.records import UNAVAILABLE
from zset_join.core.errors import BadInputError, OptionError, PlanError, StateError
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.query.records import Baseline, records
from zset_join.stages import StageOptions
from zset_join.tools.dead_letters import read_letters

SMALL = pa.schema({"id": pa.int64(), "v": pa.string()})


def orders(**options: Any) -> Any:
    return records("orders", "debezium-json", ORDERS, keys="id", options=RecordOptions(time_unit="us"), **options)


def test_the_table_before_its_truncate_holds_what_the_source_held() -> None:
    pipeline = Pipeline(orders().select("id", "customer_id", "amount", "note"))
    came = debezium("orders")

    pipeline.step({"orders": came.slice(0, came.num_rows - 1)})

    rows = {row["id"]: (row["customer_id"], row["amount"]) for row in pipeline.view().to_pylist()}
    assert rows == {1: (10, decimal.Decimal("12.34")), 33: (30, decimal.Decimal("100.01")), 5: (55, None), 6: (None, None)}


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


def test_a_record_that_cannot_be_read_makes_the_epoch_fail_and_is_located() -> None:
    pipeline = Pipeline(records("t", "debezium-json", SMALL, keys="id"))
    bad = table_of({"value": '{"op":"c","after":{"id":1}}'}, {"value": "nope", "topic": "shop", "partition": 3, "offset": 17})

    with pytest.raises(BadInputError, match="topic shop, partition 3, offset 17") as refused:
        pipeline.step({"t": bad})

    assert refused.value.code == "UNDECODABLE_RECORD"
    assert pipeline.view().num_rows == 0


def test_records_that_cannot_be_read_go_to_a_reader_that_takes_them() -> None:
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


def test_a_value_that_is_unknown_is_reported() -> None:
    pipeline = Pipeline(records("t", "debezium-json", SMALL, keys="id"))

    with pytest.raises(BadInputError, match="REPLICA IDENTITY FULL") as refused:
        pipeline.step({"t": table_of({"value": '{"op":"u","after":{"id":1,"v":"__debezium_unavailable_value"}}'})})

    assert refused.value.code == "UNAVAILABLE_VALUE"


def test_a_column_may_be_called_what_another_one_holds_of_kafka() -> None:
    schema = pa.schema({"id": pa.int64(), "topic": pa.string(), "key": pa.string(), "value": pa.string()})
    options = RecordOptions(metadata={"topic": "offset", "offset": "partition"})
    value = json.dumps({"op": "c", "after": {"id": 1, "topic": "of the row", "key": "k", "value": "v"}})
    pipeline = Pipeline(records("t", "debezium-json", schema, keys="id", options=options))

    pipeline.step({"t": [{"key": '{"id": 1}', "value": value, "topic": "of Kafka", "partition": 3, "offset": 7}]})

    assert pipeline.view().to_pylist() == [
        {"id": 1, "topic": "of the row", "key": "k", "value": "v", "offset": "of Kafka", "partition": 7}
    ]


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


HISTORY: list[tuple[str, int, str | None]] = [
    ("c", 1, "a"), ("c", 2, "x"), ("u", 1, "b"), ("d", 2, None), ("c", 3, "c"), ("u", 3, "d"), ("d", 1, None), ("c", 2, "y"),
]  # fmt: skip


def rows_after(changes_made: int) -> dict[int, str | None]:
    rows: dict[int, str | None] = {}
    for op, number, text in HISTORY[:changes_made]:
        if op == "d":
            del rows[number]
        else:
            rows[number] = text
    return rows


def written(changes_made: slice) -> list[dict[str, Any]]:
    made = []
    for lsn, (op, number, text) in list(enumerate(HISTORY))[changes_made]:
        row = None if op == "d" else {"id": number, "v": text}
        value = {"op": op, "before": {"id": number}, "after": row, "source": {"lsn": lsn}}
        made.append({"key": json.dumps({"id": number}), "value": json.dumps(value)})
    return made


@pytest.mark.parametrize("snapshot", range(len(HISTORY) + 1))
def test_a_baseline_and_a_stream_that_began_before_it_give_the_table_without_gap_or_double(snapshot: int) -> None:
    baseline = Baseline([{"id": number, "v": text} for number, text in rows_after(snapshot).items()])

    def ends_with(begin: int) -> Any:
        pipeline = Pipeline(records("t", "debezium-json", SMALL, keys="id"))
        pipeline.step({"t": baseline})
        for at in range(begin, len(HISTORY)):
            pipeline.step({"t": written(slice(at, at + 1))})
        return {row["id"]: row["v"] for row in pipeline.view().to_pylist()}, pipeline.view().num_rows

    expected = rows_after(len(HISTORY))
    assert [ends_with(begin) for begin in range(snapshot + 1)] == [(expected, len(expected))] * (snapshot + 1)


def test_values_that_were_not_sent_come_from_the_baseline() -> None:
    pipeline = Pipeline(orders().select("id", "note"))
    row = dict.fromkeys(ORDERS.names) | {"id": 1, "note": "a long text"}
    pipeline.step({"orders": Baseline([row])})

    pipeline.step({"orders": [{"value": json.dumps({"op": "u", "after": {"id": 1, "note": UNAVAILABLE}})}]})

    assert pipeline.view().to_pylist() == [{"id": 1, "note": "a long text"}]


@pytest.mark.parametrize(
    ("keys", "rows", "code"),
    [
        ("", [], "BASELINE_OVERLAP"),
        ("id", pa.table({"id": [1]}), "BASELINE_COLUMNS"),
        ("id", pa.table({"id": ["x"], "v": ["a"]}), "BASELINE_TYPE"),
    ],
)
def test_what_is_no_baseline_of_the_table_is_refused(keys: str, rows: Any, code: str) -> None:
    pipeline = Pipeline(records("t", "debezium-json", SMALL, keys=[keys] if keys else []))

    with pytest.raises((OptionError, PlanError)) as refused:
        pipeline.step({"t": Baseline(rows)})

    assert refused.value.code == code


def test_what_a_table_becomes_whose_columns_change_while_it_is_read(tmp_path: Path) -> None:
    quarantine = StageOptions(on_bad_input="quarantine")
    with Pipeline(records("t", "debezium-json", COLUMNS, keys="id"), tmp_path / "state", options=quarantine) as pipeline:
        pipeline.step({"t": altered()})
        rows = {tuple(row.values()): 1 for row in pipeline.view().to_pylist()}
    letters = read_letters(tmp_path / "state")

    assert rows == ROWS
    assert letters["code"].to_pylist() == BAD


@pytest.mark.parametrize(
    "columns",
    [
        {"id": pa.int32(), "city": pa.string()},
        {"id": pa.int32(), "town": pa.string(), "n": pa.int32()},
        {"id": pa.int32(), "city": pa.string(), "n": pa.int64()},
    ],
    ids=["dropped", "renamed", "widened"],
)
def test_a_pipeline_does_not_go_on_with_other_columns(tmp_path: Path, columns: dict[str, pa.DataType]) -> None:
    with Pipeline(records("t", "debezium-json", COLUMNS, keys="id"), tmp_path / "state") as pipeline:
        pipeline.step({"t": altered().slice(0, 2)})

    with pytest.raises(StateError) as refused:
        Pipeline(records("t", "debezium-json", columns, keys="id"), tmp_path / "state")

    assert refused.value.code == "QUERY_CHANGED"


def priced(columns: bool = False) -> Pipeline:
    rates = records(
        "rates",
        "debezium-json",
        {"currency": pa.string(), "rate": pa.int64()},
        keys="currency",
        watermark=("changed", "0 seconds"),
        options=RecordOptions(metadata={"operation_time": "changed"}),
    )
    right = rates.select("currency", "changed", doubled=col("rate") * 2) if columns else rates
    orders = appends("orders", {"currency": pa.string(), "at": pa.timestamp("us", tz="UTC")}, watermark=("at", "0 seconds"))
    joined = orders.temporal_join(right, on="currency", as_of="at", how="left", is_change_time=True)
    return Pipeline(joined, options=StageOptions(on_bad_input="quarantine"))


def rate(op: str, micros: int, value: Any) -> dict[str, str]:
    row = {"currency": "EUR", "rate": value}
    body = {
        "op": op,
        "before": {"currency": "EUR"},
        "after": None if op == "d" else row,
        "source": {"lsn": micros, "ts_us": micros},
    }
    return {"value": json.dumps(body)}


@pytest.mark.parametrize("columns", [False, True])
def test_every_record_is_a_version_of_a_temporal_join_though_they_come_in_one_epoch(columns: bool) -> None:
    times = [datetime.datetime.fromtimestamp(second, datetime.UTC) for second in (1, 2, 3)]
    orders = [{"currency": "EUR", "at": time} for time in times]
    changes_of_rates = [
        rate("c", 1_000_000, 110),
        rate("u", 2_000_000, 125),
        rate("d", 2_500_000, None),
        rate("c", 9_000_000, 1),
    ]
    with priced(columns) as pipeline:
        pipeline.step({"orders": orders, "rates": changes_of_rates})
        pipeline.step({"orders": [{"currency": "EUR", "at": datetime.datetime.fromtimestamp(9, datetime.UTC)}]})
        name, factor = ("doubled", 2) if columns else ("rate", 1)
        rates = {row["at"].timestamp(): row[name] for row in pipeline.view().to_pylist()}

        assert rates == {1.0: 110 * factor, 2.0: 125 * factor, 3.0: None, 9.0: factor}


def test_versions_cannot_be_filled_nor_truncated() -> None:
    truncate = {"value": json.dumps({"op": "t", "source": {"lsn": 3, "ts_us": 3_000_000}})}
    with priced() as pipeline:
        pipeline.step({"rates": [rate("c", 1_000_000, 110), rate("u", 2_000_000, "__debezium_unavailable_value"), truncate]})

        assert pipeline.dead_letters["code"].to_pylist() == ["UNAVAILABLE_VALUE", "TRUNCATED"]


def test_a_column_that_is_left_out_need_not_be_readable() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("v", pa.string())])
    source = records("t", "debezium-json", schema, keys="id", except_column_list=["at"])  # whose unit is not given
    with Pipeline(source, keep_view=True) as pipeline:
        pipeline.step({"t": [{"value": '{"op": "c", "after": {"id": 1, "at": 17, "v": "x"}}'}]})

        assert pipeline.view().to_pylist() == [{"id": 1, "v": "x"}]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("has_order", [False, True])
def test_verify_fills_what_records_leave_out_and_empties_at_a_truncate(seed: int, has_order: bool) -> None:
    rng = random.Random(seed)
    schema = pa.schema({"id": pa.int64(), "a": pa.string(), "b": pa.string()})
    order = {"sequence_by": "lsn", "except_column_list": ["lsn"]} if has_order else {}
    options = RecordOptions(metadata={"position": "lsn"}) if has_order else None
    pipeline = Pipeline(records("t", "debezium-json", schema, keys="id", options=options, **order), keep_inputs=True)
    live: set[int] = set()
    for lsn in range(1, 41):
        key = rng.randrange(4)
        op = "t" if rng.random() < 0.06 else rng.choice("uuud") if key in live else "c"
        live = set() if op == "t" else live - {key} if op == "d" else live | {key}
        row = {"id": key, "a": f"a{lsn}", "b": None if rng.random() < 0.2 else f"b{lsn}"}
        if op == "u":
            row |= dict.fromkeys(rng.sample(["a", "b"], rng.randrange(3)), "__debezium_unavailable_value")
        images = {"c": {"after": row}, "u": {"after": row}, "d": {"before": row}, "t": {}}[op]
        body = {"op": op, "source": {"lsn": lsn, "table": "t"}, **images}
        pipeline.step({"t": [{"value": json.dumps(body)}]})

    verification = pipeline.verify()

    assert verification.equal, str(verification)
    assert verification.expected_rows == len(live)
