"""A folder on a file system that is not a local disk: an object store, or anything else `pyarrow.fs` or fsspec can open.

Object stores have no rename, no append and no directories; a put is atomic there, and readers see all of an object or none of
it. So a file is one put. Where the file system shows files while they are written (HDFS, SFTP and their like, `_SHOWS_PARTS`),
`put_new` writes beside the name and renames.

`put_new` refuses a name that is taken: in one conditional request where fsspec offers it (`pipe_file(mode="create")`),
otherwise by looking first. Between looking and putting another process may put too; callers that cannot bear that need a second
guard (the owner record of a checkpoint is one).

Memory: a file up to 16 MiB is kept until it is closed; a larger one streams.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from zset_join.core.hidden_settings import shown
from zset_join.storage.operations import perform

__all__ = ["KEPT_BYTES", "ObjectFile", "ObjectFolder"]

KEPT_BYTES = 16 << 20


class ObjectStreams(Protocol):
    """Streams through which a folder writes an object."""

    def put(self, name: str, data: bytes) -> None:
        """Make or replace an object."""

    def remove(self, name: str) -> None:
        """Remove an object."""

    def begin_stream(self, name: str) -> Any:
        """Open an object that is present once the stream is closed."""

    def append(self, stream: Any, name: str, view: memoryview) -> None:
        """Write to a stream."""

    def end_stream(self, stream: Any, name: str) -> None:
        """Complete an object."""

    def give_up_stream(self, stream: Any, name: str) -> None:
        """Close a stream, if it is open, whose object is not wanted."""


class ObjectFile:
    """A new object; small ones are one put."""

    def __init__(self, folder: ObjectStreams, name: str) -> None:
        self._folder = folder
        self._name = name
        self._kept = bytearray()
        self._stream: Any = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._stream is None and len(self._kept) + len(view) <= KEPT_BYTES:
            self._kept += view
            return len(view)
        if self._stream is None:
            self._stream = self._folder.begin_stream(self._name)
            kept, self._kept = self._kept, bytearray()
            self._folder.append(self._stream, self._name, memoryview(kept))
        self._folder.append(self._stream, self._name, view)
        return len(view)

    def close(self, *, durable: bool) -> None:  # noqa: ARG002 - an object that was put is stored
        if self._stream is None:
            self._folder.put(self._name, bytes(self._kept))
        else:
            self._folder.end_stream(self._stream, self._name)

    def discard(self) -> None:
        if self._stream is not None:
            self._folder.give_up_stream(self._stream, self._name)
            self._folder.remove(self._name)


_SHOWS_PARTS = frozenset({"hdfs", "viewfs", "webhdfs", "sftp", "ssh", "ftp", "smb", "dbfs", "local", "file"})


class ObjectFolder:
    """Keep files below a path of a file system."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, location: str) -> None:
        self.location = location
        self._filesystem = filesystem
        self._path = path.rstrip("/")
        handler = getattr(filesystem, "handler", None)
        self._fsspec: Any = getattr(handler, "fs", None)
        kinds = {filesystem.type_name} if self._fsspec is None else _protocols(self._fsspec)
        self._shows_parts = bool(kinds & _SHOWS_PARTS)

    def __repr__(self) -> str:
        return f"ObjectFolder({shown(self.location)!r})"

    def uri(self, name: str) -> str:
        base = self.location.partition("?")[0].rstrip("/")
        return f"{base}/{name}" if name else base

    def create(self, name: str) -> ObjectFile:
        return ObjectFile(self, name)

    def put(self, name: str, data: bytes) -> None:
        self._make_place(name)
        perform("put", self.uri(name), lambda: self._write(name, data), data=memoryview(data))

    def put_new(self, name: str, data: bytes) -> None:
        self._make_place(name)
        if self._shows_parts:
            beside = f"{name}.{uuid.uuid4().hex}.tmp"
            perform("put", self.uri(beside), lambda: self._write(beside, data), data=memoryview(data))
            try:
                self._refuse_taken(name)
                self._rename(beside, name)
            except BaseException:
                self.remove(beside)
                raise
            return

        def act() -> None:
            if self._fsspec is not None:
                self._fsspec.pipe_file(self._at(name), data, mode="create")
                self._fsspec.invalidate_cache()
                return
            self._refuse_taken(name)
            self._write(name, data)

        perform("put_new", self.uri(name), act, data=memoryview(data))

    def read(self, name: str) -> pa.Buffer | None:
        def act() -> pa.Buffer:
            with self._filesystem.open_input_file(self._at(name)) as file:
                return file.read_buffer()

        try:
            return perform("read", self.uri(name), act)
        except FileNotFoundError:
            return None

    def view(self, name: str) -> pa.Buffer | None:
        return self.read(name)

    def size(self, name: str) -> int | None:
        info = perform("size", self.uri(name), lambda: self._info(name))
        return info.size if info.type == pafs.FileType.File else None

    def names(self, under: str) -> Iterator[str]:
        for info in self._list(under):
            if not info.path.endswith(".tmp"):
                yield self._named(info, under)

    def move(self, name: str, target: str) -> None:
        if self._shows_parts:
            self._make_place(target)
            self._rename(name, target)
            return
        data = self.read(name)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.uri(name))
        self.put(target, data.to_pybytes())
        self.remove(name)

    def remove(self, name: str) -> None:
        def act() -> None:
            self._forget_listings()
            if self._info(name).type == pafs.FileType.File:
                self._filesystem.delete_file(self._at(name))

        try:
            perform("remove", self.uri(name), act)
        except FileNotFoundError:
            return

    def remove_unfinished(self, *folders: str) -> None:
        for under in folders if self._shows_parts else ():
            for info in self._list(under):
                if info.path.endswith(".tmp"):
                    self.remove(self._named(info, under))

    def sync_names(self, under: str) -> None:
        """Do nothing: what can be seen is stored."""

    def begin_stream(self, name: str) -> Any:
        self._make_place(name)
        return perform("create", self.uri(name), lambda: self._filesystem.open_output_stream(self._at(name)))

    def append(self, stream: Any, name: str, view: memoryview) -> None:
        perform("write", self.uri(name), lambda: stream.write(view), data=view)

    def end_stream(self, stream: Any, name: str) -> None:
        perform("close", self.uri(name), stream.close)

    def give_up_stream(self, stream: Any, name: str) -> None:  # noqa: ARG002 - as the protocol has it
        stream.close()

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _list(self, under: str) -> list[pafs.FileInfo]:
        chosen = pafs.FileSelector(self._at(under), allow_not_found=True, recursive=True)

        def act() -> list[pafs.FileInfo]:
            self._forget_listings()
            return [info for info in self._filesystem.get_file_info(chosen) if info.type == pafs.FileType.File]

        return perform("list", self.uri(under), act)

    def _named(self, info: pafs.FileInfo, under: str) -> str:
        below = info.path.strip("/").removeprefix(self._at(under).strip("/")).strip("/")
        return f"{under}/{below}" if under else below

    def _write(self, name: str, data: bytes) -> None:
        with self._filesystem.open_output_stream(self._at(name)) as stream:
            stream.write(data)
        self._forget_listings()

    def _info(self, name: str) -> pafs.FileInfo:
        self._forget_listings()
        return self._filesystem.get_file_info(self._at(name))

    def _refuse_taken(self, name: str) -> None:
        if self._info(name).type != pafs.FileType.NotFound:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.uri(name))

    def _rename(self, name: str, target: str) -> None:
        act = lambda: self._filesystem.move(self._at(name), self._at(target))  # noqa: E731 - one act, announced below
        perform("rename", self.uri(name), act, target=self.uri(target))

    def _make_place(self, name: str) -> None:
        """Make the directory of a file, on file systems that have them."""
        if self._shows_parts:
            place = self._at(name).rpartition("/")[0]
            perform("make_directory", place, lambda: self._filesystem.create_dir(place, recursive=True))

    def _forget_listings(self) -> None:
        """Look again: fsspec remembers listings, and others write here too."""
        if self._fsspec is not None:
            self._fsspec.invalidate_cache()


def _protocols(filesystem: Any) -> set[str]:
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)
