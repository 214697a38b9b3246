"""Joins as stages: their facts for a runner, what they show of themselves, rows that end, and warming up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.shapes.timed_join import AsOfOptions, TemporalOptions
from zset_join.stages import (
    AsOfJoinStage,
    JoinStage,
    RouteStage,
    StageOptions,
    StateTtl,
    TableKey,
    TemporalJoinStage,
    expiring_stage,
    state_ttls,
)
from zset_join.stages.effect import warm_up

ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "customer": pa.int32(), "__sequence_0": pa.int64()}),
    join_key=("customer",),
    primary_key=("id",),
    sequence_by=("__sequence_0",),
    mode="upsert",
)
CUSTOMERS = Relation(
    name="customers",
    schema=pa.schema({"id": pa.int64(), "name": pa.string()}),
    join_key=("id",),
    primary_key=("id",),
    mode="upsert",
)


def test_columns_that_only_order_changes_are_not_in_the_answer():
    stage = JoinStage(left=ORDERS, right=CUSTOMERS, how="left", hidden=(("__sequence_0",), ()))

    assert stage.output.schema.names == ["id", "customer", "id_right", "name"]
    assert stage.output.primary_key == ("id",)


def test_both_inputs_are_bucketed_by_the_join_key_in_one_type():
    stage = JoinStage(left=ORDERS, right=CUSTOMERS, how="left")

    assert [one.key for one in stage.inputs] == [("customer",), ("id",)]
    assert [one.key_types for one in stage.inputs] == [(pa.int64(),), (pa.int64(),)]
    assert [one.null_is_value for one in stage.inputs] == [(False,), (False,)]
    assert [one.keeps_unmatchable for one in stage.inputs] == [True, False]


def test_the_columns_that_show_the_join_key_are_reported_and_those_that_are_padded():
    key = JoinStage(left=ORDERS, right=CUSTOMERS, how="left").output_key

    assert (key.bucketed_by, key.aliases, key.padded) == (("customer",), (("customer", "id_right"),), (("id_right",),))


def test_a_key_that_matched_is_not_null_behind_an_inner_join():
    stage = JoinStage(left=ORDERS, right=CUSTOMERS)

    assert stage.never_null([frozenset({"id"}), frozenset()]) == {"id", "customer", "id_right"}


def test_a_full_join_of_two_earlier_stages_has_no_key():
    view = Relation(name="view", schema=CUSTOMERS.schema, join_key=("id",), mode="changelog")
    other = Relation(name="other", schema=CUSTOMERS.schema, join_key=("id",), mode="changelog")

    stage = JoinStage(left=view, right=other, how="full", row_keys=(("id",), ("id",)))

    assert stage.output.primary_key == ()


def test_its_tables_are_bucketed_as_the_inputs_are():
    assert JoinStage(left=ORDERS, right=CUSTOMERS).state_tables == {
        "left": TableKey(columns=("customer",), of_input=0, is_whole=True),
        "right": TableKey(columns=("id",), of_input=1, is_whole=True),
    }


# ---------------------------------------------------------------- as-of joins

TIMED = pa.schema({"k": pa.string(), "t": pa.int64()})
TRADES = Relation(name="trades", schema=TIMED, join_key=("k",))
QUOTES = Relation(name="quotes", schema=TIMED, join_key=("k",))
NEAREST = AsOfOptions(left_time="t", right_time="t", op="<", how="left", tolerance=5, residual=left("t") < right("t"))
AS_OF = AsOfJoinStage(left=TRADES, right=QUOTES, options=NEAREST)


def test_it_shows_how_ties_are_broken_and_what_is_kept():
    title, *facts = AS_OF.explain(2)

    assert title.startswith("As-of join left on k = k and ")
    assert title.endswith("nearest t < t, within 5")
    assert facts == [
        "  ties: latest arrival; corrects when a nearer row arrives or the chosen one is retracted",
        '  remembers: all rows of "trades" and "quotes"; in 2 buckets by join key; nothing is freed by time',
    ]


# ---------------------------------------------------------------- temporal joins

TIMED_ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "currency": pa.string(), "t": pa.timestamp("us")}),
    join_key=("currency",),
    event_time="t",
    watermark_delay=30,
)
RATES = Relation(
    name="rates",
    schema=pa.schema({"currency": pa.string(), "rate": pa.float64(), "at": pa.timestamp("us")}),
    join_key=("currency",),
    primary_key=("currency",),
    mode="upsert",
    event_time="at",
    watermark_delay=0,
)
TEMPORAL = TemporalJoinStage(left=TIMED_ORDERS, right=RATES, options=TemporalOptions(how="left"))


def test_the_answer_has_the_event_time_and_the_watermark_of_its_left_side():
    assert (TEMPORAL.output.event_time, TEMPORAL.output.watermark_delay) == ("t", 30)
    assert TEMPORAL.output.mode == "append"


@pytest.mark.parametrize("emit", ["once", "on_watermark", "eager"])
def test_the_tables_of_its_operator_are_those_it_names(emit):
    stage = replace(TEMPORAL, options=TemporalOptions(emit=emit))

    assert set(stage.build(StageOptions(), None).snapshot()) == set(stage.state_tables)
    assert stage.state_tables["right"] == TableKey(columns=("currency",), of_input=1)


def test_it_shows_what_is_kept_and_freed_when():
    appended = replace(TEMPORAL, right=replace(RATES, mode="append"))

    assert appended.explain(4) == [
        "Temporal join left on currency = currency, as of t",
        "  emit=on_watermark: waits until the watermark has passed a row, answers once; path: append-only versions",
        '  remembers: versions of "rates", rows of "orders" until they are answered; in 4 buckets by key',
        "  frees: versions older than the newest one before the watermark, per key; a DELETE also after tombstone_retention",
        "  late rows: side_output; the watermark is the smaller one of both sides",
    ]


def test_it_warns_of_deletes_that_carry_the_time_of_their_row():
    assert "source.ts_ms" in TEMPORAL.warning
    assert TEMPORAL.explain(1)[-1].startswith("  warning:")
    assert replace(TEMPORAL, is_change_time=True).warning is None


# ---------------------------------------------------------------- state that ends

ENDING_ROWS = pa.schema({"k": pa.int64(), "at": pa.timestamp("us", "UTC")})


def ending(given: Any, how: str = "inner", delay: int | None = 0) -> Any:
    left, right = (
        Relation(name=name, schema=ENDING_ROWS, join_key=("k",), mode="append", event_time="at", watermark_delay=delay)
        for name in ("l", "r")
    )
    changing = [Relation(name=name, schema=ENDING_ROWS, join_key=("k",), mode="changelog") for name in ("l", "r")]
    return expiring_stage(JoinStage(left=changing[0], right=changing[1], how=how), [left, right], state_ttls(given, 2))


def test_explain_shows_what_ends_when_and_that_forgetting_loses() -> None:
    reported = "\n".join(ending((StateTtl("1 hour", on_expire="forget"), StateTtl("1 day", by="event"))).explain(2))

    assert 'rows of "l" are forgotten' in reported
    assert "lossy" in reported
    assert 'rows of "r" are retracted from the answer, 86400 seconds after at' in reported


def test_a_clock_is_needed_where_rows_end_by_processing_time() -> None:
    waiting = [ending(given).waits_for_clock for given in (("1 day", None), (StateTtl("1 day", by="event"), None))]

    assert waiting == [True, False]


def test_nothing_ends_by_default() -> None:
    assert isinstance(ending(None), JoinStage)


def test_an_answer_whose_rows_are_forgotten_has_no_key() -> None:
    assert ending("1 day").output_key == ending(None).output_key
    assert ending(StateTtl("1 day", on_expire="forget")).output.primary_key == ()


@pytest.mark.parametrize(
    ("given", "more", "code"),
    [
        (StateTtl("1 day", by="event"), {"delay": None}, "STATE_TTL_NO_EVENT_TIME"),
        (StateTtl("1 day", on_expire="forget"), {"how": "left"}, "STATE_TTL_FORGET"),
        (("1 day",), {}, "OPTION_VALUE"),
        ("soon", {}, "OPTION_VALUE"),
    ],
)
def test_what_would_be_wrong_is_refused(given: Any, more: dict[str, Any], code: str) -> None:
    with pytest.raises((OptionError, PlanError)) as caught:
        ending(given, **more)
    assert caught.value.code == code


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(OptionError, match="on_expire='drop'"):
        StateTtl("1 day", on_expire="drop")  # type: ignore[arg-type]


# ---------------------------------------------------------------- warming up

EVERY_TYPE = pa.schema(
    {
        "id": pa.int64(),
        "flag": pa.bool_(),
        "text": pa.string(),
        "bytes": pa.binary(),
        "amount": pa.decimal128(10, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "span": pa.duration("us"),
        "ratio": pa.float64(),
        "tags": pa.list_(pa.struct({"k": pa.string()})),
        "nested": pa.struct({"a": pa.int8(), "b": pa.list_(pa.int64())}),
        "map": pa.map_(pa.string(), pa.int64()),
    }
)


@pytest.mark.parametrize("is_hybrid", [False, True])
@pytest.mark.parametrize("mode", ["append", "changelog", "upsert"])
def test_any_join_can_be_warmed_up_before_a_row_is_there(mode: str, is_hybrid: bool) -> None:
    keyed = {"primary_key": ("id",), "sequence_by": ("at",)} if mode == "upsert" else {}
    orders = Relation(name="orders", schema=EVERY_TYPE, join_key=("text",), mode=mode, **keyed)  # type: ignore[arg-type]
    customers = Relation(name="customers", schema=EVERY_TYPE, join_key=("text",))
    routes = [RouteStage(source=orders)] if mode == "upsert" else []
    fed = routes[0].output if routes else orders

    join = JoinStage(left=fed, right=customers, how="full", residual=left("ratio") <= right("ratio"))
    warm_up([*routes, join], is_hybrid=is_hybrid)
