"""What is drawn for cold stores: few codes, so that rows meet; odd rows, so that a byte that is lost is seen.

Codes come from both ends of an int64 and from a small range around 0; subcodes are fewer still. A row is drawn small most of
the time, sometimes empty, sometimes longer than a page, so that the rows of one code continue from page to page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from property_tests.memory_store import MemoryColdStore
from spill.cold_store import ColdRows, ColdStore, Int64s, cold_rows
from spill.duckdb_pages import DuckDBColdStore, DuckDBFile
from spill.file_pages import FileColdStore

__all__ = [
    "CODES",
    "OWNER",
    "ROWS",
    "SUBCODES",
    "ColdRow",
    "DuckDBShelf",
    "FileShelf",
    "MemoryShelf",
    "Shelf",
    "as_bag",
    "as_codes",
    "as_rows",
    "remove_codes",
]

ColdRow = tuple[int, int, bytes]

OWNER = {"query": "a query", "bucket": 3}
CODES = st.sampled_from([-(2**63), -(2**63) + 1, -2, -1, 0, 1, 2, 1 << 40, 2**63 - 2, 2**63 - 1])
SUBCODES = st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])
CONTENTS = st.one_of(
    st.binary(max_size=12),
    st.just(b""),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.sampled_from([700, 3_000, 40_000])),
)
ROWS = st.lists(st.tuples(CODES, SUBCODES, CONTENTS), max_size=40)


def as_rows(rows: Iterable[ColdRow]) -> ColdRows:
    """Return rows as a store takes them."""
    listed = list(rows)
    return cold_rows([row[0] for row in listed], [row[2] for row in listed], [row[1] for row in listed])


def remove_codes(store: ColdStore, codes: Int64s) -> None:
    """Take all rows of some codes out."""
    store.remove(store.fetch(codes).places)


def as_bag(rows: Iterable[ColdRows]) -> Counter[ColdRow]:
    """Return what a store gave as a bag of rows."""
    bag: Counter[ColdRow] = Counter()
    for part in rows:
        bag.update(zip(part.codes.tolist(), part.subcodes.tolist(), part.rows.to_pylist(), strict=True))
    return bag


def as_codes(codes: Iterable[int]) -> Int64s:
    """Return codes as a store takes them."""
    return np.array(list(codes), np.int64)


class Shelf(ABC):
    """The position of a store, from which it can be opened again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def open(self) -> ColdStore:
        """Open the store."""

    def reopen(self, store: ColdStore) -> ColdStore:
        """Close a store that was committed, and open it again."""
        store.close()
        return self.open()

    def close(self, store: ColdStore) -> None:
        """Close the store for good."""
        store.close()


class MemoryShelf(Shelf):
    """A store in memory stays as it is."""

    def open(self) -> ColdStore:
        return MemoryColdStore()

    def reopen(self, store: ColdStore) -> ColdStore:
        return store


class FileShelf(Shelf):
    """A store in plain files."""

    def open(self) -> ColdStore:
        return FileColdStore(self.directory / "rows", owner=OWNER)


class DuckDBShelf(Shelf):
    """A store in a DuckDB file, which is closed and opened with it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._file: DuckDBFile | None = None

    def open(self) -> ColdStore:
        self._file = DuckDBFile(self.directory / "cold.duckdb", memory_bytes=64 << 20)
        return DuckDBColdStore(self.directory / "rows", file=self._file, name='a "hostile" name', owner=OWNER)

    def reopen(self, store: ColdStore) -> ColdStore:
        self.close(store)
        return self.open()

    def close(self, store: ColdStore) -> None:
        store.close()
        if self._file is not None:
            self._file.close()
