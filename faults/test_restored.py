"""A checkpoint and an output of different times are refused, and a savepoint of both continues."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from unittest import mock

import pytest

from faults.driver import Kind
from faults.histories import HOWS, recorded_history
from faults.profiles import chosen
from faults.restored import search
from faults.sinks import SINKS
from faults.tally import Tally
from zset_join.sinks.sink import is_replay

RUNS = chosen(short=[(1, 2), (2, 6)], long=[(copied, ran) for copied in range(6) for ran in range(copied + 1, 7)])
KINDS = ["changelog", *SINKS]
QUERIES = chosen(
    short=[("full", kind) for kind in KINDS],
    long=[(how, kind) for how in HOWS for kind in ("changelog", "view")] + [("full", kind) for kind in KINDS[2:]],
)

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.timeout(chosen(short=300, long=0))
@pytest.mark.parametrize(("how", "kind"), QUERIES)
def test_what_is_restored_alone_is_refused_and_what_is_restored_together_goes_on(
    how: str, kind: Kind, scratch: Path, tally: Tally
) -> None:
    for copied, ran in RUNS:
        search(recorded_history(how, "upserts", seed=copied), scratch, tally, kind=kind, copied=copied, ran=ran)

    assert tally.problems == []
    assert (tally.of("refusals"), tally.of("savepoints")) == (len(RUNS), len(RUNS))
    behind_by_one = sum(ran == copied + 1 for copied, ran in RUNS)
    assert (tally.of("older outputs caught up"), tally.of("older outputs refused")) == (
        behind_by_one,
        len(RUNS) - behind_by_one,
    )


@pytest.mark.parametrize("kind", chosen(short=["changelog", "csv"], long=KINDS))
def test_an_output_that_compares_numbers_only_is_caught(kind: Kind, scratch: Path, tally: Tally) -> None:
    def by_number(sink: str, last: int | None, _digests: object, epoch: int, _link: object) -> bool:
        return is_replay(sink, last, epoch)

    with contextlib.ExitStack() as spoiled:
        for module in list(sys.modules.values()):
            if module.__name__.startswith("zset_join.sinks.") and hasattr(module, "is_same_epoch"):
                spoiled.enter_context(mock.patch.object(module, "is_same_epoch", by_number))
        search(recorded_history("left", "upserts", seed=1), scratch, tally, kind=kind, copied=1, ran=3)

    assert tally.problems
    tally.problems.clear()
