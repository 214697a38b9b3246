"""Queries that change while they run: what they hold is what the new query holds, and kept stages are fed nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from property_tests.evolving import Outcome, changed_joins_hold, changed_queries_hold
from property_tests.evolving_columns import changed_columns_hold
from property_tests.evolving_directories import changed_directories_hold
from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from zset_join.conversions.typed_values import python_values
from zset_join.core.errors import ZsetJoinError
from zset_join.evolution import changed_columns, differences, refusals
from zset_join.plan import fingerprints
from zset_join.runners.local import durable, evolving, rebuilding, stored_rows
from zset_join.shapes.kept_types import NullKeys
from zset_join.state.rows import side
from zset_join.state.rows.side import dropped_rows

CASES = {"push": range(20), "scout": range(200), "nightly": range(20_000)}


def test_a_changed_query_holds_what_the_new_one_holds_and_goes_on_like_it() -> None:
    outcome = Outcome()
    for seed in CASES[profile_name()]:
        changed_queries_hold(seed, outcome)

    assert outcome.evolved > outcome.refused
    assert min(outcome.kept, outcome.rebuilt, outcome.returned, outcome.rows) > 5


def _keeps_nothing(self: Any) -> None:
    del self


BUGS: dict[str, tuple[Any, str, Any]] = {
    "steps are not part of a fingerprint": (
        fingerprints.Fingerprints,
        "_seen",
        lambda self, feed: _seen(self, replace(feed, steps=())),
    ),
    "rows that a condition dropped are taken for all rows": (refusals, "unmet_conditions", lambda have, want: []),
    "rows without NULL in a key are taken for all rows": (stored_rows, "gaps_of", lambda given: ()),
    "a copy of a row counts once": (
        stored_rows._Summed,
        "__call__",
        lambda self: type(rows := _summed(self))(rows.rows, np.sign(rows.weights)),
    ),
    "everything is built": (evolving.Evolution, "_match", _keeps_nothing),
    "a new stage is answered and not filled": (
        rebuilding.Rebuilding,
        "_answer_of",
        lambda self, number, operator, *, absorbs: _answer_of(self, number, operator, absorbs=False),
    ),
}
_FIRST_SEEDS = {
    "rows that a condition dropped are taken for all rows": 10,
    "rows without NULL in a key are taken for all rows": 28,
    "only those that came to this very join are counted": 57,
    "defaults are forgotten": 11,
}
"""Of bugs that are found late: the first seed which shows it."""


def _from(name: str) -> range:
    return range(_FIRST_SEEDS.get(name, 0), 60)


_seen = fingerprints.Fingerprints._seen
_summed, _answer_of = stored_rows._Summed.__call__, rebuilding.Rebuilding._answer_of


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    place, what, bug = BUGS[name]
    with mock.patch.object(place, what, bug):
        assert any(_is_found(seed, changed_queries_hold) for seed in _from(name))


JOINS = {"push": range(20), "scout": range(400), "nightly": range(20_000)}


def test_a_changed_join_holds_what_the_new_one_holds_and_is_refused_only_for_null_keys() -> None:
    outcome = Outcome()
    for seed in JOINS[profile_name()]:
        changed_joins_hold(seed, outcome)

    assert outcome.evolved > outcome.refused > 5
    assert min(outcome.kept, outcome.rebuilt, outcome.rows) > 5


IN_JOINS: dict[str, tuple[Any, str, Any]] = {
    "rows dropped for NULL in their key are not looked at": (NullKeys, "is_none", property(lambda _: True)),
    "only those that came to this very join are counted": (rebuilding.Rebuilding, "_count_dropped", lambda *_: None),
    "they are refused whether they came or not": (NullKeys, "is_none", property(lambda _: False)),
    "upserts are not counted": (
        side,
        "dropped_rows",
        lambda prepared, *, is_upsert: 0 if is_upsert else dropped_rows(prepared, is_upsert=False),
    ),
}


@pytest.mark.parametrize("name", IN_JOINS)
def test_a_planted_bug_of_joins_is_found(name: str) -> None:
    place, what, bug = IN_JOINS[name]
    with mock.patch.object(place, what, bug):
        assert any(_is_found(seed, changed_joins_hold) for seed in _from(name))


COLUMNS = {"push": range(20), "scout": range(400), "nightly": range(20_000)}


def test_a_query_over_changed_columns_holds_what_it_would_have_held_from_the_start() -> None:
    outcome = Outcome()
    for seed in COLUMNS[profile_name()]:
        changed_columns_hold(seed, outcome)

    assert outcome.evolved > 3 * outcome.refused
    assert min(outcome.kept, outcome.rebuilt, outcome.returned, outcome.rows) > 5


IN_COLUMNS: dict[str, tuple[Any, str, Any]] = {
    "a state is carried whatever it holds": (evolving.Evolution, "_is_carried", lambda self, number, old: True),
    "a state goes on whatever its columns": (evolving.Evolution, "_goes_on", lambda self, number, old: True),
    "defaults are forgotten": (changed_columns, "python_values", lambda values, kind: python_values([None], kind)),
}


@pytest.mark.parametrize("name", IN_COLUMNS)
def test_a_planted_bug_of_columns_is_found(name: str) -> None:
    place, what, bug = IN_COLUMNS[name]
    with mock.patch.object(place, what, bug):
        assert any(_is_found(seed, changed_columns_hold) for seed in _from(name))


DIRECTORIES = {"push": range(3), "scout": range(100), "nightly": range(20_000)}


def test_a_changed_directory_holds_what_the_new_query_holds_and_outlasts_its_process(tmp_path: Path) -> None:
    outcome = Outcome()
    for seed in DIRECTORIES[profile_name()]:
        changed_directories_hold(seed, outcome, tmp_path / str(seed))

    assert min(outcome.evolved, outcome.kept, outcome.rebuilt, outcome.rows) > 0


def _without_new_rows(self: Any, answers: Any) -> Any:
    return {name: answer for name, answer in answers.items() if self.begins(name)}


IN_DIRECTORIES: dict[str, tuple[Any, str, Any]] = {
    "states that go on lose their names": (evolving.Evolution, "unbuilt", property(lambda _: {})),
    "the log of a view begins with a difference": (evolving.Evolution, "beginnings", _without_new_rows),
    "an output with more columns gets all rows again": (differences.ViewDiff, "answer", property(lambda self: self.added)),
    "a view with other columns goes on with its log": (
        evolving.Evolution,
        "begins",
        lambda self, name: name not in {view.name for view in self.origin.plan.views},
    ),
    "what is built is not written": (durable, "write_snapshot", lambda *_, **__: None),
}


@pytest.mark.parametrize("name", IN_DIRECTORIES)
def test_a_planted_bug_of_a_directory_is_found(name: str, tmp_path: Path) -> None:
    place, what, bug = IN_DIRECTORIES[name]
    with mock.patch.object(place, what, bug):
        assert any(
            _is_found(seed, lambda seed, outcome: changed_directories_hold(seed, outcome, tmp_path / str(seed)))
            for seed in range(60)
        )


def _is_found(seed: int, law: Callable[[int, Outcome], None]) -> bool:
    try:
        law(seed, Outcome())
    except (LawBrokenError, ZsetJoinError, KeyError, ValueError, pa.ArrowException):
        return True
    return False
