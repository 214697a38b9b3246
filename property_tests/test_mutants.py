"""Every planted bug is found by the law named for it; a mutant that survives fails the suite."""

from __future__ import annotations

import pytest

from property_tests.append_buffer_laws import BUFFER_LAWS
from property_tests.laws import LAWS
from property_tests.mutants import LATE, MODELS, MUTANTS, Mutant
from property_tests.timed_laws import TIMED_LAWS


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(one, id=f"{one.name}-by-{one.law.__name__}", marks=pytest.mark.long if one.name in LATE else ())
        for one in MUTANTS
    ],
)
def test_the_planted_bug_is_found_by_its_law(mutant: Mutant) -> None:
    with pytest.raises(mutant.broken):
        mutant.search()


def test_no_planted_bug_is_lost() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 202
    assert {mutant.name for mutant in MUTANTS} >= LATE


def test_every_law_finds_a_bug_on_a_push() -> None:
    laws = {law.check for law in LAWS.values()} | {*TIMED_LAWS.values()} | {law for _, law in BUFFER_LAWS.values()} | {*MODELS}

    assert {mutant.law for mutant in MUTANTS if mutant.name not in LATE} == laws


def test_every_mutant_has_a_story() -> None:
    assert [mutant.name for mutant in MUTANTS if len(mutant.story.split()) < 2] == []
