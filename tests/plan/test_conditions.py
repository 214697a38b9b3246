"""An ON condition is taken apart into keys and what must hold beside them."""

from __future__ import annotations

import pytest

from zset_join.expressions import left, lit, right
from zset_join.plan.conditions import NEVER, split_condition


def parts(condition):
    found = split_condition(condition)
    return [tuple(map(repr, pair)) for pair in found.keys], found.null_safe, found.condition


def test_equal_columns_are_keys_whichever_side_is_first():
    keys, null_safe, rest = parts((left("a") == right("b")) & right("c").eqNullSafe(left("d")))

    assert keys == [("left.a", "right.b"), ("left.d", "right.c")]
    assert null_safe == (False, True)
    assert rest is None


def test_what_compares_one_side_with_a_constant_or_sides_by_order_is_left():
    keys, _, rest = parts((left("a") + 1 == right("b")) & (left("c") == 3) & (left("d") < right("e")))

    assert keys == [("left.a + 1", "right.b")]
    assert repr(rest) == "(left.c = 3) AND (left.d < right.e)"


@pytest.mark.parametrize("constant", [lit(False), lit(None).cast("boolean"), lit(1) == lit(2)])
def test_a_constant_that_is_not_true_matches_nothing(constant):
    assert split_condition((left("a") == right("b")) & constant) is NEVER


def test_a_constant_that_is_true_changes_nothing():
    assert parts((left("a") == right("b")) & lit(True)) == ([("left.a", "right.b")], (False,), None)


def test_an_equality_that_is_written_twice_counts_once_and_is_the_stricter_of_both():
    found = split_condition(left("a").eq_null_safe(right("b")) & (left("a") == right("b")))
    assert (repr(found.keys), found.null_safe, found.condition) == ("((left.a, right.b),)", (False,), None)


def test_a_second_equality_of_a_key_is_evaluated_on_the_pair():
    found = split_condition((left("a") == right("b")) & (left("a") == right("c")))
    assert repr(found.keys) == "((left.a, right.b),)"
    assert repr(found.condition) == "left.a = right.c"
