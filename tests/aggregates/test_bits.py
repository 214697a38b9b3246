"""Bitwise aggregates retract what is retracted."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_, xor

import numpy as np
import pyarrow as pa
import pytest

from zset_join import Aggregate, AggregateCall, PlanError, Relation, Tick, ZSet

FUNCTIONS = {"bit_and": and_, "bit_or": or_, "bit_xor": xor}


def relation(kind):
    return Relation(name="flags", schema=pa.schema({"g": pa.int64(), "x": kind}), mode="changelog")


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_bitwise_aggregate_is_that_of_the_rows_that_are_left(function, kind):
    rng = np.random.default_rng(3)
    least, most = np.iinfo(kind.to_pandas_dtype()).min, np.iinfo(kind.to_pandas_dtype()).max
    values = [least, most, 0, -1, *rng.integers(least, most, 20, dtype=np.int64).tolist()]
    operator = Aggregate(relation(kind), ["g"], [AggregateCall(function, "x", name="b")])
    operator.absorb(Tick(0), [ZSet.from_rows([(1, value) for value in values] + [(1, None)], relation(kind).schema)])

    gone = ZSet.from_rows([(1, value) for value in values[:15]], relation(kind).schema, weights=[-1] * 15)
    answer = [row for chunk in operator.answer(Tick(1), [gone]) for row in chunk.to_pylist()]

    before, after = reduce(FUNCTIONS[function], values), reduce(FUNCTIONS[function], values[15:])
    assert answer == ([] if before == after else [((1, before), -1), ((1, after), 1)])


def test_without_a_value_it_is_null():
    operator = Aggregate(relation(pa.int32()), ["g"], [AggregateCall(function, "x") for function in FUNCTIONS])

    (chunk,) = operator.answer(Tick(0), [ZSet.from_rows([(1, None)], relation(pa.int32()).schema)])

    assert chunk.to_pylist() == [((1, None, None, None), 1)]


@pytest.mark.parametrize(("function", "kind"), [("bit_and", pa.float64()), ("bool_or", pa.int64())])
def test_another_type_is_refused(function, kind):
    with pytest.raises(PlanError, match="does not take"):
        Aggregate(relation(kind), ["g"], [AggregateCall(function, "x")])
