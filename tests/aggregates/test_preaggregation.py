"""Deltas that were reduced before the shuffle answer as the deltas themselves do."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from tests.epochs import Change, delete, delta_of, insert, lines_of
from zset_join.aggregates import AggregateCall
from zset_join.aggregates.preaggregation import Preaggregation
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.aggregate import Aggregate
from zset_join.zset import ZSet

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


@pytest.mark.parametrize("more", [[], [AggregateCall("max", "price")]], ids=["sums", "with values"])
def test_reduced_deltas_answer_alike(more: list[AggregateCall]) -> None:
    aggregate, delta = reduced([*SUMS, *more], TASKS)

    whole = answers(Aggregate(SALES, ["shop"], [*SUMS, *more]), delta_of(SALES, [line for task in TASKS for line in task]))

    assert answers(aggregate, delta) == whole


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


def test_an_empty_delta_reduces_to_an_empty_one() -> None:
    _, delta = reduced(SUMS, [[]])

    assert len(delta) == 0


@pytest.mark.parametrize(("group_by", "kept"), [("k", None), ("at", "at")])
def test_an_event_time_that_no_call_reads_does_not_travel(group_by: str, kept: str | None) -> None:
    schema = pa.schema({"k": pa.string(), "v": pa.int64(), "at": pa.timestamp("us")})
    events = Relation(name="events", schema=schema, mode="changelog", event_time="at", watermark_delay=0)

    reduction = Preaggregation(events, [group_by], [AggregateCall("min", "v")])

    assert (reduction.relation.event_time, reduction.relation.schema.names) == (kept, [group_by, "v"])
