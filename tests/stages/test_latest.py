"""The latest rows as a stage: bucketed by primary key, without what only orders changes."""

from __future__ import annotations

import json

import pyarrow as pa

from zset_join import Relation
from zset_join.stages import LatestStage, StageOptions, read_stage

SOURCE = Relation(
    name="prices",
    schema=pa.schema({"sku": pa.string(), "price": pa.int64(), "v": pa.int64()}),
    primary_key=("sku",),
    sequence_by=("v",),
    mode="upsert",
)
STAGE = LatestStage(source=SOURCE, hidden=("v",))


def test_its_answer_is_a_changelog_with_the_primary_key_and_without_hidden_columns():
    assert STAGE.output.schema.names == ["sku", "price"]
    assert (STAGE.output.mode, STAGE.output.primary_key) == ("changelog", ("sku",))
    assert STAGE.output_key.bucketed_by == STAGE.inputs[0].key == ("sku",)


def test_the_tables_of_its_state_are_those_of_its_operator():
    operator = STAGE.build(StageOptions(), None)

    assert set(operator.snapshot()) == set(STAGE.state_tables)


def test_it_comes_back_from_json():
    assert read_stage(json.loads(json.dumps(STAGE.to_json()))) == STAGE
