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
    arrays = {
        name: values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values) for name, values in columns.items()
    }
    return evaluate(condition, arrays, {}, len(next(iter(arrays.values())))).tolist()


class Foreign(Expression):
    """An expression class that is not on the list."""

    __slots__ = ()

    def _accept(self, visitor: Any, operands: Any) -> Any:  # noqa: ARG002 - it has none
        raise AssertionError(f"{visitor} was let near a node that is not on the list")

    def _label(self) -> tuple[Any, ...]:
        return ("foreign",)


@pytest.mark.parametrize(
    "condition",
    [
        (left("x") < right("y")) & left("tags").isNotNull(),
        left("name").cast("int") == left("x"),
        left("paris") + datetime.timedelta(hours=23) > right("at"),
    ],
)
def test_a_boolean_condition_over_known_columns_is_admitted(condition: Expression) -> None:
    assert check(condition, LEFT, RIGHT) == pa.bool_()


@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        (left("z") > 1, r"UNKNOWN_COLUMN\].* has no column .*; its columns are \["),
        (right("x") > 1, r"UNKNOWN_COLUMN\].* has no column .*; its columns are \["),
        (left("x") + right("y"), "NOT_BOOLEAN"),
        ("left.x < right.y", "NOT_AN_EXPRESSION"),
        (left("x") == Literal("a", pa.int32()), "LITERAL"),
        (Foreign() == 1, "UNKNOWN_EXPRESSION"),
        (Call("exec", (left("x"), left("x"))), "UNKNOWN_EXPRESSION"),
        (Call("lt", (left("x"),)), "UNKNOWN_EXPRESSION"),
        (Call("in", (left("x"), left("x"))), "UNKNOWN_EXPRESSION"),
        (Call("starts_with", (left("name"), left("name"))), "UNKNOWN_EXPRESSION"),
    ],
)
def test_what_is_no_condition_over_the_columns_is_refused(condition: Any, shown: str) -> None:
    with pytest.raises(PlanError, match=rf"^\[{shown}"):
        check(condition, LEFT, RIGHT)


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


INSTANT = datetime.datetime(2024, 2, 28, 23, 30, tzinfo=datetime.UTC)
PARIS = pa.array([INSTANT], pa.timestamp("us", tz="Europe/Paris"))
TOKYO = pa.array([INSTANT], pa.timestamp("ms", tz="Asia/Tokyo"))
# 2**60 seconds do not fit an int64 of nanoseconds.
COARSE, FINE = pa.array([-1, 1, 2**60], pa.timestamp("s")), pa.array([-(10**9), 10**9 + 1, 0], pa.timestamp("ns"))
TEXTS = pa.array(["a", "Z", "é", None])
DIVIDED = {"a": [4, 4, 4], "b": [2, 0, None]}


@pytest.mark.parametrize(
    ("condition", "columns", "expected"),
    [
        (left("a") < left("b"), {"a": COARSE, "b": FINE}, [False, True, False]),
        (left("a") == left("b"), {"a": COARSE, "b": FINE}, [True, False, False]),
        (left("a") > left("b"), {"a": COARSE, "b": FINE}, [False, False, True]),
        (left("b") < left("a"), {"a": COARSE, "b": FINE}, [False, False, True]),
        (left("b") <= left("a"), {"a": COARSE, "b": FINE}, [True, False, True]),
        (left("b") == left("a"), {"a": COARSE, "b": FINE}, [True, False, False]),
        (left("a") == left("b"), {"a": PARIS, "b": TOKYO}, [True]),
        (left("a").cast("date") == datetime.date(2024, 2, 29), {"a": PARIS}, [True]),
        (left("a") + datetime.timedelta(microseconds=1) > left("a"), {"a": pa.array([1], pa.timestamp("ns"))}, [True]),
        ((left("b") != 0) & (left("a") / left("b") > 1), DIVIDED, [True, False, False]),
        ((left("b") == 0) | (left("a") / left("b") > 1), DIVIDED, [True, True, False]),
        (left("a") / left("b") > 1, {"a": [None, 4], "b": [0, None]}, [False, False]),
        (left("a").cast("int") == left("b"), {"a": ["07", "8", None], "b": [7, 7, 7]}, [True, False, False]),
        (left("a") * left("a") == 0, {"a": pa.array(["0." + "0" * 37 + "1"]).cast(pa.decimal128(38, 38))}, [True]),
        (Cast(left("a"), pa.int64()) == left("a"), {"a": [1, None]}, [True, False]),
        (left("a"), {"a": pa.array([False] * 9 + [True, None, True]).slice(9)}, [True, False, True]),
        (
            left("a") == left("b"),
            {"a": pa.array([0, 1, None, 3]).slice(1), "b": pa.chunked_array([[1], [2, 3]])},
            [True, False, True],
        ),
        *(
            (left("a") - 2 > 0, {"a": pa.array([1, None, 3], kind)}, [False, False, True])
            for kind in (pa.uint8(), pa.dictionary(pa.int8(), pa.int16()), pa.uint64(), pa.float16())
        ),
        *(
            (left("a") < "b", {"a": TEXTS.cast(kind)}, [True, True, False, False])
            for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))
        ),
    ],
    ids=lambda given: str(given) if isinstance(given, Expression) else None,
)
def test_values_of_every_unit_zone_and_layout_are_compared_as_what_they_are(
    condition: Expression, columns: dict[str, Any], expected: list[bool]
) -> None:
    assert holds(condition, **columns) == expected


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


def test_the_answer_belongs_to_the_caller() -> None:
    column = pa.array([True, True])

    answer = evaluate(left("flag"), {"flag": column}, {}, 2)
    answer[0] = False

    assert column.to_pylist() == [True, True]
    assert answer.dtype == np.bool_
