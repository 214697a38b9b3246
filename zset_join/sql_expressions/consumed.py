r"""Record of the parts of a parsed tree that were read; an unread part is rejected by name, so that no syntax is ignored.

A tree is tracked as it comes from the parser. Each `node.args.get(...)`, and each property such as `node.this`, notes what it
reads; a walk over the tree, a hash, a copy and `node.sql()` note nothing. When a statement is bound, `check_consumed` refuses
the first argument that holds something and that no rule has read.

What is meant to change nothing is marked: `disregard`. A copy that is bound instead of its tree is made by `copied`; what is
read of either is read of both.

Known limits: an argument that is read and not used is not seen. `node.args["name"]` notes nothing; write `.get`. With a
compiled sqlglot, whose properties note nothing, arguments that have a property are not checked.

Positions in a statement: every error shows its position with a caret.

>>> print(Position("SELECT a\nFROM orders o", 14))
line 2, column 6:
  FROM orders o
       ^
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sqlglot import exp

from zset_join.core.errors import SqlError
from zset_join.core.shown_values import near

__all__ = [
    "Position",
    "SqlWarning",
    "argument",
    "check_consumed",
    "check_distinct",
    "check_operands",
    "copied",
    "disregard",
    "flattened",
    "is_quantified",
    "near",
    "pick",
    "position_of",
    "tracked",
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


_Node = TypeVar("_Node", bound=exp.Expr)
_WITHOUT_MEANING: dict[type[exp.Expr], frozenset[str]] = {
    exp.CTE: frozenset({"materialized"}),
    exp.Column: frozenset({"catalog", "db"}),
    exp.DataType: frozenset({"expressions"}),
    exp.DataTypeParam: frozenset({"this"}),
    exp.Fetch: frozenset({"direction"}),
    exp.Identifier: frozenset({"quoted"}),
    exp.LimitOptions: frozenset({"rows"}),
    exp.Literal: frozenset({"is_string"}),
    exp.Table: frozenset({"catalog", "db"}),
    exp.Window: frozenset({"over"}),
}
"""How something is spelled, not what it means: a session has one database, lengths of types are not enforced, a plan needs
no hint to keep a query of WITH."""
_UNREAD: dict[type[exp.Expr], tuple[str, ...]] = {
    exp.ArrayToString: ("null",),
    exp.Between: ("symmetric",),
    exp.Cast: ("format", "action", "default"),
    exp.Ceil: ("decimals", "to"),
    exp.Floor: ("decimals", "to"),
    exp.JSONValue: ("returning", "on_condition"),
    exp.LastDay: ("unit",),
    exp.RegexpExtract: ("position", "occurrence", "parameters"),
    exp.RegexpLike: ("flag", "full_match"),
    exp.RegexpReplace: ("position", "occurrence", "modifiers"),
    exp.RegexpSplit: ("limit", "mode"),
    exp.Round: ("truncate",),
    exp.Split: ("limit",),
    exp.StrPosition: ("occurrence",),
    exp.TimestampTrunc: ("zone",),
    exp.ToChar: ("nlsparam",),
    exp.Trim: ("collation",),
    exp.TryCast: ("format", "action", "default"),
    exp.TsOrDsToDate: ("format",),
    exp.Week: ("mode",),
}
_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
_WORDS = {
    "format": "a pattern",
    "decimals": "a number of decimals; multiply first, or use round",
    "returning": "RETURNING; use CAST around it",
    "limit": "a limit",
    "position": "a place to begin at",
    "symmetric": "SYMMETRIC",
}
_OF_PROPERTIES = frozenset({"alias", "db", "expression", "expressions", "kind", "side", "table", "this", "unit"})


class _Args(dict[str, Any]):
    """The arguments of a node, and the names of those that have been read."""

    __slots__ = ("read",)

    def __init__(self, args: dict[str, Any], read: set[str]) -> None:
        super().__init__(args)
        self.read = read

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


class _Refusing(Protocol):
    """Binder of the operands of a function."""

    @property
    def dialect(self) -> str:
        """Whose SQL it is."""

    def refused(self, node: exp.Expr, why: str) -> SqlError:
        """Return the refusal of a node."""


def argument(node: exp.Expr, name: str) -> Any:
    return node.args.get(name)


def tracked(node: _Node) -> _Node:
    """Return a tree that notes what is read of it."""
    for part in list(node.walk()):
        part.args = _Args(part.args, set())
    return node


def copied(node: _Node) -> _Node:
    """Return a copy of a tree; what is read of it counts as read of the tree."""
    copy = node.copy()
    for new, old in zip(list(copy.walk()), list(node.walk()), strict=True):
        if isinstance(old.args, _Args):
            new.args = _Args(new.args, old.args.read)
    return copy


def disregard(node: object) -> None:
    """Count a tree, or each of several, as read: it is warned of, or means nothing here."""
    for one in node if isinstance(node, list) else [node]:
        for part in one.walk() if isinstance(one, exp.Expr) else ():
            if isinstance(part.args, _Args):
                part.args.read.update(part.args)


def check_consumed(root: exp.Expr, text: str, at: Position | None = None) -> None:
    """Refuse the first thing of a tracked tree that nothing has read."""
    for node in root.walk():
        args = node.args
        if not isinstance(args, _Args):
            continue
        for name, value in args.items():
            if name not in args.read and _is_written(node, name, value):
                raise SqlError(
                    f"{_shown(node, name, value)} is not supported here. Leave it out, or write it differently.",
                    code="NOT_OFFERED",
                    at=next(filter(None, (position_of(one, text) for one in (*_nodes(value), node))), at),
                )


def check_operands(binder: _Refusing, node: exp.Expr) -> None:
    """Reject operands that are written and not read."""
    for name in _UNREAD.get(type(node), ()):
        if node.args.get(name):
            called = node.sql_name() if isinstance(node, exp.Func) else type(node).__name__.upper()
            raise binder.refused(node, f"{called} is not supported with {_WORDS.get(name, 'so many operands')}")
    if isinstance(node, _BITS) and binder.dialect != "risingwave":
        for operand in (node.this, node.expression):
            if isinstance(operand, _BITS) and type(operand) is not type(node):
                raise binder.refused(node, "put brackets around one of several operators of bits; & binds closer than ^ and |")
    pattern = node.args.get("format") if isinstance(node, exp.StrToUnix) else None
    # The parser adds the pattern where the statement has none.
    if pattern is not None and pattern.name.replace("strict", "") != "%Y-%m-%d %H:%M:%S":
        raise binder.refused(node, "a time in a text is read as yyyy-MM-dd HH:mm:ss, without a pattern")


def _is_written(node: exp.Expr, name: str, value: object) -> bool:
    """Return whether an argument holds something of the statement, and not what the parser adds."""
    if value is None or value is False or value == [] or value == "":
        return False
    if name in _WITHOUT_MEANING.get(type(node), ()) or (name in _OF_PROPERTIES and not _NOTES_PROPERTIES):
        return False
    # Flags of functions and operators hold their meaning in other dialects.
    return bool(_nodes(value)) or not isinstance(node, exp.Func | exp.Binary)


def _nodes(value: object) -> list[exp.Expr]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, exp.Expr)]


def _shown(node: exp.Expr, name: str, value: object) -> str:
    word, owner = name.strip("_").replace("_", " ").upper(), type(node).__name__.upper()
    nodes = _nodes(value)
    if nodes:
        try:
            emitted = ", ".join(one.sql(dialect="spark") for one in nodes)
        except (KeyError, ValueError, TypeError, AttributeError):
            # The writer of texts stumbles over half a call.
            emitted = ""
        # An operand is enough by itself; a clause is known by its word.
        return emitted if emitted and name in {"this", "expression", "expressions"} else f"{word} {emitted}".strip()
    return f"the {word} of {owner}" if value is True else f"{word} {value} of {owner}"


def flattened(node: exp.Expr) -> list[exp.Expr]:
    """Return the operands of a chain of one operator, in order; brackets around an operand are omitted."""
    waiting, operands = [node], []
    while waiting:
        one = waiting.pop()
        if type(one) is type(node):
            waiting += [one.expression, one.this]
        else:
            operands.append(one if isinstance(one, exp.Subquery) else one.unnest())
    return operands


def _notes_properties() -> bool:
    node = tracked(exp.Paren(this=exp.Null()))
    return isinstance(node.this, exp.Null) and isinstance(node.args, _Args) and "this" in node.args.read


_NOTES_PROPERTIES = _notes_properties()
