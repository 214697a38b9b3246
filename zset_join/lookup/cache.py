"""Cache of an external table in a worker: rows of some keys (partial), or the whole table (full).

A partial cache believes a row for `ttl`, and holds at most `max_rows`: rows that were not requested lately go first. It is two
generations of rows: what is requested is kept in the young one, and when that is half full it becomes the old one. An absent
key is kept only where the caller wants it.

The law: a cache answers with rows that the source returned at most `ttl` (or `reload_interval`) ago. Cost: one probe per key
and row.

`FetchJournal`: external answers, written down before they are used.

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

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import StateError
from zset_join.core.row_conversion import take_rows
from zset_join.state.rows.keyed_rows import KeyedRows
from zset_join.storage.folder import Folder

__all__ = ["FetchJournal", "FullCache", "PartialCache"]

_EXPIRES = "_zset_expires_us"
_THERE = "_zset_there"
_KEY = "_zset_key_"

Int64s = npt.NDArray[np.int64]


def _as_lookup(keys: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(keys.columns, names=[f"{_KEY}{at}" for at in range(keys.num_columns)])


class PartialCache:
    """Keep rows for a while."""

    def __init__(self, key_schema: pa.Schema, schema: pa.Schema, *, ttl_us: int, max_rows: int) -> None:
        self._names = list(schema.names)
        own_key = [pa.field(f"{_KEY}{at}", field.type) for at, field in enumerate(key_schema)]
        hidden = [pa.field(_THERE, pa.int64()), pa.field(_EXPIRES, pa.int64())]
        self._schema = pa.schema([*(field.with_nullable(True) for field in schema), *own_key, *hidden])
        self._row_schema = pa.schema([field.with_nullable(True) for field in schema])
        key = [field.name for field in own_key]
        self._young, self._old = (KeyedRows(f"cache {age}", self._schema, key) for age in ("young", "old"))
        self._ttl_us = ttl_us
        self._half = max(1, max_rows // 2)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, keys: pa.RecordBatch, now_us: int) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Return which keys are known, and their rows."""
        requested = _as_lookup(keys)
        known, rows, _ = self._find_in(self._young, requested, now_us)
        unknown = np.flatnonzero(~known)
        parts = [rows]
        if len(unknown) and len(self._old):
            is_old, _, numbers = self._find_in(self._old, take_rows(requested, unknown), now_us)
            if len(numbers):
                kept = self._old.gather(numbers)
                self._old.remove(numbers)
                parts.append(self._present(kept))
                self._store(kept)
            known[unknown] = is_old
        return known, pa.concat_batches(parts)

    def _find_in(
        self, generation: KeyedRows, requested: pa.RecordBatch, now_us: int
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch, Int64s]:
        positions, numbers = generation.find(requested)
        known = np.zeros(requested.num_rows, np.bool_)
        if not len(numbers):
            return known, _no_rows(self._row_schema), numbers
        is_fresh = generation.words(_EXPIRES)[numbers - 1] > now_us
        if not is_fresh.all():
            generation.remove(np.unique(numbers[~is_fresh]))
            positions, numbers = positions[is_fresh], numbers[is_fresh]
        known[positions] = True
        is_there = generation.words(_THERE)[numbers - 1] == 1
        return known, generation.gather(numbers[is_there], self._names), numbers

    def _present(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        is_there = rows.column(_THERE).to_numpy() == 1
        return take_rows(rows.select(self._names), np.flatnonzero(is_there))

    def _store(self, rows: pa.RecordBatch) -> None:
        if len(self._young) + rows.num_rows > self._half:
            self._old.clear()
            self._young, self._old = self._old, self._young
        self._young.add(rows.slice(0, self._half))

    def remember(
        self, keys: pa.RecordBatch, rows: pa.RecordBatch, *, own_keys: pa.RecordBatch, missing: bool, now_us: int
    ) -> None:
        """Store the found rows."""
        parts = [self._lines(rows, own_keys, 1, now_us)]
        if missing:
            fetched_keys = KeyedRows("found", own_keys.schema, own_keys.schema.names)
            fetched_keys.add(own_keys)
            is_absent = np.ones(keys.num_rows, np.bool_)
            is_absent[fetched_keys.find(keys)[0]] = False
            fetched_keys.close()
            absent = take_rows(keys, np.flatnonzero(is_absent))
            nothing = [pa.nulls(absent.num_rows, field.type) for field in self._row_schema]
            parts.append(self._lines(pa.RecordBatch.from_arrays(nothing, schema=self._row_schema), absent, 0, now_us))
        self._store(pa.concat_batches(parts))

    def _lines(self, rows: pa.RecordBatch, keys: pa.RecordBatch, there: int, now_us: int) -> pa.RecordBatch:
        count = rows.num_rows
        hidden = [pa.array(np.full(count, there, np.int64)), pa.array(np.full(count, now_us + self._ttl_us, np.int64))]
        return pa.RecordBatch.from_arrays([*rows.columns, *keys.columns, *hidden], schema=self._schema)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


class FullCache:
    """Keep a whole table, loaded again when it is older than an interval."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        interval_us: int,
        load: Callable[[], pa.RecordBatch],
        keys_of: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> None:
        self._schema = schema
        self._interval_us = interval_us
        self._load = load
        self._keys_of = keys_of
        self._loaded_at_us: int | None = None
        self._rows = _no_rows(schema)
        self._index: KeyedRows | None = None
        self.loads = 0

    def find(self, keys: pa.RecordBatch, now_us: int) -> tuple[int, pa.RecordBatch]:
        """Return how many of some distinct keys are present, and their rows, after loading the table if it is time."""
        if self._loaded_at_us is None or now_us - self._loaded_at_us >= self._interval_us:
            rows = self._load()
            own = self._keys_of(rows)
            index = KeyedRows("loaded", own.schema, own.schema.names)
            index.add(own)
            if self._index is not None:
                self._index.close()
            self._rows, self._index, self._loaded_at_us = rows, index, now_us
            self.loads += 1
        assert self._index is not None  # noqa: S101 - loaded above
        positions, numbers = self._index.find(keys)
        return len(np.unique(positions)), take_rows(self._rows, numbers - 1)

    def __len__(self) -> int:
        return int(self._rows.num_rows)


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
