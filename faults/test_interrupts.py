"""A step that is interrupted anywhere: the pipeline continues rightly, or refuses."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from faults.interrupts import INTERRUPTS, Interrupt, expected, interrupt_and_go_on, places_of_a_step
from faults.profiles import chosen
from faults.tally import Tally
from zset_join.checkpoint import local_state

INTERRUPTS_IN_MEMORY = chosen(short=40, long=100_000)
INTERRUPTS_WITH_A_DIRECTORY = chosen(short=10, long=100_000)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an exception inside a finalizer is printed
@pytest.mark.timeout(chosen(short=120, long=0))
@pytest.mark.parametrize(
    ("lasts", "wanted", "threads"),
    [(False, INTERRUPTS_IN_MEMORY, 1), (True, INTERRUPTS_WITH_A_DIRECTORY, 1), (True, INTERRUPTS_WITH_A_DIRECTORY, 2)],
)
def test_a_step_that_is_interrupted_anywhere_leaves_a_pipeline_that_goes_on_rightly_or_refuses(
    lasts: bool, wanted: int, threads: int, scratch: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_state, "_PATIENCE_SECONDS", 0.2)
    right = expected()
    places = places_of_a_step(scratch / "counted" if lasts else None, threads)
    turns = sorted((place, turn) for place, count in places.items() for turn in {0, count - 1})
    Random(0).shuffle(turns)

    for number, (place, turn) in enumerate(turns[:wanted]):
        interrupt = Interrupt(place, turn, INTERRUPTS[number % len(INTERRUPTS)], threads)
        interrupt_and_go_on(scratch / str(number) if lasts else None, interrupt, right, tally)

    assert tally.problems == []
    assert tally.of("interrupts") >= 0.9 * min(wanted, len(turns))
