"""Every file operation of a checkpoint.

The law: a name that a reader can see belongs to a whole file. `write_atomic` writes beside the name and renames;
`NewFile` writes under a name nobody looks for until it is listed in a commit record. Both reach the disk (fsync of
the file and of its directory) before they return.

Names inside a checkpoint are relative to its root, with `/`. The root is a local path or a `file:` URI; other file
systems come with a later version and only this module will know them.

Limits: rename is atomic on POSIX file systems; on network mounts as far as they promise it.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlparse

from zset_join.errors import OptionError, StateError

__all__ = [
    "FileEntry",
    "NewFile",
    "attempt_name",
    "check_file",
    "local_path",
    "read_bytes",
    "remove_files",
    "remove_tree",
    "sync_directory",
    "write_atomic",
]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Say what a listed file must be.

    Args:
        name: path relative to the root of the checkpoint.
        bytes: its size.
        rows: rows in it.
        crc32: checksum of all of it.
    """

    name: str
    bytes: int
    rows: int
    crc32: int

    def to_json(self) -> dict[str, Any]:
        """Return the entry as it stands in a commit record."""
        return {"name": self.name, "bytes": self.bytes, "rows": self.rows, "crc32": self.crc32}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> FileEntry:
        """Build from what `to_json` gave."""
        return cls(found["name"], found["bytes"], found["rows"], found["crc32"])


def local_path(location: str, *, option: str = "checkpointLocation") -> Path:
    """Return the local path of a location.

    Args:
        location: a path or a `file:` URI.
        option: name of the option it came from, for the message.

    Raises:
        OptionError: the location is on another file system.

    >>> local_path("file:///data/a%20b").as_posix()
    '/data/a b'
    """
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location):
        return Path(location).absolute()
    parsed = urlparse(location)
    if parsed.scheme != "file" or parsed.netloc not in ("", "localhost"):
        raise OptionError(
            f"{option}={location!r} is on the file system {parsed.scheme!r}; this version keeps its files on a local or "
            "mounted one. Give a path that the driver and all workers share.",
            code="FILE_SYSTEM",
            option=option,
            value=location,
        )
    return Path(unquote(parsed.path))


def attempt_name(epoch: int, suffix: str) -> str:
    """Return a file name that sorts by epoch and that no other attempt uses."""
    return f"{epoch:020d}-{uuid.uuid4().hex}{suffix}"


class NewFile:
    """Write a file nobody reads yet, counting bytes and checksum on the way.

    Leaving the context puts it on the disk; leaving it with an exception removes it.

    Args:
        root: root of the checkpoint.
        name: relative path; its directory is made.
        durable: wait for the disk. False for files that can be made again.
    """

    def __init__(self, root: Path, name: str, *, durable: bool = True) -> None:
        self.name = name
        self.bytes = 0
        self.crc32 = 0
        self.closed = False
        self._durable = durable
        self._path = root / name
        try:
            self._file = self._path.open("xb")
        except FileNotFoundError:
            make_directories(root, Path(name).parent)
            self._file = self._path.open("xb")

    def write(self, data: Any) -> int:
        """Append bytes."""
        view = memoryview(data)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.bytes += view.nbytes
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Close; the disk has everything when this returns, if the file is durable."""
        if self.closed:
            return
        self._file.flush()
        if self._durable:
            os.fsync(self._file.fileno())
        self._file.close()
        self.closed = True
        if self._durable:
            sync_directory(self._path.parent)

    def entry(self, rows: int) -> FileEntry:
        """Return what a commit record says about the file."""
        return FileEntry(self.name, self.bytes, rows, self.crc32)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error_type is None:
            self.close()
            return
        self.closed = True
        self._file.close()
        self._path.unlink(missing_ok=True)


def make_directories(root: Path, relative: Path) -> None:
    """Make the directories below the root, each known to the disk."""
    current = root
    current.mkdir(parents=True, exist_ok=True)
    for part in relative.parts:
        below = current / part
        if not below.is_dir():
            below.mkdir(exist_ok=True)
            sync_directory(current)
        current = below


def write_atomic(path: Path, data: bytes) -> None:
    """Replace or make a file in one step: afterwards a reader sees the old file or all of the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Put the names in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: Path) -> bytes | None:
    """Return the bytes of a file, or None when there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def check_file(root: Path, entry: FileEntry, *, whole: bool = True) -> Path:
    """Return the path of a listed file after checking that it is what was listed.

    Args:
        root: root of the checkpoint.
        entry: what the commit record says.
        whole: read all of it for the checksum; False compares the size alone.

    Raises:
        StateError: the file is missing or damaged.

    Cost: one read of the file when `whole`, about 1 ms per 2 MB.
    """
    path = root / entry.name
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise _damaged(path, "is missing", entry) from error
    if size != entry.bytes:
        raise _damaged(path, f"has {size} bytes where {entry.bytes} were written", entry)
    if whole:
        crc32 = 0
        for chunk in _chunks(path):
            crc32 = zlib.crc32(chunk, crc32)
        if crc32 != entry.crc32:
            raise _damaged(path, "does not have the checksum it was written with", entry)
    return path


def remove_files(root: Path, names: list[str]) -> None:
    """Remove files that are no longer listed; one that is gone already is no error."""
    for name in names:
        (root / name).unlink(missing_ok=True)


def remove_tree(directory: Path) -> None:
    """Remove a directory and all below it; one that is not there is no error."""
    with _gone_is_fine():
        shutil.rmtree(directory)


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        return


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _damaged(path: Path, what: str, entry: FileEntry) -> StateError:
    return StateError(
        f"checkpoint file {path} {what}; the checkpoint cannot be read past it. Bring the file back from a copy of the "
        "checkpoint directory, or start with a new checkpointLocation.",
        code="DAMAGED_FILE",
        file=str(path),
        expected_bytes=entry.bytes,
    )
