"""A folder on a local or mounted disk.

What `put_new` and a durable `create` made survives a power cut: the bytes are synced before the name is given, then the
directory, and every directory between the folder and the file was synced by this process at least once. That somebody else made
a directory is no proof that its name is on the disk. `put` is for what may be lost.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from zset_join.storage import local
from zset_join.storage.operations import perform
from zset_join.storage.together import later

__all__ = ["LocalFolder"]

_Made = TypeVar("_Made")

_synced: set[str] = set()
"""Directories whose name this process has put on the disk."""


class LocalFolder:
    """Keep files below a directory."""

    def __init__(self, root: Path) -> None:
        self.location = str(root)

    def __repr__(self) -> str:
        return f"LocalFolder({self.location!r})"

    def uri(self, name: str) -> str:
        return f"{self.location}/{name}" if name else self.location

    def create(self, name: str) -> LocalFolderFile:
        path = self.uri(name)
        return self._where_it_is(path, lambda: LocalFolderFile(path))

    def put(self, name: str, data: bytes) -> None:
        path = self.uri(name)
        self._where_it_is(path, lambda: local.write_atomic(path, data, durable=False))

    def put_new(self, name: str, data: bytes) -> None:
        path = self.uri(name)
        self._where_it_is(path, lambda: local.write_new(path, data))

    def read(self, name: str) -> pa.Buffer | None:
        content = local.read_bytes(self.uri(name))
        return None if content is None else pa.py_buffer(content)

    def view(self, name: str) -> pa.Buffer | None:
        path = self.uri(name)
        try:
            descriptor = perform("open", path, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(descriptor).st_size
            if not size:
                return pa.py_buffer(b"")
            return pa.py_buffer(perform("map", path, lambda: mmap.mmap(descriptor, size, prot=mmap.PROT_READ)))
        finally:
            os.close(descriptor)

    def size(self, name: str) -> int | None:
        return local.file_size(self.uri(name))

    def names(self, under: str) -> Iterator[str]:
        for name in local.list_directory(self.uri(under)):
            if name.startswith("."):
                continue
            below = f"{under}/{name}"
            if os.path.isdir(self.uri(below)):  # noqa: PTH112 - parsing paths takes longer than the call
                yield from self.names(below)
            else:
                yield below

    def move(self, name: str, target: str) -> None:
        path = self.uri(target)
        self._prepare(path)
        local.replace(self.uri(name), path)
        local.sync_directory(Path(path).parent)

    def remove(self, name: str) -> None:
        local.remove_file(self.uri(name))

    def remove_unfinished(self, *folders: str) -> None:
        for under in folders:
            for name in local.list_directory(self.uri(under)):
                if name.startswith("."):
                    local.remove_file(f"{self.uri(under)}/{name}")

    def sync_names(self, under: str) -> None:
        try:
            local.sync_directory(self.uri(under))
        except FileNotFoundError:
            return

    def _where_it_is(self, path: str, act: Callable[[], _Made]) -> _Made:
        """Do something with a file whose directory is made where it is missing."""
        try:
            self._prepare(path)
            return act()
        except FileNotFoundError:  # a directory was removed since it was prepared, as one for a query that begins again
            _synced.clear()
            self._prepare(path)
            return act()

    def _prepare(self, path: str) -> None:
        """See to it that the directory of a file is present and known to the disk."""
        directory = path.rpartition("/")[0]
        if directory in _synced:
            return
        current = self.location
        if current not in _synced:
            local.make_directories(current)
            _sync_name(current)
        for part in directory[len(self.location) :].split("/")[1:]:
            below = f"{current}/{part}"
            if below not in _synced:
                local.make_directory(below)
                local.sync_directory(current)
                _synced.add(below)
            current = below
        _synced.add(directory)


def _sync_name(directory: str) -> None:
    """Put the name of a directory on the disk, and that of the one it is in."""
    parent = Path(directory).parent
    local.sync_directory(parent)
    with contextlib.suppress(PermissionError):  # not ours to read: the maker of the directory below it synced its name
        local.sync_directory(parent.parent)
    _synced.add(directory)


class LocalFolderFile:
    """A new file on a local disk."""

    def __init__(self, path: str) -> None:
        self._file = local.LocalFile(path)

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def close(self, *, durable: bool) -> None:
        file = self._file
        if durable:
            file.flush()
            names = partial(local.sync_directory, os.path.dirname(file.path))  # noqa: PTH120 - as above
            if later((file.sync, names), file.close, self.discard):
                return
            file.sync()
        file.close()
        if durable:
            names()

    def discard(self) -> None:
        self._file.close(discard=True)
        local.remove_file(self._file.path)
