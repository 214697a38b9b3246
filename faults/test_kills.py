"""SIGKILL before and after the operations of an epoch: nothing is lost, nothing is doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import kills
from faults.driver import Kind
from faults.histories import HOWS, HOWS_ON_A_PUSH, Shape, recorded_history
from faults.kills import Stage, search, search_moments
from faults.profiles import chosen
from faults.tally import Tally
from tests.sweeps import some_of

# An epoch does the same file operations whatever the join type is: on a push one type is killed at many of them, and
# two others at a few. Six join types: the long profile kills more than 10,000 times.
THOROUGH = chosen(short=("full",), long=HOWS)
KILLS_OF_A_JOIN = chosen(short={how: 12 if how in THOROUGH else 4 for how in HOWS}, long=dict.fromkeys(HOWS, 1_700))
# Logs are merged in epoch 3, snapshots are written and old files removed in 6 and 7.
EPOCHS = chosen(short=(3, 6), long=(3, 6, 7))
POINTS_OF_AN_EPOCH = chosen(short={how: 4 if how in THOROUGH else 2 for how in HOWS}, long=dict.fromkeys(HOWS, None))
EPOCHS_BESIDE = chosen(short=(3, 6), long=(0, 1, 2, 3, 4, 5, 6, 7))
POINTS_BESIDE = chosen(short=1, long=25)

TIMES_OF_AN_EPOCH = chosen(short=2, long=100)

BESIDE: tuple[tuple[Shape, Kind], ...] = (("changelog", "changelog"), ("upserts", "view"), ("changelog", "view"))

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize("how", some_of(HOWS, short=HOWS_ON_A_PUSH))
def test_a_killed_epoch_is_neither_lost_nor_doubled(how: str, scratch: Path, tally: Tally) -> None:
    history, points = recorded_history(how, "upserts", seed=1), POINTS_OF_AN_EPOCH[how]
    search(history, "changelog", scratch / "main", tally, epochs=EPOCHS, points=points)
    for shape, kind in BESIDE if how in THOROUGH else ():
        directory = scratch / f"{shape}-{kind}"
        search(recorded_history(how, shape, seed=2), kind, directory, tally, epochs=EPOCHS_BESIDE, points=POINTS_BESIDE)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("kills observed") >= KILLS_OF_A_JOIN[how]
    assert tally.of("comparisons") >= 2 * KILLS_OF_A_JOIN[how]


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize("kind", some_of(["changelog", "view", "csv"], short=["changelog", "view"]))
def test_a_process_killed_at_any_time_loses_and_doubles_nothing(kind: Kind, scratch: Path, tally: Tally) -> None:
    history = recorded_history("full", "upserts", seed=3)

    search_moments(history, kind, scratch, tally, epochs=EPOCHS, times=TIMES_OF_AN_EPOCH)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("kills observed") == TIMES_OF_AN_EPOCH * len(EPOCHS)
    assert tally.of("comparisons") >= 2 * TIMES_OF_AN_EPOCH * len(EPOCHS)


def test_moments_are_found_where_lives_become_ten_times_as_fast(
    scratch: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, outlive = [], kills._outlive

    def slow_at_first(stage: Stage, directory: Path, tally: Tally, seconds: float | None) -> float:
        lives.append(outlive(stage, directory, tally, seconds))
        return lives[-1] * (10 if len(lives) <= 3 else 1)

    monkeypatch.setattr(kills, "_outlive", slow_at_first)

    search_moments(recorded_history("full", "upserts", seed=3), "changelog", scratch, tally, epochs=(3,), times=6)

    assert tally.problems == []
    assert tally.of("kills observed") == 6
