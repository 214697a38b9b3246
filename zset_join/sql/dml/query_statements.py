"""A query as a statement: SELECT, and its tail.

    SELECT ... EMIT CHANGELOG SETTINGS max_hot_keys = 1000

The tail is taken off before the rest is parsed, so no dialect of the parser needs to read it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from sqlglot.tokenizer_core import Token, TokenType

from zset_join.core.errors import SqlError
from zset_join.core.frames import own_frames
from zset_join.sql.parse.readers import Reader
from zset_join.sql.parse.secrets import refuse_secrets
from zset_join.sql.tables.contexts import StatementContext
from zset_join.sql.tables.results import Query
from zset_join.sql.tables.settings import check_setting
from zset_join.sql_expressions.dialects import Statement, parse_query
from zset_join.sql_expressions.option_values import hints
from zset_join.sql_expressions.positions import SqlWarning
from zset_join.sql_expressions.unknown import EMITS, OTHER_EMITS

__all__ = ["bind_query", "bound_by"]


def bind_query(session: StatementContext, statement: Statement, begin: int = 0, *, is_named: bool = False) -> Query:
    """Bind the query that begins at a token; EMIT CHANGELOG and SETTINGS are taken off its end."""
    tokens, emits, settings = _without_tail(statement, begin)
    _check_hints(statement, tokens)
    node = parse_query(statement, tokens)
    query = session.query(statement, node, settings, emits_changelog=emits)
    if query.bound.virtual and not is_named:
        raise SqlError(
            f"{query.bound.virtual[0]} has another value each time a row is read, so the row could not be retracted "
            f"as it was. Use it behind FOR SYSTEM_TIME AS OF; to show it, give the source a column that holds it.",
            code="NON_DETERMINISTIC",
            at=statement.place(begin),
        )
    return query


def bound_by(session: StatementContext, bind: Callable[[], Query]) -> Query:
    """Return a query that can be bound again, when what its names represent has changed."""
    query, settings = bind(), dict(session.catalog.settings)

    def again() -> Query:
        catalog = session.catalog
        before = catalog.settings
        catalog.settings = dict(settings)
        try:
            with own_frames(), warnings.catch_warnings(action="ignore"):  # they were given when it was bound first
                return replace(bind(), again=again)
        finally:
            catalog.settings = before

    return replace(query, again=again)


def _without_tail(statement: Statement, begin: int) -> tuple[tuple[Token, ...], bool, dict[str, str]]:
    tokens = statement.tokens
    depth, end, emits = 0, len(tokens), False
    settings: dict[str, str] = {}
    for place in range(begin, len(tokens)):
        token = tokens[place]
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        reader = Reader(statement, place)
        is_here = place > begin and reader.has("EMIT")
        if is_here and depth == 0 and (reader.has("CHANGELOG") or reader.has("CHANGES")):
            end = min(end, place)
            emits = True
            is_here = reader.word not in {"", "SETTINGS"}
            if is_here and reader.word not in OTHER_EMITS:
                reader.fail("expected the end after EMIT CHANGELOG")
        if is_here and reader.word in OTHER_EMITS:
            raise SqlError(f"EMIT {reader.word} is not supported: {EMITS}", code="NOT_OFFERED", at=statement.place(place))
        if depth == 0 and place > begin and reader.has("SETTINGS") and _is_assignment(reader):
            end = min(end, place)
            at = reader.index
            given = reader.options()
            settings = {check_setting(name, value, at=statement.place(at)): value for name, value in given.items()}
            if reader.has("EMIT", "CHANGELOG"):
                emits = True
            if not reader.is_done:
                reader.fail("expected the end after SETTINGS")
            break
    return tuple(tokens[begin:end]), emits, settings


def _check_hints(statement: Statement, tokens: tuple[Token, ...]) -> None:
    """Refuse secrets in hints, and warn of hints behind a table, as Flink's `t /*+ OPTIONS('k'='v') */`, which are comments."""
    for begin, end in hints(statement.written, tokens):
        refuse_secrets(statement, begin, end)
        behind = next((one for one in reversed(tokens) if one.end < begin), None)
        if behind is not None and behind.token_type != TokenType.SELECT:
            hint = statement.text[begin:end].strip()
            warnings.warn(
                SqlWarning(
                    f"the hint {hint} behind {behind.text} changes nothing: hints come after SELECT, options in CREATE TABLE."
                ),
                stacklevel=4,
            )


def _is_assignment(reader: Reader) -> bool:
    following = reader.tokens[reader.index + 1 : reader.index + 2]
    return bool(following) and following[0].text == "="
