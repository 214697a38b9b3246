"""The files of one query's checkpoint: written once, listed with a checksum, trusted only when the checksum fits.

The law: a file is what its commit record describes, or reading it raises. The checksum (CRC-32) starts from the query's id and
the file's name, and a name holds kind, stage, bucket, epoch and attempt: a file of another query, bucket or epoch, an older one
of the same place, and any damaged byte are all caught.

A new file is under a name nobody looks for until it is listed; a durable one is on the disk before it can be listed.

Names are relative to the checkpoint's folder, with `/`; that folder may be on any file system (`zset_join.storage.folder`).
"""

from __future__ import annotations

import uuid
import zlib
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa

from zset_join.core.errors import StateError
from zset_join.storage.folder import Folder, open_folder

__all__ = ["CHECKPOINT_FORMAT", "CheckpointFiles", "FileEntry", "NewFile", "attempt_name"]

CHECKPOINT_FORMAT = 9
"""Of the query, its plans, commit records and rescalings; a checkpoint of another format is not read."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Expected properties of a listed file."""

    name: str
    bytes: int
    rows: int
    crc32: int


def attempt_name(epoch: int, suffix: str) -> str:
    """Return a file name that sorts by epoch and that no other attempt uses."""
    return f"{epoch:020d}-{uuid.uuid4().hex}{suffix}"


class CheckpointFiles:
    """Read and write the files of one query."""

    def __init__(self, folder: Folder, query_id: str) -> None:
        self.folder = folder
        self.query_id = query_id

    @classmethod
    def at(cls, location: str, query_id: str) -> CheckpointFiles:
        """Open the folder at a location: an absolute path or a URI."""
        return cls(open_folder(location), query_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointFiles.at, (self.folder.location, self.query_id)

    def create(self, name: str, *, durable: bool = True) -> NewFile:
        """Begin a new file; see `NewFile`."""
        return NewFile(self, name, durable=durable)

    def read(self, entry: FileEntry) -> pa.Buffer:
        return self._checked(entry, self.folder.read(entry.name))

    def view(self, entry: FileEntry) -> pa.Buffer:
        """Return all bytes of a listed file, mapped where the file system can."""
        # For files that were written a moment ago: where the disk fails under a mapping, the process ends.
        return self._checked(entry, self.folder.view(entry.name))

    def check(self, entry: FileEntry) -> str:
        self.view(entry)
        return self.uri(entry.name)

    def uri(self, name: str) -> str:
        return self.folder.uri(name)

    def first_checksum(self, name: str) -> int:
        return zlib.crc32(f"{self.query_id}\n{name}\n".encode())

    def _checked(self, entry: FileEntry, data: pa.Buffer | None) -> pa.Buffer:
        if data is None:
            raise self._damaged(entry, "is missing")
        if data.size != entry.bytes:
            raise self._damaged(entry, f"has {data.size} bytes where {entry.bytes} were written")
        if zlib.crc32(data, self.first_checksum(entry.name)) != entry.crc32:
            raise self._damaged(entry, "does not have the checksum it was written with")
        return data

    def _damaged(self, entry: FileEntry, what: str) -> StateError:
        path = self.uri(entry.name)
        return StateError(
            f"checkpoint file {path} {what}; the checkpoint cannot be read past it, and nothing was answered from it. "
            f"Restore the file from a copy of the checkpoint directory, go back by one epoch (how-to: restart and "
            f"checkpoint), or "
            "start with a new checkpointLocation.",
            code="DAMAGED_FILE",
            file=path,
            expected_bytes=entry.bytes,
        )


class NewFile:
    """Write a file nobody reads yet, counting bytes and checksum on the way.

    Leaving the context completes it; leaving it with an exception removes it.
    """

    def __init__(self, files: CheckpointFiles, name: str, *, durable: bool = True) -> None:
        self.name = name
        self.bytes = 0
        self.crc32 = files.first_checksum(name)
        self.closed = False
        self._durable = durable
        self._files = files
        self._file = files.folder.create(name)

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.bytes += view.nbytes
        return self._file.write(view)

    def flush(self) -> None:
        """Do nothing: bytes are passed on when there are enough, and when the file is closed."""

    def close(self) -> None:
        """Complete the file; the disk has everything when this returns, if the file is durable."""
        if not self.closed:
            self.closed = True
            self._file.close(durable=self._durable)

    def entry(self, rows: int) -> FileEntry:
        return FileEntry(self.name, self.bytes, rows, self.crc32)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error_type is None:
            try:
                self.close()
            except BaseException:
                self._discard()
                raise
        else:
            self._discard()

    def _discard(self) -> None:
        was_completed, self.closed = self.closed, True
        self._file.discard()
        if was_completed:
            self._files.folder.remove(self.name)
