"""Kills between any two outputs of several views: each is whole, they are one epoch apart at most, and all go on together."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from faults.profiles import IS_LONG, chosen
from faults.several_outputs import Bank, kill_at_operations, kill_at_seams, operations_of, seams_of
from faults.tally import Tally
from property_tests.bank import bank_epoch, bank_views
from zset_join.pipeline import Pipeline
from zset_join.pipeline.outputs import PipelineOutputs
from zset_join.sinks.duckdb_view import DuckDBViewSink

OF_AN_EPOCH = 18  # two around each of five outputs and four databases
SAME_MOMENTS = (6, 10, 14)  # before a database, with nothing done since the one before
MOST_OPERATIONS = chosen(short=6, long=None)


@pytest.fixture(scope="module")
def warm_bank() -> None:
    """Compile what the bank needs."""
    pipeline = Pipeline(bank_views())
    for epoch in range(3):
        pipeline.step(bank_epoch(epoch))


pytestmark = [pytest.mark.usefixtures("warm_bank"), pytest.mark.timeout(chosen(short=300, long=0))]


def test_a_pipeline_killed_between_any_two_outputs_brings_all_to_the_same_epoch(scratch: Path, tally: Tally) -> None:
    bank = Bank(scratch / "bank")
    seams = seams_of(bank)
    wanted = range(seams) if IS_LONG else [seam for seam in range(OF_AN_EPOCH) if seam not in SAME_MOMENTS]

    kill_at_seams(bank, wanted, tally)

    assert tally.problems == []
    assert (seams, tally.of("kills observed")) == (2 * OF_AN_EPOCH, len(wanted))
    assert tally.of("comparisons") == 2 * 5 * len(wanted)
    assert tally.of("apart") == chosen(short=8, long=22)  # from the first database until the last one


def test_a_pipeline_killed_at_any_file_operation_brings_all_outputs_to_the_same_epoch(scratch: Path, tally: Tally) -> None:
    bank = Bank(scratch / "bank")
    operations = range(operations_of(bank))
    wanted = operations if MOST_OPERATIONS is None else sorted(Random(5).sample(operations, MOST_OPERATIONS))

    kill_at_operations(bank, wanted, tally)

    assert tally.problems == []
    assert tally.of("kills observed") == len(wanted)


@pytest.mark.parametrize("bug", ["a transaction per view", "no epoch is given again at a start"])
def test_the_search_finds_planted_bugs(bug: str, scratch: Path) -> None:
    planted = {
        "a transaction per view": mock.patch.object(DuckDBViewSink, "together", return_value=nullcontext()),
        "no epoch is given again at a start": mock.patch.object(PipelineOutputs, "write", return_value=None),
    }
    found = Tally()
    with planted[bug]:
        kill_at_seams(Bank(scratch / "bank"), [3], found)

    assert found.problems
