"""A folder of some file system, as the project uses one: whole files, written once, read whole, listed, removed.

    open_folder("/data/cp")             a local or mounted disk
    open_folder("s3://bucket/cp")       an object store: by obstore where it is installed (zset-join[objects])
    open_folder("hdfs://host/cp")       any file system of pyarrow.fs, or of fsspec when pyarrow lacks the scheme

The law: a file is seen whole under its name or not at all, once `put` or `put_new` gave it that name; a file made with `create`
is whole once it was closed, and its name is one nobody looks for before. `put_new` never replaces.

Names are relative to the folder, with `/`. A folder need not exist; it appears with its first file.

Limits: what a file system does not promise, nobody here can. Local: rename and link are atomic on local file systems, on
network mounts as far as they promise it. Object stores: `put_new` is one conditional request with obstore (see `BucketFolder`),
else where fsspec offers it; else it is a look and a put (see `ObjectFolder`), and `Ownership.claim` keeps a second driver out.

`LocalFolder`: a folder on a local or mounted disk.

What `put_new` and a durable `create` made survives a power cut: the bytes are synced before the name is given, then the
directory, and every directory between the folder and the file was synced by this process at least once. That somebody else made
a directory is no proof that its name is on the disk. `put` is for what may be lost.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import os
import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.fs as pafs

from zset_join.core.errors import OptionError
from zset_join.storage import local
from zset_join.storage.local import later
from zset_join.storage.object_folder import ObjectFolder
from zset_join.storage.operations import perform

__all__ = ["Folder", "FolderFile", "LocalFolder", "folder_below", "is_local", "local_path", "open_folder"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3"}
_BUCKETS = frozenset({"s3", "gs", "az", "abfs", "abfss"})
"""Schemes of object stores that obstore reads."""


class FolderFile(Protocol):
    """A new file, from its beginning to its end."""

    def write(self, data: Any) -> int:
        """Append bytes; returns how many."""

    def close(self, *, durable: bool) -> None:
        """Complete the file; it is on the disk when this returns, if it is to be durable."""

    def discard(self) -> None:
        """Give up: the file is removed as far as there is one."""


class Folder(Protocol):
    """A folder of some file system.

    Attributes:
        location: where it is, as another process can open it: an absolute path or a URI.
    """

    location: str

    def uri(self, name: str) -> str:
        """Return a path or URI by which other systems, such as Spark, can open the file: an absolute path or a URI."""

    def create(self, name: str) -> FolderFile:
        """Begin a new file under a name nobody has."""

    def put(self, name: str, data: bytes) -> None:
        """Make or replace a file."""

    def put_new(self, name: str, data: bytes) -> None:
        """Make a file, on the disk when this returns."""

    def read(self, name: str) -> pa.Buffer | None:
        """Return all bytes of a file; None when there is none."""

    def view(self, name: str) -> pa.Buffer | None:
        """Return all bytes of a file, mapped where that is possible; None when there is none."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None when there is none."""

    def names(self, under: str) -> Iterator[str]:
        """Yield the names of all files below a folder inside this one, in no order; none when it is absent."""

    def move(self, name: str, target: str) -> None:
        """Give a file another name inside this folder; in one step where the file system can."""

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone already is no error."""

    def remove_unfinished(self, *folders: str) -> None:
        """Remove unfinished files of dead writers in folders inside this one ("" for this one itself)."""

    def sync_names(self, under: str) -> None:
        """Put the names that can be seen in a folder on the disk, of any writer."""


def open_folder(location: str | Path, *, option: str = "checkpointLocation") -> Folder:
    """Return the folder at a location.

    >>> open_folder("/data/cp").uri("commits/1.json")
    '/data/cp/commits/1.json'
    >>> open_folder("memory://cp").uri("commits/1.json")
    'memory://cp/commits/1.json'
    """
    text = str(location)
    if text.startswith("/"):
        return _below_root(text)
    if is_local(text):
        return LocalFolder(local_path(text, option=option))
    scheme, _, rest = text.partition(":")
    scheme = _SAME_SCHEME.get(scheme.lower(), scheme.lower())
    if scheme in _BUCKETS and _has_obstore():
        return _bucket(f"{scheme}:{rest}", text, option, os.getpid())
    filesystem, path = _opened(f"{scheme}:{rest}", text, option, os.getpid())
    return ObjectFolder(filesystem, path, text)


def folder_below(location: str | Path, name: str, *, option: str = "checkpointLocation") -> Folder:
    """Return a folder inside the one at a location; the query of a URI stays at the end.

    >>> folder_below("memory://cp?x=1", "zset").location
    'memory://cp/zset?x=1'
    """
    text = str(location)
    base, mark, settings = (text, "", "") if is_local(text) else text.partition("?")
    return open_folder(f"{base.rstrip('/')}/{name}{mark}{settings}", option=option)


def is_local(location: str) -> bool:
    """Return whether a location is a path or a `file:` URI.

    >>> is_local("/data/cp"), is_local("file:///data/cp"), is_local("s3a://bucket/cp")
    (True, True, False)
    """
    return not _URI.match(location) or location[:5].lower() == "file:"


def local_path(location: str, *, option: str = "checkpointLocation") -> Path:
    """Return the local path of a location.

    >>> local_path("file:///data/a%20b").as_posix()
    '/data/a b'
    """
    if not _URI.match(location):
        return Path(location).absolute()
    parsed = urlparse(location)
    if parsed.scheme != "file" or parsed.netloc not in ("", "localhost"):
        raise OptionError(
            f"{option}={location!r} is on the file system {parsed.scheme!r}, and a local or mounted one is needed here. Give a "
            "path that the driver and all workers share.",
            code="FILE_SYSTEM",
            option=option,
            value=location,
        )
    return Path(unquote(parsed.path))


@lru_cache(maxsize=64)
def _below_root(path: str) -> LocalFolder:
    return LocalFolder(local_path(path))


@cache
def _has_obstore() -> bool:
    return importlib.util.find_spec("obstore") is not None


@lru_cache(maxsize=64)
def _bucket(uri: str, location: str, option: str, process: int) -> Folder:  # noqa: ARG001 - connections do not outlive a fork
    from zset_join.storage.bucket_folder import open_bucket

    return open_bucket(uri, location, option=option)


@lru_cache(maxsize=64)
def _opened(uri: str, location: str, option: str, process: int) -> tuple[pafs.FileSystem, str]:  # noqa: ARG001 - the same
    scheme = uri.partition(":")[0]
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, NotImplementedError):
        try:
            filesystem, path = pafs.FileSystem.from_uri(f"fsspec+{uri}")
        except (ImportError, ValueError, pa.ArrowException) as error:
            raise OptionError(
                f"{option}={location!r}: no installed library reads the file system {scheme!r} ({error}). Install the fsspec "
                "package for it on the driver and all workers, or give a path that they share.",
                code="FILE_SYSTEM",
                option=option,
                value=location,
            ) from error
    return filesystem, path


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
