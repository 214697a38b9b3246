"""Workers and drivers are killed, and a join with groups behind it stays the batch query.

`make soak` kills them much more often and behind the output, and those of a join alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.spark_faults import short_of, views
from faults.tally import Tally

# Spark runs in processes of its own, so this is a file of its own; the fuse is for a machine that does many other things.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_a_join_and_groups_behind_it_survive_killed_workers_and_drivers(tmp_path: Path) -> None:
    tally = Tally()

    views(tmp_path, tally, epochs=4, moments=("before-commit@1",), killing=(0, 3), seed=9)

    floors = {"worker kills observed": 9, "driver kills observed": 1, "comparisons": 2, "comparisons with Spark": 1}
    assert not short_of(tally, floors), tally
