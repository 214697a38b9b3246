"""The worked cases hold for the package's operators, and a wrong operator fails them by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zset_join import HashJoin
from zset_join.testing import LawBrokenError, WorkedCase, assert_worked_case, extremes_case, left_join_case, upsert_case


@pytest.mark.parametrize("case", [upsert_case, left_join_case, extremes_case])
def test_the_case_holds(case: Callable[[], WorkedCase]) -> None:
    assert_worked_case(case())


def test_an_inner_join_does_not_pass_for_a_left_one() -> None:
    case = left_join_case()

    with pytest.raises(LawBrokenError, match="the padding of a left row: answer of epoch 0"):
        assert_worked_case(case, lambda: HashJoin(*case.inputs, "inner", using=True))
