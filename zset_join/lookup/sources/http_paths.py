"""The URL of one key: a template whose placeholders are filled with the key's values, and nothing but them.

The law: whatever the values are, the URL differs from the template only inside the segments of the path (or the parts of the
query) that have placeholders, also after a server or proxy has decoded it as often as it likes. Every character of a value that
has a meaning in a URL is written as `%XX`. What cannot be written so is refused: a segment that would be empty, or that is or
contains `.` or `..` as a name between slashes, in any spelling. Such a URL names another resource, and its answer would be
joined.

Placeholders are in path and query only, never in scheme, host or port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

__all__ = ["COLUMN", "UnnameableKeyError", "columns_before_the_path", "url_of_key"]

COLUMN = re.compile(r"\{([^{}]+)\}")
_HOST = re.compile(r"[^/?#]*(?://[^/?#]*)?")
_SEPARATORS = re.compile(r"[/\\]")
_MOST_DECODINGS = 8


class UnnameableKeyError(Exception):
    """A key whose URL would be that of another resource; the message gives the reason."""


def columns_before_the_path(template: str) -> list[str]:
    """Return the columns whose placeholders are part of scheme, host or port.

    >>> columns_before_the_path("https://{region}.crm/customers/{id}")
    ['region']
    """
    host = _HOST.match(template)
    return COLUMN.findall("" if host is None else host[0])


def url_of_key(template: str, key: Mapping[str, Any]) -> str:
    """Return the URL of a key.

    >>> url_of_key("https://crm/customers/{id}", {"id": "a/b c"})
    'https://crm/customers/a%2Fb%20c'
    """
    path, query_mark, query = template.partition("?")
    for segment in path.split("/"):
        if COLUMN.search(segment):
            _check_segment(_filled(segment, key, quoted=False), COLUMN.findall(segment), key)
    for name in COLUMN.findall(query):
        if str(key[name]) == "":
            raise UnnameableKeyError(f'"{name}" is empty, and the query of the URL would request everything')
    return _filled(path + query_mark + query, key, quoted=True)


def _filled(template: str, key: Mapping[str, Any], *, quoted: bool) -> str:
    def value(at: re.Match[str]) -> str:
        text = str(key[at[1]])
        return quote(text, safe="") if quoted else text

    return COLUMN.sub(value, template)


def _check_segment(segment: str, columns: Sequence[str], key: Mapping[str, Any]) -> None:
    shown = ", ".join(f'"{name}"={str(key[name])!r}' for name in columns)
    if not segment:
        raise UnnameableKeyError(f"{shown} leaves a segment of the path empty")
    for _ in range(_MOST_DECODINGS):
        names = [part.partition(";")[0].strip() for part in _SEPARATORS.split(segment)]
        if "." in names or ".." in names:
            raise UnnameableKeyError(f"{shown} makes the path that of another resource")
        decoded = unquote(segment)
        if decoded == segment:
            return
        segment = decoded
    raise UnnameableKeyError(f"{shown} is encoded more than {_MOST_DECODINGS} times over")
