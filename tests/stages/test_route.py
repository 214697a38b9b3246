"""A route as a stage."""

from __future__ import annotations

import json

import pyarrow as pa

from zset_join import Relation
from zset_join.stages import RouteStage, StageOptions, TableKey, read_stage

ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "customer": pa.int32(), "at": pa.int64()}),
    join_key=("customer",),
    primary_key=("id",),
    sequence_by=("at",),
    mode="upsert",
)


def test_rows_come_in_by_primary_key_and_leave_in_order():
    stage = RouteStage(source=ORDERS)

    assert [one.key for one in stage.inputs] == [("id",)]
    assert stage.output.sequence_by == ()
    assert stage.state_tables == {"route": TableKey(columns=("id",))}


def test_it_comes_back_from_json():
    stage = RouteStage(source=ORDERS)

    assert read_stage(json.loads(json.dumps(stage.to_json()))) == stage


def test_the_tables_of_its_operator_are_those_it_names():
    stage = RouteStage(source=ORDERS)

    operator = stage.build(StageOptions(), None)

    assert set(operator.snapshot()) == set(stage.state_tables)
