"""An answer is read from the state it is about, or not at all: for every operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import StateError
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.expressions import left
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.deduplicate import Deduplicate
from zset_join.operators.distinct import Distinct
from zset_join.operators.join import HashJoin
from zset_join.operators.stateless import Select, Union, Where
from zset_join.operators.upsert_table import Latest, Route
from zset_join.shapes.aggregate import AggregateCall
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.answers import Answers
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64()})
BAG = Relation(name="bag", schema=SCHEMA, join_key=("k",), mode="changelog")
TABLE = Relation(name="table", schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="upsert")
ROWS = ZSet.of({"id": [1, 2], "k": [1, 1]})
OPERATORS: dict[str, Callable[[], Any]] = {
    "join": lambda: HashJoin(TABLE, TABLE, "left"),
    "residual": lambda: HashJoin(TABLE, TABLE, "full", residual=left("id") < left("k")),
    "hybrid": lambda: HashJoin(BAG, BAG, options=OperatorOptions(budget=HotBudget(max_hot_keys=0))),
    "route": lambda: Route(TABLE),
    "aggregate": lambda: Aggregate(BAG, ["k"], [AggregateCall("count")]),
    "distinct": lambda: Distinct(BAG),
    "union": lambda: Union([BAG, replace(BAG, name="other")]),
    "where": lambda: Where(BAG, left("id") < left("k")),
    "latest": lambda: Latest(TABLE),
    "deduplicate": lambda: Deduplicate(BAG, keys=["k"], order_by=["id"]),
    "select": lambda: Select(BAG, ["k"]),
}


@pytest.mark.parametrize("then", ["absorb", "restore", "close"])
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_answer_is_refused_once_the_state_has_changed(name: str, then: str) -> None:
    operator = OPERATORS[name]()
    deltas = [ROWS] * len(operator.inputs)
    snapshot = operator.snapshot()
    unread = operator.answer(Tick(0), deltas)

    {
        "absorb": lambda: operator.absorb(Tick(0), deltas),
        "restore": lambda: operator.restore(snapshot),
        "close": operator.close,
    }[then]()

    with pytest.raises(StateError) as refused:
        next(unread)
    assert refused.value.code == "ANSWER_OUTDATED"


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_answer_of_nothing_is_refused_too(name: str) -> None:
    operator = OPERATORS[name]()
    nothing = [ZSet.empty(SCHEMA)] * len(operator.inputs)
    unread = operator.answer(Tick(0), nothing)
    operator.absorb(Tick(0), nothing)

    with pytest.raises(StateError, match="ANSWER_OUTDATED"):
        list(unread)


def test_an_epoch_that_is_refused_outdates_nothing() -> None:
    join = HashJoin(BAG, BAG)
    good, bad = [ROWS, ROWS], [-ROWS, ROWS]
    unread = join.answer(Tick(0), good)

    with pytest.raises(Exception, match="ABSENT_ROW"):
        join.absorb(Tick(0), bad)

    assert sum(len(chunk) for chunk in unread) == 4


def test_what_was_read_before_stays_and_the_rest_is_refused() -> None:
    answers = Answers()
    chunks = answers.guarded(iter([ROWS, ROWS]))
    assert next(chunks) is ROWS

    answers.outdate()

    with pytest.raises(StateError, match="read it to its end first"):
        next(chunks)
