"""GROUP BY and DISTINCT as a stage."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from zset_join import AggregateCall, Relation, Tick, ZSet
from zset_join.stages import AggregateStage, StageOptions, TableKey, read_stage

SALES = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.int64()}), mode="changelog")
ROWS = ZSet.of({"shop": ["A", "A", "B"], "price": [1, 2, 3]}, schema=SALES.schema)


def _answer(stage: AggregateStage) -> list[tuple[tuple[object, ...], int]]:
    operator = stage.build(StageOptions(), None)
    reduction = stage.inputs[0].reduce
    fed = ROWS if reduction is None else reduction.reduce(ROWS)
    return sorted(row for chunk in operator.answer(Tick(0), [fed]) for row in chunk.to_pylist())


@pytest.mark.parametrize("reduces", [True, False], ids=["reduced before", "as they are"])
@pytest.mark.parametrize("function", ["sum", "max"])
def test_rows_give_the_same_answer_whether_they_were_brought_down_or_not(function: str, reduces: bool):
    stage = AggregateStage(source=SALES, group_by=("shop",), calls=(AggregateCall(function, "price"),), reduces=reduces)

    assert _answer(stage) == [(("A", 3 if function == "sum" else 2), 1), (("B", 3), 1)]


def test_distinct_is_an_aggregate_that_computes_nothing():
    stage = AggregateStage(source=SALES, group_by=("shop",), calls=())

    assert _answer(stage) == [(("A",), 1), (("B",), 1)]


def test_the_row_of_a_global_aggregate_is_there_from_the_first_epoch_on():
    assert AggregateStage(source=SALES, group_by=(), calls=(AggregateCall("count"),)).emits_without_input
    assert not AggregateStage(source=SALES, group_by=("shop",), calls=()).emits_without_input


def test_groups_and_their_values_are_bucketed_by_group():
    stage = AggregateStage(source=SALES, group_by=("shop",), calls=(AggregateCall("max", "price"),))

    assert stage.state_tables == {"groups": TableKey(columns=("shop",)), "values_0": TableKey(columns=("shop",))}
    assert stage.output_key.columns == stage.output_key.bucketed_by == ("shop",)


def test_it_comes_back_from_json_and_travels():
    stage = AggregateStage(source=SALES, group_by=("shop",), calls=(AggregateCall("sum", "price"),))

    again = read_stage(json.loads(json.dumps(stage.to_json())))

    assert again.to_json() == stage.to_json()
    assert pickle.loads(pickle.dumps(stage)).inputs[0].fed == stage.inputs[0].fed == again.inputs[0].fed
