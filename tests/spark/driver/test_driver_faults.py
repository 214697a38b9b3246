"""The driver that runs the epochs itself is killed, and view and outputs stay the batch query.

`make soak` kills it more often, at random times as well, and with rows that wait for a watermark or for an answer from outside.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.spark_faults import commits, outputs, short_of, views
from faults.tally import Tally

# Spark runs in processes of its own, so this is a file of its own; the fuse is for a machine that does many other things.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.mark.long  # a driver with more outputs dies at two of these moments, and between outputs
def test_a_killed_driver_loses_and_doubles_nothing_wherever_it_dies(tmp_path: Path) -> None:
    tally, moments = Tally(), ("before-commit@0", "before-output@1", "after-output@2")

    commits(tmp_path, tally, epochs=4, moments=moments, seed=11, execution="driver")

    assert not short_of(tally, {"driver kills observed": 3, "comparisons": 4, "comparisons with Spark": 1}), tally


@pytest.mark.parametrize("execution", ["driver", pytest.param("executors", marks=pytest.mark.long)])
def test_a_driver_killed_before_between_and_behind_outputs_gives_every_one_its_epochs_once(
    tmp_path: Path, execution: str
) -> None:
    tally = Tally()

    outputs(
        tmp_path, tally, epochs=4, moments=("between-2@0", "before-commit@1", "after-output@2"), seed=12, execution=execution
    )

    assert not short_of(tally, {"driver kills observed": 3, "outputs apart": 1}), tally


def test_groups_of_a_join_on_disk_survive_a_killed_driver_and_a_killed_function(tmp_path: Path) -> None:
    tally = Tally()

    views(tmp_path, tally, epochs=4, moments=("after-output@1",), killing=(), seed=13, view="hybrid", execution="driver")

    floors = {"driver kills observed": 1, "worker kills observed": 1, "rows and groups on disk": 1}
    assert not short_of(tally, floors), tally
