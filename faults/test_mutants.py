"""Every planted bug is caught by the search named for it; a mutant that survives fails the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.mutants import MUTANTS, CaughtError, Mutant, hunt

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_planted_bug_is_caught(mutant: Mutant, scratch: Path) -> None:
    with pytest.raises(CaughtError):
        hunt(mutant, scratch)


def test_no_two_mutants_share_a_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_every_mutant_has_a_story() -> None:
    assert [mutant.name for mutant in MUTANTS if len(mutant.story.split()) < 4] == []
