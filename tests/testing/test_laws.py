"""The laws for users hold for a join of the package and find what is wrong with a spoiled one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.testing.spoiled import (
    LEFT,
    RIGHT,
    EmitsZero,
    ForgetsRows,
    LateByAnEpoch,
    SkipsCrossTerm,
    Talks,
    join,
    spoiled,
)
from zset_join import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.shapes.aggregate import AggregateCall
from zset_join.testing import (
    LawBrokenError,
    assert_answers_are_pure,
    assert_answers_are_tidy,
    assert_epochs_are_invisible,
    assert_incremental_equals_batch,
    assert_laws,
    assert_quiet_on_quiet,
    assert_snapshots_are_invisible,
    reference_aggregate,
    reference_join,
)
from zset_join.testing.reference_aggregate import Call
from zset_join.testing.strategies import histories

NUMBERS = Relation(name="numbers", schema=pa.schema({"g": pa.string(), "n": pa.int32()}), mode="changelog")
EPOCHS: list[Any] = [
    [[((1, "a", 1.0), 1)], [(("a", 2.0), 1)]],
    [[((1, "b", 1.0), 1)], [(("b", 0.0), 2), (("a", 2.0), -1)]],
]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sampled_from(("inner", "left", "right", "full", "left_semi", "left_anti")), histories(LEFT, RIGHT))
def test_a_join_equals_the_reference_and_obeys_the_laws(how: str, epochs: list[Any]) -> None:
    assert_incremental_equals_batch(lambda: join(how), reference_join(LEFT, RIGHT, how), epochs)
    assert_laws(lambda: join(how), epochs)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(histories(NUMBERS), st.booleans())
def test_an_aggregate_equals_the_reference_and_obeys_the_laws(epochs: list[Any], is_global: bool) -> None:
    group_by = () if is_global else ("g",)
    calls = [AggregateCall("sum", "n"), AggregateCall("max", "n")]
    batch = reference_aggregate(group_by, [Call("sum", ("n",)), Call("max", ("n",))])

    assert_incremental_equals_batch(lambda: Aggregate(NUMBERS, group_by, calls), batch, epochs)
    assert_laws(lambda: Aggregate(NUMBERS, group_by, calls), epochs)


@pytest.mark.parametrize(
    ("law", "kind"),
    [
        (assert_epochs_are_invisible, SkipsCrossTerm),
        (assert_answers_are_pure, LateByAnEpoch),
        (assert_snapshots_are_invisible, ForgetsRows),
        (assert_answers_are_tidy, EmitsZero),
        (assert_quiet_on_quiet, Talks),
    ],
)
def test_each_law_finds_what_it_is_about(law: Any, kind: Any) -> None:
    with pytest.raises(LawBrokenError):
        law(lambda: spoiled(kind), [[EPOCHS[0][0], []], [[], EPOCHS[0][1]], EPOCHS[1]])


def test_a_join_without_its_cross_term_differs_from_the_batch_join() -> None:
    with pytest.raises(LawBrokenError, match=r"after epoch 0.*\n.*\(1, 'a', 1\.0, 'a', 2\.0\): expected 1, actual 0"):
        assert_incremental_equals_batch(lambda: spoiled(SkipsCrossTerm), reference_join(LEFT, RIGHT, "left"), EPOCHS)


def test_a_batch_function_of_your_own_may_return_dicts() -> None:
    def total(bag: list[Any]) -> list[Any]:
        return [({"n": sum(row["n"] * weight for row, weight in bag)}, 1)]

    epochs = [[[(("a", 1), 1), (("b", 2), 1)]], [[(("a", 1), -1)]]]

    assert_incremental_equals_batch(lambda: Aggregate(NUMBERS, (), [AggregateCall("sum", "n")]), total, epochs)
