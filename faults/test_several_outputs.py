"""Kills between any two outputs of several views: each is whole, at most one epoch apart, and all continue."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from faults.profiles import IS_LONG, chosen
from faults.several_outputs import PLANTED, search_apart
from faults.tally import Tally

OF_AN_EPOCH = 18  # two around each of five outputs and four databases
ON_A_PUSH = [2, 5, 8, 9, 12, 13, 16]  # between two outputs of one database, behind it, and in and behind each of the others
MOST_OPERATIONS = chosen(short=4, long=None)


pytestmark = pytest.mark.timeout(chosen(short=300, long=0))


def _seams(there: int) -> list[int]:
    return list(range(there)) if IS_LONG else ON_A_PUSH


def _operations(there: int) -> list[int]:
    return list(range(there)) if MOST_OPERATIONS is None else sorted(Random(5).sample(range(there), MOST_OPERATIONS))


def test_a_pipeline_killed_between_any_two_outputs_brings_all_to_the_same_epoch(scratch: Path, tally: Tally) -> None:
    seams, found = search_apart(scratch / "bank", "seams", _seams)
    tally.add(found)
    wanted = _seams(seams)

    assert tally.problems == []
    assert (seams, tally.of("kills observed")) == (2 * OF_AN_EPOCH, len(wanted))
    assert tally.of("comparisons") == 2 * 5 * len(wanted)
    assert tally.of("apart") == chosen(short=5, long=22)  # from the first database until the last one


def test_a_pipeline_killed_at_any_file_operation_brings_all_outputs_to_the_same_epoch(scratch: Path, tally: Tally) -> None:
    operations, found = search_apart(scratch / "bank", "operations", _operations)
    tally.add(found)

    assert tally.problems == []
    assert tally.of("kills observed") == len(_operations(operations)) > 0


@pytest.mark.parametrize("bug", PLANTED)
def test_the_search_finds_planted_bugs(bug: str, scratch: Path) -> None:
    _, found = search_apart(scratch / "bank", "seams", [3], bug)

    assert found.problems
    assert found.of("kills observed")
