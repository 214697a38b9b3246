"""External answers, written down before they are used.

The law: per epoch, stage, bucket and set of requested keys there is one answer. It is put only if new; a twin that loses reads
the winner's. Once it is present, nothing is fetched again: not by a replay, a retried task, nor a second evaluation.

A file is `fetched/<stage>/<bucket>/<epoch>-<digest>.arrow`: a checksum over name and bytes, then one Arrow stream. The digest
is of the requested keys in a fixed order, so the same rows in another order find it. Without a folder the journal is a
dictionary.

Bytes: keys and answers of each epoch that may still be replayed; `forget` removes those that cannot.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable

import pyarrow as pa

from zset_join.core.errors import StateError
from zset_join.storage.folder import Folder

__all__ = ["FetchJournal", "digest_of"]

_MAGIC = b"ZSETFETCH1 "


def digest_of(keys: pa.RecordBatch) -> str:
    """Return a digest of a set of keys, whatever order they come in.

    >>> one, other = (pa.record_batch({"k": values}) for values in ([1, 2], [2, 1]))
    >>> digest_of(one) == digest_of(other)
    True
    """
    table = pa.Table.from_batches([keys])
    if keys.num_columns:
        table = table.sort_by([(name, "ascending") for name in table.schema.names])
    return hashlib.sha256(_as_bytes(table.combine_chunks().replace_schema_metadata(None))).hexdigest()[:32]


class FetchJournal:
    """Keep the answers of one bucket of one stage."""

    def __init__(self, folder: Folder | None, *, stage: str, bucket: int) -> None:
        self._folder = folder
        self._under = f"fetched/{stage}/{bucket}"
        self._memory: dict[str, bytes] = {}
        self._last: tuple[str, pa.RecordBatch] | None = None
        self.fetches = 0
        self.replays = 0

    def fetched(self, epoch: int, keys: pa.RecordBatch, fetch: Callable[[pa.RecordBatch], pa.RecordBatch]) -> pa.RecordBatch:
        """Return the rows fetched for some keys in an epoch; fetch them only if no answer is stored."""
        name = f"{self._under}/{epoch:020d}-{digest_of(keys)}.arrow"
        rows = self._kept(name)
        if rows is None:
            self.fetches += 1
            written = _sealed(name, fetch(keys))
            if self._folder is None:
                self._memory[name] = written
            else:
                try:
                    self._folder.put_new(name, written)
                except FileExistsError:
                    written = b""  # a twin was first: its answer counts
            rows = self._read(name)
        else:
            self.replays += 1
        if rows is None:
            raise self._damaged(name, "is gone")
        self._last = (name, rows)
        return rows

    def _kept(self, name: str) -> pa.RecordBatch | None:
        """Return an answer that is present; None without one."""
        if self._last is not None and self._last[0] == name:
            return self._last[1]
        return self._read(name)

    def forget(self, through_epoch: int) -> None:
        """Remove the answers of epochs that a snapshot contains, which cannot be replayed."""
        for name in self._names():
            if int(name.rpartition("/")[2].partition("-")[0]) <= through_epoch:
                self._memory.pop(name, None)
                if self._folder is not None:
                    self._folder.remove(name)

    def _names(self) -> list[str]:
        return list(self._memory) if self._folder is None else list(self._folder.names(self._under))

    def _read(self, name: str) -> pa.RecordBatch | None:
        if self._folder is None:
            data = self._memory.get(name)
        else:
            content = self._folder.read(name)
            data = None if content is None else content.to_pybytes()
        if data is None:
            return None
        head = len(_MAGIC) + 9
        body = data[head:]
        if data[:head] != _header(name, body):
            raise self._damaged(name, "does not have the checksum it was written with")
        return _as_batch(body)

    def _damaged(self, name: str, what: str) -> StateError:
        return StateError(
            f"the journal file {name} {what}; what was looked up for its epoch is lost, and fetching again "
            f"could give "
            "another answer. Restore the file from a copy of the checkpoint, go back by one epoch, or start with a new "
            "checkpointLocation.",
            code="DAMAGED_FILE",
            file=name,
        )


def _header(name: str, body: bytes) -> bytes:
    return b"%b%08x\n" % (_MAGIC, zlib.crc32(body, zlib.crc32(name.encode())))


def _sealed(name: str, rows: pa.RecordBatch) -> bytes:
    body = _as_bytes(pa.Table.from_batches([rows]))
    return _header(name, body) + body


def _as_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _as_batch(body: bytes) -> pa.RecordBatch:
    table = pa.ipc.open_stream(pa.py_buffer(body)).read_all().combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
