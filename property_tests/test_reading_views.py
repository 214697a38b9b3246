"""Reading changes nothing: queries over views that depend on time leave views and tables as they are, and show their rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from property_tests.reading_views import reading_changes_nothing
from zset_join.core.errors import StateError
from zset_join.sql.runtime.session_plan import SessionPlan

CASES = {"push": 2, "scout": 40, "nightly": 400}


@pytest.mark.parametrize("place", ["memory", "directory"])
def test_a_reader_changes_no_view_and_shows_the_rows_of_the_views(tmp_path: Path, place: str) -> None:
    assert _all_read(tmp_path, place, range(CASES[profile_name()])) > 10


def _all_read(directory: Path, place: str, seeds: Iterable[int]) -> int:
    """Return how many rows the readers of random sessions have."""
    with warnings.catch_warnings(action="ignore"):
        return sum(reading_changes_nothing(seed, directory / str(seed) if place == "directory" else None) for seed in seeds)


_as_run = SessionPlan.as_run


def _of_the_newest_reader(plan: Any, query: Any, since: int = 0) -> Any:
    names = {one.name for one in plan.running if one.query is query}
    readers = [one.since for one in plan.running if names & one.query.bound.names]
    return _as_run(plan, query, max([since, *readers]))


def _forgotten(plan: Any, running: Any) -> None:
    plan.running.remove(running)


# With the first seed that shows the bug.
BUGS: dict[str, tuple[str, type, str, Callable[..., Any], int]] = {
    "a view comes when its newest reader comes": ("directory", SessionPlan, "as_run", _of_the_newest_reader, 0),
    "a reader reads the tables of the view": ("memory", SessionPlan, "views_read", lambda *_: [], 0),
    "a view that was stopped is forgotten": ("directory", SessionPlan, "put_aside", _forgotten, 3),
    "a reader begins with the tables": ("memory", SessionPlan, "reads_state", lambda *_: False, 24),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_law_finds_a_reader_that_changes_a_view_or_reads_other_rows(tmp_path: Path, bug: str) -> None:
    place, owner, name, wrong, seed = BUGS[bug]
    with mock.patch.object(owner, name, wrong), pytest.raises((LawBrokenError, StateError)):
        _all_read(tmp_path, place, range(seed, max(seed + 1, 20)))
