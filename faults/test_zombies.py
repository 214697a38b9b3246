"""Attempts and drivers that come back after they were overtaken change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.profiles import chosen
from faults.tally import Tally
from faults.zombies import late_driver, late_task, search, twin_tasks

# Three stories: the long profile runs more than 1,000 interleavings.
INTERLEAVINGS_OF_A_STORY = chosen(short=8, long=340)

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.timeout(chosen(short=300, long=0))
def test_twin_attempts_that_run_at_once_count_once(scratch: Path, tally: Tally) -> None:
    search(twin_tasks, scratch, tally, wanted=INTERLEAVINGS_OF_A_STORY)

    assert tally.problems == []
    assert tally.of("interleavings") >= INTERLEAVINGS_OF_A_STORY
    assert tally.of("operations interleaved") >= 50 * INTERLEAVINGS_OF_A_STORY
    assert tally.of("comparisons") >= 3 * INTERLEAVINGS_OF_A_STORY


@pytest.mark.timeout(chosen(short=300, long=0))
def test_a_task_that_comes_back_after_its_twin_was_committed_changes_nothing(scratch: Path, tally: Tally) -> None:
    search(late_task, scratch, tally, wanted=INTERLEAVINGS_OF_A_STORY)

    assert tally.problems == []
    assert tally.of("interleavings") >= INTERLEAVINGS_OF_A_STORY
    assert tally.of("attempts that came back late") >= INTERLEAVINGS_OF_A_STORY // 3
    assert tally.of("comparisons") >= 3 * INTERLEAVINGS_OF_A_STORY


@pytest.mark.timeout(chosen(short=300, long=0))
def test_a_driver_that_comes_back_after_it_was_followed_changes_nothing(scratch: Path, tally: Tally) -> None:
    search(late_driver, scratch, tally, wanted=INTERLEAVINGS_OF_A_STORY)

    assert tally.problems == []
    assert tally.of("interleavings") >= INTERLEAVINGS_OF_A_STORY
    assert tally.of("drivers that came back late") >= INTERLEAVINGS_OF_A_STORY // 3
    assert tally.of("comparisons") >= 2 * INTERLEAVINGS_OF_A_STORY
