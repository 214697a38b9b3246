"""After a power cut, whatever the disk kept: the newest epoch whose commit returned is there, and no epoch is there by half."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.crash_states import search
from faults.histories import HOWS
from faults.profiles import chosen
from faults.tally import Tally

# Six join types: the long profile checks more than 20,000 states.
STATES_OF_A_JOIN = chosen(short=60, long=3_400)

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize("how", HOWS)
def test_every_state_of_the_disk_is_recovered_from(how: str, scratch: Path, tally: Tally) -> None:
    search(how, scratch, tally, wanted=STATES_OF_A_JOIN)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("states built") >= STATES_OF_A_JOIN
    assert tally.of("states observed to differ from what was written") >= STATES_OF_A_JOIN // 2
    assert tally.of("torn states") >= STATES_OF_A_JOIN // 10
    assert tally.of("comparisons") >= 2 * STATES_OF_A_JOIN


@pytest.mark.timeout(chosen(short=300, long=0))
def test_what_a_killed_process_named_and_never_synced_is_not_built_upon(scratch: Path, tally: Tally) -> None:
    search("full", scratch, tally, wanted=STATES_OF_A_JOIN // 2, lives=True, seed=1)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("runs of several lives") >= 12
    assert tally.of("states built") >= STATES_OF_A_JOIN // 2
    assert tally.of("comparisons") >= STATES_OF_A_JOIN
