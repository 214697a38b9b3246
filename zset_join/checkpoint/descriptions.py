"""Comparing descriptions of queries: their differences, and one query by the two kinds of Spark session.

The kinds of session write the expressions of a query in different ways.

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

__all__ = ["SESSION", "differences", "is_of_other_session", "is_reworded", "is_same_plan", "keep_state_of", "what_to_do"]

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


def differences(stored: Any, given: Any, path: str = "") -> list[str]:
    """Return a line per place where two descriptions differ.

    >>> differences({"how": "inner", "keys": [1]}, {"how": "left", "keys": [1]})
    ["how was 'inner' and is 'left'"]
    """
    if isinstance(stored, dict) and isinstance(given, dict):
        names = sorted(stored.keys() | given.keys())
        return [line for name in names for line in differences(stored.get(name), given.get(name), f"{path}.{name}")]
    if isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given) and _holds_parts(stored):
        pairs = enumerate(zip(stored, given, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{path}[{at}]")]
    if stored == given:
        return []
    return [f"{path.lstrip('.')} was {stored!r} and is {given!r}"]


def keep_state_of(plan: Mapping[str, Any] | None) -> str:
    """Return the option that a written plan was planned with; "all" where there is none."""
    return str(((plan or {}).get("plan") or {}).get("keep_state", "all"))


def what_to_do(stored_plan: Mapping[str, Any], given_plan: Mapping[str, Any] | None) -> str:
    """Return what to do about a query that is not that of its checkpoint."""
    had, wanted = keep_state_of(stored_plan), keep_state_of(given_plan)
    kept = f'The checkpoint was last run or changed with keep_state="{had}" (inside Spark: keepState); give the same. '
    return (
        f"{'' if had == wanted else kept}Start the query as it was; change it in place with zset-join evolve or "
        "Pipeline.evolve(), which keeps the state; or take a new checkpointLocation (in process, a new directory)."
    )


def is_reworded(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether two descriptions differ in lines of `explain` alone, such as the name of the view."""
    plain, other = ({name: value for name, value in one.items() if not name.startswith(_EXPLAINED)} for one in (stored, given))
    return plain == other


def is_same_plan(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint's plan is that of a query; what the view is called does not matter."""
    if "plan" not in stored or stored["stages"] != given["stages"]:
        return False
    known, wanted = ({**one["plan"], "keep_state": None} for one in (stored, given))  # what is kept shows in the feeds
    return bool(_without_view_name(known) == _without_view_name(wanted))


def _without_view_name(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_view_name(one) for one in value]
    if not isinstance(value, dict):
        return value
    left_out = {"name"} if "outputs" in value else set()
    return {key: _without_view_name(inner) for key, inner in value.items() if key not in left_out}


def _holds_parts(listed: list[Any]) -> bool:
    return any(isinstance(one, dict | list) for one in listed)
