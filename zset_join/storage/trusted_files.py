"""Files that may be trusted: JSON that proves it is whole, and files that only their owner can write.

`seal`, `unseal`: JSON that proves it is whole: a small file whose every byte is covered by a checksum.

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

`is_own`, `kept_token`: ownership of directories and files: only the owner may be able to write what is loaded as code or mapped
as state.

The law: nothing is taken from a place that another user of the host could have written. A place is *own* if it belongs to the
user of this process and neither its group (but the user's own one, for state) nor others may write to it. A directory that
everybody may write to is good enough for own files in it only where it is sticky, as the host's temporary directory is.

Limits: access lists beyond the permission bits are not looked at; root can write anywhere.

A token in a file is readable by its owner alone, or the file is refused.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import zlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from zset_join.core.errors import OptionError, StateError

__all__ = [
    "UnknownFormatError",
    "is_own",
    "json_text",
    "kept_token",
    "read",
    "refuse_foreign",
    "seal",
    "seal_text",
    "unseal",
    "why_foreign",
]

_T = TypeVar("_T")

_FRAME = re.compile(rb'\{"format":(\d{1,9}),"crc32":"([0-9a-f]{8})","body":')
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=msgspec.to_builtins)


class UnknownFormatError(ValueError):
    """A whole file of a format this version does not read."""

    def __init__(self, found: Any) -> None:
        self.found = found
        super().__init__(f"it has format {found}")


def seal(body: Any, *, version: int, name: str) -> bytes:
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


def why_foreign(status: os.stat_result, *, own_group: bool = False) -> str | None:
    """Return why something is not to be trusted; None where it is."""
    user = os.geteuid()
    if status.st_uid != user:
        return f"it belongs to user {status.st_uid}, not to user {user} who runs this process"
    if status.st_mode & stat.S_IWOTH:
        return "every user of the host may write to it"
    if status.st_mode & stat.S_IWGRP and not (own_group and status.st_gid == os.getegid()):
        return f"its group {status.st_gid} may write to it"
    return None


def is_own(path: str | Path) -> bool:
    """Return whether a path is present and nobody else may write to it; a link is not followed."""
    try:
        return why_foreign(os.lstat(path)) is None
    except OSError:
        return False


def refuse_foreign(path: str, status: os.stat_result) -> None:
    """Refuse a file that is to be mapped, where it or its directory is not the user's own."""
    reason, place = why_foreign(status, own_group=True), path
    if reason is None:
        above = Path(path).parent.stat()
        place = str(Path(path).parent)
        is_shared = above.st_mode & stat.S_ISVTX and above.st_uid in (0, os.geteuid())
        reason = None if is_shared else why_foreign(above, own_group=True)
    if reason is not None:
        raise StateError(
            f"{place} is not trusted with local state: {reason}. Give a directory of your own (localStateDir, directory=), or "
            "take the right to write from others; local state is a cache and is rebuilt from the checkpoint.",
            code="FOREIGN_FILE",
            path=place,
        )


_SHORTEST = 16


def kept_token(path: str | Path) -> str:
    """Return the token in a file; where there is none, it is made, with mode 600."""
    try:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            mode, token = stat.S_IMODE(os.stat(path).st_mode), Path(path).read_text(encoding="utf-8").strip()  # noqa: PTH116
        else:
            mode, token = 0o600, secrets.token_urlsafe(32)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(token + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(path, str(error)) from error
    if mode & 0o077:
        raise _refused(path, f"it has mode {mode:o}, so that others may use it: chmod 600 {path}")
    if len(token) < _SHORTEST:
        raise _refused(path, f"it has {len(token)} characters; expected {_SHORTEST} or more")
    return token


def _refused(path: str | Path, why: str) -> OptionError:
    return OptionError(f"the token file {path}: {why}.", code="OPTION_VALUE", name="metrics-token-file", value=str(path))
