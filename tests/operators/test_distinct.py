"""DISTINCT by example."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from tests.epochs import Epochs, delete, insert
from zset_join.core.errors import BadInputError, KeyTypeError, PlanError
from zset_join.core.relation import Relation
from zset_join.operators.distinct import Distinct
from zset_join.zset.protocol import Operator

VISITS = Relation(name="visits", schema=pa.schema({"page": pa.string(), "at": pa.float64()}), mode="changelog")


def test_distinct_is_an_operator() -> None:
    assert isinstance(Distinct(VISITS), Operator)


def test_a_row_comes_with_its_first_copy_and_goes_with_its_last() -> None:
    pages = Epochs(Distinct(VISITS))

    assert pages.feed(insert(("a", 1.0), copies=2)) == [(("a", 1.0), 1)]
    assert pages.feed(delete(("a", 1.0))) == []
    assert pages.feed(delete(("a", 1.0))) == [(("a", 1.0), -1)]


def test_equal_rows_are_equal_as_in_spark() -> None:
    pages = Epochs(Distinct(VISITS))

    assert pages.feed(insert((None, 0.0), (None, -0.0), (None, math.nan), (None, -math.nan))) == [
        ((None, "NaN"), 1),
        ((None, 0.0), 1),
    ]


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (pa.float64(), lambda zero: zero),
        (pa.float32(), lambda zero: zero),
        (pa.list_(pa.float64()), lambda zero: [1.5, zero, None]),
        (pa.struct({"x": pa.float64(), "y": pa.list_(pa.float32())}), lambda zero: {"x": zero, "y": [zero]}),
    ],
)
def test_of_two_zeros_the_positive_one_is_shown_whichever_came_and_whichever_is_left(kind, made) -> None:
    values = Epochs(Distinct(Relation(name="values", schema=pa.schema({"v": kind}), mode="changelog")))

    answers = [
        values.feed(change((made(zero),))) for change, zero in ((insert, -0.0), (insert, 0.0), (delete, 0.0), (delete, -0.0))
    ]

    assert [[weight for _, weight in answer] for answer in answers] == [[1], [], [], [-1]]
    assert "-0.0" not in repr(answers)


def test_a_retraction_of_a_row_that_is_not_there_is_always_noticed() -> None:
    pages = Epochs(Distinct(VISITS))
    pages.feed(insert(("a", 1.0)))

    with pytest.raises(BadInputError, match=r"key \('a', 2.0\)"):
        pages.feed(delete(("a", 2.0)))


def test_the_whole_row_is_the_key_of_the_output() -> None:
    assert Distinct(VISITS).output.primary_key == ("page", "at")


def test_an_input_in_upsert_mode_is_refused() -> None:
    with pytest.raises(PlanError, match="is in upsert mode"):
        Distinct(Relation(name="visits", schema=VISITS.schema, primary_key=("page",), mode="upsert"))


def test_a_column_without_equality_is_refused() -> None:
    with pytest.raises(KeyTypeError, match="maps and unions have no equality"):
        Distinct(Relation(name="t", schema=pa.schema({"m": pa.map_(pa.string(), pa.int32())}), mode="changelog"))
