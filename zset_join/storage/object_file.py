"""A new file of an object store: one put if it is small, else a stream.

Memory: a file up to 16 MiB is kept until it is closed; a larger one streams.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["KEPT_BYTES", "ObjectFile"]

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
