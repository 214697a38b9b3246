"""A short form of `random_timed`; `make soak` has the long one."""

from __future__ import annotations

from property_tests.random_timed import run_cases


def test_random_cases_of_every_kind_answer_as_the_oracle_does() -> None:
    events, epochs, cases = run_cases(cases=10)

    assert cases == 10
    assert epochs >= 20
    assert events >= 100
