"""Descriptions of one query by the two kinds of Spark session, which write its expressions in different ways.

A classic session has them analysed: with the casts that Spark adds, and names without quotes. A client of Spark Connect has
them as the program wrote them. So `total * 2` is `(total * CAST(2 AS BIGINT))` of one and "(`total` * 2)" of the other.

The law: texts are equal here if they are the same expression but for casts that only the classic session has, casts of
literals, quotes of names, parentheses and the words for inequality, NULL and lists, which Spark rewrites. A cast of the client
is the program's, so the classic text has it too.
That is less than within one kind of session, where texts are compared letter by letter (a cast that a program adds as it moves
to a classic session, or leaves out as it moves away, is taken for one of Spark's); the plan is compared beside it, and with it
the types of all columns. Texts of which that is not found are taken for different ones, and the query is refused.
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
_COMPARING = "comparing a query of Spark Connect with one of a classic session"
_EXPLAINED = "line "
"""What the names of lines of `explain` begin with."""
_CALL_OF_IN = re.compile(r"\bin\(", re.IGNORECASE)
"""As a client of Spark Connect writes it; Spark itself writes a space."""


def is_of_other_session(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether two descriptions are of one query, by sessions of different kinds."""
    if stored.get(SESSION) == given.get(SESSION):
        return False
    classic, client = (
        {name: value for name, value in one.items() if name != SESSION and not name.startswith(_EXPLAINED)}
        for one in ((given, stored) if SESSION in stored else (stored, given))
    )
    return _is_same(classic, client)


def _is_same(classic: Any, client: Any) -> bool:
    if isinstance(classic, dict) and isinstance(client, dict):
        return classic.keys() == client.keys() and all(_is_same(value, client[name]) for name, value in classic.items())
    if isinstance(classic, list) and isinstance(client, list):
        return len(classic) == len(client) and all(map(_is_same, classic, client))
    if isinstance(classic, str) and isinstance(client, str):
        return classic == client or _is_same_text(classic, client)
    return bool(classic == client)


def _is_same_text(classic: str, client: str) -> bool:
    analysed, written = _tree(classic), _tree(client)
    return analysed is not None and written is not None and _fits(analysed, written)


def _fits(classic: Any, client: Any) -> bool:
    """Return whether a part of an analysed expression is one that the program wrote, but for casts that Spark adds."""
    with needed_for(_COMPARING):
        from sqlglot import exp

    if isinstance(classic, exp.Cast):
        if isinstance(client, exp.Cast) and _is_same_cast(classic, client) and _fits(classic.this, client.this):
            return True
        return not classic.args.get("safe") and _fits(classic.this, client)
    if isinstance(client, exp.Cast):
        return isinstance(client.this, exp.Literal) and _fits(classic, client.this)
    if isinstance(classic, list) and isinstance(client, list):
        return len(classic) == len(client) and all(map(_fits, classic, client))
    if not isinstance(classic, exp.Expression) or not isinstance(client, exp.Expression) or not classic.args or not client.args:
        return bool(classic == client)
    if type(classic) is not type(client) or isinstance(classic, exp.Literal):
        return bool(classic == client)
    return all(_fits(classic.args.get(name) or None, client.args.get(name) or None) for name in {*classic.args, *client.args})


def _is_same_cast(classic: Any, client: Any) -> bool:
    return bool(classic.to == client.to) and bool(classic.args.get("safe")) == bool(client.args.get("safe"))


@lru_cache(maxsize=1024)
def _tree(text: str) -> Any:
    """Return an expression without what the kinds of sessions write differently; None where it cannot be read."""
    with needed_for(_COMPARING):
        import sqlglot
        from sqlglot import exp

    def plain(node: Any) -> Any:
        if isinstance(node, exp.Paren):
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
