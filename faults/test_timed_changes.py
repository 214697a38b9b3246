"""Kills at every moment of a change of a timed query on executors: what waits for a time is answered in its time."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from faults.profiles import chosen, chosen_operations
from faults.tally import Tally
from faults.timed_changes import TimedBank, kill_at_operations
from zset_join.runners.spark.driver import executors_change

MOST_OPERATIONS = 4

pytestmark = pytest.mark.timeout(chosen(short=300, long=0))


def test_a_timed_change_that_is_killed_at_any_file_operation_leaves_one_of_both_queries(scratch: Path, tally: Tally) -> None:
    bank = TimedBank(scratch / "bank")
    wanted = chosen_operations(bank.operations(), MOST_OPERATIONS)

    kill_at_operations(bank, wanted, tally)

    assert tally.problems == []
    assert tally.of("kills observed") == len(wanted)
    assert tally.of("old") > 0 < tally.of("new")


@pytest.mark.parametrize("lost", ["times_on_executors", "kept_dues"])
def test_the_search_finds_times_that_are_not_written(lost: str, scratch: Path, tally: Tally) -> None:
    """The life dies at once, so that the change is made by the run that continues."""
    bank = TimedBank(scratch / "bank")
    with mock.patch.object(executors_change, lost, return_value={}):
        kill_at_operations(bank, [0], tally)

    assert tally.problems
