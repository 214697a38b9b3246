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
from property_tests.stored_once import views_equal_themselves_alone
from zset_join.core.errors import ZsetJoinError
from zset_join.plan.passes import share_nodes
from zset_join.runners.local import filters

CASES = {"push": 12, "scout": 200, "nightly": 2000}


@pytest.mark.parametrize("lasts", [False, True], ids=["in memory", "in a directory"])
def test_readers_of_one_table_answer_what_each_answers_alone(tmp_path: Path, lasts: bool) -> None:
    rows = sum(
        views_equal_themselves_alone(seed, tmp_path / str(seed) if lasts else None)
        for seed in range(CASES[profile_name()] // (3 if lasts else 1))
    )

    assert rows > 10


_over, _general, _passes = share_nodes._over, filters._general, filters._Shape.passes


def _by_first(shape: Any, columns: Any, length: int) -> Any:
    return np.array(np.broadcast_to(_passes(shape, columns, length)[:1], (len(shape.places), length)))


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a table keeps what its first reader needs": (share_nodes, "_common", lambda readers: len(readers[0].parts)),
    "a table is kept per reader": (share_nodes, "_reader", lambda node: None),
    "what is above a table is left out": (share_nodes, "_over", lambda table, apply: table),
    "what orders changes is shown": (share_nodes, "_over", lambda table, apply: _kept(table, apply)),
    "parts of any condition are the same": (share_nodes, "_is_same", lambda one, other: True),
    "all literals are those of the first reader": (filters._Shape, "passes", _by_first),
}


def _kept(table: Any, apply: Any) -> Any:
    return share_nodes.replace(apply, child=table)


@pytest.mark.parametrize("bug", BUGS)
def test_the_law_finds_a_table_that_is_not_that_of_all_its_readers(bug: str) -> None:
    where, name, wrong = BUGS[bug]

    with mock.patch.object(where, name, wrong), pytest.raises((LawBrokenError, ZsetJoinError)):
        sum(views_equal_themselves_alone(seed, None) for seed in range(40))
