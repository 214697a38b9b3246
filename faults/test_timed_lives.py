"""Temporal joins die while rows wait, by SIGKILL and without power; the long profile draws 200 lives and 4,000 disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.profiles import chosen
from faults.tally import Tally
from faults.timed_lives import KINDS, TimedLife, kills, power_cuts, warm_up

LIVES = chosen(short=1, long=200)
RUNS, STATES = chosen(short=1, long=40), chosen(short=12, long=100)

pytestmark = pytest.mark.timeout(chosen(short=300, long=0))


@pytest.mark.parametrize("kind", KINDS)
def test_every_epoch_is_answered_as_by_the_oracle_whenever_a_process_is_killed(kind: str, scratch: Path, tally: Tally) -> None:
    warm_up(TimedLife(kind, 0), scratch)
    for seed in range(LIVES):
        life = TimedLife(kind, seed)
        (scratch / str(seed)).mkdir()
        kills(life, scratch / str(seed), tally)
        tally.count("rows that waited at the end of an epoch", life.waiting)

    assert tally.problems == []
    assert tally.of("comparisons") == 9 * LIVES
    assert tally.of("kills observed") >= 3 * LIVES
    assert tally.of("rows that waited at the end of an epoch") >= 5 * LIVES


@pytest.mark.parametrize("kind", KINDS)
def test_every_epoch_is_answered_as_by_the_oracle_from_every_disk(kind: str, scratch: Path, tally: Tally) -> None:
    for seed in range(RUNS):
        (scratch / str(seed)).mkdir()
        power_cuts(TimedLife(kind, seed), scratch / str(seed), tally, wanted=STATES)

    assert tally.problems == []
    assert tally.of("states built") >= RUNS * STATES * 9 // 10
    assert tally.of("epochs answered after a power cut") >= RUNS * STATES
