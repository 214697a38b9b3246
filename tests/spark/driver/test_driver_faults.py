"""The driver that runs the epochs itself is killed, and view and outputs stay the batch query.

`make soak` kills it more often, also behind outputs and at random times, with groups and rows on disk, and with rows that wait
for a watermark or for an answer from outside.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.spark_faults import outputs, short_of
from faults.tally import Tally

# Spark runs in processes of its own, so this is a file of its own; the fuse is for a machine that does many other things.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_a_driver_killed_before_and_between_outputs_gives_every_one_its_epochs_once(tmp_path: Path) -> None:
    tally, moments = Tally(), ("between-2@1", "before-commit@2")

    outputs(tmp_path, tally, epochs=3, moments=moments, seed=12, execution="driver")

    assert not short_of(tally, {"driver kills observed": 2, "outputs apart": 1}), tally
