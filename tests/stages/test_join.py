"""A join as a stage: its facts for a runner."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa

from zset_join import Relation, Tick, ZSet
from zset_join.expressions import left, right
from zset_join.stages import JoinStage, StageOptions, TableKey, read_stage

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


def test_it_comes_back_from_json_and_travels():
    stage = JoinStage(
        left=ORDERS,
        right=CUSTOMERS,
        how="full",
        null_safe=(True,),
        residual=left("id") < right("id"),
        hidden=(("__sequence_0",), ()),
    )

    again = read_stage(json.loads(json.dumps(stage.to_json())))

    assert again.to_json() == stage.to_json()
    assert pickle.loads(pickle.dumps(stage)).output == stage.output == again.output


def test_the_operator_of_a_bucket_answers():
    operator = JoinStage(left=ORDERS, right=CUSTOMERS).build(StageOptions(chunk_rows=10), None)
    orders = ZSet.of({"id": [1], "customer": [7], "__sequence_0": [1]}, schema=ORDERS.schema)
    customers = ZSet.of({"id": [7], "name": ["Ada"]}, schema=CUSTOMERS.schema)

    answer = [row for chunk in operator.answer(Tick(0), [orders, customers]) for row in chunk.to_pylist()]

    assert answer == [((1, 7, 1, 7, "Ada"), 1)]


def test_its_tables_are_bucketed_as_the_inputs_are():
    assert JoinStage(left=ORDERS, right=CUSTOMERS).state_tables == {
        "left": TableKey(columns=("customer",), of_input=0, is_whole=True),
        "right": TableKey(columns=("id",), of_input=1, is_whole=True),
    }
