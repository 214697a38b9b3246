"""Descriptions of one query by the two kinds of Spark session, which write its expressions in different ways.

A classic session has them analysed: with the casts that Spark adds, and names without quotes. A client of Spark Connect has
them as the program wrote them. So `total * 2` is `(total * CAST(2 AS BIGINT))` of one and "(`total` * 2)" of the other.

The law: texts are equal here if they are the same expression but for casts, quotes of names, parentheses and the words for
inequality, NULL and lists, which Spark rewrites.
That is less than within one kind of session, where texts are compared letter by letter; the plan is compared beside it, and
with it the types of all columns. Texts of which that is not found are taken for different ones, and the query is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from zset_join.core.extras import needed_for

__all__ = ["SESSION", "is_of_other_session"]

SESSION = "session"
"""Field of a description: the kind of session, where it is no classic one."""
_EXPLAINED = "line "
"""What the names of lines of `explain` begin with."""
_CALL_OF_IN = re.compile(r"\bin\(", re.IGNORECASE)
"""As a client of Spark Connect writes it; Spark itself writes a space."""


def is_of_other_session(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether two descriptions are of one query, by sessions of different kinds.

    Args:
        stored: of the checkpoint.
        given: of the query that starts.

    Raises:
        MissingPackageError: texts differ, and sqlglot, which parses them, is not installed.
    """
    if stored.get(SESSION) == given.get(SESSION):
        return False
    before, now = (
        {name: value for name, value in one.items() if name != SESSION and not name.startswith(_EXPLAINED)}
        for one in (stored, given)
    )
    return _is_same(before, now)


def _is_same(stored: Any, given: Any) -> bool:
    if isinstance(stored, dict) and isinstance(given, dict):
        return stored.keys() == given.keys() and all(_is_same(value, given[name]) for name, value in stored.items())
    if isinstance(stored, list) and isinstance(given, list):
        return len(stored) == len(given) and all(map(_is_same, stored, given))
    if isinstance(stored, str) and isinstance(given, str):
        return stored == given or _is_same_text(stored, given)
    return bool(stored == given)


def _is_same_text(stored: str, given: str) -> bool:
    before, now = _tree(stored), _tree(given)
    return before is not None and before == now


@lru_cache(maxsize=1024)
def _tree(text: str) -> Any:
    """Return an expression without what the kinds of sessions write differently; None where it cannot be read."""
    with needed_for("comparing a query of Spark Connect with one of a classic session"):
        import sqlglot
        from sqlglot import exp

    def plain(node: Any) -> Any:
        if isinstance(node, exp.Paren | exp.Cast):
            return node.this.transform(plain)
        if isinstance(node, exp.Identifier):
            return exp.to_identifier(node.name.lower(), quoted=False)
        if isinstance(node, exp.NEQ):
            return exp.Not(this=exp.EQ(this=node.this, expression=node.expression)).transform(plain)
        if not isinstance(node, exp.Anonymous):
            return node
        match node.name.lower(), node.expressions:
            case "isnull", [value]:
                return exp.Is(this=value, expression=exp.Null()).transform(plain)
            case "isnotnull", [value]:
                return exp.Not(this=exp.Is(this=value, expression=exp.Null())).transform(plain)
            case "isin", [value, *values]:
                return exp.In(this=value, expressions=values).transform(plain)
            case _:
                return node

    try:
        return sqlglot.parse_one(_CALL_OF_IN.sub("isin(", text), dialect="spark").transform(plain)
    except sqlglot.errors.SqlglotError:
        return None
