"""A lookup join whose process, or whose server, is killed at a drawn moment; the long profile draws 1,000 schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.lookup_kills import CountingServer, run_schedule, warm_up
from faults.profiles import chosen
from faults.tally import Tally

SCHEDULES = chosen(short=3, long=1000)


@pytest.mark.timeout(chosen(short=300, long=0))
def test_nothing_is_lost_or_doubled_and_no_call_is_made_after_its_answer_was_journaled(scratch: Path, tally: Tally) -> None:
    server = CountingServer()
    try:
        warm_up(scratch, server)
        for seed in range(1, SCHEDULES + 1):
            (scratch / str(seed)).mkdir()
            run_schedule(seed, scratch / str(seed), server, tally)
    finally:
        server.close()
    tally.count("server restarts", server.restarts)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("comparisons") == SCHEDULES
    assert tally.of("kills observed") >= 3 * SCHEDULES
    assert tally.of("kills between fetch and commit") >= SCHEDULES // 2
    assert tally.of("kills between commit and output") >= SCHEDULES // 2
    assert tally.of("epochs requested again whose answers were journaled") >= SCHEDULES // 2
    assert tally.of("server restarts") >= SCHEDULES // 5
