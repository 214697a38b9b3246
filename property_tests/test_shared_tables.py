"""One copy of a table, shared by joins: the law on random plans, and the bugs that it must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from property_tests.shared_tables import SharedCase, sharing_is_invisible
from zset_join.core.errors import ZsetJoinError
from zset_join.operators.shared_table import TableReader
from zset_join.plan.passes import share_nodes
from zset_join.plan.query_plan import StateNode
from zset_join.state.time.key_runs import KeyRuns
from zset_join.state.time.version_join import VersionJoin
from zset_join.zset.protocol import NOTHING_DUE

CASES = 400 if profile_name() == "nightly" else 12


@pytest.mark.parametrize("by_event_time", [True, False], ids=["event time", "processing time"])
def test_joins_answer_alike_with_one_copy_of_a_table_and_with_a_copy_each(by_event_time: bool) -> None:
    reported = sum(sharing_is_invisible(SharedCase(seed, by_event_time)) for seed in range(CASES))

    assert reported > CASES // 3


def _owner_folds_for_all(attribute: str) -> Any:
    """Let every join fold the right rows in, as if they were its own."""

    def fold(self: Any, *given: Any, original: Callable[..., Any] = VersionJoin.fold, **more: Any) -> Any:
        setattr(self, attribute, True)
        return original(self, *given, **more)

    return fold


def _forgets_a_left(self: StateNode, by_stage: Any, original: Callable[..., Any] = StateNode.fed) -> Any:
    fed = original(self, by_stage)
    return [*fed[:-1], replace(fed[-1], weights=fed[-1].weights[:0], rows=fed[-1].rows.slice(0, 0))] if self.is_shared else fed


def _shares_whatever(self: Any, kept: Any) -> str | None:
    return None if self.kept.columns == kept.columns else "another key"


BUGS: dict[str, tuple[bool, Any, str, Any]] = {
    "keys that another join stored are stored again": (True, KeyRuns, "number", lambda self, groups: None),
    "every join stores the versions": (True, VersionJoin, "fold", _owner_folds_for_all("_owns_table")),
    "the left rows of the last join are not kept": (True, StateNode, "fed", _forgets_a_left),
    "joins share whatever the watermark they free by": (True, share_nodes._Readers, "why_not", _shares_whatever),
    "what waits in a shared table is not waited for": (True, TableReader, "next_due", lambda self: NOTHING_DUE),
}


def _search(by_event_time: bool) -> None:
    for seed in range(150):
        sharing_is_invisible(SharedCase(seed, by_event_time))


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    by_event_time, owner, name, planted = BUGS[bug]

    with mock.patch.object(owner, name, planted), pytest.raises((LawBrokenError, ZsetJoinError, AssertionError, IndexError)):
        _search(by_event_time)
