"""Refusals of what no rule binds, and of words that another system has: each names what to write instead.

A word is looked for where the parser stumbles, or takes it for the name of a table; so it is refused by its own name wherever
it is in the grammar.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlglot import exp

from zset_join.core.errors import SqlError
from zset_join.sql_expressions.consumed import Position, near, position_of, written_name

__all__ = ["CLAUSES", "DECLARATIONS", "EMITS", "JOIN_WORDS", "ONCE_TOO_OFTEN", "OTHER_EMITS", "phrase_at", "refusal", "unknown"]


_PLACED = "Rows are placed by the plan: leave it out"
_ENDS = "Every epoch gives its changes, as EMIT CHANGELOG at the end of the statement does; leave it out"
_SAMPLED = "A sample would choose other rows each time; filter by a column"
_FIRST_ROWS = "To keep the first rows of each key, write WHERE rn <= n over ROW_NUMBER()"
JOIN_WORDS = {
    "ALL": "JOIN keeps every match by itself: leave ALL out",
    "ANY": "To keep one match, join a query that keeps the first row of each key: WHERE rn = 1 over ROW_NUMBER()",
    "GLOBAL": "Rows are placed by the plan: leave GLOBAL out",
    "LATEST": "To join the newest row of each key, join a table with a PRIMARY KEY, or WHERE rn = 1 over ROW_NUMBER()",
    **dict.fromkeys(
        ("ARRAY", "ASYNC", "BROADCAST", "HASH", "INTERVAL", "LOCAL", "LOOKUP", "LOOP", "MERGE", "PASTE", "POSITIONAL", "REMOTE",
         "SHUFFLE", "SKEW", "STRICT", "TEMPORAL", "UNIQUE", "WINDOW"), "Leave it out"),
}  # fmt: skip
"""Words before JOIN, or between INNER, LEFT ... and JOIN."""
ONCE_TOO_OFTEN = ("CLUSTER", "DISTRIBUTE", "GROUP", "ORDER", "PARTITION", "SORT")
CLAUSES = {
    "EMIT": _ENDS,
    "FINAL": "A table with a PRIMARY KEY holds the newest row of each key by itself: leave FINAL out",
    "SETTINGS": "Settings are at the end of the statement, SETTINGS name = value, or in SET before it",
    "PREWHERE": "Write WHERE",
    "SAMPLE": _SAMPLED,
    "TABLESAMPLE": _SAMPLED,
    "WITH TOTALS": "Write GROUP BY GROUPING SETS ((k), ())",
    "WITH TIES": _FIRST_ROWS,
    "FORMAT": "Results are Arrow tables: leave it out",
    "INTO OUTFILE": "Write INSERT INTO a table with the connector filesystem",
    "FOR UPDATE": "A query locks no rows: leave it out",
    "MATCH_RECOGNIZE": "Patterns over rows are not evaluated; join the rows by key and time",
    "CONNECT BY": "There is no bound on the state of a recursive query",
    "AS OF": "Write JOIN t FOR SYSTEM_TIME AS OF a time of the rows before it",
    "OPTION": "Options are in WITH of CREATE TABLE, or in SET",
    "UNPIVOT": "Write a SELECT per column, with UNION ALL between",
    "LATERAL": "Unnest before the source, or declare a column per field",
    "EVERY": _ENDS,
    "ONLY": "Leave it out",
    "WATERMARK": "It is declared in CREATE TABLE: WATERMARK FOR at AS at - INTERVAL '5' SECOND",
    **dict.fromkeys(("CLUSTER BY", "DISTRIBUTE BY", "PARTITION BY", "SHUFFLE BY", "SORT BY"), _PLACED),
    **dict.fromkeys(ONCE_TOO_OFTEN, "It is written once too often, or BY is missing"),
}  # fmt: skip
"""Clauses behind a table, and at the end of a query."""
OTHER_EMITS = frozenset(
    {"AFTER", "EVERY", "FINAL", "LAST", "ON", "PER", "PERIODIC", "REPEAT", "STREAM", "TIMEOUT", "UPDATE", "WITHIN"}
)
"""Words behind EMIT, or EMIT CHANGELOG."""
EMITS = (
    "every epoch gives its changes, as EMIT CHANGELOG does. Leave it out; to answer only what is final, filter by the end of a "
    "window, or join as of an event time."
)
BEFORE_JOIN = frozenset({"ANTI", "ASOF", "CROSS", "FULL", "INNER", "JOIN", "LEFT", "NATURAL", "OUTER", "RIGHT", "SEMI"})

DECLARATIONS = {
    "ENGINE": "Where rows are is in WITH: 'connector'",
    "INCLUDE": "Declare the column: name type METADATA FROM 'key'",
    "LOCATION": "Write WITH ('connector' = 'filesystem', 'path' = ...)",
    "STORED AS": "Write USING and a format, or WITH ('format' = ...)",
    "TBLPROPERTIES": "Options are in WITH",
    "TTL": "State expires by SET 'state_ttl'; rows of a table are kept",
    **dict.fromkeys(("CLUSTER BY", "ORDER BY", "PARTITION BY", "SAMPLE BY"), "Rows are laid out by the plan: leave it out"),
}
"""Clauses of CREATE TABLE."""


def phrase_at(words: Sequence[str], place: int) -> str | None:
    """Return the entry of a table that words have at a place: "X JOIN" of `JOIN_WORDS`, or one of `CLAUSES`; None for none.

    >>> phrase_at("SELECT v FROM a INNER LATEST JOIN b".split(), 5), phrase_at("GROUP BY k WITH TOTALS".split(), 3)
    ('LATEST JOIN', 'WITH TOTALS')
    """
    following = words[place + 1] if place + 1 < len(words) else ""
    if words[place] in JOIN_WORDS and following in BEFORE_JOIN:
        return f"{words[place]} JOIN"
    for phrase in CLAUSES:
        parts = phrase.split()
        if [*words[place : place + len(parts)]] == parts:
            return phrase
    return None


def refusal(phrase: str) -> str:
    """Return what is wrong with a phrase, and what to write."""
    cure = JOIN_WORDS.get(phrase.removesuffix(" JOIN")) or CLAUSES[phrase]
    return f"{phrase} is not supported here. {cure}"


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
    ((exp.Any, exp.All), "ANY, SOME and ALL are not supported here. Write IN for = ANY, or compare with its max or min."),
    ((exp.Star,), "a * is alone in a SELECT list or in count(*)."),
)


def unknown(node: exp.Expr, text: str, at: Position, offered: Collection[str]) -> SqlError:
    """Return the refusal of a node that no rule binds."""
    name = node.name.upper() if isinstance(node, exp.Anonymous) else node.sql_name() if isinstance(node, exp.Func) else ""
    at = position_of(node, text) or at
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
        called = written_name(node, text).upper() or node.sql_name()
        return SqlError(
            f"the aggregate {called} is allowed in SELECT and HAVING only. Aggregate in a subquery, and query its result.",
            code="NOT_OFFERED",
            at=at,
        )
    # As it was written, where the parser has it under another name.
    shown = written_name(node, text).upper() or name or type(node).__name__.upper()
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
