"""Names of files and directories for the names that users give to tables, queries and statements.

The law: two names never share a file, also on file systems that take letters of both cases, or two spellings of one letter,
for the same; and no name leads out of its directory. So everything but small letters, digits, `_` and `-` is written as the
bytes of its UTF-8 in hexadecimal, which has a fixed width. A name longer than a file may be is cut, and ends with its digest.
"""

from __future__ import annotations

import hashlib
import string

__all__ = ["file_name"]

_KEPT = frozenset((string.ascii_lowercase + string.digits + "_-").encode())
_MOST_BYTES = 160
"""A file name has 255 bytes on most systems; numbers and suffixes are added to ours."""


def file_name(name: str) -> str:
    """Return a name that every file system accepts, another one for every name.

    >>> file_name("orders"), file_name("Orders"), file_name("a/b"), file_name("\u20ac"), file_name("..")
    ('orders', '%4Frders', 'a%2Fb', '%E2%82%AC', '%2E%2E')
    """
    raw = name.encode("utf-8", errors="surrogatepass")
    text = "".join(chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in raw)
    if not text:
        return "%"
    if len(text) <= _MOST_BYTES:
        return text
    return f"{text[: _MOST_BYTES // 2]}%%{hashlib.blake2b(raw, digest_size=16).hexdigest()}"
