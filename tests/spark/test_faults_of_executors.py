"""Buckets find their state on two executors; one is killed, and the view stays the batch join. `make soak` kills more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.spark_faults import executors, short_of
from faults.tally import Tally

# Spark runs in processes of its own, so this is a file of its own; the fuse is for a machine that does many other things.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.mark.long  # a cluster; services kill an executor of two on every push
def test_every_bucket_finds_its_state_where_it_runs_and_an_executor_that_is_killed_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    tally = Tally()

    death = executors(tmp_path, tally, epochs=5, killing=3, seed=8)

    before = [line["locality"] for line in death.printed if "locality" in line and line["epoch"] < 3]
    hits, misses = (sum(entry[name] for entry in before) for name in ("hits", "misses"))
    assert hits + misses >= 14  # two epochs after the first, four buckets, two stages
    assert misses <= 4, before
    assert {entry["executors"] for entry in before} == {2}
    assert not short_of(tally, {"executor kills observed": 1, "comparisons with Spark": 1}), tally
