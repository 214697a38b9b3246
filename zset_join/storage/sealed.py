"""JSON that proves it is whole: a small file whose every byte is covered by a checksum.

    {"format":2,"crc32":"1a2b3c4d","body":{...}}

The checksum starts from the name of the file, so that a file that is in another one's place is caught as well, and covers
format and body; what is left, the frame, is compared byte by byte. The file stays ordinary JSON for users and tools.

>>> data = seal({"epoch": 7}, version=2, name="commits/7")
>>> data
b'{"format":2,"crc32":"e6962204","body":{"epoch":7}}'
>>> unseal(data, version=2, name="commits/7")
{'epoch': 7}
>>> unseal(data.replace(b"7", b"8"), version=2, name="commits/7")
Traceback (most recent call last):
ValueError: its checksum does not fit
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, TypeVar

import msgspec

__all__ = ["UnknownFormatError", "json_text", "read", "seal", "seal_text", "unseal"]

_T = TypeVar("_T")

_FRAME = re.compile(rb'\{"format":(\d{1,9}),"crc32":"([0-9a-f]{8})","body":')
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=msgspec.to_builtins)


class UnknownFormatError(ValueError):
    """A whole file of a format this version does not read."""

    def __init__(self, found: Any) -> None:
        self.found = found
        super().__init__(f"it has format {found}")


def seal(body: Any, *, version: int, name: str) -> bytes:
    """Return the bytes of a file."""
    return seal_text(json_text(body).encode(), version=version, name=name)


def seal_text(text: bytes, *, version: int, name: str) -> bytes:
    """Return the bytes of a file whose payload is JSON already; see `seal`."""
    return b'{"format":%d,"crc32":"%08x","body":%b}' % (version, _checksum(text, version, name), text)


def json_text(value: Any) -> str:
    """Return JSON as it is in sealed files; dataclasses are objects of their fields."""
    return _ENCODER.encode(value)


def read(kind: type[_T], written: Any) -> _T:
    """Build a value from its JSON: a dataclass, or what is made of them; extra fields are left out.

    >>> read(tuple[int, str], json.loads(json_text((7, "commits"))))
    (7, 'commits')
    """
    try:
        return msgspec.convert(written, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"it is no {kind.__name__} of this version: {error}") from error


def unseal(data: bytes, *, version: int, name: str) -> dict[str, Any]:
    """Return the payload of a sealed file."""
    frame = _FRAME.match(data)
    if frame is None:
        raise _unframed(data)
    if int(frame[1]) != version:
        raise UnknownFormatError(int(frame[1]))
    text = data[frame.end() : -1]
    if seal_text(text, version=version, name=name) != data:
        raise ValueError("its checksum does not fit")
    body: dict[str, Any] = json.loads(text)
    return body


def _checksum(text: bytes, version: int, name: str) -> int:
    return zlib.crc32(text, zlib.crc32(f"{version}\n{name}\n".encode()))


def _unframed(data: bytes) -> ValueError:
    """Distinguish a file of another layout, which names it, from a damaged one."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return ValueError("it is cut off or damaged")
    if isinstance(content, dict) and isinstance(content.get("format"), int):
        return UnknownFormatError(content["format"])
    return ValueError("it names no format")
