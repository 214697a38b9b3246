"""Several views as one pipeline: every view is its batch query, what views have in common is present once, and totals agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from property_tests.bank import bank_epoch, bank_views, expected_views
from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from property_tests.view_sets import views_equal_their_queries
from zset_join.core.errors import PlanError
from zset_join.pipeline import Pipeline
from zset_join.plan.passes import share_nodes
from zset_join.plan.tree import Apply, Operate

CASES = {"push": 2, "scout": 40, "nightly": 400}


@pytest.mark.parametrize("lasts", [False, True], ids=["in memory", "in a directory"])
def test_every_view_of_a_set_equals_its_query_and_stages_appear_once(tmp_path: Path, lasts: bool) -> None:
    rows = sum(
        views_equal_their_queries(seed, tmp_path / str(seed) if lasts else None) for seed in range(CASES[profile_name()])
    )

    assert rows > 10


_identity = share_nodes._identity
BUGS: dict[str, Callable[[Any], Any]] = {
    "no stage is shared": lambda node: id(node) if isinstance(node, Operate) else _identity(node),
    "all stages of one input are shared": lambda node: (
        tuple(map(id, node.inputs)) if isinstance(node, Operate) else _identity(node)
    ),
    "steps are shared whatever they do": lambda node: ("step", id(node.child)) if isinstance(node, Apply) else _identity(node),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_law_finds_views_that_share_too_little_or_too_much(bug: str) -> None:
    with mock.patch.object(share_nodes, "_identity", BUGS[bug]), pytest.raises((LawBrokenError, PlanError)):
        sum(views_equal_their_queries(seed, None) for seed in range(20))


def test_the_views_of_a_bank_agree_at_every_epoch() -> None:
    pipeline = Pipeline(bank_views())

    for epoch in range(60):
        pipeline.step(bank_epoch(epoch))
        found = {name: {tuple(row.values()) for row in pipeline.view(name).to_pylist()} for name in pipeline.views}
        assert found == expected_views(range(epoch + 1))

    assert [node.stage.kind for node in pipeline.plan.nodes] == ["join", "aggregate", "aggregate", "aggregate"]
