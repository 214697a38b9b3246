from __future__ import annotations

import pytest

from zset_join.checkpoint.files import FileEntry
from zset_join.checkpoint.log import LogEntry
from zset_join.checkpoint.record import MERGE_AFTER_FILES, BucketHistory, CommitRecord, PartEntry
from zset_join.checkpoint.snapshot import SnapshotEntry


def log(epoch: int, *, size: int = 100) -> LogEntry:
    return LogEntry(epoch, epoch, f"id-{epoch}", FileEntry(f"log/join-0/{epoch}", size, 1, 0))


def history(*epochs: int) -> BucketHistory:
    return BucketHistory(logs=tuple(log(epoch) for epoch in epochs))


def test_a_snapshot_replaces_the_logs_it_includes() -> None:
    snapshot = SnapshotEntry(4, "id-4", {"left": FileEntry("snapshot/4", 10, 1, 0)})

    found = history(1, 4, 5).with_snapshot(snapshot)

    assert [entry.last_epoch for entry in found.logs] == [5]
    assert set(found.file_names()) == {"snapshot/4", "log/join-0/5"}


def test_a_merged_log_stands_where_its_parts_stood() -> None:
    merged = LogEntry(2, 4, "id-4", FileEntry("log/join-0/merged", 300, 3, 0))

    found = history(1, 2, 3, 4, 5).with_merged(merged)

    assert [entry.last_epoch for entry in found.logs] == [1, 4, 5]


def test_logs_are_merged_only_when_there_are_many_small_ones() -> None:
    few = history(*range(MERGE_AFTER_FILES - 1))
    many = history(*range(MERGE_AFTER_FILES))
    large = BucketHistory(logs=(log(0, size=1 << 30), *many.logs[1:]))

    assert few.small_tail() == ()
    assert many.small_tail() == many.logs
    assert large.small_tail() == ()


def test_a_record_survives_its_file() -> None:
    part = PartEntry(0, FileEntry("delta/0/x", 5, 2, 9), 1, "arrow")
    record = CommitRecord(
        query_id="q",
        epoch=3,
        watermark=12,
        histories={"join/0": history(3)},
        parts=(part,),
        quarantined=(part,),
        progress={"epoch": 3},
    )

    assert CommitRecord.from_bytes(record.to_bytes()) == record


def test_a_record_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 99"):
        CommitRecord.from_bytes(b'{"format": 99}')
