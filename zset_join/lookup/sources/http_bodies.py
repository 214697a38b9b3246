"""The body of an HTTP answer, decoded within a bound.

The law: memory follows the bound, not what the service sends. Compressed bytes are decompressed piece by piece, and reading
stops with the first byte beyond the bound: a small compressed answer cannot fill the memory. Only encodings that can be read
so are offered: gzip and deflate, one of them at a time.
"""

from __future__ import annotations

import zlib

__all__ = ["ACCEPTED_ENCODINGS", "BodyError", "BoundedBody"]

ACCEPTED_ENCODINGS = "gzip, deflate"
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_ZLIB_METHOD = 8


class BodyError(Exception):
    """A body that cannot be read; the message completes "answered with"."""


class BoundedBody:
    """Collect the bytes of an answer as they come.

    >>> body = BoundedBody("gzip", most_bytes=10)
    >>> body.add(zlib.compress(b"[]", wbits=16 + zlib.MAX_WBITS))
    >>> body.content()
    b'[]'
    """

    def __init__(self, encoding: str | None, *, most_bytes: int) -> None:
        names = [name.strip().lower() for name in (encoding or "").split(",")]
        encodings = [name for name in names if name not in ("", "identity")]
        if len(encodings) > 1 or any(name not in _WINDOWS for name in encodings):
            raise BodyError(f"the encoding {', '.join(encodings)!r}, where one of {ACCEPTED_ENCODINGS} was offered")
        self._encoding = encodings[0] if encodings else None
        self._most_bytes = most_bytes
        self._decoded = bytearray()
        self._is_begun = False
        self._stream = None if self._encoding is None else zlib.decompressobj(_WINDOWS[self._encoding])

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        if self._stream is None:
            self._decoded += piece
            self._check_size()
            return
        try:
            self._decompress(piece)
        except zlib.error as error:
            raise BodyError(f"bytes that are not {self._encoding} ({error})") from error

    def content(self) -> bytes:
        """Return the decoded body."""
        if self._stream is not None and self._is_begun and not self._stream.eof:
            raise BodyError(f"a {self._encoding} body that ends too early")
        return bytes(self._decoded)

    def _decompress(self, piece: bytes) -> None:
        if piece and not self._is_begun:
            self._is_begun = True
            if self._encoding == "deflate" and piece[0] & 0x0F != _ZLIB_METHOD:
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS)  # raw, as some servers send it
        while piece and self._stream is not None:
            if self._stream.eof:  # the next member of a gzip stream
                self._stream = zlib.decompressobj(_WINDOWS[self._encoding or ""])
            self._decoded += self._stream.decompress(piece, self._most_bytes + 1 - len(self._decoded))
            self._check_size()
            piece = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail

    def _check_size(self) -> None:
        if len(self._decoded) > self._most_bytes:
            raise BodyError(f"more than max_answer_bytes={self._most_bytes}")
