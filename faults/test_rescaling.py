"""A rescaling that is killed anywhere leaves the old buckets or the new ones; and what follows is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.driver import Driver, Place
from faults.histories import HOWS, HOWS_ON_A_PUSH, SHAPES, Shape, recorded_history
from faults.profiles import chosen
from faults.recovery import opened
from faults.rescaling import rescale, search
from faults.tally import Tally
from tests.sweeps import some_of

POINTS = chosen(short=8, long=None)
KILLS = chosen(short=6, long=80)

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("how", some_of(HOWS, short=HOWS_ON_A_PUSH))
def test_the_sums_stay_right_from_2_buckets_to_3_to_1(how: str, shape: Shape, scratch: Path, tally: Tally) -> None:
    history, place = recorded_history(how, shape, seed=11), Place(scratch)

    for epoch, buckets in enumerate((2, 3, 3, 1, 1, 4, 4, 2)):
        with opened(Driver(history, place, host=("host-a", "host-b")[epoch % 2])) as driver:
            driver.run_epoch(epoch)
            tally.compare(
                driver.output.contents(), history.expected[epoch], f"epoch {epoch}, {driver.checkpoint.buckets} buckets"
            )
        rescale(history, place, buckets)

    assert tally.problems == []
    assert tally.of("comparisons") == 8


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize(
    ("shape", "is_published"),
    some_of(
        {f"{shape}-{is_published}": (shape, is_published) for shape in SHAPES for is_published in (True, False)},
        short=("upserts-True", "changelog-False"),
    ),
)
def test_a_killed_rescaling_leaves_the_old_buckets_or_the_new_ones(
    shape: Shape, is_published: bool, scratch: Path, tally: Tally
) -> None:
    history = recorded_history("full", shape, seed=12)

    search(history, scratch, tally, epoch=3, buckets=3, is_published=is_published, points=POINTS)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("kills observed") >= KILLS
    assert tally.of("rescalings that counted") > 0
    assert tally.of("rescalings that did not") > 0
    assert tally.of("comparisons") >= 3 * KILLS
