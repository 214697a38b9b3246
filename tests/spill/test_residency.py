"""Which entries are spilled, and why a sweep over cold entries does not throw out the hot ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spill.residency import NEVER, ResidencyPolicy
from zset_join.core.errors import OptionError

SCORES = st.floats(width=32, allow_nan=False) | st.sampled_from([float("-inf"), -1.0, 0.0, 1.0, 1.0000001])
ENTRIES = st.lists(st.tuples(SCORES, st.integers(-1, 1000)), max_size=60)
LIMITS = st.none() | st.integers(0, 5000)


def arrays(entries: list[tuple[float, int]]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return scores and sizes."""
    return np.array([score for score, _ in entries], np.float32), np.array([size for _, size in entries], np.int64)


def target(limit: int | None, held: int, slack: float) -> float:
    """Return how much may stay, by definition."""
    return float("inf") if limit is None else held if held <= limit else int(limit * (1 - slack))


def expected_victims(entries: list[tuple[float, int]], policy: ResidencyPolicy) -> list[int]:
    """Choose victims one by one, by the law."""
    scores, sizes = arrays(entries)
    order = [at for at in np.lexsort((np.arange(len(entries)), scores)).tolist() if sizes[at] >= 0]
    held = int(sizes[order].sum())
    least_bytes = target(policy.max_hot_bytes, held, policy.slack)
    least_entries = target(policy.max_hot_keys, len(order), policy.slack)
    victims: list[int] = []
    while held > least_bytes or len(order) - len(victims) > least_entries:
        victims.append(order[len(victims)])
        held -= int(sizes[victims[-1]])
    return sorted(victims)


@given(ENTRIES, LIMITS, LIMITS, st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_victims_are_the_fewest_of_lowest_score_that_restore_the_budget(
    entries: list[tuple[float, int]], max_hot_bytes: int | None, max_hot_keys: int | None, slack: float
) -> None:
    policy = ResidencyPolicy(max_hot_bytes=max_hot_bytes, max_hot_keys=max_hot_keys, slack=slack)

    assert policy.victims(*arrays(entries)).tolist() == expected_victims(entries, policy)


def test_a_later_touch_is_worth_more_than_an_earlier_one() -> None:
    policy = ResidencyPolicy()
    new = np.array([NEVER])

    assert policy.touched(new, 2.0)[0] > policy.touched(new, 1.0)[0]


def test_two_touches_are_worth_one_half_life() -> None:
    policy = ResidencyPolicy()
    new = np.array([NEVER])

    assert policy.touched(policy.touched(new, 1.0), 1.0)[0] == policy.touched(new, 2.0)[0]


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(0, 100))
def test_time_alone_never_changes_the_order_of_two_entries(first: float, second: float, later: float) -> None:
    policy = ResidencyPolicy(max_hot_keys=1, slack=0.0)
    scores = policy.touched(np.array([first, second], np.float32), clock=max(first, second))

    after = policy.touched(scores, clock=max(first, second) + later)

    assert (scores[0] <= scores[1]) == (after[0] <= after[1]) or abs(after[0] - after[1]) < 1e-3


def test_the_clock_counts_budgets_that_were_spilled() -> None:
    policy = ResidencyPolicy(max_hot_bytes=1000, max_hot_keys=10)

    assert policy.advanced(1.0, spilled_bytes=1500, spilled_keys=30) == 2.0
    assert policy.advanced(1.0, spilled_bytes=6000, spilled_keys=0) == 3.0
    assert policy.advanced(1.0, spilled_bytes=0, spilled_keys=0) == 1.0


def test_a_clock_without_a_budget_does_not_move() -> None:
    assert ResidencyPolicy().advanced(1.0, spilled_bytes=100, spilled_keys=1) == 1.0


class Memory:
    """Entries that are touched, and spilled when they are too many."""

    def __init__(self, entries: int, max_hot_keys: int) -> None:
        self.policy = ResidencyPolicy(max_hot_keys=max_hot_keys)
        self.scores = np.full(entries, NEVER)
        self.resident = np.zeros(entries, np.bool_)
        self.clock = 0.0

    def touch(self, entries: npt.NDArray[Any]) -> float:
        """Touch entries in one epoch; return which part of them was in memory."""
        hits = float(self.resident[entries].mean())
        self.scores[entries] = self.policy.touched(self.scores[entries], self.clock)
        self.resident[entries] = True
        held = np.flatnonzero(self.resident)
        victims = self.policy.victims(self.scores[held], np.ones(len(held), np.int64))
        self.resident[held[victims]] = False
        self.clock = self.policy.advanced(self.clock, spilled_bytes=0, spilled_keys=len(victims))
        return hits


def test_one_sweep_over_everything_leaves_the_hot_entries_in_memory() -> None:
    memory = Memory(entries=10_000, max_hot_keys=1_000)
    hot = np.arange(500)
    for _ in range(20):
        memory.touch(hot)

    for begin in range(0, 10_000, 800):
        memory.touch(np.arange(begin, min(begin + 800, 10_000)))

    assert memory.resident[hot].all()


def test_a_new_favourite_is_taken_in_while_the_old_one_is_forgotten() -> None:
    memory = Memory(entries=10_000, max_hot_keys=1_000)
    old, new = np.arange(900), np.arange(5_000, 5_900)
    for _ in range(50):
        memory.touch(old)

    hits = [memory.touch(new) for _ in range(40)]

    assert hits[0] == 0.0
    assert hits[-1] == 1.0
    assert memory.resident[old].mean() < 0.2


@pytest.mark.parametrize(("option", "value"), [("max_hot_bytes", -1), ("max_hot_keys", -5), ("slack", -0.1), ("slack", 1.1)])
def test_a_limit_that_is_none_is_refused(option: str, value: float) -> None:
    options: dict[str, Any] = {option: value}

    with pytest.raises(OptionError) as refused:
        ResidencyPolicy(**options)

    assert (refused.value.code, refused.value.facts["option"]) == ("OPTION_VALUE", option)
