"""The operators about time obey their laws.

On a push a few cases per law and kind; `HYPOTHESIS_PROFILE=nightly` walks through thousands.
"""

from __future__ import annotations

import pytest

from property_tests.profiles import profile_name
from property_tests.random_timed import run_cases
from property_tests.timed_histories import KINDS, TimedCase
from property_tests.timed_laws import TIMED_LAWS

CASES = {"push": 6, "scout": 60, "nightly": 2000}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TIMED_LAWS)
def test_the_law_holds(name: str, kind: str) -> None:
    for seed in range(CASES[profile_name()]):
        TIMED_LAWS[name](TimedCase(kind, seed), lambda case, directory=None: case.make(directory))


def test_random_cases_of_every_kind_answer_as_the_oracle_does() -> None:
    events, epochs, cases = run_cases(cases=10)

    assert cases == 10
    assert epochs >= 20
    assert events >= 100
