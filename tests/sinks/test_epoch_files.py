"""A directory of one file per epoch: what is removed, and what is left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from zset_join.core.epochs import ChainLink
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.csv_files import CsvFilesSink
from zset_join.sinks.sink import DIGESTS_KEPT
from zset_join.storage.operations import Operation, observe
from zset_join.zset import ZSet

ROWS = ZSet.of({"k": [1]})
OUTPUT = Relation(name="answer", schema=ROWS.schema, mode="changelog")


def attached(directory: Path) -> CsvFilesSink:
    files = CsvFilesSink(directory)
    files.open(OUTPUT, "query")
    return files


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_empty_epochs_beyond_the_newest_hundred_are_forgotten(tmp_path: Path) -> None:
    files = attached(tmp_path)
    [files.write(epoch, [], link=ChainLink(f"d{epoch}", f"d{epoch - 1}")) for epoch in range(DIGESTS_KEPT + 9)]

    assert len(names(tmp_path)) <= DIGESTS_KEPT + 2
    assert attached(tmp_path).last_epoch() == DIGESTS_KEPT + 8


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    attached(tmp_path)
    half = tmp_path / f".epoch-000000000000-d0.csv.{'0' * 32}"
    half.write_text("half")
    (tmp_path / ".gitkeep").write_text("")

    attached(tmp_path)

    assert names(tmp_path) == {"_query.json", ".gitkeep"}


@pytest.mark.parametrize("text", ["[]", "{"])
def test_a_damaged_header_is_named(tmp_path: Path, text: str) -> None:
    attached(tmp_path)
    (tmp_path / "_query.json").write_text(text)

    with pytest.raises(SinkError, match=r"could not be opened: .*") as refused:
        attached(tmp_path)
    assert refused.value.code == "SINK_IO"


@pytest.mark.parametrize("chunks", [[ROWS], []], ids=["rows", "empty"])
def test_an_epoch_costs_as_many_operations_after_many_epochs_as_after_few(tmp_path: Path, chunks: list[ZSet]) -> None:
    files = attached(tmp_path)
    counts = []
    for epoch in range(5 * DIGESTS_KEPT):
        seen: Counter[str] = Counter()
        with observe(partial(_count, seen)):
            files.write(epoch, chunks, link=ChainLink(f"d{epoch}", f"d{epoch - 1}"))
        counts.append(seen)

    assert counts[-1] == counts[2 * DIGESTS_KEPT]
    assert counts[-1]["list"] == 0
    assert sum(counts[-1].values()) <= sum(counts[1].values()) + (not chunks) * 2


def test_epochs_of_another_driver_and_old_ones_are_seen(tmp_path: Path) -> None:
    files = attached(tmp_path)
    [files.write(epoch, [ROWS], link=ChainLink(f"d{epoch}", f"d{epoch - 1}")) for epoch in range(3 * DIGESTS_KEPT)]
    last = 3 * DIGESTS_KEPT
    attached(tmp_path).write(last, [ROWS], link=ChainLink(f"d{last}", f"d{last - 1}"))

    assert files.write(last, [ROWS], link=ChainLink(f"d{last}", f"d{last - 1}")).replayed
    assert files.has(1, ChainLink("d1", "d0"))
    with pytest.raises(SinkError) as refused:
        files.has(1, ChainLink("x1", "d0"))
    assert refused.value.code == "SINK_OTHER_CHAIN"


def _count(seen: Counter[str], operation: Operation, act: Callable[[], Any]) -> Any:
    seen[operation.kind] += 1
    return act()
