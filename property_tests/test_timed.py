"""The operators about time obey their laws, and the laws catch planted bugs.

On a push a few cases per law and kind; `HYPOTHESIS_PROFILE=nightly` walks through thousands.
"""

from __future__ import annotations

import pytest

from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from property_tests.timed_histories import KINDS, TimedCase
from property_tests.timed_laws import TIMED_LAWS
from property_tests.timed_mutants import TIMED_MUTANTS, TimedMutant

CASES = {"push": 6, "scout": 60, "nightly": 2000}
HUNTED = 400


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TIMED_LAWS)
def test_the_law_holds(name: str, kind: str) -> None:
    for seed in range(CASES[profile_name()]):
        TIMED_LAWS[name](TimedCase(kind, seed), lambda case, directory=None: case.make(directory))


@pytest.mark.parametrize("mutant", TIMED_MUTANTS, ids=[mutant.name for mutant in TIMED_MUTANTS])
def test_the_planted_bug_is_caught_by_its_law(mutant: TimedMutant) -> None:
    def hunt() -> None:
        for seed in range(HUNTED):
            TIMED_LAWS[mutant.caught_by](TimedCase(mutant.kind, seed), mutant.make)

    with pytest.raises(LawBrokenError):
        hunt()


def test_there_are_enough_mutants_and_every_law_catches_one() -> None:
    assert len({mutant.name for mutant in TIMED_MUTANTS}) == len(TIMED_MUTANTS) >= 15
    assert {mutant.caught_by for mutant in TIMED_MUTANTS} == TIMED_LAWS.keys()
