from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.expressions import left, lit, right
from zset_join.expressions.tree import FUNCTIONS, OPERATIONS, Call, Expression, Literal
from zset_join.expressions.written import read_expression, write_expression

LITERALS = (
    None,
    True,
    -5,
    1 << 40,
    0.1,
    float("inf"),
    decimal.Decimal("12.50"),
    "it's",
    b"\x00\xff",
    datetime.date(2024, 2, 29),
    datetime.time(12, 30, 1, 5),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC),
    datetime.timedelta(days=-1, microseconds=1),
    pa.scalar(7, pa.int8()),
)


def through_json(expression: Expression) -> Expression:
    return read_expression(json.loads(json.dumps(write_expression(expression))))


@pytest.mark.parametrize("operation", sorted(OPERATIONS | FUNCTIONS))
def test_every_operation_comes_back(operation: str) -> None:
    count = (OPERATIONS | FUNCTIONS)[operation][0] or 3
    expression = Call(operation, (left("a `name`"), right("b"), lit(3))[:count])

    assert through_json(expression).same_as(expression)


@pytest.mark.parametrize("value", LITERALS, ids=repr)
def test_every_literal_comes_back_with_its_type(value: Any) -> None:
    expression = lit(value)
    back = through_json(expression)

    assert isinstance(back, Literal)
    assert back.same_as(expression)


def test_casts_and_deep_trees_come_back() -> None:
    expression = ~(left("x").cast("decimal(10,2)") + 1 > right("y").cast(pa.timestamp("us", tz="UTC"))) & left("z").isin(1, 2)

    assert through_json(expression).same_as(expression)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"column": "x", "side": "middle"},
        {"call": "__import__", "operands": []},
        {"call": "not"},
        {"column": 3, "side": "left"},
    ],
    ids=repr,
)
def test_what_is_no_expression_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="not an expression of this version") as refused:
        read_expression(found)

    assert refused.value.code == "UNKNOWN_EXPRESSION"
