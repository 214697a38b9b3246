"""The rows that a DataFrame had in an epoch, kept in the checkpoint and trusted for a while."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.core.errors import OptionError
from zset_join.lookup import DataFrameSource
from zset_join.lookup.source import Opening
from zset_join.storage.folder import Folder, LocalFolder

SECOND = 1_000_000
SCHEMA = pa.schema({"code": pa.string()})


def source(interval: str | None) -> DataFrameSource:
    return DataFrameSource(name="codes", schema=SCHEMA, reload_interval=interval)


def rows(code: str) -> pa.Table:
    return pa.table({"code": [code]}, schema=SCHEMA)


def seen(read: DataFrameSource, folder: Folder, epoch: int) -> list[dict[str, str]]:
    table = read.of_epoch(folder, "stage", epoch).open(Opening(key=(), columns=())).load()
    assert table.schema.metadata is None
    return table.to_pylist()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return LocalFolder(tmp_path)


def test_rows_are_taken_again_until_the_interval_has_passed(folder: Folder) -> None:
    codes = source("10 s")
    codes.keep(folder, "stage", 0, rows("first"), read_us=5 * SECOND)

    assert codes.keep_earlier(folder, "stage", 1, now_us=8 * SECOND)
    assert codes.keep_earlier(folder, "stage", 2, now_us=14 * SECOND)
    assert not codes.keep_earlier(folder, "stage", 3, now_us=15 * SECOND)
    assert seen(codes, folder, 2) == [{"code": "first"}]

    codes.keep(folder, "stage", 3, rows("second"), read_us=15 * SECOND)
    assert seen(codes, folder, 3) == [{"code": "second"}]
    assert len(list(folder.names("fetched/stage/rows"))) == 1


def test_an_epoch_that_is_repeated_later_finds_the_rows_it_found_first(folder: Folder) -> None:
    codes = source("10 s")
    codes.keep(folder, "stage", 0, rows("first"), read_us=0)
    codes.keep_earlier(folder, "stage", 1, now_us=9 * SECOND)

    assert codes.has(folder, "stage", 1)  # so the driver reads nothing, however late it is by now
    assert seen(codes, folder, 1) == [{"code": "first"}]


def test_without_an_interval_every_epoch_reads_for_itself(folder: Folder) -> None:
    codes = source(None)
    codes.keep(folder, "stage", 0, rows("first"), read_us=0)

    assert not codes.keep_earlier(folder, "stage", 1, now_us=0)
    assert codes.explain() == "a DataFrame, read once per epoch"
    assert source("10 s").explain() == "a DataFrame, read every 10 s"


def test_an_interval_that_is_no_duration_is_refused() -> None:
    with pytest.raises(OptionError, match="reload_interval"):
        source("soon")
