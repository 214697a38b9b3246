"""Readers of one table answer what each of them answers alone; planted bugs show that the law would see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from property_tests.stored_once import _sides, views_equal_themselves_alone
from zset_join.core.errors import ZsetJoinError
from zset_join.expressions import left, right
from zset_join.kernels.rows.side import H_MARK
from zset_join.operators.upsert_table import Latest
from zset_join.pipeline import Pipeline, changes
from zset_join.plan.passes import share_nodes
from zset_join.runners.local import feeding
from zset_join.runners.local.engine import Engine, built
from zset_join.runners.local.prepared import DurableEpoch
from zset_join.state.rows.side import SideState
from zset_join.zset import ZSet

CASES = {"push": 9, "scout": 200, "nightly": 2000}


@pytest.mark.parametrize("lasts", [False, True], ids=["in memory", "in a directory"])
def test_readers_of_one_table_answer_what_each_answers_alone(tmp_path: Path, lasts: bool) -> None:
    rows = sum(
        views_equal_themselves_alone(seed, tmp_path / str(seed) if lasts else None)
        for seed in range(CASES[profile_name()] // (2 if lasts else 1))
    )

    assert rows > 10


_passes, _list, _follow = feeding._Shape.passes, Latest._list, SideState.follow
_live_refs, _hold_with, _resume = SideState.live_refs, SideState.hold_with, SideState._resume


def _by_first(shape: Any, *given: Any) -> Any:
    passes = _passes(shape, *given)
    return np.array(np.broadcast_to(passes[:1], passes.shape))


def _without_null_keys(side: Any, other: Any) -> None:
    drops = other.drops_unmatchable
    _follow(side, other)
    other.drops_unmatchable = drops


def _hold_alike(one: Any, other: Any) -> bool:
    return one._contract() is not None and one._contract() == other._contract()


def _of_its_own(side: Any) -> Any:
    live, dead = _live_refs(side)
    return (live[:0], dead[:0]) if side._held else (live, dead)


def _whatever_was_stored(side: Any, other: Any) -> None:
    side._held = int(other.header[H_MARK])
    _resume(side, other)


def _without_the_first(table: Any, columns: Any) -> Any:
    return (ZSet(chunk.rows.slice(1), chunk.weights[1:]) for chunk in _list(table, columns))


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a table keeps what its first reader needs": (share_nodes, "_common", lambda readers: len(readers[0].parts)),
    "a table is kept per reader": (share_nodes, "_reader", lambda node: None),
    "what is above a table is left out": (share_nodes, "_over", lambda table, apply: table),
    "what orders changes is shown": (share_nodes, "_over", lambda table, apply: _kept(table, apply)),
    "parts of any condition are the same": (share_nodes, "_is_same", lambda one, other: True),
    "all literals are those of the first reader": (feeding._Shape, "passes", _by_first),
    "rows reach the first view alone": (Engine, "_reached", lambda engine, known: list(engine._views)[:1]),
    "a table that a join writes lacks rows without a key": (SideState, "follow", _without_null_keys),
    "a join finds rows by the key of another one": (SideState, "can_follow", lambda one, other: _hold_alike(one, other)),
    "a table lists all rows but the first": (Latest, "_list", _without_the_first),
}

OVER_FILES: dict[str, tuple[Any, str, Any, int]] = {
    "a snapshot is of what a side has itself": (SideState, "live_refs", _of_its_own, 6),
    "a side goes on without the rows that it held": (SideState, "lacks_rows", property(lambda side: False), 17),
    "rows without a key are not stored for others": (
        DurableEpoch,
        "_built",
        lambda epoch, node, directory: built(node, epoch.options, directory, epoch.workers),
        10,
    ),
    "a side holds the rows that it held before the query changed": (
        SideState,
        "hold_with",
        lambda side, other: side._owner is None and _hold_with(side, other),
        11,
    ),
}


def _kept(table: Any, apply: Any) -> Any:
    return share_nodes.replace(apply, child=table)


@pytest.mark.parametrize("bug", BUGS)
def test_the_law_finds_a_table_that_is_not_that_of_all_its_readers(bug: str) -> None:
    where, name, wrong = BUGS[bug]

    with mock.patch.object(where, name, wrong), pytest.raises((LawBrokenError, ZsetJoinError)):
        sum(views_equal_themselves_alone(seed, None) for seed in range(40))


@pytest.mark.parametrize("bug", OVER_FILES)
def test_the_law_finds_a_table_in_a_directory_that_is_not_that_of_all_its_readers(tmp_path: Path, bug: str) -> None:
    where, name, wrong, first = OVER_FILES[bug]

    with mock.patch.object(where, name, wrong), pytest.raises((LawBrokenError, ZsetJoinError)):
        sum(views_equal_themselves_alone(seed, tmp_path / str(seed)) for seed in range(first, first + 20))


def _answer_behind_a_dropped_join(directory: Path) -> list[Any]:
    table, other = changes("t", "id BIGINT, k STRING", keys="id"), changes("u", "k STRING, v BIGINT", keys="k")
    with Pipeline({"joined": table.join(other, on="k"), "whole": table}, directory) as pipeline:
        pipeline.step({"t": [{"id": 1, "k": "a"}, {"id": 2, "k": None}], "u": [{"k": "a", "v": 1}]})
        pipeline.add_view("semi", table.join(other, on="k", how="left_semi"))
        pipeline.drop_view("joined")
        return pipeline.step({"t": [{"id": 2, "k": "b"}]})["whole"].to_pylist()


def test_a_table_whose_rows_a_dropped_join_wrote_has_all_of_them(tmp_path: Path) -> None:
    answer = _answer_behind_a_dropped_join(tmp_path / "right")
    with mock.patch.object(SideState, "_resume", _whatever_was_stored):
        wrong = _answer_behind_a_dropped_join(tmp_path / "wrong")

    assert answer == [((2, None), -1), ((2, "b"), 1)]
    assert wrong == [((2, "b"), 1)]  # as the join that was added has no rows without a key


@pytest.mark.parametrize("lasts", [False, True], ids=["in memory", "in a directory"])
def test_a_join_with_a_condition_holds_alone_the_side_whose_pairs_it_counts(tmp_path: Path, lasts: bool) -> None:
    table, other = changes("t", "id BIGINT, k STRING, v BIGINT", keys="id"), changes("u", "k STRING, v BIGINT", keys="k")
    conditions = [left("v") < right("v"), left("v") > right("v"), None]
    views = {str(one): table.join(other, on="k", how="left", condition=one) for one in conditions}

    with Pipeline(views, tmp_path if lasts else None) as pipeline:
        pipeline.step({"t": [{"id": 1, "k": "a", "v": 1}], "u": [{"k": "a", "v": 2}]})
        pipeline.step({"u": [{"k": "a", "v": 0}]})
        held = {name: [one.follows for one in sides] for name, sides in _sides(pipeline).items()}

    assert held == ({"t": [False], "u": [False]} if lasts else {"t": 3 * [False], "u": [False, True, True]})
