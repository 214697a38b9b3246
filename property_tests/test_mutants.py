"""Every planted bug is caught by the law named for it; a mutant that survives fails the suite."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.aggregate_mutants import AGGREGATE_MUTANTS
from property_tests.bucketed_mutants import BUCKET_MUTANTS
from property_tests.fast_path_mutants import FAST_PATH_MUTANTS
from property_tests.hybrid_mutants import HYBRID_MUTANTS
from property_tests.laws import LAWS, Law, LawBrokenError
from property_tests.mutants import SWITCHES, WRAPPERS, Mutant
from property_tests.profiles import HUNT
from property_tests.registry import Registered
from property_tests.strategies import histories

MUTANTS = (*SWITCHES, *WRAPPERS, *AGGREGATE_MUTANTS, *HYBRID_MUTANTS, *BUCKET_MUTANTS, *FAST_PATH_MUTANTS)

FOUND_LATE = {"lets_changed_rows_stand", "forgets_unchanged_rows", "forgets_old_keys"}
"""Three of 125 take half of the time of all: a history that shows them is rare. `make soak` hunts them."""


def hunt(entry: Registered, law: Law) -> None:
    """Search for a history that breaks the law; return quietly when there is none."""

    @HUNT
    @given(st.data())
    def search(data: st.DataObject) -> None:
        subject = data.draw(entry.subjects())
        law.check(subject, data.draw(histories(subject.spec, max_changes=18, with_bad_lines=law.with_bad_lines)))

    search()


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=f"{mutant.name}-by-{mutant.caught_by}",
            marks=pytest.mark.long if mutant.name in FOUND_LATE else (),
        )
        for mutant in MUTANTS
    ],
)
def test_the_planted_bug_is_caught_by_its_law(mutant: Mutant) -> None:
    with pytest.raises(LawBrokenError):
        hunt(mutant.entry, LAWS[mutant.caught_by])


def test_there_are_enough_mutants_and_no_two_share_a_name() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)

    assert len(names) >= 40
    assert set(names.values()) == {1}


def test_every_law_catches_a_mutant_on_a_push() -> None:
    assert {mutant.caught_by for mutant in MUTANTS if mutant.name not in FOUND_LATE} == LAWS.keys()
    assert {mutant.name for mutant in MUTANTS} >= FOUND_LATE


def test_no_mutant_is_excused_from_its_law() -> None:
    assert [mutant.name for mutant in MUTANTS if mutant.caught_by in mutant.entry.exemptions] == []


def test_every_mutant_has_a_story() -> None:
    assert [mutant.name for mutant in MUTANTS if len(mutant.story.split()) < 4] == []
