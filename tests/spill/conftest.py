"""Cold stores of every kind, in a directory of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from property_tests.cold_histories import DuckDBShelf, FileShelf, MemoryShelf, Shelf
from spill.cold_store import ColdStore

SHELVES: dict[str, type[Shelf]] = {"memory": MemoryShelf, "file": FileShelf, "duckdb": DuckDBShelf}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Give a directory on a disk: stores read pages without waiting there, which file systems in memory do not offer."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="zset_join-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(params=["file", "duckdb"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    """Give a place for a store that survives its closing."""
    return SHELVES[request.param](tmp_path)


@pytest.fixture(params=sorted(SHELVES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ColdStore]:
    place = SHELVES[request.param](tmp_path)
    opened = place.open()
    yield opened
    place.close(opened)
