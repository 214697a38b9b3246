"""The prompt of `zset-join sql`: several lines up to a semicolon, history, and completion of words and names.

Where the input is no terminal, statements are read from it as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from zset_join.core.extras import needed_for
from zset_join.sql.bind.aggregation import AGGREGATES
from zset_join.sql.tables.settings import SETTINGS
from zset_join.sql_expressions.dialects import split
from zset_join.sql_expressions.scalars import SCALAR_FUNCTIONS

if TYPE_CHECKING:
    from zset_join.sql.session import Session

__all__ = ["completions", "prompt"]

_WORDS = (
    "CREATE TABLE", "CREATE STREAM", "CREATE MUTABLE STREAM", "CREATE VIEW", "CREATE MATERIALIZED VIEW", "DESCRIBE", "DROP",
    "EMIT CHANGELOG", "EXPLAIN", "FOR SYSTEM_TIME AS OF", "FROM", "FULL JOIN", "GROUP BY", "HAVING", "INSERT INTO", "JOIN",
    "LEFT JOIN", "ON", "PRIMARY KEY", "SELECT", "SET", "SETTINGS", "SHOW TABLES", "UNION ALL",
    "VALUES", "WATERMARK FOR", "WHERE",
)  # fmt: skip


def completions(session: Session) -> list[str]:
    """Return completions: keywords, names of the session, functions, settings."""
    columns = [column for table in session.catalog.tables.values() for column in table.schema.names]
    return sorted({*_WORDS, *session.catalog.relations(), *columns, *SCALAR_FUNCTIONS, *AGGREGATES.values(), *SETTINGS})


def prompt(session: Session) -> Iterator[str]:
    """Yield statements as they are typed, until the end of input."""
    if not sys.stdin.isatty():
        for statement in split(sys.stdin.read(), dialect=session.dialect):
            yield statement.sql
        return
    with needed_for("the shell of zset-join sql"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import DynamicCompleter, WordCompleter
        from prompt_toolkit.history import FileHistory

    completer = DynamicCompleter(lambda: WordCompleter(completions(session), ignore_case=True, sentence=False))
    typed: PromptSession[str] = PromptSession(history=FileHistory(str(Path.home() / ".zset_join_history")), completer=completer)
    lines: list[str] = []
    while True:
        try:
            line = typed.prompt("zset-join> " if not lines else "       ...> ")
        except KeyboardInterrupt:
            lines = []
            continue
        except EOFError:
            return
        lines.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []
