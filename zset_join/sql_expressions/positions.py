r"""Positions in a statement: every error shows its position with a caret.

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
    "is_quantified",
    "near",
    "pick",
    "position_of",
    "written_name",
]

_Entry = TypeVar("_Entry")
_WIDTH = 160


class SqlWarning(UserWarning):
    """A hint or option without effect; the query runs without it."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a text."""

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
        line = self.text[begin : len(self.text) if end < 0 else end]
        column = self.offset - begin
        cut = max(0, column - _WIDTH // 2)
        shown = line[cut : cut + _WIDTH].replace("\t", " ")
        return f"line {self.line}, column {self.column}:\n  {shown}\n  {' ' * (column - cut)}^"


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
    """Refuse two of one name, whatever its case."""
    lower = [one.lower() for one in names]
    twice = list(dict.fromkeys(one for one in names if lower.count(one.lower()) > 1))
    if twice:
        how = "twice" if len({*twice}) == 1 else "which differ in case alone"
        raise SqlError(f"{what} names {', '.join(twice)} {how}.", code=code, at=at)


def is_quantified(node: exp.Expr) -> bool:
    """Return whether a node is ANY, SOME or ALL over a query or a list."""
    return isinstance(node, exp.Any | exp.All) and isinstance(node.this.unnest(), exp.Query | exp.Tuple | exp.Array)
