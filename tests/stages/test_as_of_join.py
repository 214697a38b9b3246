"""An as-of join as a stage."""

from __future__ import annotations

import json

import pyarrow as pa

from zset_join import Relation
from zset_join.expressions import left, right
from zset_join.shapes.as_of_join import AsOfOptions
from zset_join.stages import AsOfJoinStage, StageOptions, TableKey, read_stage

SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64()})
TRADES = Relation(name="trades", schema=SCHEMA, join_key=("k",))
QUOTES = Relation(name="quotes", schema=SCHEMA, join_key=("k",))
OPTIONS = AsOfOptions(left_time="t", right_time="t", op="<", how="left", tolerance=5, residual=left("t") < right("t"))
STAGE = AsOfJoinStage(left=TRADES, right=QUOTES, options=OPTIONS)


def test_both_sides_meet_in_the_bucket_of_the_key():
    assert [one.key for one in STAGE.inputs] == [("k",), ("k",)]
    assert STAGE.output_key.bucketed_by == ("k",)


def test_the_tables_of_its_operator_are_those_it_names():
    assert set(STAGE.build(StageOptions(), None).snapshot()) == set(STAGE.state_tables)
    assert STAGE.state_tables["left"] == TableKey(columns=("k",), of_input=0)


def test_it_comes_back_from_json():
    assert read_stage(json.loads(json.dumps(STAGE.to_json()))).to_json() == STAGE.to_json()


def test_it_shows_how_ties_are_broken_and_what_is_kept():
    title, *facts = STAGE.explain(2)

    assert title.startswith("As-of join left on k = k and ")
    assert title.endswith("nearest t < t, within 5")
    assert facts == [
        "  ties: latest arrival; corrects when a nearer row arrives or the chosen one is retracted",
        '  remembers: all rows of "trades" and "quotes"; in 2 buckets by join key; nothing is freed by time',
    ]
