"""Random views on the pipeline equal the batch query, through restarts, savings and halved epochs; planted bugs are found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from property_tests.pipeline_plans import ViewDiffersError, drawn_view, run_view, search
from property_tests.plans_in_buckets import plan_in_buckets_is_one
from property_tests.profiles import profile_name
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.first_load import LoadedLatest
from zset_join.operators.join import HashJoin
from zset_join.runners.local import feeding
from zset_join.zset import ZSet

_SEEDS = 6
_IN_BUCKETS = {"push": 30, "scout": 300, "nightly": 3_000}
_TRIES = 60


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_a_random_view_equals_the_batch_query_whatever_happens_in_between(seed: int, tmp_path: Path) -> None:
    run_view(seed, tmp_path)


def test_a_plan_in_several_buckets_with_exchanges_is_the_plan_in_one() -> None:
    rows = [plan_in_buckets_is_one(seed) for seed in range(_IN_BUCKETS[profile_name()])]

    assert sum(rows) > 20 * len(rows)


def test_enough_is_compared(tmp_path: Path) -> None:
    views = [drawn_view(seed).plan() for seed in range(4 * _SEEDS)]
    kinds = {node.stage.kind for plan in views for node in plan.nodes}

    assert kinds >= {"aggregate", "join", "latest"}
    assert run_view(_SEEDS + 1, tmp_path) > 0


def _loses_insertions(kind: Any) -> Any:
    def answer(self: Any, tick: Any, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        for chunk in original(self, tick, deltas):
            yield (
                chunk
                if chunk.weights.max() < 0 or len(chunk) < 2
                else ZSet(chunk.rows.slice(0, len(chunk) - 1), chunk.weights[:-1])
            )

    original = kind.answer
    return answer


def _passes_everything(step: Any, relation: Any) -> Any:
    return lambda delta: delta


@pytest.mark.parametrize(
    ("place", "name", "bug"),
    [
        (HashJoin, "answer", _loses_insertions(HashJoin)),
        (Aggregate, "answer", _loses_insertions(Aggregate)),
        (LoadedLatest, "answer", _loses_insertions(LoadedLatest)),
        (feeding, "_where", _passes_everything),
    ],
)
def test_a_planted_bug_is_found(place: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, name, bug)

    with pytest.raises(ViewDiffersError):
        search(range(_TRIES))
