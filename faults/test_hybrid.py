"""Kills and disk errors while rows move between memory and disk: nothing is lost, nothing is doubled.

Both are caches, so a life may lose them; it must never go on with half of a move. The budget is no row at all, so every epoch
moves all it touches, and the faults are at the files of the cold rows.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from faults import io_errors, kills
from faults.driver import Driver, Place
from faults.histories import Shape, recorded_history
from faults.profiles import chosen
from faults.tally import Tally

COLD = "/cold/"
KILLS_OF_A_JOIN = chosen(short=20, long=250)
POINTS_OF_AN_EPOCH = chosen(short=12, long=None)
ERRORS_OF_A_JOIN = chosen(short=40, long=600)
EPOCHS = (3, 6)
QUERIES: tuple[tuple[str, Shape], ...] = (("full", "upserts"), ("left_anti", "changelog"))


@pytest.fixture(scope="module", autouse=True)
def warm_hybrid(warm: None) -> None:
    """Compile what moving rows needs, so that a child forked from here starts at once."""
    for how, shape in QUERIES:
        directory = Path(tempfile.mkdtemp(prefix="zset_join-faults-"))
        history = recorded_history(how, shape, seed=0, max_hot_keys=0)
        driver = Driver(history, Place(directory)).open()
        driver.run(range(len(history.epochs)))
        driver.close()
        shutil.rmtree(directory)


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize(("how", "shape"), QUERIES)
def test_a_process_killed_while_rows_move_loses_and_doubles_nothing(
    how: str, shape: Shape, scratch: Path, tally: Tally
) -> None:
    history = recorded_history(how, shape, seed=5, max_hot_keys=0)

    kills.search(history, "changelog", scratch, tally, epochs=EPOCHS, points=POINTS_OF_AN_EPOCH, among=COLD)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("kills observed") >= KILLS_OF_A_JOIN


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize(("how", "shape"), QUERIES)
def test_an_error_of_the_disk_while_rows_move_loses_and_doubles_nothing(
    how: str, shape: Shape, scratch: Path, tally: Tally
) -> None:
    io_errors.search(how, shape, "changelog", scratch, tally, wanted=ERRORS_OF_A_JOIN, max_hot_keys=0, among=COLD)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("errors observed") >= ERRORS_OF_A_JOIN
    assert min(tally.of("ENOSPC"), tally.of("EIO"), tally.of("half a write, then ENOSPC")) > 0
