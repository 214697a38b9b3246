"""Expressions as values: how they are built, compared, described and kept."""

from __future__ import annotations

import datetime
import decimal
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import Call, Cast, Column, Expression, Literal, describe, left, lit, references, right

D = decimal.Decimal


class NodeCounter:
    """Count the nodes of a tree, and note the order in which they come."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def visit_column(self, node: Column) -> int:
        self.seen.append(describe(node))
        return 1

    def visit_literal(self, node: Literal) -> int:
        self.seen.append(describe(node))
        return 1

    def visit_cast(self, node: Cast, operand: int) -> int:
        self.seen.append(describe(node))
        return operand + 1

    def visit_call(self, node: Call, operands: tuple[int, ...]) -> int:
        self.seen.append(describe(node))
        return sum(operands) + 1


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (left("a b").between(1, 2), "(left.`a b` >= 1) AND (left.`a b` <= 2)"),
        (left("a").isin([1, None]), "left.a IN (1, NULL)"),
        (left("a").eqNullSafe(right("b")), "left.a <=> right.b"),
        (left("a").cast("double") / 2, "CAST(left.a AS double) / 2"),
        (abs(-left("a")), "abs(-left.a)"),
        (5 - left("a") % 2 * 3, "5 - ((left.a % 2) * 3)"),
        (left("a").startswith("x"), "startswith(left.a, 'x')"),
        (left("a").length() > lit(True), "length(left.a) > TRUE"),
        (True & left("a") | left("b"), "(TRUE AND left.a) OR left.b"),
        (10 / left("a") + 1, "(10 / left.a) + 1"),
        (~(right("z").isNull() | (left("name") == "it's")), "NOT ((right.z IS NULL) OR (left.name = 'it''s'))"),
    ],
)
def test_every_operator_describes_itself(expression: Expression, text: str) -> None:
    assert describe(expression) == repr(expression) == text


def test_the_columns_an_expression_reads_are_known_by_side() -> None:
    expression = (left("x") < right("y")) | left("x").isin(1) & (left("z").cast("int") > 2)

    assert references(expression) == (frozenset({"x", "z"}), frozenset({"y"}))


def test_same_trees_are_the_same_and_hash_alike() -> None:
    one, other = left("x") + lit(1.0) < right("y"), left("x") + lit(1.0) < right("y")

    assert one.same_as(other)
    assert pickle.loads(pickle.dumps(one)).same_as(one)
    assert hash(one) == hash(other)
    assert not lit(0.0).same_as(lit(-0.0))


@pytest.mark.parametrize(
    "other",
    [left("x") < right("z"), left("x") <= right("y"), right("x") < right("y"), lit(0.0), lit(None), 5],
)
def test_trees_that_differ_anywhere_are_not_the_same(other: object) -> None:
    assert not (left("x") < right("y")).same_as(other)


def test_a_visitor_sees_every_node_children_first() -> None:
    counter = NodeCounter()

    assert (left("x").cast("int") + 1 < right("y")).accept(counter) == 6
    assert counter.seen == [
        "left.x",
        "CAST(left.x AS int32)",
        "1",
        "CAST(left.x AS int32) + 1",
        "right.y",
        "(CAST(left.x AS int32) + 1) < right.y",
    ]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: bool(left("x") == 1),
        lambda: 1 < left("x") < 2,
        lambda: left("x") == 1 and left("y") == 2,
        lambda: not left("x"),
        lambda: left("x") in [left("y"), left("z")],
    ],
)
def test_python_logic_on_expressions_is_refused_with_the_operators_to_use(misuse: Any) -> None:
    with pytest.raises(PlanError, match=r"use|combine expressions with & \| ~") as caught:
        misuse()

    assert caught.value.code == "EXPRESSION_AS_BOOL"


def test_comparing_with_none_is_refused_because_it_never_holds() -> None:
    with pytest.raises(PlanError, match=r"isNull\(\)") as caught:
        left("x") == None  # noqa: E711, B015 - the mistake under test

    assert caught.value.code == "COMPARED_WITH_NONE"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, pa.null()),
        (True, pa.bool_()),
        (2**31 - 1, pa.int32()),
        (2**31, pa.int64()),
        (-(2**63), pa.int64()),
        (1.5, pa.float64()),
        (D("-0.050"), pa.decimal128(3, 3)),
        (D("12E+3"), pa.decimal128(5, 0)),
        ("a", pa.string()),
        (b"a", pa.binary()),
        (datetime.date(2024, 1, 1), pa.date32()),
        (datetime.time(1), pa.time64("us")),
        (datetime.datetime(2024, 1, 1), pa.timestamp("us")),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), pa.timestamp("us", tz="UTC")),
        (datetime.timedelta(1), pa.duration("us")),
        (np.int64(7), pa.int32()),
        (pa.scalar(7, pa.int8()), pa.int8()),
    ],
)
def test_a_literal_takes_the_type_spark_would_give_it(value: object, expected: pa.DataType) -> None:
    literal = lit(value)

    assert isinstance(literal, Literal)
    assert literal.type == expected


@pytest.mark.parametrize(
    ("build", "code"),
    [
        *((lambda value=value: lit(value), "LITERAL") for value in (2**63, object(), D("NaN"), D("9" * 39), [1])),
        (lambda: left("x").isin(), "IN_LIST"),
        (lambda: left("x").isin([]), "IN_LIST"),
        (lambda: left("x").isin(right("y")), "IN_LIST"),
        (lambda: left("x").startswith(right("y")), "PREFIX"),
        (lambda: left("x").cast("money"), "CAST_TYPE"),
        (lambda: left("x").cast("decimal(39,0)"), "CAST_TYPE"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(build: Any, code: str) -> None:
    with pytest.raises(OptionError) as caught:
        build()

    assert caught.value.code == code


def test_the_type_name_timestamp_is_refused_with_the_arrow_type_that_names_a_zone() -> None:
    with pytest.raises(OptionError, match='tz="UTC"'):
        left("x").cast("timestamp")


def test_a_decimal_type_is_read_from_its_spark_name() -> None:
    assert left("x").cast("Decimal(10, 2)").same_as(Cast(Column("left", "x"), pa.decimal128(10, 2)))
