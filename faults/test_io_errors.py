"""Errors of the operating system: the epoch fails whole, names the cause, and is right when it is tried again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faults.driver import Kind
from faults.histories import Shape, loaded_history, recorded_history
from faults.io_errors import search
from faults.profiles import chosen
from faults.tally import Tally
from zset_join.operators.first_load import LoadedJoin

ERRORS_OF_A_QUERY = chosen(short=10, long=1_500)
FAULTS = ("EIO", "ENOSPC", "half a write, then ENOSPC", "half a write", "failed sync")
QUERIES: tuple[tuple[str, Shape, Kind], ...] = (
    ("full", "upserts", "changelog"),
    ("left_anti", "changelog", "changelog"),
    ("left", "upserts", "view"),
)

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize(("how", "shape", "kind"), QUERIES)
def test_an_epoch_that_meets_an_error_fails_whole_and_its_retry_is_right(
    how: str, shape: Shape, kind: Kind, scratch: Path, tally: Tally
) -> None:
    search(recorded_history(how, shape, seed=0), kind, scratch, tally, wanted=ERRORS_OF_A_QUERY)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("errors observed") >= ERRORS_OF_A_QUERY
    assert [fault for fault in FAULTS if tally.of(fault) == 0] == []
    assert tally.of("epochs that failed") >= ERRORS_OF_A_QUERY // 2
    assert tally.of("comparisons") >= 2 * ERRORS_OF_A_QUERY


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("how", ["full", "left"])
def test_a_first_load_in_parts_fails_whole_and_its_retry_is_right(
    how: str, scratch: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, parted = LoadedJoin._load, list[bool]()

    def noted(self: LoadedJoin, *arguments: Any, **whether: Any) -> Any:
        chunks = load(self, *arguments, **whether)
        parted.append(chunks is not None)
        return chunks

    monkeypatch.setattr(LoadedJoin, "_load", noted)

    search(loaded_history(how, seed=0), "changelog", scratch, tally, wanted=60)

    assert tally.problems == []
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.of("errors observed") >= 60
    assert sum(parted) >= 20
