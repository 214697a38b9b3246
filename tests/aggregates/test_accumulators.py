"""What calls share, what is reduced before the shuffle, and aggregates bit by bit."""

from __future__ import annotations

import math
from functools import reduce
from itertools import product
from operator import and_, or_, xor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.epochs import Change, delete, delta_of, insert, lines_of
from zset_join.aggregates import AggregateCall
from zset_join.aggregates.accumulation import Accumulation, Preaggregation
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, PlanError
from zset_join.core.relation import Relation
from zset_join.expressions import left
from zset_join.operators.aggregate import Aggregate
from zset_join.zset import ZSet

# ---------------------------------------------------------------- accumulators that calls share

COLUMNS = Relation(
    name="t",
    schema=pa.schema({"i": pa.int64(), "f": pa.float64(), "m": pa.decimal128(10, 2), "w": pa.decimal128(30, 2)}),
    mode="changelog",
)


def kept(*calls: tuple[str, str] | AggregateCall) -> list[str]:
    """Return the names of the accumulators that some calls need."""
    made = [call if isinstance(call, AggregateCall) else AggregateCall(*call) for call in calls]
    return [type(one).__name__ for one in Accumulation(COLUMNS, made).accumulators]


@pytest.mark.parametrize(
    ("calls", "accumulators"),
    [
        ([AggregateCall("count")], []),
        ([("count", "i")], ["CountOf"]),
        ([("count", "i"), ("sum", "i"), ("avg", "i")], ["SumOfIntegers"]),
        ([("sum", "m"), ("sum", "w"), ("sum", "f")], ["SumOfIntegers", "SumOfIntegers", "SumOfFloats"]),
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
    sums = Accumulation(COLUMNS, [AggregateCall("sum", "i"), AggregateCall("var_pop", "f")])

    assert (sums.is_linear, Accumulation(COLUMNS, [AggregateCall("max", "i")]).is_linear) == (True, False)


def test_only_the_columns_that_are_read_are_requested() -> None:
    calls = [AggregateCall("sum", "i", name="n", where=left("f") > 0), AggregateCall("max_by", ("m", "i"))]

    assert Accumulation(COLUMNS, calls).input_columns() == ("i", "m", "f")


# ---------------------------------------------------------------- reduced before the shuffle

SALES = Relation(
    name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.float64(), "note": pa.string()}), mode="changelog"
)
SUMS = [AggregateCall(function, "price") for function in ("count", "sum", "avg", "var_pop")]
TASKS = [
    insert(("A", 0.1, "x"), ("A", 1e300, "x"), ("B", math.nan, "x")),
    [*insert(("A", 0.2, "y"), ("C", 1.0, "y")), *delete(("A", 1e300, "x"))],
]


def reduced(calls: list[AggregateCall], tasks: list[list[Change]]) -> tuple[Aggregate, ZSet]:
    """Return the aggregate behind the shuffle, and what the tasks send it."""
    reduction = Preaggregation(SALES, ["shop"], calls)
    source = SALES if reduction.is_partial else reduction.relation
    parts = [reduction.reduce(delta_of(SALES, task)) for task in tasks]
    aggregate = Aggregate(source, ["shop"], calls, preaggregated=reduction.is_partial)
    return aggregate, ZSet.concat(parts, schema=reduction.relation.schema)


def answers(aggregate: Aggregate, delta: ZSet) -> list[Any]:
    """Return the sorted answer of a first epoch."""
    return sorted(lines_of(aggregate.answer(Tick(0), [delta])), key=repr)


def test_every_short_delta_answers_alike_wherever_it_is_cut() -> None:
    # Outliers of which as many come as go leave a sum behind, though there are none of them in number.
    prices = (1e300, -3e299, 2.5, math.inf)
    first = insert(*(("A", price, "x") for price in prices))
    changes = [*insert(*(("A", price, "y") for price in prices)), *delete(*(("A", price, "y") for price in prices))]
    whole = Aggregate(SALES, ["shop"], SUMS)
    whole.absorb(Tick(0), [delta_of(SALES, first)])
    behind, delta = reduced(SUMS, [first])
    behind.absorb(Tick(0), [delta])
    compared = 0
    for sequence in product(changes, repeat=3):
        gone = [row for row, weight in sequence if weight < 0]
        if len(set(gone)) < len(gone):
            continue  # every price is present once
        expected = lines_of(whole.answer(Tick(1), [delta_of(SALES, list(sequence))]))
        for cut in (1, 2):
            _, delta = reduced(SUMS, [list(sequence[:cut]), list(sequence[cut:])])
            assert lines_of(behind.answer(Tick(1), [delta])) == expected, (sequence, cut)
            compared += 1
    assert compared == 848


def test_sums_make_one_partial_line_per_group_and_task() -> None:
    _, delta = reduced(SUMS, TASKS)

    assert delta.rows.column("shop").to_pylist() == ["A", "B", "A", "C"]
    assert delta.rows.column("_zset_weight").to_pylist() == [2, 1, 0, 1]


def test_a_group_whose_changes_cancel_out_is_not_sent() -> None:
    _, delta = reduced(SUMS, [[*insert(("A", 0.1, "x")), *delete(("A", 0.1, "y"))]])

    assert len(delta) == 0


def test_where_values_are_needed_the_rows_lose_the_columns_that_nobody_reads() -> None:
    _, delta = reduced([AggregateCall("max", "price")], [insert(("A", 0.1, "x"), ("A", 0.1, "y"))])

    assert delta.to_pylist() == [(("A", 0.1), 2)]


def test_partial_lines_that_leave_a_group_with_less_than_nothing_are_refused() -> None:
    aggregate, delta = reduced(SUMS, [delete(("A", 0.1, "x"))])

    with pytest.raises(BadInputError, match='"sales", epoch 0'):
        answers(aggregate, delta)


def test_a_retraction_from_an_append_only_relation_is_refused_before_the_shuffle() -> None:
    relation = Relation(name="sales", schema=SALES.schema)

    with pytest.raises(BadInputError, match="append-only"):
        Preaggregation(relation, ["shop"], SUMS).reduce(delta_of(relation, delete(("A", 0.1, "x"))))


@pytest.mark.parametrize(("group_by", "kept"), [("k", None), ("at", "at")])
def test_an_event_time_that_no_call_reads_does_not_travel(group_by: str, kept: str | None) -> None:
    schema = pa.schema({"k": pa.string(), "v": pa.int64(), "at": pa.timestamp("us")})
    events = Relation(name="events", schema=schema, mode="changelog", event_time="at", watermark_delay=0)

    reduction = Preaggregation(events, [group_by], [AggregateCall("min", "v")])

    assert (reduction.relation.event_time, reduction.relation.schema.names) == (kept, [group_by, "v"])


# ---------------------------------------------------------------- bit by bit

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
