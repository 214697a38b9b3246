"""The epoch log: the input of one bucket in one epoch, as it was handed to the operator.

The law: absorbing the logged deltas in order, from nothing or from a snapshot, gives the state of the operator.

A file is a sequence of Arrow IPC streams, one per input that had rows. Each stream says in its schema metadata whose
it is (query, stage, bucket), of which epoch and watermark, and of which attempt; its last column is the weight. Files
of several epochs are therefore merged by joining their bytes. Reading maps the file: no row is copied.

Limits: a merged file is read from its start even when only its end is wanted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.checkpoint.files import FileEntry, NewFile, attempt_name, check_file
from zset_join.errors import StateError
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["LogEntry", "LoggedEpoch", "merge_logs", "read_log", "write_deltas", "write_log"]

_FORMAT = 1
_METADATA_KEY = b"zset_join"
_WEIGHT_FIELD = pa.field("__weight", pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """List one log file.

    Args:
        first_epoch: first epoch in it.
        last_epoch: last epoch in it.
        identity: name of the attempt that wrote the last epoch; no other attempt has it.
        file: the file.
    """

    first_epoch: int
    last_epoch: int
    identity: str
    file: FileEntry

    def to_json(self) -> dict[str, Any]:
        """Return the entry as it stands in a commit record."""
        return {
            "first_epoch": self.first_epoch,
            "last_epoch": self.last_epoch,
            "identity": self.identity,
            "file": self.file.to_json(),
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> LogEntry:
        """Build from what `to_json` gave."""
        return cls(found["first_epoch"], found["last_epoch"], found["identity"], FileEntry.from_json(found["file"]))


@dataclass(frozen=True, slots=True)
class LoggedEpoch:
    """Hold one epoch read back: its tick, one delta per input, and the attempt that wrote it."""

    tick: Tick
    deltas: tuple[ZSet, ...]
    identity: str


def write_log(root: Path, folder: str, *, query_id: str, tick: Tick, deltas: Sequence[ZSet]) -> LogEntry | None:
    """Write the input of one bucket in one epoch.

    Args:
        root: root of the checkpoint.
        folder: folder of this stage and bucket, relative to the root.
        query_id: whose log it is.
        tick: the epoch.
        deltas: one delta per input.

    Returns:
        What to list, or None when all deltas are empty: an epoch without rows leaves no file.

    Cost: one pass over the bytes of the deltas, and one wait for the disk.
    """
    rows = sum(len(delta) for delta in deltas)
    if not rows:
        return None
    name = attempt_name(tick.epoch, ".arrows")
    with NewFile(root, f"{folder}/{name}") as file:
        write_deltas(file, deltas, {"query_id": query_id, "bucket": folder, "identity": name}, tick)
    return LogEntry(tick.epoch, tick.epoch, name, file.entry(rows))


def write_deltas(file: NewFile, deltas: Sequence[ZSet], facts: dict[str, Any], tick: Tick) -> None:
    """Append one IPC stream per delta that has rows."""
    for position, delta in enumerate(deltas):
        if not len(delta):
            continue
        note = {"format": _FORMAT, "epoch": tick.epoch, "watermark": tick.watermark, "input": position, **facts}
        fields = [*delta.schema, _WEIGHT_FIELD]
        schema = pa.schema(fields, metadata={_METADATA_KEY: json.dumps(note).encode()})
        batch = pa.RecordBatch.from_arrays([*delta.rows.columns, pa.array(delta.weights)], schema=schema)
        with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), schema) as writer:
            writer.write_batch(batch)


def read_log(root: Path, entry: LogEntry, *, query_id: str, schemas: Sequence[pa.Schema]) -> Iterator[LoggedEpoch]:
    """Yield the epochs of a log file in order.

    Args:
        root: root of the checkpoint.
        entry: the file.
        query_id: whose log it must be.
        schemas: the schemas of the inputs; an input without rows comes back empty.

    Raises:
        StateError: the file is missing, damaged, or of another query.
    """
    path = check_file(root, entry.file)
    waiting: LoggedEpoch | None = None
    for note, delta in _streams(path):
        if note["format"] != _FORMAT or note["query_id"] != query_id:
            raise StateError(
                f"log file {path} belongs to query {note['query_id']} (format {note['format']}), not to {query_id} (format "
                f"{_FORMAT}). Give each query a checkpointLocation of its own.",
                code="FOREIGN_STATE",
                file=str(path),
            )
        if waiting is not None and waiting.identity != note["identity"]:
            yield waiting
            waiting = None
        if waiting is None:
            empty = tuple(ZSet.empty(schema) for schema in schemas)
            waiting = LoggedEpoch(Tick(note["epoch"], note["watermark"]), empty, note["identity"])
        deltas = list(waiting.deltas)
        deltas[note["input"]] = delta
        waiting = LoggedEpoch(waiting.tick, tuple(deltas), waiting.identity)
    if waiting is not None:
        yield waiting


def merge_logs(root: Path, folder: str, entries: Sequence[LogEntry]) -> LogEntry:
    """Join log files of neighbouring epochs into one.

    Args:
        root: root of the checkpoint.
        folder: folder of this stage and bucket.
        entries: the files, in the order of their epochs; at least one.

    Raises:
        StateError: a file is missing or damaged.
    """
    last = entries[-1]
    with NewFile(root, f"{folder}/{attempt_name(last.last_epoch, '-merged.arrows')}") as file:
        for entry in entries:
            file.write(check_file(root, entry.file).read_bytes())
    rows = sum(entry.file.rows for entry in entries)
    return LogEntry(entries[0].first_epoch, last.last_epoch, last.identity, file.entry(rows))


def _streams(path: Path) -> Iterator[tuple[dict[str, Any], ZSet]]:
    with pa.memory_map(str(path)) as source:
        size = source.size()
        while source.tell() < size:
            reader = pa.ipc.open_stream(source)
            note = json.loads(reader.schema.metadata[_METADATA_KEY])
            schema = pa.schema(list(reader.schema)[:-1])
            for batch in reader:
                weights = np.asarray(batch.column(batch.num_columns - 1), dtype=np.int64)
                rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)
                yield note, ZSet(rows, weights)
