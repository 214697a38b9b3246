"""Workers and drivers are killed, and the view stays the batch join; `make soak` kills them much more often."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.spark_faults import commits, short_of
from faults.tally import Tally

# Spark runs in processes of its own, so this is a file of its own; the fuse is for a machine that does many other things.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_workers_and_drivers_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    tally = Tally()

    commits(tmp_path, tally, epochs=5, moments=("after-output@3",), killing=(0, 4), seed=7)

    assert not short_of(tally, {"worker kills observed": 8, "driver kills observed": 1, "comparisons with Spark": 1}), tally
