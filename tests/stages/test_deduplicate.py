"""A dedup as a stage."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from zset_join import Relation
from zset_join.core.errors import OptionError
from zset_join.core.options import HotBudget
from zset_join.stages import DeduplicateStage, StageOptions, TableKey, read_stage

RATES = Relation(
    name="rates",
    schema=pa.schema({"currency": pa.string(), "rate": pa.float64(), "at": pa.timestamp("us")}),
    event_time="at",
    watermark_delay=30_000_000,
)
LATEST = DeduplicateStage(source=RATES, keys=("currency",), order_by=("at",), keep="last")


def test_rows_come_in_and_leave_by_key():
    assert [one.key for one in LATEST.inputs] == [("currency",)]
    assert LATEST.output_key.bucketed_by == ("currency",)
    assert LATEST.state_tables == {"rows": TableKey(columns=("currency",))}


def test_what_it_answers_with_is_keyed_and_versioned():
    assert LATEST.output.primary_key == ("currency",)
    assert LATEST.output.event_time == "at"


def test_it_comes_back_from_json():
    assert read_stage(json.loads(json.dumps(LATEST.to_json()))) == LATEST


def test_the_tables_of_its_operator_are_those_it_names():
    assert set(LATEST.build(StageOptions(), None).snapshot()) == set(LATEST.state_tables)


def test_it_shows_what_it_keeps():
    assert LATEST.explain(4) == [
        "Deduplicate by currency: the last row in order of at",
        "  remembers: the rows shown; in 4 buckets by currency; nothing is freed by time",
        "  as the right side of a temporal join: a versioned relation",
    ]


def test_hybrid_state_is_refused_by_the_name_of_the_option():
    with pytest.raises(OptionError, match=r"HYBRID_NOT_OFFERED.*default_hash_table"):
        LATEST.build(StageOptions(table_budget=HotBudget(max_hot_keys=10)), None)
