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
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.fs as pafs

from zset_join.core.errors import OptionError
from zset_join.storage.local_folder import LocalFolder
from zset_join.storage.object_folder import ObjectFolder

__all__ = ["Folder", "FolderFile", "folder_below", "is_local", "local_path", "open_folder"]

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
