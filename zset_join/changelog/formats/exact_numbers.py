"""JSON numbers that a double does not hold, kept through parsers that read numbers as doubles.

DuckDB's parser, and Spark's where it copies a value as text, turn every JSON number with a point or an exponent into a
double: `9007199254740993.0` becomes 9007199254740992, `1e-400` becomes 0. Before such a parser reads a record, numbers that
would change are put into quotes behind a mark; a value that begins with the mark is that number, as it was written.

The law: a mark is in no text of a record: it is drawn at random when the process starts. Numbers that a double holds, and all
integers of up to 38 digits, stay as they are, so almost no record is touched.

Cost: one regular expression per record; a second one for records that match.
"""

from __future__ import annotations

import re
import secrets
from decimal import Decimal, InvalidOperation

__all__ = [
    "LONG_FRACTION",
    "MARK",
    "MARKED",
    "ODD_NUMBER",
    "RISKY",
    "RISKY_NUMBER",
    "holds_exactly",
    "holds_fractions",
    "with_marks",
]

MARK = f"number {secrets.token_hex(8)}:"
MARKED = f'"{MARK}([^"]*)"'
"""What a marked number looks like in JSON."""

_ENDS = r"[ \t\r\n,\]}]"
LONG_FRACTION = r"[0-9]{8,}\.[0-9]|[0-9]\.[0-9]{8,}"
ODD_NUMBER = (
    r"[0-9]{16,}[eE]|[0-9][eE][+-]?[0-9]{3,}|[0-9]{39,}"
    r"|[:,\[ \t]-0(\.0+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)" + _ENDS + r"|[:,\[ \t]-?(NaN|Infinity)"
)
RISKY = LONG_FRACTION + "|" + ODD_NUMBER
"""What a text matches that may have such a number; the syntax is that of RE2, Java and Python."""

RISKY_NUMBER = (
    r"(?<![0-9.eE+-])"
    r"(?:-?(?:NaN|Infinity)|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)|-?[1-9][0-9]{38,})"
    r"(?![0-9.eE+-]|\s*:)"
)
"""A number with a point, an exponent, or more than 38 digits, outside of texts; for Java and Python."""

_FRACTION = re.compile(r"\.[0-9]+(?:[eE][+-]?[0-9]+)?")
_TOKEN = re.compile(rf'"(?:[^"\\]|\\.)*"|({RISKY_NUMBER})', re.DOTALL)


def holds_exactly(number: str) -> bool:
    """Return whether the shortest decimal of the nearest double is the number.

    >>> holds_exactly("0.1"), holds_exactly("1e18"), holds_exactly("9007199254740993.0"), holds_exactly("1e-400")
    (True, True, False, False)
    """
    if number[-1:] in "Ny":  # NaN, Infinity
        return False
    if number.startswith("-") and not number.strip("-0."):
        return False  # a decimal has no negative zero
    shown = repr(float(number))
    try:
        return shown == number or ("n" not in shown and Decimal(shown) == Decimal(number))
    except InvalidOperation:  # a decimal has no such exponent
        return False


def with_marks(text: str, *, keeps_exact: bool = True) -> str:
    """Return JSON in which the numbers that a double does not hold are marked.

    >>> with_marks('{"a": 0.1, "b": 1e-400, "c": "1e-400"}').replace(MARK, "#")
    '{"a": 0.1, "b": "#1e-400", "c": "1e-400"}'
    """

    def marked(token: re.Match[str]) -> str:
        number = token[1]
        return token[0] if number is None or (keeps_exact and holds_exactly(number)) else f'"{MARK}{number}"'

    return _TOKEN.sub(marked, text)


def holds_fractions(text: str) -> bool:
    """Return whether a double holds every number with a point; one in a text may count as one."""
    for found in _FRACTION.finditer(text):
        before = text[: found.start()]
        whole = before[len(before.rstrip("0123456789")) :]
        if whole and not holds_exactly(("-" if before.endswith("-" + whole) else "") + whole + found[0]):
            return False
    return True
