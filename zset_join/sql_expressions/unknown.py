"""Refusals of what no rule binds: each names what to write instead."""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp

from zset_join.core.errors import SqlError
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.positions import near, position_of, written_name

__all__ = ["unknown"]

_NON_DETERMINISTIC = frozenset(
    {"CURRENT_DATE", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP", "MONOTONICALLY_INCREASING_ID", "NOW", "PROCTIME", "RAND", "RANDN",
     "RANDOM", "UNIX_TIMESTAMP", "UUID", "SYSDATE", "NOW64", "GEN_RANDOM_UUID"}
)  # fmt: skip

_WHY: tuple[tuple[tuple[type[exp.Expr], ...], str], ...] = (
    (
        (exp.Subquery, exp.Select, exp.Exists),
        "a subquery inside an expression is not supported. Join it, or write EXISTS or IN in WHERE, joined to the rest by AND.",
    ),
    (
        (exp.Window,),
        (
            "a window function is supported as ROW_NUMBER() alone, in a subquery that keeps the first rows: WHERE rn = 1. "
            "Aggregate with GROUP BY and join instead."
        ),
    ),
    ((exp.Tuple,), "a list in brackets is before IN. Compare column by column: a = c AND b = d."),
    ((exp.Star,), "a * is alone in a SELECT list or in count(*)."),
)


def unknown(node: exp.Expr, statement: Statement, offered: Collection[str]) -> SqlError:
    """Return the refusal of a node that no rule binds.

    Args:
        node: what was written.
        statement: where.
        offered: names of functions there are, in lower case.
    """
    name = node.name.upper() if isinstance(node, exp.Anonymous) else node.sql_name() if isinstance(node, exp.Func) else ""
    at = position_of(node, statement.text) or statement.place(0)
    if name in _NON_DETERMINISTIC:
        return SqlError(
            f"{name}() has another value each time it is called, so a row could not be retracted. Give the "
            "source a column that holds it.",
            code="NON_DETERMINISTIC",
            at=at,
            function=name.lower(),
        )
    for kinds, why in _WHY:
        if isinstance(node, kinds):
            return SqlError(why, code="NOT_OFFERED", at=at)
    if isinstance(node, exp.AggFunc):
        called = written_name(node, statement.text).upper() or node.sql_name()
        return SqlError(
            f"the aggregate {called} is allowed in SELECT and HAVING only. Aggregate in a subquery, and query its result.",
            code="NOT_OFFERED",
            at=at,
        )
    # As it was written, where the parser has it under another name.
    shown = written_name(node, statement.text).upper() or name or type(node).__name__.upper()
    window, _, _ = shown.partition("_")
    if window in {"TUMBLE", "HOP", "CUMULATE"}:
        operands = {"TUMBLE": "size", "HOP": "slide, size", "CUMULATE": "step, size"}[window]
        return SqlError(
            f"{shown} is not supported here: a window is a table. Write FROM {window}(TABLE t, DESCRIPTOR(time), {operands}) "
            "GROUP BY window_start, window_end.",
            code="NOT_OFFERED",
            at=at,
        )
    if shown.lower() in offered:
        return SqlError(f"{shown} is not supported with these operands.", code="UNKNOWN_FUNCTION", at=at)
    return SqlError(f"{shown} is not supported here.{near(shown, offered)}", code="UNKNOWN_FUNCTION", at=at)
