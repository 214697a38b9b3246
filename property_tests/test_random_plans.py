"""Random plans agree with DuckDB, in a short form of the long run; a planted bug is found; enough is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from property_tests.random_plans import SIZES, PlanDiffersError, Size, Tally, held_against_floors, main, run_plan
from zset_join.core.epochs import Tick
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

_SMALL = SIZES[:2]
_BATCHES, _PLANS = 2, 5
_TRIES = 40


@pytest.mark.parametrize("batch", range(_BATCHES))
def test_random_plans_agree_with_duckdb_after_every_epoch(batch: int) -> None:
    tally = Tally()

    for seed in range(batch * _PLANS, (batch + 1) * _PLANS):
        run_plan(seed, tally, sizes=_SMALL)

    assert tally.plans == _PLANS
    assert tally.epochs >= 12 * _PLANS
    assert tally.events >= 1_000
    assert tally.rows >= 500


def test_a_large_plan_agrees_too() -> None:
    tally = Tally()

    run_plan(9, tally, sizes=[Size(5_000, 6, 5_000, 2_000)])

    assert tally.events >= 10_000
    assert held_against_floors(tally, 10_000) == 0


class _Planted:
    """A join with a bug; everything else passes through."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.inner = HashJoin(*arguments, **options)
        self.inputs, self.output = self.inner.inputs, self.inner.output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _LosesTheLastChunk(_Planted):
    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        chunks = list(self.inner.answer(tick, deltas))
        yield from chunks[:1] if len(chunks) > 1 else chunks


class _ForgetsTheCrossTerm(_Planted):
    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        left, right = deltas
        yield from self.inner.answer(tick, [left, ZSet.empty(right.schema)] if len(left) else deltas)


class _IgnoresNullSafety(_Planted):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "null_safe": [False] * len(options["null_safe"])})


class _IgnoresTheResidual(_Planted):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "residual": None})


class _RestoresNothing(_Planted):
    def restore(self, tables: Any) -> None:
        del tables


@pytest.mark.parametrize(
    "planted", [_LosesTheLastChunk, _ForgetsTheCrossTerm, _IgnoresNullSafety, _IgnoresTheResidual, _RestoresNothing]
)
def test_a_planted_bug_is_found(planted: Callable[..., Operator]) -> None:
    with pytest.raises(PlanDiffersError, match=r"expected weight, actual weight|legal input was refused"):
        _run_all(planted)


def _run_all(make_join: Callable[..., Operator]) -> None:
    for seed in range(_TRIES):
        run_plan(seed, Tally(), sizes=_SMALL, make_join=make_join)


def test_a_run_that_compared_nothing_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert held_against_floors(Tally(plans=1, events=1_000), 1_000) == 1
    assert "only 0 rows; the floor is 100" in capsys.readouterr().out


def test_the_command_prints_what_it_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--events", "300", "--seed", "6"]) == 0
    assert "1 plans" in capsys.readouterr().out
