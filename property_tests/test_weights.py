"""Weights are exact up to the ends of int64; past them is an error that applies nothing, where NumPy alone would wrap."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.core.epochs import Tick
from zset_join.core.errors import WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.testing.comparison import delta_of
from zset_join.zset import ZSet

_SCHEMA = pa.schema([("k", pa.int64())])
_LARGEST = 2**63 - 1
_LEFT, _RIGHT = (Relation(name=name, schema=_SCHEMA, join_key=("k",), mode="changelog") for name in ("orders", "customers"))


def deltas(left: int, right: int) -> list[ZSet]:
    """Return deltas that hold the row (1,) with the given weights."""
    return [delta_of(_LEFT, [((1,), left)]), delta_of(_RIGHT, [((1,), right)])]


def holding(how: str, left: int, right: int) -> HashJoin:
    """Return a join that holds the row (1,) with the given weights."""
    join = HashJoin(_LEFT, _RIGHT, how)
    join.absorb(Tick(0), deltas(left, right))
    return join


@pytest.mark.parametrize(("left", "right"), [(_LARGEST, 1), (2**31, 2**31), (3, 5)])
def test_a_product_that_fits_is_exact(left: int, right: int) -> None:
    answer = list(HashJoin(_LEFT, _RIGHT, "inner").answer(Tick(0), deltas(left, right)))

    assert [line for chunk in answer for line in chunk.to_pylist()] == [((1, 1), left * right)]


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize(("left", "right"), [(_LARGEST, 2), (2**32, 2**31), (2**40, 2**40)])
def test_a_product_past_int64_is_an_error(how: str, left: int, right: int) -> None:
    with pytest.raises(WeightOverflowError):
        list(HashJoin(_LEFT, _RIGHT, how).answer(Tick(0), deltas(left, right)))


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_an_output_weight_that_outgrows_int64_by_an_update_is_an_error(how: str) -> None:
    join = holding(how, 2**31, 2**31)

    with pytest.raises(WeightOverflowError):
        list(join.answer(Tick(1), deltas(2**31, 2**32 - 2**31)))


@pytest.mark.parametrize("how", ["inner", "left", "full", "left_semi", "left_anti"])
def test_an_input_weight_past_int64_is_an_error_and_nothing_is_applied(how: str) -> None:
    join = holding(how, _LARGEST, 1)
    before = {name: table.to_pylist() for name, table in join.snapshot().items()}

    with pytest.raises(WeightOverflowError):
        join.absorb(Tick(1), deltas(1, 1))

    assert {name: table.to_pylist() for name, table in join.snapshot().items()} == before


def test_the_largest_weight_can_be_retracted() -> None:
    join = holding("left", _LARGEST, 1)

    answer = list(join.answer(Tick(1), [delta_of(_LEFT, [((1,), -_LARGEST)]), delta_of(_RIGHT, [])]))

    assert [line for chunk in answer for line in chunk.to_pylist()] == [((1, 1), -_LARGEST)]
