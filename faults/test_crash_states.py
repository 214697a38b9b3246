"""After a power cut, whatever the disk kept, the newest committed epoch is present, and no epoch is partly present."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.crash_states import search
from faults.histories import HOWS, HOWS_ON_A_PUSH
from faults.profiles import chosen
from faults.tally import Tally
from tests.sweeps import some_of

# An epoch does the same file operations whatever the join type is: on a push, one type is searched long.
# Six join types: the long profile checks more than 20,000 states.
THOROUGH = chosen(short=("full",), long=HOWS)
STATES_OF_A_JOIN = chosen(short={how: 12 if how in THOROUGH else 10 for how in HOWS}, long=dict.fromkeys(HOWS, 3_400))
STATES_OF_LIVES = chosen(short=8, long=1_700)

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize("how", some_of(HOWS, short=HOWS_ON_A_PUSH))
def test_every_state_of_the_disk_is_recovered_from(how: str, scratch: Path, tally: Tally) -> None:
    states = STATES_OF_A_JOIN[how]

    search(how, scratch, tally, wanted=states)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("states built") >= states
    assert tally.of("states observed to differ from what was written") >= states // 2
    assert tally.of("torn states") >= states // 10
    assert tally.of("comparisons") >= 2 * states


@pytest.mark.timeout(chosen(short=300, long=0))
def test_what_a_killed_process_named_and_never_synced_is_not_built_upon(scratch: Path, tally: Tally) -> None:
    search("full", scratch, tally, wanted=STATES_OF_LIVES, lives=True, seed=1)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("runs of several lives") >= 6
    assert tally.of("states built") >= STATES_OF_LIVES
    assert tally.of("comparisons") >= 2 * STATES_OF_LIVES
