"""Timed queries on executors that change: what they answer is what the new query answers from the start."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from property_tests.evolving import Outcome
from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from property_tests.timed_executors import as_now_holds, changed_executors_hold
from zset_join.core.errors import ZsetJoinError
from zset_join.runners.spark.driver import executors_change

CASES = {"push": range(6), "scout": range(200), "nightly": range(5_000)}


def test_a_changed_timed_query_on_executors_answers_what_the_new_one_answers(tmp_path: Path) -> None:
    outcome = Outcome()
    for seed in CASES[profile_name()]:
        changed_executors_hold(seed, outcome, tmp_path / str(seed))

    assert outcome.evolved > 3 * outcome.refused
    assert min(outcome.kept, outcome.rebuilt, outcome.returned, outcome.rows) > 3


def test_a_first_stage_that_waits_is_built_as_now_as_a_pipeline_builds_it(tmp_path: Path) -> None:
    outcome = Outcome()
    for seed in CASES[profile_name()]:
        as_now_holds(seed, outcome, tmp_path / str(seed))

    assert outcome.evolved > 3 * outcome.refused


def test_kept_buckets_that_lose_the_time_they_are_due_are_found(tmp_path: Path) -> None:
    with mock.patch.object(executors_change, "kept_dues", return_value={}):
        assert any(_is_found(seed, tmp_path / str(seed)) for seed in range(12))


def _is_found(seed: int, place: Path) -> bool:
    try:
        changed_executors_hold(seed, Outcome(), place)
    except (LawBrokenError, ZsetJoinError):
        return True
    return False
