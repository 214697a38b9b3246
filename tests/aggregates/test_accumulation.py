"""Calls that read the same values share what a group remembers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.aggregates import AggregateCall
from zset_join.aggregates.accumulation import Accumulation
from zset_join.core.relation import Relation
from zset_join.expressions import left

RELATION = Relation(
    name="t",
    schema=pa.schema({"i": pa.int64(), "f": pa.float64(), "m": pa.decimal128(10, 2), "w": pa.decimal128(30, 2)}),
    mode="changelog",
)


def kept(*calls: tuple[str, str] | AggregateCall) -> list[str]:
    """Return the names of the accumulators that some calls need."""
    made = [call if isinstance(call, AggregateCall) else AggregateCall(*call) for call in calls]
    return [type(one).__name__ for one in Accumulation(RELATION, made).accumulators]


@pytest.mark.parametrize(
    ("calls", "accumulators"),
    [
        ([AggregateCall("count")], []),
        ([("count", "i")], ["CountOf"]),
        ([("count", "i"), ("sum", "i"), ("avg", "i")], ["SumOfIntegers"]),
        ([("sum", "m"), ("sum", "w"), ("sum", "f")], ["SumOfIntegers", "SumOfDecimals", "SumOfFloats"]),
        ([("sum", "f"), ("stddev", "f"), ("count", "f")], ["MomentsOfFloats"]),
        ([("sum", "i"), ("stddev", "i")], ["SumOfIntegers", "MomentsOfFloats"]),
        ([("min", "i"), ("max", "i"), ("count_distinct", "i"), ("collect_set", "i")], ["ValuesOf"]),
        ([AggregateCall("min_by", ("i", "f")), AggregateCall("last", ("i", "f"))], ["ValuesOf"]),
        ([("min", "i"), AggregateCall("min", "i", name="n", where=left("f") > 0)], ["ValuesOf", "ValuesOf"]),
    ],
)
def test_calls_share_accumulators(calls: list[tuple[str, str] | AggregateCall], accumulators: list[str]) -> None:
    assert kept(*calls) == accumulators


def test_equal_filters_are_one_filter() -> None:
    twice = [AggregateCall("sum", "i", name=name, where=left("f") > 0) for name in "ab"]

    assert kept(*twice) == ["SumOfIntegers"]


def test_sums_and_counts_can_be_added_up_before_the_shuffle() -> None:
    sums = Accumulation(RELATION, [AggregateCall("sum", "i"), AggregateCall("var_pop", "f")])

    assert (sums.is_linear, Accumulation(RELATION, [AggregateCall("max", "i")]).is_linear) == (True, False)


def test_only_the_columns_that_are_read_are_requested() -> None:
    calls = [AggregateCall("sum", "i", name="n", where=left("f") > 0), AggregateCall("max_by", ("m", "i"))]

    assert Accumulation(RELATION, calls).input_columns() == ("i", "m", "f")
