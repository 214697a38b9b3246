"""The commit record of an epoch: the one file that makes the epoch true.

The law: an epoch counts exactly when its record is present. The record lists every file the state consists of after it,
so the newest record alone is enough to continue; files it does not list do not exist for a reader. A checksum covers every byte
of the record and its epoch.

Memory: one line per listed file, at most `MERGE_AFTER_FILES` and a few large ones per bucket.

`LogEntry`: the epoch log: the input of one bucket in one epoch, as it was passed to the operator.

The law: absorbing the logged deltas in order, from nothing or from a snapshot, gives the state of the operator.

A file is a sequence of Arrow IPC streams, one per input that had rows, or one without rows where a time had come. Each stream
has in its schema metadata its owner (query, stage, bucket), of which epoch and times, and of which attempt; its last column
is the weight. Files of several epochs are therefore merged by joining their bytes.

Joins that share one table (`zset_join.plan.passes.share_nodes`) log their epoch apart, each its own input: several files are
then one entry of the list, and what they hold of one epoch is added up.

Memory: one file at a time, written and read. Limits: a merged file is read from its start even when only its end is wanted.

`ChangedPlan`: the plans that a query has changed to: one file each, under the digest of its bytes, which a commit record names.

    plans/<digest>.json         the description and the plan of the query from some epoch on
    plans/<digest>.given        outputs have the change to this plan, which was made without them

The law: a plan counts from the epoch whose commit record names it, and as long as later records do; a file that no record names
is that of a change that did not come true. So the record is the one file that makes plan and difference true together.

Cost: a file per change of the query.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.checkpoint.files import CHECKPOINT_FORMAT, CheckpointFiles, FileEntry, attempt_name
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.core.epochs import ChainLink, Tick, chained_digest
from zset_join.core.errors import StateError
from zset_join.storage.folder import Folder
from zset_join.storage.trusted_files import json_text, read, seal, seal_text, unseal
from zset_join.zset import ZSet
from zset_join.zset.protocol import NextDue

__all__ = [
    "CHANGED_TO",
    "LATE_CHANGES_TOTAL",
    "LATE_ROWS_TOTAL",
    "MERGE_AFTER_FILES",
    "PLANS",
    "BucketHistory",
    "ChangedPlan",
    "CommitRecord",
    "HistoryTexts",
    "LogEntry",
    "LoggedEpoch",
    "PartEntry",
    "merge_logs",
    "note_given",
    "read_changed_plan",
    "read_log",
    "was_given",
    "write_changed_plan",
    "write_log",
]

_FORMAT = 3
_ROWS_AT_ONCE = 16
_BYTES_AT_ONCE = 16 << 20
_SMALL_BYTES = 16 * 1024 * 1024
_LEAST_BYTES_OF_STREAM = 256
_METADATA_KEY = b"zset_join"
_WEIGHT_FIELD = pa.field("__weight", pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """List one log file."""

    first_epoch: int
    last_epoch: int
    identity: str
    file: FileEntry
    more: tuple[FileEntry, ...] = ()

    @classmethod
    def together(cls, entries: Sequence[LogEntry]) -> LogEntry:
        """Return what several joins logged of one epoch as one entry; the last one gives it its name."""
        first, *others = entries
        if not others:
            return first
        files = tuple(file for entry in others for file in entry.files)
        return cls(first.first_epoch, first.last_epoch, others[-1].identity, first.file, (*first.more, *files))

    @property
    def files(self) -> tuple[FileEntry, ...]:
        return (self.file, *self.more)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files) if self.more else self.file.bytes

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def most_epochs(self) -> int:
        """Return how many epochs it holds at most; those without rows are left out."""
        return min(self.last_epoch - self.first_epoch + 1, 1 + self.bytes // _LEAST_BYTES_OF_STREAM)

    @property
    def is_merged(self) -> bool:
        """Return whether it holds several epochs."""
        return self.first_epoch < self.last_epoch

    @property
    def is_small(self) -> bool:
        """Return whether merging it with others pays."""
        return self.bytes < _SMALL_BYTES


@dataclass(frozen=True, slots=True)
class LoggedEpoch:
    """Hold one epoch read back: its tick, one delta per input, and the attempt that wrote it."""

    tick: Tick
    deltas: tuple[ZSet, ...]
    identity: str


def write_log(
    files: CheckpointFiles, folder: str, *, tick: Tick, deltas: Sequence[ZSet], is_due: bool = False
) -> LogEntry | None:
    """Write the input of one bucket in one epoch."""
    rows = sum(len(delta) for delta in deltas)
    if not rows and not is_due:
        return None
    name = attempt_name(tick.epoch, ".arrows")
    facts = {"query_id": files.query_id, "bucket": folder, "identity": name}
    with files.create(f"{folder}/{name}") as file:
        if rows > _ROWS_AT_ONCE and sum(delta.rows.nbytes for delta in deltas) > _BYTES_AT_ONCE:
            _write_streams(pa.PythonFile(file, mode="w"), deltas, facts, tick)
        else:  # with one write
            sink = pa.BufferOutputStream()
            _write_streams(sink, deltas, facts, tick)
            file.write(sink.getvalue())
    return LogEntry(tick.epoch, tick.epoch, name, file.entry(rows))


def _write_streams(sink: Any, deltas: Sequence[ZSet], facts: dict[str, Any], tick: Tick) -> None:
    """Write one IPC stream per delta that has rows, one after the other; that of the first input where none has."""
    is_empty = not any(map(len, deltas))
    times = [getattr(tick, part.name) for part in fields(tick)]
    for position, delta in enumerate(deltas):
        if not len(delta) and not (is_empty and position == 0):
            continue
        note = {"format": _FORMAT, "tick": times, "input": position, **facts}
        schema = delta.schema.append(_WEIGHT_FIELD).with_metadata({_METADATA_KEY: json.dumps(note).encode()})
        batch = pa.RecordBatch.from_arrays([*delta.rows.columns, pa.array(delta.weights)], schema=schema)
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)


def read_log(files: CheckpointFiles, entry: LogEntry, *, schemas: Sequence[pa.Schema]) -> Iterator[LoggedEpoch]:
    """Yield the epochs of a log file, or of several files of one epoch, in order."""
    waiting: LoggedEpoch | None = None
    for note, delta in (one for file in entry.files for one in _streams(files.read(file))):
        if note["format"] != _FORMAT or note["query_id"] != files.query_id:
            path = files.uri(entry.file.name)
            raise StateError(
                f"log file {path} belongs to query {note['query_id']} (format {note['format']}), not to {files.query_id} "
                f"(format {_FORMAT}). Give each query a checkpointLocation of its own.",
                code="FOREIGN_STATE",
                file=path,
            )
        tick = Tick(*note["tick"])
        if waiting is not None and waiting.tick.epoch != tick.epoch:
            yield waiting
            waiting = None
        if waiting is None:
            waiting = LoggedEpoch(tick, tuple(ZSet.empty(schema) for schema in schemas), note["identity"])
        deltas, position = list(waiting.deltas), note["input"]
        deltas[position] = deltas[position] + delta if len(deltas[position]) else delta
        waiting = LoggedEpoch(waiting.tick, tuple(deltas), note["identity"])
    if waiting is not None:
        yield waiting


def merge_logs(files: CheckpointFiles, folder: str, entries: Sequence[LogEntry]) -> LogEntry:
    """Join log files of neighbouring epochs into one."""
    last = entries[-1]
    with files.create(f"{folder}/{attempt_name(last.last_epoch, '-merged.arrows')}") as file:
        for entry in entries:
            for part in entry.files:
                file.write(files.read(part))
    rows = sum(entry.rows for entry in entries)
    return LogEntry(entries[0].first_epoch, last.last_epoch, last.identity, file.entry(rows))


def _streams(content: pa.Buffer) -> Iterator[tuple[dict[str, Any], ZSet]]:
    source = pa.BufferReader(content)
    while source.tell() < content.size:
        reader = pa.ipc.open_stream(source)
        note = json.loads(reader.schema.metadata[_METADATA_KEY])
        schema = pa.schema(list(reader.schema)[:-1])
        for batch in reader:
            weights = np.asarray(batch.column(batch.num_columns - 1), dtype=np.int64)
            rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)
            yield note, ZSet(rows, weights)


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


PLANS = "plans"
CHANGED_TO = "changed to "
"""What the offsets of an epoch begin with in which the query changed; the digest of the plan follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPlan:
    """Hold what a query has changed to."""

    epoch: int  # that the change takes; its answer is the difference
    changes: int  # epochs that are changes, this one among them: so many epochs is one behind it ahead of Spark's batches
    before: str | None  # digest of the plan before; None: the one that the checkpoint was made with
    description: Mapping[str, Any]
    plan: Mapping[str, Any]
    sources: tuple[Mapping[str, Any], ...]  # all that the query ever had, in the order of their logs
    begins: tuple[str, ...] = ()  # new views, whose outputs begin with this epoch
    filled: tuple[str, ...] = ()  # those of `begins` whose rows are parts of their own, not the answer of the epoch
    altered: tuple[str, ...] = ()  # views that get columns behind those they had: their outputs continue
    is_unseen: bool = False  # made without outputs: the next start gives it to them, and the epoch before where they lack it
    bare_view: str | None = None  # the view whose outputs the query's id alone owns; "": the only, unnamed one
    undo_epochs: int = 1000
    columns: tuple[Mapping[str, Any], ...] = ()  # changes of columns of sources, oldest first; `slot` is a place in `sources`
    note: Any = None
    gone: Mapping[str, int] = field(default_factory=dict)  # by dropped source, how many of its rows states held then

    @property
    def digest(self) -> str:
        return hashlib.blake2b(json.dumps(json.loads(json_text(self)), sort_keys=True).encode(), digest_size=16).hexdigest()


def write_changed_plan(folder: Folder, changed: ChangedPlan) -> str:
    """Write a plan, and return the digest that it is found by once a record names it; one that is present stays."""
    name = _plan_file(changed.digest)
    if folder.size(name) is None:
        folder.put_new(name, seal(changed, version=CHECKPOINT_FORMAT, name=name))
    return changed.digest


def read_changed_plan(folder: Folder, digest: str) -> ChangedPlan:
    """Return a plan that a record names."""
    name = _plan_file(digest)
    data = folder.read(name)
    return read(ChangedPlan, unseal(b"" if data is None else data.to_pybytes(), version=CHECKPOINT_FORMAT, name=name))


def note_given(folder: Folder, digest: str) -> None:
    """Write down that outputs have the change to a plan, which was made without them."""
    if not was_given(folder, digest):
        folder.put_new(_given(digest), b"{}")


def was_given(folder: Folder, digest: str) -> bool:
    """Return whether outputs have the change to a plan, which was made without them."""
    return folder.size(_given(digest)) is not None


def _given(digest: str) -> str:
    return f"{PLANS}/{digest}.given"


def _plan_file(digest: str) -> str:
    return f"{PLANS}/{digest}.json"
