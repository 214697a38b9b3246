"""SQL verbs of the command line: check a file, explain it, or type statements.

    zset-join check pipeline.sql             parse, bind and plan; print what each query keeps; run nothing
    zset-join explain pipeline.sql           the plan of each query
    zset-join sql                            a shell

`zset-join run` is in `zset_join.sql.running_files`.

A changelog is printed as lines of JSON, the weight as `_tp_delta`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pyarrow as pa
from sqlglot.errors import SqlglotError

from zset_join.core.errors import SqlError, ZsetJoinError
from zset_join.core.extras import needed_for
from zset_join.core.hidden_settings import holds_password, is_secret_name
from zset_join.sql.bind.aggregation import AGGREGATES
from zset_join.sql.session import Session
from zset_join.sql.tables.results import Message, Query, Running
from zset_join.sql.tables.settings import SETTINGS
from zset_join.sql_expressions.dialects import dialect_named, split
from zset_join.sql_expressions.scalars import SCALAR_FUNCTIONS
from zset_join.zset import ZSet

__all__ = [
    "CheckingSession",
    "check_file",
    "completions",
    "explain_file",
    "file_text",
    "prompt",
    "run_shell",
    "write_lines",
]

_BY_REFERENCE = re.compile(r"""[\w.'"`-]+\s*=\s*'\$\{ENV:\w+\}'""")


class CheckingSession(Session):
    """A session that plans, and neither writes outside nor opens what would."""

    writes = False

    def start(self, query: Query, *, name: str | None = None, output: Callable[[ZSet], None] | None = None) -> Running:  # noqa: ARG002 - as every session
        return super().start(query, name=name)


def check_file(path: str, *, dialect: str) -> int:
    """Parse, bind and plan every statement of a file; print what each query keeps, and write nothing."""
    for number, result in enumerate(_checked(path, dialect), 1):
        if isinstance(result, Query):
            kept = [line.strip() for line in result.explain().splitlines() if "remembers" in line]
            _print(f"{number}: query of {', '.join(result.columns)}; {'; '.join(kept) or 'remembers: nothing'}", sys.stdout)
        else:
            _print(f"{number}: {result}", sys.stdout)
    return 0


def explain_file(path: str, *, dialect: str) -> int:
    """Print the plan of every query of a file."""
    for result in _checked(path, dialect):
        if isinstance(result, Query):
            _print(result.explain(), sys.stdout)
    return 0


def _checked(path: str, dialect: str) -> Iterator[Message | Query]:
    with CheckingSession(dialect=dialect) as session:
        for statement in split(file_text(path), dialect=dialect):
            yield session.run(statement)


def write_lines(table: pa.Table, stream: TextIO) -> None:
    """Print rows as lines of JSON."""
    for row in table.to_pylist():
        _print(json.dumps(row, default=str, ensure_ascii=False), stream)


def file_text(path: str) -> str:
    """Return the statements of a file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SqlError(f"{path} cannot be read: {error}.", code="NO_FILE") from error


def _print(text: str, stream: TextIO) -> None:
    print(text, file=stream)


def run_shell(*, dialect: str) -> int:
    """Read statements from the terminal until the end of input; a statement ends with a semicolon."""
    with Session(dialect=dialect) as session:
        consoles: list[Running] = []
        for text in prompt(session):
            try:
                result = session.sql(text)
                if isinstance(result, Query) and result.emits_changelog and not result.bound.is_bounded:
                    running = result.start()
                    consoles.append(running)
                    _print(
                        f"{running.name}: {', '.join(running.query.columns)}; its changes are printed as they come", sys.stdout
                    )
                elif isinstance(result, Message):
                    _print(str(result), sys.stdout)
                else:
                    write_lines(result.table(), sys.stdout)
                for running in consoles:
                    lines = running.changelog()
                    if lines.num_rows:
                        _print(f"-- {running.name}", sys.stdout)
                        write_lines(lines, sys.stdout)
            except ZsetJoinError as error:
                _print(str(error), sys.stderr)
    return 0


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
    """Yield statements as they are typed, until the end of input; the history keeps none that may hold a literal secret."""
    if not sys.stdin.isatty():
        for statement in split(sys.stdin.read(), dialect=session.dialect):
            yield statement.sql
        return
    with needed_for("the shell of zset-join sql"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import DynamicCompleter, WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory

    completer = DynamicCompleter(lambda: WordCompleter(completions(session), ignore_case=True, sentence=False))
    kept = FileHistory(str(Path.home() / ".zset_join_history"))
    earlier = InMemoryHistory(list(kept.load_history_strings())[::-1])
    typed: PromptSession[str] = PromptSession(history=earlier, completer=completer)
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
            text = "\n".join(lines)
            if not _may_hold_secret(text, session.dialect):
                for one in filter(str.strip, lines):
                    kept.store_string(one)
            yield text
            lines = []


def _may_hold_secret(text: str, dialect: str) -> bool:
    """Return whether a text has a secret name, but for one that is assigned a variable of the environment, or a password."""
    rest = _BY_REFERENCE.sub("", text)
    try:
        words = [token.text for token in dialect_named(dialect)().tokenize(rest)]
    except SqlglotError:
        return True
    return holds_password(rest) or any(is_secret_name(word) for word in [*words, *re.findall(r"[\w.-]+", rest)])
