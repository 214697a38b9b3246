"""Views over views that change many times, in words and SQL: they hold what the present queries hold, also behind restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from property_tests.evolving import Outcome
from property_tests.evolving_sets import changed_sets_hold
from property_tests.evolving_sql import changed_sessions_hold
from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from zset_join.core.errors import SqlError
from zset_join.plan import fingerprints
from zset_join.sql.ddl import views

CASES = {"push": 12, "scout": 200, "nightly": 2_000}
SESSIONS = {"push": 3, "scout": 60, "nightly": 600}


def test_sets_of_views_that_change_hold_what_their_queries_hold(tmp_path: Path) -> None:
    outcome = Outcome()
    for seed in range(CASES[profile_name()]):
        changed_sets_hold(seed, tmp_path / str(seed) if seed % 3 == 0 else None, outcome)

    assert outcome.evolved > outcome.refused > 0
    assert min(outcome.kept, outcome.rebuilt, outcome.returned, outcome.rows) > 5


def test_sessions_whose_views_and_tables_change_hold_what_duckdb_answers(tmp_path: Path) -> None:
    outcome = Outcome()
    for seed in range(SESSIONS[profile_name()]):
        changed_sessions_hold(seed, tmp_path / str(seed) if seed % 3 == 0 else None, outcome)

    assert outcome.evolved > outcome.refused > 0
    assert outcome.rows > 100


_seen = fingerprints.Fingerprints._seen


def _without_steps(self: Any, feed: Any) -> Any:
    return _seen(self, replace(feed, steps=()))


def test_the_law_finds_a_fingerprint_without_steps() -> None:
    with mock.patch.object(fingerprints.Fingerprints, "_seen", _without_steps), pytest.raises(LawBrokenError):
        changed_sets_hold(0, None, Outcome())


def test_the_law_of_sessions_finds_a_fingerprint_without_steps() -> None:
    with mock.patch.object(fingerprints.Fingerprints, "_seen", _without_steps), pytest.raises((LawBrokenError, KeyError)):
        changed_sessions_hold(1, None, Outcome())


def test_the_law_of_sessions_finds_readers_that_do_not_follow_a_change() -> None:
    with mock.patch.object(views, "_following", return_value=[]), pytest.raises((LawBrokenError, SqlError)):
        changed_sessions_hold(2, None, Outcome())
