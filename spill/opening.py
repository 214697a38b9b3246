"""Open the cold stores of a directory on the medium that a user chose.

The law: the database is imported only where it is the medium, so that plain files need none.
"""

from __future__ import annotations

from pathlib import Path

from spill.cold_stores import ColdStores, FileStores
from spill.media import duckdb_memory_bytes, require_medium
from zset_join.storage.local import make_directories

__all__ = ["open_stores"]


def open_stores(medium: str, directory: Path, *, max_hot_bytes: int | None = None) -> ColdStores:
    if medium == "files":
        return FileStores(directory)
    require_medium(medium)
    from spill.duckdb_pages import DuckDBStores

    make_directories(directory, durable=False)
    return DuckDBStores(directory, memory_bytes=duckdb_memory_bytes(max_hot_bytes))
