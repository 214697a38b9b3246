"""Sets of views over views that change many times: what they hold is what the present queries hold, also behind restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from property_tests.evolving import Outcome
from property_tests.evolving_sets import changed_sets_hold
from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from zset_join.plan import fingerprints

CASES = {"push": 12, "scout": 200, "nightly": 2_000}


def test_sets_of_views_that_change_hold_what_their_queries_hold(tmp_path: Path) -> None:
    outcome = Outcome()
    for seed in range(CASES[profile_name()]):
        changed_sets_hold(seed, tmp_path / str(seed) if seed % 3 == 0 else None, outcome)

    assert outcome.evolved > outcome.refused > 0
    assert min(outcome.kept, outcome.rebuilt, outcome.returned, outcome.rows) > 5


_seen = fingerprints.Fingerprints._seen


def _without_steps(self: Any, feed: Any) -> Any:
    return _seen(self, replace(feed, steps=()))


def test_the_law_finds_a_fingerprint_without_steps() -> None:
    with mock.patch.object(fingerprints.Fingerprints, "_seen", _without_steps), pytest.raises(LawBrokenError):
        changed_sets_hold(0, None, Outcome())
