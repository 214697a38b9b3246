"""Workers, drivers and executors are killed, and the view stays the batch join; `make soak` kills them much more often."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.spark_faults import commits, executors, short_of, views
from faults.tally import Tally

# Each test starts Spark in processes of its own; the fuse is for a machine that does many other things.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_workers_and_drivers_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    tally = Tally()

    commits(tmp_path, tally, epochs=5, moments=("before-output@1", "after-output@3"), killing=(0, 4), seed=7)

    assert not short_of(tally, {"worker kills observed": 8, "driver kills observed": 2, "comparisons with Spark": 1}), tally


def test_an_executor_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    tally = Tally()

    executors(tmp_path, tally, epochs=5, killing=2, seed=8)

    assert not short_of(tally, {"executor kills observed": 1, "comparisons with Spark": 1}), tally


def test_groups_behind_a_join_survive_the_same(tmp_path: Path) -> None:
    tally = Tally()

    views(tmp_path, tally, epochs=5, moments=("before-commit@1", "before-output@3"), killing=(0, 4), seed=9)

    assert not short_of(tally, {"worker kills observed": 9, "driver kills observed": 2, "comparisons with Spark": 1}), tally
