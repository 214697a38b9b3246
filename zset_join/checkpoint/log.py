"""The epoch log: the input of one bucket in one epoch, as it was passed to the operator.

The law: absorbing the logged deltas in order, from nothing or from a snapshot, gives the state of the operator.

A file is a sequence of Arrow IPC streams, one per input that had rows, or one without rows where a time had come. Each stream
has in its schema metadata its owner (query, stage, bucket), of which epoch and times, and of which attempt; its last column
is the weight. Files of several epochs are therefore merged by joining their bytes.

Joins that share one table (`zset_join.plan.sharing`) log their epoch apart, each its own input: several files are then one
entry of the list, and what they hold of one epoch is added up.

Memory: one file at a time, written and read. Limits: a merged file is read from its start even when only its end is wanted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.checkpoint.files import CheckpointFiles, FileEntry, attempt_name
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.zset import ZSet

__all__ = ["LogEntry", "LoggedEpoch", "merge_logs", "read_log", "write_log"]

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
