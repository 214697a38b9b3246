"""Timed queries that change while they run: what was answered at a moment stays, and what waits is answered in its time."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from property_tests.evolving import Outcome
from property_tests.evolving_timed import changed_timed_queries_hold
from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from zset_join.core.errors import ZsetJoinError
from zset_join.operators.lookup_join import LookupJoin
from zset_join.operators.process_time_join import ProcessTimeJoin
from zset_join.plan import fingerprints
from zset_join.plan.fingerprints import Fingerprints
from zset_join.runners.local import evolving
from zset_join.runners.local.watermarks import KnownTimes, Watermarks
from zset_join.stages.deduplicate import DeduplicateStage
from zset_join.stages.expiring import ExpiringStage
from zset_join.stages.lookup_join import LookupJoinStage
from zset_join.stages.process_time_join import ProcessTimeJoinStage
from zset_join.stages.temporal_join import TemporalJoinStage

CASES = {"push": range(20), "scout": range(2_000), "nightly": range(20_000)}


def test_a_changed_timed_query_holds_what_the_new_one_holds_and_goes_on_like_it() -> None:
    outcome = Outcome()
    for seed in CASES[profile_name()]:
        changed_timed_queries_hold(seed, outcome)

    assert outcome.evolved > 3 * outcome.refused
    assert min(outcome.kept, outcome.rebuilt, outcome.returned, outcome.rows) > 5
    assert outcome.codes.keys() >= {"EVOLVE_BY_TIME", "EVOLVE_JOURNAL"}


class _NoEffect:
    """No stage is one."""


def _follows(_: Any) -> bool:
    return True


def _forgotten(self: Any) -> KnownTimes:
    return Watermarks(self.plan).known


def _of_stages_forgotten(self: Any) -> KnownTimes:
    known = _known(self)
    return KnownTimes(known.sources, tuple(None for _ in known.stages))


_known = evolving.Evolution.known_times

BUGS: dict[str, tuple[Any, str, Any, tuple[str, ...]]] = {
    "what was looked up is looked up again": (LookupJoinStage, "follows_from_rows", property(_follows), ("lookup",)),
    "rows of now are joined with rows of before": (ProcessTimeJoinStage, "follows_from_rows", property(_follows), ("moment",)),
    "a temporal join is built from the rows that are left": (
        TemporalJoinStage,
        "follows_from_rows",
        property(_follows),
        ("temporal",),
    ),
    "rows that expired are taken for none": (ExpiringStage, "follows_from_rows", property(_follows), ("living", "groups")),
    "a dedup is built from the rows that are left, in their order": (
        DeduplicateStage,
        "follows_from_rows",
        property(_follows),
        ("dedup",),
    ),
    "an append-only lookup lists its answer": (LookupJoin, "lists_answer", property(_follows), ("lookup",)),
    "an append-only join of the moment lists its answer": (ProcessTimeJoin, "lists_answer", property(_follows), ("moment",)),
    "lookups elsewhere are the same": (fingerprints, "EffectStage", _NoEffect, ("lookup",)),
    "sources lose their watermarks": (evolving.Evolution, "known_times", _forgotten, ("temporal", "living", "groups")),
    "stages lose their watermarks": (evolving.Evolution, "known_times", _of_stages_forgotten, ("temporal", "living", "groups")),
    "a new stage has no watermark yet": (evolving.Evolution, "_watermarks_of", lambda *_: {}, ("temporal", "living", "groups")),
    "stages that differ in options are one": (
        evolving,
        "compared_fingerprints",
        lambda before, after, changed: (Fingerprints(before, changed), Fingerprints(after, changed)),
        ("living", "groups"),
    ),
}

_FIRST_SEEDS = {"a dedup is built from the rows that are left, in their order": 90}
"""Of bugs that are found late: rows of a key must be equal in the order, and one must be written again before the change."""


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    place, what, bug, kinds = BUGS[name]
    with mock.patch.object(place, what, bug):
        assert any(_is_found(seed, kinds) for seed in range(_FIRST_SEEDS.get(name, 0), 100))


def _is_found(seed: int, kinds: tuple[str, ...]) -> bool:
    try:
        changed_timed_queries_hold(seed, Outcome(), kinds)
    except (LawBrokenError, ZsetJoinError, KeyError, pa.ArrowException):
        return True
    return False
