"""Secrets in options: a statement names a variable of the environment in place of the value.

    CREATE TABLE customers (...) WITH ('connector' = 'jdbc', ..., 'password' = '${ENV:CRM_PASSWORD}')

The law: what is secret is decided on parsed options, whatever their spelling: by the option of a connector, or by
`zset_join.core.hidden_settings`. The text of a statement, which a directory keeps, has the reference; the value is read when
the statement runs, and again when the directory is opened by a user who confirms the variable. A secret is in no file and no
message; what an option that is no secret takes from the environment, such as a host, is part of plans.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from sqlglot.errors import SqlglotError

from zset_join.connectors import tables
from zset_join.core.errors import SqlError
from zset_join.core.hidden_settings import STARS, HiddenText, holds_password, is_secret_name
from zset_join.sql_expressions.dialects import Statement, dialect_named
from zset_join.sql_expressions.positions import Position

__all__ = ["given_value", "refuse_secrets", "with_environment"]

_REFERENCE = re.compile(r"\$\{ENV:([A-Za-z_][A-Za-z0-9_]*)\}")
_OF_PAIRS = "jaas.config"
"""The end of options whose values are pairs, of which some are secret."""


def given_value(option: str, value: str, statement: Statement, at: Position) -> str:
    """Return the value of an option as a statement gives it, hidden where it is a secret."""
    literal = _REFERENCE.sub("", value)
    is_marked = any(option in table.by_name and table.by_name[option].is_secret for table in tables().values())
    is_named = is_marked or (is_secret_name(option) and not option.endswith(_OF_PAIRS))
    is_literal = bool(literal) if is_named else holds_password(literal)
    if is_literal and statement.is_kept:
        raise SqlError(
            f"the option '{option}' has a password or token, and the session keeps and shows the text of this statement. "
            "Write '${ENV:NAME}' in its place, and set the variable NAME in the environment.",
            code="SECRET_KEPT",
            at=at,
            name=option,
        )
    return HiddenText.of(value, STARS if is_literal else value, is_secret=True) if is_literal or is_named else value


def refuse_secrets(statement: Statement, begin: int, end: int) -> None:
    """Refuse literal secrets in a hint: the text of a query is shown."""
    statement = replace(statement, is_kept=True)
    at = Position(statement.text, begin)
    try:
        tokens = dialect_named(statement.dialect)().tokenize(statement.written[begin:end])
    except SqlglotError:
        given_value("password", statement.written[begin:end], statement, at)
        return
    for name, assigned, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if assigned.text == "=":
            given_value(name.text, value.text, statement, at)


def with_environment(option: str, value: str, statement: Statement, at: Position) -> str:
    """Return the value of an option with the variables of the environment that it refers to."""
    names = _REFERENCE.findall(value)
    if not names:
        return value
    refused = [name for name in names if statement.variables is not None and name not in statement.variables]
    if refused:
        raise SqlError(
            f"the option '{option}' refers to the variable {refused[0]} of the environment, which is not confirmed.",
            code="ENV_NOT_ALLOWED",
            at=at,
            name=refused[0],
        )
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise SqlError(
            f"the option '{option}' refers to the variable {missing[0]} of the environment, which is not set. Set it before "
            "the process begins.",
            code="SECRET_MISSING",
            at=at,
            name=missing[0],
        )
    resolved = _REFERENCE.sub(lambda match: os.environ[match[1]], value)
    is_secret = isinstance(value, HiddenText) or is_secret_name(option) or holds_password(resolved)
    return HiddenText.of(resolved, value.written if isinstance(value, HiddenText) else value, is_secret=is_secret)
