"""A temporal join as a stage."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from zset_join import Relation
from zset_join.core.errors import OptionError
from zset_join.core.options import HotBudget
from zset_join.expressions import left, right
from zset_join.shapes.temporal_join import TemporalOptions
from zset_join.stages import StageOptions, TableKey, TemporalJoinStage, read_stage

ORDERS = Relation(
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
STAGE = TemporalJoinStage(left=ORDERS, right=RATES, options=TemporalOptions(how="left"))


def test_both_sides_meet_in_the_bucket_of_the_key():
    assert [one.key for one in STAGE.inputs] == [("currency",), ("currency",)]
    assert STAGE.output_key.bucketed_by == ("currency",)
    assert STAGE.output_key.padded == (("currency_right",),)


def test_the_answer_has_the_event_time_and_the_watermark_of_its_left_side():
    assert (STAGE.output.event_time, STAGE.output.watermark_delay) == ("t", 30)
    assert STAGE.output.mode == "append"


@pytest.mark.parametrize("emit", ["once", "on_watermark", "eager"])
def test_the_tables_of_its_operator_are_those_it_names(emit):
    stage = replace(STAGE, options=TemporalOptions(emit=emit))

    assert set(stage.build(StageOptions(), None).snapshot()) == set(stage.state_tables)
    assert stage.state_tables["right"] == TableKey(columns=("currency",), of_input=1)


def test_it_comes_back_from_json():
    options = TemporalOptions(
        how="left",
        emit="eager",
        late="drop",
        keep_probe_for=9,
        residual=left("id") < right("rate"),
        output_names=tuple("abcdef"),
    )
    stage = TemporalJoinStage(left=ORDERS, right=RATES, options=options, is_change_time=True)

    found = read_stage(json.loads(json.dumps(stage.to_json())))

    assert found.to_json() == stage.to_json()


def test_it_shows_what_is_kept_and_freed_when():
    appended = replace(STAGE, right=replace(RATES, mode="append"))

    assert appended.explain(4) == [
        "Temporal join left on currency = currency, as of t",
        "  emit=on_watermark: waits until the watermark has passed a row, answers once; path: append-only versions",
        '  remembers: versions of "rates", rows of "orders" until they are answered; in 4 buckets by key',
        "  frees: versions older than the newest one before the watermark, per key; a DELETE also after tombstone_retention",
        "  late rows: side_output; the watermark is the smaller one of both sides",
    ]


def test_it_warns_of_deletes_that_carry_the_time_of_their_row():
    assert "source.ts_ms" in STAGE.warning
    assert STAGE.explain(1)[-1].startswith("  warning:")
    assert replace(STAGE, is_change_time=True).warning is None


def test_hybrid_state_is_refused_by_the_name_of_the_option():
    with pytest.raises(OptionError, match=r"HYBRID_NOT_OFFERED.*default_hash_join"):
        STAGE.build(StageOptions(hot_budget=HotBudget(max_hot_keys=10)), None)
