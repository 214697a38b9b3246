"""A damaged checkpoint is refused, or the damage is where nobody reads; a wrong answer is never given."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.damage import search_bytes, search_files, search_local
from faults.profiles import chosen
from faults.tally import Tally

# The long profile injures every byte of every file.
SAMPLE = chosen(short=16, long=None)
BYTES = chosen(short=16, long=15_000)
SWAPS = chosen(short=12, long=None)
FILES = chosen(short=40, long=840)  # the long profile: 227 swaps, and every file missing, empty, longer
JUDGED = ("damages detected", "damages of files that nobody reads", "damages of ends that do not count")

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.timeout(chosen(short=300, long=0))
def test_every_flipped_byte_is_detected(scratch: Path, tally: Tally) -> None:
    search_bytes("flips", scratch, tally, sample=SAMPLE)

    assert tally.problems == []
    assert sum(map(tally.of, JUDGED)) == tally.of("damages injected")
    assert tally.of("damages injected") >= BYTES
    assert tally.of("damages detected") >= BYTES // 3


@pytest.mark.timeout(chosen(short=300, long=0))
def test_every_cut_file_is_detected(scratch: Path, tally: Tally) -> None:
    search_bytes("cuts", scratch, tally, sample=SAMPLE)

    assert tally.problems == []
    assert sum(map(tally.of, JUDGED)) == tally.of("damages injected")
    assert tally.of("damages injected") >= BYTES
    assert tally.of("damages detected") >= BYTES // 3


@pytest.mark.timeout(chosen(short=300, long=0))
def test_every_missing_empty_longer_or_swapped_file_is_detected(scratch: Path, tally: Tally) -> None:
    search_files(scratch, tally, sample=SWAPS)

    assert tally.problems == []
    assert sum(map(tally.of, JUDGED)) == tally.of("damages injected")
    assert tally.of("damages injected") >= FILES
    assert tally.of("damages detected") >= FILES // 3


@pytest.mark.timeout(chosen(short=300, long=0))
def test_damaged_local_state_is_rebuilt(scratch: Path, tally: Tally) -> None:
    search_local(scratch, tally, ways=chosen(short=1, long=5))

    assert tally.problems == []
    assert tally.of("local damages injected") >= 30
