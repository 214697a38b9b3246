"""An ON condition is taken apart into keys and what must hold beside them."""

from __future__ import annotations

import pytest

from zset_join.expressions import left, lit, right
from zset_join.plan.conditions import NEVER, split_condition

SAME = left("a") == right("b")


@pytest.mark.parametrize(
    ("condition", "keys", "null_safe", "rest"),
    [
        (SAME & right("c").eqNullSafe(left("d")), "((left.a, right.b), (left.d, right.c))", (False, True), None),
        (
            (left("a") + 1 == right("b")) & (left("c") == 3) & (left("d") < right("e")),
            "((left.a + 1, right.b),)",
            (False,),
            "(left.c = 3) AND (left.d < right.e)",
        ),
        (SAME & lit(True), "((left.a, right.b),)", (False,), None),
        (left("a").eq_null_safe(right("b")) & SAME, "((left.a, right.b),)", (False,), None),
        (SAME & (left("a") == right("c")), "((left.a, right.b),)", (False,), "left.a = right.c"),
    ],
    ids=str,
)
def test_equalities_of_both_sides_are_keys_and_the_rest_is_evaluated_on_the_pair(condition, keys, null_safe, rest):
    found = split_condition(condition)

    assert (repr(found.keys), found.null_safe) == (keys, null_safe)
    assert repr(found.condition) == str(rest)


@pytest.mark.parametrize("constant", [lit(False), lit(None).cast("boolean"), lit(1) == lit(2)])
def test_a_constant_that_is_not_true_matches_nothing(constant):
    assert split_condition((left("a") == right("b")) & constant) is NEVER
