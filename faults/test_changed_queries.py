"""Kills at every moment of a change of the query: the directory is one of the old query or of the new one, and continues."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from faults.changed_queries import ChangedBank, kill_at_operations, kill_at_seams, operations_of, seams_of
from faults.profiles import IS_LONG, chosen, chosen_operations
from faults.tally import Tally
from zset_join.runners.local.durable import PipelineDirectory

MOST_OPERATIONS = 4

pytestmark = pytest.mark.timeout(chosen(short=300, long=0))


def test_a_change_that_is_killed_at_any_file_operation_leaves_the_old_query_or_the_new_one(scratch: Path, tally: Tally) -> None:
    bank = ChangedBank(scratch / "bank")
    wanted = chosen_operations(operations_of(bank), MOST_OPERATIONS)

    kill_at_operations(bank, wanted, tally)

    assert tally.problems == []
    assert tally.of("kills observed") == len(wanted)
    assert tally.of("old") > 0 < tally.of("new")


def test_a_change_that_is_killed_between_outputs_reaches_all_of_them(scratch: Path, tally: Tally) -> None:
    bank = ChangedBank(scratch / "bank")
    seams = seams_of(bank)

    wanted = range(seams) if IS_LONG else range(2, seams, 3)
    kill_at_seams(bank, wanted, tally)

    assert tally.problems == []
    assert tally.of("kills observed") == len(wanted) >= 3


def test_the_search_finds_outputs_that_do_not_begin(scratch: Path, tally: Tally) -> None:
    bank = ChangedBank(scratch / "bank")
    with mock.patch.object(PipelineDirectory, "newest_answers", return_value=()):
        kill_at_seams(bank, [4], tally)

    assert tally.problems
