"""The soak makes the comparisons it reports, and fails when something grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from faults.soak import Counted, Sample, held_against_limits, run

ENOUGH = Counted(epochs=10_000, comparisons=100, rows_compared=1_000)
STEADY = Sample(seconds=0.0, anonymous=9 << 20, resident=9 << 20, descriptors=20, checkpoint=999, local=999)


def samples(at: Callable[[int], Sample]) -> list[Sample]:
    return [replace(at(second), seconds=float(second)) for second in range(60)]


def test_a_short_soak_compares_restarts_and_finds_no_difference(scratch: Path) -> None:
    counted, measured, seconds = run(minutes=0.15, seed=2, root=scratch)

    assert counted.differences == 0
    assert counted.comparisons >= 1
    assert counted.rows_compared > 100
    assert counted.epochs == len(seconds) > 3
    assert all(sample.anonymous and sample.resident and sample.descriptors and sample.checkpoint for sample in measured[1:])


def test_a_run_in_which_nothing_grew_passes() -> None:
    assert held_against_limits(ENOUGH, samples(lambda _: STEADY), [0.01] * 100, 1.0) == []


@pytest.mark.parametrize(
    ("grown", "complaint"),
    [
        (lambda at: replace(STEADY, anonymous=at << 20), "anonymous gained 61,"),
        (lambda at: replace(STEADY, resident=at << 20), "resident gained 61,"),
        (lambda at: replace(STEADY, descriptors=at), "descriptors gained 59"),
        (lambda at: replace(STEADY, checkpoint=1000 * at), "checkpoint gained 59,000"),
        (lambda at: replace(STEADY, local=1000 * at), "local gained 59,000"),
    ],
)
def test_growth_is_reported(grown: Callable[[int], Sample], complaint: str) -> None:
    (reported,) = held_against_limits(ENOUGH, samples(grown), [0.01] * 100, 1.0)

    assert reported.startswith(complaint)


@pytest.mark.parametrize(
    ("counted", "seconds", "complaint"),
    [
        (replace(ENOUGH, differences=3), [0.01] * 100, "3 rows differ"),
        (replace(ENOUGH, epochs=2), [0.01] * 100, "only 2 epochs; the floor is 20"),
        (replace(ENOUGH, comparisons=0), [0.01] * 100, "only 0 comparisons"),
        (ENOUGH, [0.01] * 95 + [9.0] * 5, "the p99 of a tenth is 9.000 s"),
    ],
)
def test_other_faults_are_reported(counted: Counted, seconds: list[float], complaint: str) -> None:
    (reported,) = held_against_limits(counted, samples(lambda _: STEADY), seconds, 1.0)

    assert reported.startswith(complaint)
