"""Rows that are passed on, as a stage."""

from __future__ import annotations

import json

import pyarrow as pa

from zset_join import Relation
from zset_join.stages import StageOptions, UnchangedStage, read_stage

CLICKS = Relation(
    name="clicks", schema=pa.schema({"page": pa.string(), "tags": pa.list_(pa.string()), "at": pa.int64()}), mode="changelog"
)


def test_rows_are_spread_by_all_they_hold_that_can_be_hashed() -> None:
    assert [one.key for one in UnchangedStage(source=CLICKS).inputs] == [("page", "at")]


def test_it_comes_back_from_json() -> None:
    stage = UnchangedStage(source=CLICKS)

    assert read_stage(json.loads(json.dumps(stage.to_json()))) == stage


def test_the_tables_of_its_operator_are_those_it_names() -> None:
    stage = UnchangedStage(source=CLICKS)

    assert set(stage.build(StageOptions(), None).snapshot()) == set(stage.state_tables)
