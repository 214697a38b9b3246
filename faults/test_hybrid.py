"""Kills and disk errors while rows and groups move between memory and disk: nothing is lost, nothing is doubled.

Both are caches, so a life may lose them; it must never continue with half of a move. The budget is no row at all, so every
epoch moves all it touches. The faults are at every file operation of the cold stores, distinguished by what they are for
(`faults.cold_work`). A life that is killed has two epochs, so that rows are also put back where they were; memory is given back
after every epoch, which is no file operation. On a push each query has its cold rows on one medium, and plain joins meet kills
and joins with a residual predicate errors; the long profile has all on both.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from faults import io_errors, kills
from faults.cold_work import WHILE, by_work, named_work
from faults.driver import Driver, Place
from faults.histories import History, grouped_history, recorded_history
from faults.profiles import chosen
from faults.tally import Tally
from spill.duckdb_pages import DuckDBFile
from tests.sweeps import some_of

POINTS_OF_AN_EPOCH = chosen(short=2, long=None)
ERRORS_WANTED = 8
EPOCHS = chosen(short=(3, 6), long=(1, 2, 3, 5, 6, 7))
COMMON_WORK = {"opening", "fetching", "taking", "putting", "merging", "committing"}
WORK_OF = {
    "full": (COMMON_WORK | {"restoring", "rewriting entries"}, 500),
    "left_anti": (COMMON_WORK, 250),
    "oversized": (COMMON_WORK | {"revising"}, 250),  # a FULL join with a residual predicate, of which every key is oversized
    "streamed": (COMMON_WORK | {"revising"}, 250),  # the same, of which no key is oversized
    "groups": (COMMON_WORK, 200),  # they are always written again, and found by their key alone
}
"""Per query what its operations must be for, and how many there must be in the epochs of the short profile."""

QUERIES = chosen(short=("full", "streamed", "groups"), long=tuple(WORK_OF))
MEDIA_OF = chosen(
    short={query: ("duckdb",) if query in ("left_anti", "groups") else ("files",) for query in QUERIES},
    long=dict.fromkeys(QUERIES, ("files", "duckdb")),
)
CASES = [(query, medium) for query in QUERIES for medium in MEDIA_OF[query]]
NAMED = {f"{query}-{medium}": (query, medium) for query, medium in CASES}
KILLS_OF = chosen(
    short=dict.fromkeys(QUERIES, 3),
    long={"full": 3_500, "left_anti": 2_400, "oversized": 2_400, "streamed": 2_400, "groups": 1_500},
)
ERRORS_OF = chosen(
    short=dict.fromkeys(QUERIES, ERRORS_WANTED),
    long={"full": 2_000, "left_anti": 1_200, "oversized": 1_200, "streamed": 1_200, "groups": 600},
)
"""Per query how many must be observed; the long profile has a fault at every operation."""


def history_of(query: str, medium: str, seed: int) -> History:
    """Return the history of a query with nothing in memory between epochs."""
    return replace(_history_of(query, seed), cold_store=medium)


def _history_of(query: str, seed: int) -> History:
    if query == "groups":
        return grouped_history(seed=seed)
    if query == "oversized" or query == "streamed":
        return recorded_history("full", "changelog", seed=seed, max_hot_keys=0, judged=query)
    return recorded_history(query, "upserts" if query == "full" else "changelog", seed=seed, max_hot_keys=0)


@pytest.fixture(scope="module", autouse=True)
def warm_hybrid(warm: None) -> Iterator[None]:
    """Compile what moving rows needs, so that a child forked from here starts at once, and name what operations are for."""
    for query, medium in CASES:
        directory = Path(tempfile.mkdtemp(prefix="zset_join-faults-"))
        history = history_of(query, medium, seed=0)
        driver = Driver(history, Place(directory)).open()
        driver.run(range(len(history.epochs)))
        driver.close()
        shutil.rmtree(directory)
    with named_work():
        yield


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize(("query", "medium"), CASES)
def test_the_histories_do_all_the_work_that_is_to_be_disturbed(query: str, medium: str, scratch: Path, tally: Tally) -> None:
    stages = kills.stages_of(history_of(query, medium, seed=5), "changelog", scratch, EPOCHS, epochs_of_a_life=2)

    found = by_work(described for stage in stages for described in stage.operations)

    for work, operations in found.items():
        tally.count(f"operations {work}", operations)
    wanted, least = WORK_OF[query]
    assert wanted - set(found) == set()
    assert found.total() >= least


def test_a_process_that_keeps_a_bucket_opens_its_duckdb_file_once(scratch: Path) -> None:
    opened: Counter[str] = Counter()
    open_file = DuckDBFile.__init__

    def counted(self: DuckDBFile, path: Path, **options: Any) -> None:
        opened.update([str(path)] if scratch in Path(path).parents else [])
        open_file(self, path, **options)

    history = history_of("full", "duckdb", seed=5)
    with mock.patch.object(DuckDBFile, "__init__", counted):
        driver = Driver(history, Place(scratch)).open()
        driver.run(range(len(history.epochs)))
        driver.close()

    assert (len(opened), set(opened.values())) == (4, {1})  # two buckets of the join, two of the route; one file for both sides


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize(("query", "medium"), some_of(NAMED, short=chosen(short=("full-files", "groups-duckdb"), long=NAMED)))
def test_a_process_killed_while_rows_move_loses_and_doubles_nothing(
    query: str, medium: str, scratch: Path, tally: Tally
) -> None:
    kills.search(
        history_of(query, medium, seed=5),
        "changelog",
        scratch,
        tally,
        epochs=EPOCHS,
        points=POINTS_OF_AN_EPOCH,
        among=WHILE,
        epochs_of_a_life=2,
    )

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("kills observed") >= KILLS_OF[query]
    if POINTS_OF_AN_EPOCH is None:
        assert tally.of("different operations killed at") == tally.of("different operations")


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize(
    ("query", "medium"), some_of(NAMED, short=chosen(short=("streamed-files", "groups-duckdb"), long=NAMED))
)
def test_an_error_of_the_disk_while_rows_move_loses_and_doubles_nothing(
    query: str, medium: str, scratch: Path, tally: Tally
) -> None:
    wanted = None if POINTS_OF_AN_EPOCH is None else ERRORS_WANTED
    io_errors.search(history_of(query, medium, seed=0), "changelog", scratch, tally, wanted=wanted, among=WHILE)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("errors observed") >= ERRORS_OF[query]
    assert min(tally.of("ENOSPC"), tally.of("EIO"), tally.of("half a write, then ENOSPC")) > 0
