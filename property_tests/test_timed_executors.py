"""Timed queries on executors that change: what they answer is what the new query answers from the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from property_tests.evolving import Outcome
from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from property_tests.timed_executors import TIMED_KINDS, as_now_holds, changed_executors_hold
from zset_join.checkpoint.record import CommitRecord
from zset_join.core.errors import ZsetJoinError
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.local.watermarks import KnownTimes
from zset_join.runners.spark.driver import executors_change, executors_state
from zset_join.runners.spark.driver.executors_state import times_on_driver
from zset_join.runners.spark.planning.other_mode import StatePair

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


def _without_times_of_stages(plan: QueryPlan, pairs: Sequence[StatePair], record: CommitRecord) -> KnownTimes:
    known = times_on_driver(plan, pairs, record)
    return KnownTimes(known.sources, tuple(None for _ in known.stages))


BUGS: dict[str, tuple[Any, str, Callable[..., Any], tuple[str, ...], range]] = {
    "kept buckets lose the time that they are due": (executors_change, "kept_dues", lambda *_: {}, TIMED_KINDS, range(9, 15)),
    "watermarks of stages are not read": (
        executors_state,
        "times_on_driver",
        _without_times_of_stages,
        ("temporal", "living", "groups"),
        range(5, 10),
    ),
}
"""The seeds are few of those that find it: a late row must come in the epoch after the change.

No history finds stages that are compared without their options where files are kept (`_written` as `Stage.lasting`): a state
with another option is a copy in the driver's form, which is built; only states that are no copies are compared.
"""


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, tmp_path: Path) -> None:
    place, what, bug, kinds, seeds = BUGS[name]
    with mock.patch.object(place, what, bug):
        assert any(_is_found(seed, tmp_path / str(seed), kinds) for seed in seeds)


def _is_found(seed: int, place: Path, kinds: tuple[str, ...]) -> bool:
    try:
        changed_executors_hold(seed, Outcome(), place, kinds)
    except (LawBrokenError, ZsetJoinError):
        return True
    return False
