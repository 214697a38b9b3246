"""Passwords in options: a statement names a variable of the environment in place of the value.

    CREATE TABLE customers (...) WITH ('connector' = 'jdbc', ..., 'password' = '${ENV:CRM_PASSWORD}')

The law: the text of a statement, which a directory keeps, has the reference; the value is read when the statement runs, and
again when the directory is opened. It is in no file and no message.
"""

from __future__ import annotations

import os
import re

from zset_join.core.errors import SqlError
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.positions import Position, credentials_in

__all__ = ["FromEnvironment", "refuse_kept_credentials", "with_environment"]

_REFERENCE = re.compile(r"\$\{ENV:([A-Za-z_][A-Za-z0-9_]*)\}")


class FromEnvironment(str):
    """The value of an option that refers to the environment.

    Attributes:
        written: as the statement has it.
    """

    __slots__ = ("written",)

    written: str


def with_environment(option: str, value: str, at: Position) -> str:
    """Return the value of an option with the variables of the environment that it refers to.

    Raises:
        SqlError: `SECRET_MISSING`: there is no such variable.
    """
    names = _REFERENCE.findall(value)
    if not names:
        return value
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise SqlError(
            f"the option '{option}' refers to the variable {missing[0]} of the environment, which is not set. Set it before "
            "the process begins.",
            code="SECRET_MISSING",
            at=at,
            name=missing[0],
        )
    found = FromEnvironment(_REFERENCE.sub(lambda match: os.environ[match[1]], value))
    found.written = value
    return found


def refuse_kept_credentials(statement: Statement) -> None:
    """Refuse a declaration whose text would bring a password into a file.

    Raises:
        SqlError: `SECRET_KEPT`, with the cure.
    """
    if statement.words[:1] not in {("CREATE",), ("ALTER",)}:
        return
    found = credentials_in(_REFERENCE.sub("", statement.sql))
    if found is not None:
        raise SqlError(
            f"{found} has a password or token, and the directory of the session keeps the text of this statement. Write "
            "'${ENV:NAME}' in its place, and set the variable NAME in the environment.",
            code="SECRET_KEPT",
            at=statement.place(0),
        )
