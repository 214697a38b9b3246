from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import pytest

from zset_join.checkpoint.files import FileEntry
from zset_join.checkpoint.record import MERGE_AFTER_FILES, BucketHistory, CommitRecord, HistoryTexts, LogEntry, PartEntry
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.storage.trusted_files import UnknownFormatError
from zset_join.zset.protocol import NextDue

MOST_EPOCHS = 4096


def log(epoch: int, *, size: int = 300) -> LogEntry:
    return LogEntry(epoch, epoch, f"id-{epoch}", FileEntry(f"log/join-0/{epoch}", size, 1, 0))


def history(*epochs: int) -> BucketHistory:
    return BucketHistory(logs=tuple(log(epoch) for epoch in epochs))


def test_a_snapshot_replaces_the_logs_it_includes() -> None:
    snapshot = SnapshotEntry(4, "id-4", {"left": FileEntry("snapshot/4", 10, 1, 0)})

    found = history(1, 4, 5).with_snapshot(snapshot)

    assert [entry.last_epoch for entry in found.logs] == [5]
    assert set(found.file_names()) == {"snapshot/4", "log/join-0/5"}


def test_a_merged_log_takes_the_place_of_its_parts() -> None:
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
        processing_time_us=12,
        histories={"join/0": history(3)},
        parts=(part,),
        quarantined=(part,),
        progress={"epoch": 3},
    )

    assert CommitRecord.from_bytes(record.to_bytes(), 3) == record


def test_logs_that_were_written_before_are_the_same_bytes_again() -> None:
    texts, first = HistoryTexts(), BucketHistory(None, tuple(map(log, range(3))))
    later = [first, first.with_log(log(3)), first.with_merged(log(2)), BucketHistory(), first.with_log(log(4))]
    records = [committed(number, histories={"join/0": one, 'a"b/1': one}) for number, one in enumerate(later)]

    assert [one.to_bytes(texts) for one in records] == [one.to_bytes() for one in records]
    assert [CommitRecord.from_bytes(one.to_bytes(), one.epoch) for one in records] == records
    passing = (committed(number, histories={"join/0": history(number)}) for number in range(20))  # each is gone at the next
    assert [one.epoch for one in passing if one.to_bytes(texts) != one.to_bytes()] == []


@pytest.mark.parametrize("data", [b'{"format": 99}', b'{"format":99,"crc32":"00000000","body":{}}'])
def test_a_record_of_another_format_differs_from_a_damaged_one(data: bytes) -> None:
    with pytest.raises(UnknownFormatError, match="format 99"):
        CommitRecord.from_bytes(data, 3)


def test_the_record_of_another_epoch_is_refused() -> None:
    data = CommitRecord(query_id="q", epoch=3, processing_time_us=None).to_bytes()

    with pytest.raises(ValueError, match="checksum"):
        CommitRecord.from_bytes(data, 4)


def test_a_log_is_due_for_a_snapshot_when_it_outgrows_the_live_rows() -> None:
    snapshot = SnapshotEntry(0, "id-0", {"left": FileEntry("snapshot/0", 10, 1, 0)}, live_bytes=1000)

    behind = BucketHistory(snapshot, (log(1, size=900),))
    ahead = BucketHistory(snapshot, (log(1, size=900), log(2, size=200)))

    assert (behind.has_outgrown(100), ahead.has_outgrown(100)) == (False, True)
    assert not ahead.has_outgrown(5000)
    assert not BucketHistory().has_outgrown(0)


def test_as_few_epochs_are_absorbed_again_after_a_crash_however_small_they_are() -> None:
    snapshot = SnapshotEntry(0, "id-0", {"left": FileEntry("snapshot/0", 10, 1, 0)}, live_bytes=100)
    many = LogEntry(1, 5_000, "m", FileEntry("m", 5_000_000, 1, 0))
    rarely_fed = LogEntry(1, 5_000, "m", FileEntry("m", 32_000, 1, 0))
    large_state = replace(snapshot, live_bytes=1 << 30)

    assert BucketHistory(snapshot, (many,)).has_outgrown(1 << 26)
    assert not BucketHistory(snapshot, (rarely_fed,)).has_outgrown(1 << 26)
    assert not BucketHistory(large_state, (many,)).has_outgrown(1 << 26)
    assert reduce(most_to_absorb, range(2 * MOST_EPOCHS), (BucketHistory(), 0))[1] == MOST_EPOCHS + 1


def most_to_absorb(so_far: tuple[BucketHistory, int], epoch: int) -> tuple[BucketHistory, int]:
    found, most = so_far
    if found.has_outgrown(1 << 26):
        found = found.with_snapshot(SnapshotEntry(epoch - 1, f"id-{epoch - 1}", {}, live_bytes=100))
    found = with_epoch_and_merge((found, 0), epoch)[0]
    return found, max(most, sum(entry.most_epochs for entry in found.logs))


def test_a_byte_is_merged_a_few_times_only_however_long_the_log() -> None:
    found, merged_bytes = reduce(with_epoch_and_merge, range(MERGE_AFTER_FILES**2), (BucketHistory(), 0))

    assert len(found.logs) < 2 * MERGE_AFTER_FILES
    assert merged_bytes < 8 * found.log_bytes


def with_epoch_and_merge(so_far: tuple[BucketHistory, int], epoch: int) -> tuple[BucketHistory, int]:
    found, merged_bytes = so_far
    tail = found.small_tail()
    if tail:
        size = sum(entry.file.bytes for entry in tail)
        whole = LogEntry(tail[0].first_epoch, tail[-1].last_epoch, "m", FileEntry("m", size, 1, 0))
        found, merged_bytes = found.with_merged(whole), merged_bytes + size
    return found.with_log(log(epoch)), merged_bytes


def committed(epoch: int, last: CommitRecord | None = None, **given: Any) -> CommitRecord:
    return CommitRecord(**{"query_id": "q", "epoch": epoch, "processing_time_us": 1, "offsets": "o"} | given).chained(last)


def test_a_record_is_chained_to_the_one_before_it() -> None:
    first = committed(0)
    second = committed(1, first)

    assert (first.link is not None, second.link is not None) == (True, True)
    assert second.link.before == first.link.digest
    assert committed(1, committed(0, offsets="other")).link.digest != second.link.digest
    assert CommitRecord.from_bytes(second.to_bytes(), 1) == second


def test_where_offsets_are_not_known_the_logged_input_counts() -> None:
    one = committed(0, offsets=None, histories={"join/0": history(0)})
    other = committed(0, offsets=None, histories={"join/0": BucketHistory(logs=(log(0, size=7),))})

    assert one.link != other.link


def test_processing_time_counts_where_a_timer_may_depend_on_it() -> None:
    dues = {"join/0": NextDue(None, 5)}

    assert committed(0).link == committed(0, processing_time_us=2).link
    assert committed(0, dues=dues).link != committed(0, dues=dues, processing_time_us=2).link
    assert committed(1, committed(0, dues=dues)).link != committed(1, committed(0, dues=dues), processing_time_us=2).link


def test_a_record_of_a_version_without_a_chain_starts_one() -> None:
    old = CommitRecord(query_id="q", epoch=0, processing_time_us=1)

    assert committed(1, old).link.before is None
