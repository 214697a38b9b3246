"""Names of the read files of a table, stored beside the state so that no commit record repeats them.

    read/orders.names      a name per line, as JSON

The law: a position is how many names there are and a checksum of them, so it has the same size after any number of files. A
name is on the disk before the position that counts it is committed; names behind the committed position are cut off when the
session is opened again.

Memory: the names. Cost: that of the new names; all of them once, when it is opened.

Known limit: names are kept for good, also of files that were removed: a file of such a name may come again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zset_join.core.errors import StateError
from zset_join.sql.tables.file_names import file_name
from zset_join.storage import local

__all__ = ["ReadNames"]


class ReadNames:
    """Keep names."""

    def __init__(self, directory: Path | None, table: str) -> None:
        self._path = None if directory is None else directory / f"{file_name(table)}.names"
        self._table = table
        self._names: dict[str, None] = {}
        self._checksum = 0

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def position(self) -> dict[str, int]:
        """Return how far it has been read."""
        return {"names": len(self._names), "crc32": self._checksum}

    def open(self, position: Mapping[str, Any] | None) -> None:
        """Go back to a position; None is the beginning."""
        count = 0 if position is None else int(position["names"])
        lines: list[bytes] = []
        if self._path is not None:
            lines = (local.read_bytes(self._path) or b"").split(b"\n")[:-1][:count]
        elif count <= len(self._names):  # in memory: an error sets the query back to where it was
            lines = [json.dumps(name).encode() for name in self._names][:count]
        kept = b"".join(line + b"\n" for line in lines)
        if len(lines) != count or (position is not None and zlib.crc32(kept) != position["crc32"]):
            raise StateError(
                f'the names of the files of table "{self._table}" that this query has read are missing or damaged: '
                f"{self._path}. Restore the whole directory of the session, or begin with a new one.",
                code="DAMAGED_FILE",
                table=self._table,
                file=str(self._path),
            )
        self._names, self._checksum = {json.loads(line): None for line in lines}, zlib.crc32(kept)
        if self._path is not None:
            local.make_directories(self._path.parent)
            local.write_atomic(self._path, kept)

    def add(self, name: str) -> None:
        """Add a name; it is on the disk when this returns."""
        line = json.dumps(name).encode() + b"\n"
        if self._path is not None:
            local.append(self._path, line)
        self._names[name] = None
        self._checksum = zlib.crc32(line, self._checksum)
