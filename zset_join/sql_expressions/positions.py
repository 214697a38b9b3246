r"""Positions in a statement: every error shows its position with a caret, and never a password.

>>> print(Position("SELECT a\nFROM orders o", 14))
line 2, column 6:
  FROM orders o
       ^
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlglot import exp

from zset_join.core.errors import SqlError
from zset_join.core.shown_values import near

__all__ = [
    "Position",
    "SqlWarning",
    "check_distinct",
    "credentials_in",
    "near",
    "pick",
    "position_of",
    "without_credentials",
    "written_name",
]

_Entry = TypeVar("_Entry")
_WIDTH = 160
_SECRET_OPTION = re.compile(r"('[^']*(?:password|secret|token|sasl|ssl)[^']*'\s*=\s*)('(?:[^']|'')*'?)", re.IGNORECASE)
_SECRET_IN_URL = re.compile(r"([?&;][\w.-]*(?:password|pwd|secret|token|key|sig)[\w.-]*=)([^&;'\s]*)", re.IGNORECASE)
_EMPTY_PASSWORD = re.compile(r"password\s*=\s*[\"']{2}", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=//)[^/'\s]*(?=@)")


class SqlWarning(UserWarning):
    """A hint or option without effect; the query runs without it."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a text.

    Args:
        text: the whole text.
        offset: characters before it.
    """

    text: str
    offset: int

    @property
    def line(self) -> int:
        """Return the number of the line, the first is 1."""
        return self.text.count("\n", 0, self.offset) + 1

    @property
    def column(self) -> int:
        """Return the number of the character in its line, the first is 1."""
        return self.offset - (self.text.rfind("\n", 0, self.offset) + 1) + 1

    def __str__(self) -> str:
        begin = self.text.rfind("\n", 0, self.offset) + 1
        end = self.text.find("\n", self.offset)
        line = without_credentials(self.text)[begin : len(self.text) if end < 0 else end]
        column = self.offset - begin
        cut = max(0, column - _WIDTH // 2)
        shown = line[cut : cut + _WIDTH].replace("\t", " ")
        return f"line {self.line}, column {self.column}:\n  {shown}\n  {' ' * (column - cut)}^"


def without_credentials(text: str) -> str:
    """Return text of a statement with stars for the values of secret options and for users in URLs, as long as before.

    >>> print(without_credentials("'password' = 'hush', 'url' = 'jdbc:mysql://me:hush@crm/'"))
    'password' = '****', 'url' = 'jdbc:mysql://*******@crm/'
    """
    starred = _SECRET_OPTION.sub(lambda at: at[1] + re.sub(r"[^'\n]", "*", at[2]), text)
    starred = _SECRET_IN_URL.sub(lambda at: at[1] + "*" * len(at[2]), starred)
    return _USER_IN_URL.sub(lambda at: "*" * len(at[0]), starred)


def credentials_in(text: str) -> str | None:
    """Return the option or address of a statement that holds a password or token; None where none does.

    >>> credentials_in("'password' = 'hush'"), credentials_in("'password' = '', 'properties.sasl.mechanism' = 'PLAIN'")
    ("the option 'password'", None)
    """
    for match in _SECRET_OPTION.finditer(text):
        is_secret = re.search(r"password|secret|token", f"{match[1]}{match[2]}", re.IGNORECASE) is not None
        if is_secret and re.fullmatch(r"'+", match[2]) is None and not _EMPTY_PASSWORD.search(match[2]):
            return f"the option {match[1].partition('=')[0].strip()}"
    in_url = any(match[2] for match in _SECRET_IN_URL.finditer(text))
    return "an address" if in_url or any(match[0].partition(":")[2] for match in _USER_IN_URL.finditer(text)) else None


def position_of(node: exp.Expr | None, text: str) -> Position | None:
    """Return where a node of a parsed statement begins; None where the parser does not record it."""
    if node is None:
        return None
    for part in node.walk():
        start = part.meta.get("start")
        if isinstance(start, int):
            return Position(text, start)
    return None


def written_name(node: exp.Expr, text: str) -> str:
    """Return the name of a call in the text if the parser renames it; empty if unknown."""
    starts = [part.meta["start"] for part in node.walk() if isinstance(part.meta.get("start"), int)]
    call = re.search(r"(\w+)\s*\(\s*$", text[: min(starts)]) if starts else None
    return "" if call is None else call.group(1)


def pick(entries: Mapping[str, _Entry], name: str) -> _Entry | None:
    """Return the entry of a name, or of the only one that differs in case alone."""
    if name in entries:
        return entries[name]
    alike = [one for one in entries if one.lower() == name.lower()]
    return entries[alike[0]] if len(alike) == 1 else None


def check_distinct(names: Sequence[str], what: str, at: Position, *, code: str = "DUPLICATE_COLUMN") -> None:
    """Refuse two of one name, whatever its case.

    Raises:
        SqlError: see above.
    """
    lower = [one.lower() for one in names]
    twice = list(dict.fromkeys(one for one in names if lower.count(one.lower()) > 1))
    if twice:
        how = "twice" if len({*twice}) == 1 else "which differ in case alone"
        raise SqlError(f"{what} names {', '.join(twice)} {how}.", code=code, at=at)
