"""The commit record of an epoch: the one file that makes the epoch true.

The law: an epoch counts exactly when its record is present. The record lists every file the state consists of after it,
so the newest record alone is enough to continue; files it does not list do not exist for a reader. A checksum covers every byte
of the record and its epoch.

Memory: one line per listed file, at most `MERGE_AFTER_FILES` and a few large ones per bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from zset_join.checkpoint.files import CHECKPOINT_FORMAT, FileEntry
from zset_join.checkpoint.log import LogEntry
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.core.epochs import ChainLink, chained_digest
from zset_join.storage.trusted_files import json_text, read, seal_text, unseal
from zset_join.zset.protocol import NextDue

__all__ = [
    "LATE_CHANGES_TOTAL",
    "LATE_ROWS_TOTAL",
    "MERGE_AFTER_FILES",
    "BucketHistory",
    "CommitRecord",
    "HistoryTexts",
    "PartEntry",
]

LATE_ROWS_TOTAL, LATE_CHANGES_TOTAL = "late_rows_total", "late_changes_total"
"""In the counts of an epoch: late rows of each source, and late changes of each input, until now; those without `_total` are
those of the epoch."""
MERGE_AFTER_FILES = 32
_BYTES_PER_EPOCH = 16 * 1024
"""What is read from a snapshot in the time in which a small epoch is absorbed."""
_LEAST_BYTES_OF_EPOCHS = 64 * 1024 * 1024
"""A state of fewer live bytes is written after as many epochs as are absorbed in the time of these: 4,096."""


@dataclass(frozen=True, slots=True)
class BucketHistory:
    """List what the state of one bucket of one stage is made of."""

    snapshot: SnapshotEntry | None = None
    logs: tuple[LogEntry, ...] = ()

    def with_log(self, log: LogEntry) -> BucketHistory:
        return replace(self, logs=(*self.logs, log))

    def with_snapshot(self, snapshot: SnapshotEntry) -> BucketHistory:
        """Return the history that starts from a snapshot; older logs are dropped."""
        return BucketHistory(snapshot, tuple(log for log in self.logs if log.last_epoch > snapshot.through_epoch))

    def with_merged(self, merged: LogEntry) -> BucketHistory:
        """Return the history in which one log file represents those it was merged from."""
        before = tuple(log for log in self.logs if log.last_epoch < merged.first_epoch)
        after = tuple(log for log in self.logs if log.first_epoch > merged.last_epoch)
        return replace(self, logs=(*before, merged, *after))

    def after(
        self, *, snapshot: SnapshotEntry | None = None, merged: LogEntry | None = None, log: LogEntry | None = None
    ) -> BucketHistory:
        """Return the history after an epoch that left these files; None for what it did not write."""
        history = self if snapshot is None else self.with_snapshot(snapshot)
        history = history if merged is None else history.with_merged(merged)
        return history if log is None else history.with_log(log)

    def small_tail(self) -> tuple[LogEntry, ...]:
        """Return the newest log files when they have become many, and small enough to be merged into one."""
        # Merged files before them that are not larger than all after them are merged along: so there are few of them, and a
        # byte is merged as often as the sizes can double.
        if len(self.logs) < MERGE_AFTER_FILES:
            return ()
        start, following_bytes = len(self.logs), 0
        while start and self.logs[start - 1].is_small and not self.logs[start - 1].is_merged:
            start -= 1
            following_bytes += self.logs[start].bytes
        if len(self.logs) - start < MERGE_AFTER_FILES:
            return ()
        while start and self.logs[start - 1].is_small and self.logs[start - 1].bytes <= following_bytes:
            start -= 1
            following_bytes += self.logs[start].bytes
        return self.logs[start:]

    def has_outgrown(self, at_least_bytes: int) -> bool:
        """Return whether the log has outgrown the live rows, so that a snapshot pays."""
        # A snapshot writes the live rows once; it is due when the log since the last one has at least as many bytes as those
        # rows had then. So each logged byte pays for at most one byte of snapshots.
        least_bytes = max(at_least_bytes, 0 if self.snapshot is None else self.snapshot.live_bytes)
        # Small epochs take longer to absorb than their bytes take to read: their number counts as well.
        bytes_of_epochs = sum(log.most_epochs for log in self.logs) * _BYTES_PER_EPOCH
        return bool(self.logs) and (self.log_bytes > least_bytes or bytes_of_epochs > max(_LEAST_BYTES_OF_EPOCHS, least_bytes))

    def file_names(self) -> Iterator[str]:
        if self.snapshot is not None:
            yield from (entry.name for entry in self.snapshot.tables.values())
        for log in self.logs:  # once per epoch and log: most have one file
            yield log.file.name
            yield from (file.name for file in log.more)

    @property
    def log_bytes(self) -> int:
        return sum(log.bytes for log in self.logs)


@dataclass(frozen=True, slots=True)
class PartEntry:
    """List one piece of an epoch's answer, or of its quarantined rows."""

    bucket: int
    file: FileEntry
    retractions: int
    form: str
    way: str = ""
    view: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """Hold everything that is true after an epoch."""

    query_id: str
    epoch: int
    processing_time_us: int | None
    histories: Mapping[str, BucketHistory] = field(default_factory=dict)
    parts: tuple[PartEntry, ...] = ()
    quarantined: tuple[PartEntry, ...] = ()
    progress: Mapping[str, Any] = field(default_factory=dict)
    offsets: str | None = None
    owner: str | None = None
    opened_at_ns: int = 0
    buffered: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rescaling: int = 0
    buckets: int | None = None
    watermarks: Mapping[str, int] = field(default_factory=dict)
    dues: Mapping[str, NextDue] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)
    link: ChainLink | None = None
    plan: str | None = None

    @property
    def late_rows(self) -> Mapping[str, int]:
        """Return how many rows of each source with event time were too late until now."""
        found: Mapping[str, int] = self.progress.get(LATE_ROWS_TOTAL, {})
        return found

    def chained(self, last: CommitRecord | None) -> CommitRecord:
        before = None if last is None or last.link is None else last.link.digest
        is_timed = bool(self.dues) or (last is not None and bool(last.dues))
        read = self._logged() if self.offsets is None else self.offsets
        when = self.processing_time_us if is_timed else None
        return replace(self, link=ChainLink(chained_digest(before, self.query_id, self.epoch, read, when), before))

    def _logged(self) -> list[list[Any]]:
        """Return what the epoch logged: what it read, where nobody gave a digest of that."""
        return sorted(
            [key, file.rows, file.bytes, file.crc32]
            for key, history in self.histories.items()
            for log in history.logs[-1:]
            if log.first_epoch == self.epoch
            for file in log.files
        )

    def state_files(self) -> set[str]:
        return {name for history in self.histories.values() for name in history.file_names()}

    def to_bytes(self, known: HistoryTexts | None = None) -> bytes:
        written = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "histories"}
        histories = (HistoryTexts() if known is None else known).written(self.histories)
        text = f'{json_text(written)[:-1]},"histories":{histories}}}'
        return seal_text(text.encode(), version=CHECKPOINT_FORMAT, name=_name(self.epoch))

    @classmethod
    def from_bytes(cls, data: bytes, epoch: int) -> CommitRecord:
        return read(cls, unseal(data, version=CHECKPOINT_FORMAT, name=_name(epoch)))


class HistoryTexts:
    """Write histories as JSON, each log once: the next record has its text from the one before.

    The law: the text is that of `json_text`. Logs are recognised by their place in memory, which no other one takes:
    they are kept here until a record does not list them.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[LogEntry, str]] = {}

    def written(self, histories: Mapping[str, BucketHistory]) -> str:
        listed: dict[int, tuple[LogEntry, str]] = {}
        texts = [f"{json_text(key)}:{self._history(history, listed)}" for key, history in histories.items()]
        self._known = listed
        return f"{{{','.join(texts)}}}"

    def _history(self, history: BucketHistory, listed: dict[int, tuple[LogEntry, str]]) -> str:
        logs = []
        for log in history.logs:
            pair = self._known.get(id(log)) or (log, json_text(log))
            listed[id(log)] = pair
            logs.append(pair[1])
        return f'{{"snapshot":{json_text(history.snapshot)},"logs":[{",".join(logs)}]}}'


def _name(epoch: int) -> str:
    return f"commits/{epoch}"
