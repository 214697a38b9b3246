"""A cold store in memory: what the others are compared with, and what tests use where a disk would only take time.

The law is that of `spill.cold_store`, with dicts and loops only, so that it can be read as its definition. Nothing is written
anywhere: closing it, or the end of the process, loses all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from spill.cold_store import ColdRows, Int64s, Revised, cold_rows
from zset_join.core.errors import StateError

__all__ = ["MemoryColdStore"]

_Row = tuple[int, int, bytes]


class MemoryColdStore:
    """Keep cold rows in a dict.

    >>> store = MemoryColdStore()
    >>> store.put(cold_rows([7, 8, 7], [b"a", b"b", b"c"]))
    >>> sorted(store.fetch(np.array([7])).rows.to_pylist())
    [b'a', b'c']
    """

    def __init__(self) -> None:
        self._epoch = -1
        self._next_place = 0
        self._rows: dict[int, _Row] = {}
        self._restorable: dict[int, tuple[int, int, bytes]] = {}
        self._revised: list[ColdRows] = []

    @property
    def epoch(self) -> int:
        """Return the epoch of the last `commit`; -1 when there was none."""
        return self._epoch

    def put(self, rows: ColdRows) -> None:
        """Add rows."""
        for code, subcode, row in zip(rows.codes.tolist(), rows.subcodes.tolist(), rows.rows.to_pylist(), strict=True):
            self._rows[self._next_place] = (code, subcode, row)
            self._next_place += 1

    def fetch(self, codes: Int64s, subcodes: Int64s | None = None) -> ColdRows:
        """Return all rows of some codes, or of some pairs of code and subcode."""
        if subcodes is None:
            wanted = set(codes.tolist())
            return self._listed(place for place, (code, _, _) in self._rows.items() if code in wanted)
        pairs = set(zip(codes.tolist(), subcodes.tolist(), strict=True))
        return self._listed(place for place, (code, subcode, _) in self._rows.items() if (code, subcode) in pairs)

    def stream(self, code: int, chunk_bytes: int = 1 << 20) -> Iterator[ColdRows]:
        """Yield all rows of one code in chunks."""
        yield from self._chunks([place for place, row in self._rows.items() if row[0] == code], chunk_bytes)

    def scan(self, chunk_bytes: int = 1 << 20) -> Iterator[ColdRows]:
        """Yield all rows in chunks."""
        yield from self._chunks(list(self._rows), chunk_bytes)

    def _chunks(self, places: list[int], chunk_bytes: int) -> Iterator[ColdRows]:
        chunk: list[int] = []
        size = 0
        for place in places:
            length = len(self._rows[place][2])
            if chunk and size + length > chunk_bytes:
                yield self._listed(chunk)
                chunk, size = [], 0
            chunk.append(place)
            size += length
        if chunk:
            yield self._listed(chunk)

    def _listed(self, places: Iterable[int]) -> ColdRows:
        kept = list(places)
        rows = [self._rows[place] for place in kept]
        listed = cold_rows([row[0] for row in rows], [row[2] for row in rows], [row[1] for row in rows])
        return ColdRows(listed.codes, listed.subcodes, listed.rows, np.array(kept, np.int64))

    def bytes_of(self, codes: Int64s) -> Int64s:
        """Return for each code the bytes of its rows, at least 1 where there is one."""
        sizes: dict[int, int] = {}
        for code, _, row in self._rows.values():
            sizes[code] = sizes.get(code, 0) + max(1, len(row))
        return np.array([sizes.get(code, 0) for code in codes.tolist()], np.int64)

    def begin_change(self) -> None:
        """Do nothing: there is nothing to mark."""

    def remove(self, places: Int64s) -> None:
        """Take rows out by their places."""
        gone = set(places.tolist())
        if not gone <= self._rows.keys():
            raise StateError(
                "rows of a cold store were removed twice. Fetch them again.",
                code="COLD_PLACES",
                places=len(gone),
            )
        for place in gone:
            self._restorable[place] = self._rows.pop(place)

    def restore(self, places: Int64s) -> npt.NDArray[np.bool_]:
        """Put rows back that were fetched and removed; after a `tidy` their places are gone."""
        requested = places.tolist()
        if len(set(requested)) < len(requested) or self._rows.keys() & set(requested):
            raise StateError(
                "rows of a cold store were to be restored that were not removed. Fetch them again.",
                code="COLD_PLACES",
                places=len(requested),
            )
        restored = [place in self._restorable for place in requested]
        for place, back in zip(requested, restored, strict=True):
            if back:
                self._rows[place] = self._restorable.pop(place)
        return np.array(restored, np.bool_)

    def revise(self, codes: Int64s, revised: Revised, chunk_bytes: int = 1 << 20) -> None:
        """Record the revisions of rows of some codes."""
        for code in set(codes.tolist()):
            self._revised += [rows for chunk in self.stream(code, chunk_bytes) if len(rows := revised(chunk))]

    def exchange(self) -> None:
        """Replace the rows that were revised."""
        for rows in self._revised:
            self.remove(rows.places)
            self.put(rows)
        self._revised = []

    def forget_revised(self) -> None:
        """Clear the revisions."""
        self._revised = []

    def tidy(self) -> None:
        """Let the places of removed rows go; a dict is always tidy."""
        self._restorable.clear()

    def commit(self, epoch: int) -> None:
        """Declare the store whole, at the end of `epoch`."""
        self._epoch = epoch

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        self._restorable.clear()
        self._revised = []

    def row_count(self) -> int:
        """Return how many rows there are."""
        return len(self._rows)

    def disk_bytes(self) -> int:
        """Return 0: nothing is on disk."""
        return 0

    def resident_bytes(self) -> int:
        """Return the bytes of the rows; Python's own are not counted."""
        return sum(16 + len(row) for _, _, row in self._rows.values())

    def statistics(self) -> dict[str, int]:
        """Return the number of rows and their bytes."""
        return {"rows": len(self._rows), "runs": 0, "disk_bytes": 0, "resident_bytes": self.resident_bytes()}

    def close(self) -> None:
        """Forget all rows."""
        self._rows.clear()
