"""The rows of one side that are on disk, how they are found there, and how they come and go.

The law: a row is in memory or in the cold store, never in both and never in neither, after every call, also one that raises a
`ZsetJoinError`. Moving changes neither a row nor what it remembers (weight, sequence, degree).

Rows lie by the hash of their join key and, below it, that of their identity. Where a delta names a row by a primary key
that says nothing about the join key, a second store (`keys`) holds the hash of the join key by that of the primary key. It
has an entry for every cold row; one too many (of a put that failed half-way) is found and taken out with the next row of
that hash. Both hashes have 32 bits and are not verified here: a stranger of the same hash comes into memory and does no harm.

Remembers on disk the rows; in memory 6.5 bytes per cold row, and 2.6 more with `keys`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill.cold_store import ColdRows, Int64s
from spill.file_pages import FileColdStore
from spill.row_bytes import LINK_BYTES, UnpackedRows
from zset_join.kernels import side as s
from zset_join.kernels.columns import FLAG_ARRANGED, FLAGS
from zset_join.state.hot_rows import HotRows
from zset_join.state.side import PreparedSide, SideState

__all__ = ["ColdSide", "FoundRows"]

_NO_PLACES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Cold rows that were read, and are still in the store.

    Args:
        rows: the rows.
        key_places: places of the entries of `keys` that go with them.
    """

    rows: ColdRows
    key_places: Int64s

    @property
    def count(self) -> int:
        """Return how many."""
        return len(self.rows)

    def matchable_codes(self) -> Int64s:
        """Return the join hashes of the rows whose key can match."""
        offsets, content = self.rows.buffers()
        flags = content[offsets[:-1] + (FLAGS - LINK_BYTES)]
        codes: Int64s = self.rows.codes[(flags & FLAG_ARRANGED) != 0]
        return codes


class ColdSide:
    """Own the cold stores of one side.

    Args:
        side: the rows in memory.
        directory: where the stores are; made when it is not there.

    Raises:
        StateError: the directory holds something else, or a store that was being changed when its process died.
    """

    def __init__(self, side: SideState, directory: Path) -> None:
        self.side = side
        self.hot = HotRows(side)
        owner: dict[str, str | int] = {"relation": side.relation.name, "layout": int(side.header[s.H_FINGERPRINT])}
        self._rows = FileColdStore(directory / f"{side.name}.rows", owner=owner, with_subcodes=side.has_identity)
        self._keys: FileColdStore | None = None
        if side.relation.mode == "upsert" and not set(side.relation.join_key) <= set(side.relation.primary_key):
            self._keys = FileColdStore(directory / f"{side.name}.keys", owner=owner, with_subcodes=False)
        self._counts = {"fetched_rows": 0, "spilled_rows": 0, "restored_rows": 0}

    @property
    def _stores(self) -> list[FileColdStore]:
        return [store for store in (self._rows, self._keys) if store is not None]

    def row_count(self) -> int:
        """Return the number of cold rows."""
        return self._rows.row_count()

    # ---------------------------------------------------------------- finding

    def find_named(self, prepared: PreparedSide, missing: Int64s) -> FoundRows:
        """Read the cold rows that some rows of a delta name, by position in the delta."""
        identities = prepared.identity_codes[missing]
        if self._keys is None:
            return FoundRows(self._rows.fetch(prepared.join_codes[missing], identities), _NO_PLACES)
        entries = self._keys.fetch(identities)
        return FoundRows(self._rows.fetch(_codes_of(entries), entries.codes), entries.places)

    def find_keys(self, codes: Int64s) -> FoundRows:
        """Read the cold rows whose join key has one of these hashes."""
        rows = self._rows.fetch(codes)
        if self._keys is None or not len(rows):
            return FoundRows(rows, _NO_PLACES)
        entries = self._keys.fetch(rows.subcodes)
        pairs, known = _pairs(_codes_of(entries), entries.codes), np.sort(_pairs(rows.codes, rows.subcodes))
        at = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
        return FoundRows(rows, entries.places[known[at] == pairs])

    # ---------------------------------------------------------------- moving

    def take(self, found: FoundRows, stamp: int, clock: float) -> None:
        """Move rows that were found into memory. Until the stores are marked as changed, anything may fail; then nothing."""
        if not found.count and not len(found.key_places):
            return
        unpacked = self.hot.unpack(found.rows)
        self.hot.make_room(unpacked)
        for store in self._stores:
            store.begin_change()
        if self._keys is not None:
            self._keys.remove(found.key_places)
        self._rows.remove(found.rows.places)
        self.hot.insert(unpacked, found.rows, stamp, clock)
        self._counts["fetched_rows"] += found.count

    def spill(self, numbers: Int64s) -> None:
        """Move rows out of memory, those first that still lie where they were.

        Raises:
            ResourceError: the disk is full or cannot be written; rows that were not moved are still in memory.
        """
        rows = self.hot.pack(numbers)
        self._put_keys(rows)
        left = ~self.hot.unchanged(numbers)
        if not left.all():
            self._rows.begin_change()
            left[~left] = ~self._rows.restore(_some(rows, ~left))
            self.hot.drop(numbers[~left], _some(rows, ~left))
        if left.any():
            self._rows.put(_some(rows, left))
            self.hot.drop(numbers[left], _some(rows, left))
        self._counts["spilled_rows"] += len(numbers)
        self._counts["restored_rows"] += len(numbers) - int(left.sum())

    def _put_keys(self, rows: ColdRows) -> None:
        """Note where rows will lie; an entry whose row then does not come is harmless."""
        if self._keys is None:
            return
        offsets = 8 * np.arange(len(rows) + 1, dtype=np.int64)
        content = [None, pa.py_buffer(offsets), pa.py_buffer(rows.codes)]
        entries = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), content)
        self._keys.put(ColdRows(rows.subcodes, np.zeros(len(rows), np.int64), entries, _NO_PLACES))

    def tidy(self) -> None:
        """Do what keeps fetching fast and the disk small."""
        for store in self._stores:
            store.tidy()

    def commit(self, epoch: int) -> None:
        """Declare the stores whole, at the end of `epoch`."""
        for store in self._stores:
            store.commit(epoch)

    def is_current(self) -> bool:
        """Say whether the stores are still as this process left them."""
        return all(store.is_current() for store in self._stores)

    def clear(self) -> None:
        """Forget all cold rows."""
        for store in self._stores:
            store.clear()

    # ---------------------------------------------------------------- numbers

    @property
    def epochs(self) -> set[int]:
        """Return the epochs of the last commits."""
        return {store.epoch for store in self._stores}

    def scan(self) -> Iterator[UnpackedRows]:
        """Yield all cold rows as records, about a MB at a time."""
        for rows in self._rows.scan():
            yield self.hot.unpack(rows)

    def index_bytes(self) -> int:
        """Return the bytes of memory that finding cold rows takes."""
        return sum(store.resident_bytes() for store in self._stores)

    def statistics(self) -> dict[str, int]:
        """Return counts by name, prefixed with the name of the side."""
        rows = self._rows.statistics()
        counts = {
            "rows": self.hot.live_rows + self.row_count(),
            "hot_rows": self.hot.live_rows,
            "cold_rows": self.row_count(),
            "cold_disk_bytes": sum(store.disk_bytes() for store in self._stores),
            "cold_index_bytes": self.index_bytes(),
            "pages_read": rows["pages_read"],
            "bytes_read": rows["bytes_read"],
            "merged_rows": rows["rows_merged"],
            **self._counts,
        }
        return {f"{self.side.name}_{name}": value for name, value in counts.items()}

    def close(self) -> None:
        """Let go of the files."""
        for store in self._stores:
            store.close()


def _some(rows: ColdRows, wanted: npt.NDArray[np.bool_]) -> ColdRows:
    """Return some of the rows."""
    if wanted.all():
        return rows
    return ColdRows(rows.codes[wanted], rows.subcodes[wanted], rows.rows.filter(pa.array(wanted)), rows.places[wanted])


def _codes_of(entries: ColdRows) -> Int64s:
    """Return the join hashes that entries of `keys` hold."""
    offsets, content = entries.buffers()
    return np.frombuffer(content[offsets[0] : offsets[-1]].tobytes(), np.int64)


def _pairs(codes: Int64s, subcodes: Int64s) -> Int64s:
    """Return pairs of 32-bit hashes as one word each."""
    pairs: Int64s = (codes << 32) | subcodes
    return pairs
