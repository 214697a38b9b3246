"""Checking and evaluating conditions without Spark: rules that its answers alone do not show."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError, PlanError
from zset_join.expressions import Call, Cast, Expression, Literal, check, evaluate, left, lit, right

LEFT = pa.schema(
    {
        "x": pa.int32(),
        "name": pa.string(),
        "price": pa.decimal128(10, 2),
        "day": pa.date32(),
        "local": pa.timestamp("us"),
        "paris": pa.timestamp("us", tz="Europe/Paris"),
        "tags": pa.list_(pa.string()),
        "span": pa.duration("us"),
    }
)
RIGHT = pa.schema({"y": pa.int64(), "at": pa.timestamp("us", tz="UTC"), "ratio": pa.float64()})


def holds(condition: Expression, **columns: Any) -> list[bool]:
    """Evaluate over the left columns given by name, and no right ones."""
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    return evaluate(condition, arrays, {}, len(next(iter(arrays.values())))).tolist()


class Foreign(Expression):
    """An expression class that is not on the list."""

    __slots__ = ()

    def _accept(self, visitor: Any, operands: Any) -> Any:  # noqa: ARG002 - it has none
        raise AssertionError(f"{visitor} was let near a node that is not on the list")

    def _label(self) -> tuple[Any, ...]:
        return ("foreign",)


def test_a_boolean_condition_over_known_columns_is_admitted() -> None:
    assert check((left("x") < right("y")) & left("tags").isNotNull(), LEFT, RIGHT) == pa.bool_()


@pytest.mark.parametrize("condition", [left("z") > 1, right("x") > 1])
def test_a_column_that_does_not_exist_is_named_with_those_that_do(condition: Expression) -> None:
    with pytest.raises(PlanError, match=r"has no column .*; its columns are \[") as caught:
        check(condition, LEFT, RIGHT)

    assert caught.value.code == "UNKNOWN_COLUMN"


@pytest.mark.parametrize(
    "condition",
    [
        left("x") == left("name"),
        left("name") == right("y"),
        left("day") < right("at"),
        left("local") < right("at"),
        left("x") & (right("y") > 1),
        ~left("x"),
        left("tags") == left("tags"),
        left("name") + 1 > 1,
        left("day") + datetime.timedelta(minutes=5) < left("local"),
        left("local") * 2 == left("local"),
        -left("name") == "a",
        left("x").startswith("a"),
        left("name").startswith(b"a"),
        left("x").length() > 1,
        left("x").isin("a", "b"),
        left("tags").cast("string") == "a",
        left("day").cast(pa.timestamp("us", tz="Europe/Paris")) == right("at"),
    ],
)
def test_types_that_do_not_go_together_are_refused_with_both_names_and_a_cure(condition: Expression) -> None:
    with pytest.raises(PlanError, match=r"is given .*; it takes .*\. .*") as caught:
        check(condition, LEFT, RIGHT)

    assert caught.value.code == "TYPE_MISMATCH"


def test_an_integer_meets_a_string_after_an_explicit_cast() -> None:
    assert check(left("name").cast("int") == left("x"), LEFT, RIGHT) == pa.bool_()
    assert holds(left("name").cast("int") == left("x"), name=["07", "8", None], x=[7, 7, 7]) == [True, False, False]


def test_a_condition_that_is_not_boolean_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        check(left("x") + right("y"), LEFT, RIGHT)

    assert caught.value.code == "NOT_BOOLEAN"


@pytest.mark.parametrize(
    "condition",
    [
        Foreign() == 1,
        Call("exec", (left("x"), left("x"))),
        Call("lt", (left("x"),)),
        Call("in", (left("x"), left("x"))),
        Call("starts_with", (left("name"), left("name"))),
    ],
)
def test_only_nodes_and_operations_on_the_list_are_admitted(condition: Expression) -> None:
    with pytest.raises(PlanError) as caught:
        check(condition, LEFT, RIGHT)

    assert caught.value.code == "UNKNOWN_EXPRESSION"


def test_text_is_not_a_condition() -> None:
    with pytest.raises(PlanError) as caught:
        check("left.x < right.y", LEFT, RIGHT)  # type: ignore[arg-type]

    assert caught.value.code == "NOT_AN_EXPRESSION"


def test_a_literal_that_its_type_cannot_hold_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        check(left("x") == Literal("a", pa.int32()), LEFT, RIGHT)

    assert caught.value.code == "LITERAL"


@pytest.mark.parametrize(
    "condition",
    [
        left("paris") + datetime.timedelta(days=1) > right("at"),
        left("paris") + left("span") > right("at"),
        left("paris") - left("paris") > datetime.timedelta(0),
    ],
)
def test_day_arithmetic_in_a_zone_with_daylight_saving_time_is_refused(condition: Expression) -> None:
    with pytest.raises(PlanError, match="without zone or in UTC"):
        check(condition, LEFT, RIGHT)


def test_less_than_a_day_may_be_added_in_any_zone() -> None:
    assert check(left("paris") + datetime.timedelta(hours=23) > right("at"), LEFT, RIGHT) == pa.bool_()


def test_an_instant_becomes_a_date_in_its_own_zone() -> None:
    late = pa.array([datetime.datetime(2024, 2, 28, 23, 30, tzinfo=datetime.UTC)], pa.timestamp("us", tz="Europe/Paris"))

    assert holds(left("at").cast("date") == datetime.date(2024, 2, 29), at=late) == [True]


def test_instants_are_compared_as_instants_whatever_their_zones() -> None:
    instant = datetime.datetime(2024, 2, 28, 23, 30, tzinfo=datetime.UTC)
    paris = pa.array([instant], pa.timestamp("us", tz="Europe/Paris"))
    tokyo = pa.array([instant], pa.timestamp("ms", tz="Asia/Tokyo"))

    assert evaluate(left("at") == right("at"), {"at": paris}, {"at": tokyo}, 1).tolist() == [True]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (left("coarse") == left("fine"), [True, False, False]),
        (left("coarse") < left("fine"), [False, True, False]),
        (left("coarse") > left("fine"), [False, False, True]),
        (left("fine") < left("coarse"), [False, False, True]),
        (left("fine") <= left("coarse"), [True, False, True]),
        (left("fine") == left("coarse"), [True, False, False]),
    ],
)
def test_units_are_compared_without_leaving_64_bits(condition: Expression, expected: list[bool]) -> None:
    # 2**60 seconds do not fit an int64 of nanoseconds.
    coarse = pa.array([-1, 1, 2**60], pa.timestamp("s"))
    fine = pa.array([-(10**9), 10**9 + 1, 0], pa.timestamp("ns"))

    assert holds(condition, coarse=coarse, fine=fine) == expected


def test_nanoseconds_are_not_lost_in_arithmetic() -> None:
    fine = pa.array([1], pa.timestamp("ns"))

    assert holds(left("at") + datetime.timedelta(microseconds=1) > left("at"), at=fine) == [True]


def test_what_and_and_or_skip_does_not_fail() -> None:
    divided = left("x") / left("n") > 1

    assert holds((left("n") != 0) & divided, x=[4, 4, 4], n=[2, 0, None]) == [True, False, False]
    assert holds((left("n") == 0) | divided, x=[4, 4, 4], n=[2, 0, None]) == [True, True, False]


def test_null_operands_do_not_fail_either() -> None:
    assert holds(left("x") / left("n") > 1, x=[None, 4], n=[0, None]) == [False, False]


def test_the_error_names_the_condition_the_part_and_the_number_of_pairs() -> None:
    with pytest.raises(BadInputError) as caught:
        holds((left("x") > 0) & (left("x") / left("n") > 1), x=[1, 1, 1, 0], n=[0, 0, 1, 0])

    assert caught.value.code == "DIVIDE_BY_ZERO"
    assert caught.value.facts["expression"] == "left.x / left.n"
    assert "fails for 2 of 4 candidate pairs" in str(caught.value)


def test_a_literal_that_fails_does_so_only_when_there_are_pairs() -> None:
    failing = lit(1) / 0 > 1

    assert holds(failing, x=pa.array([], pa.int32())) == []
    with pytest.raises(BadInputError):
        holds(failing, x=[1])


@pytest.mark.parametrize("column_type", [pa.uint8(), pa.dictionary(pa.int8(), pa.int16()), pa.uint64(), pa.float16()])
def test_types_spark_does_not_have_are_widened(column_type: pa.DataType) -> None:
    values = pa.array([1, None, 3], column_type)

    assert holds(left("x") - 2 > 0, x=values) == [False, False, True]


@pytest.mark.parametrize("column_type", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_strings_of_any_layout_are_compared_by_their_bytes(column_type: pa.DataType) -> None:
    values = pa.array(["a", "Z", "é", None]).cast(column_type)

    assert holds(left("name") < "b", name=values) == [True, True, False, False]


def test_slices_and_chunks_are_read_where_they_start() -> None:
    sliced = pa.array([0, 1, None, 3]).slice(1)
    chunked = pa.chunked_array([[1], [2, 3]])

    assert evaluate(left("x") == right("y"), {"x": sliced}, {"y": chunked}, 3).tolist() == [True, False, True]


def test_booleans_in_slices_are_read_where_they_start() -> None:
    assert holds(left("flag"), flag=pa.array([False] * 9 + [True, None, True]).slice(9)) == [True, False, True]


def test_decimals_of_38_decimals_multiply_exactly() -> None:
    small = pa.array(["0." + "0" * 37 + "1"]).cast(pa.decimal128(38, 38))

    assert holds(left("x") * left("x") == 0, x=small) == [True]


def test_the_answer_belongs_to_the_caller() -> None:
    column = pa.array([True, True])

    answer = evaluate(left("flag"), {"flag": column}, {}, 2)
    answer[0] = False

    assert column.to_pylist() == [True, True]
    assert answer.dtype == np.bool_


def test_a_cast_to_the_same_type_changes_nothing() -> None:
    assert holds(Cast(left("x"), pa.int64()) == left("x"), x=[1, None]) == [True, False]
