"""The SQL verbs of the command line that run nothing for long: check a file, explain it, or type statements.

    zset-join check pipeline.sql             parse, bind and plan; say what each query keeps; run nothing
    zset-join explain pipeline.sql           the plan of each query
    zset-join sql                            a shell

`zset-join run` is in `zset_join.sql.running_files`.

A changelog is printed as lines of JSON, the weight as `_tp_delta`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from zset_join.errors import SqlError, ZsetJoinError
from zset_join.sql.connecting import connect
from zset_join.sql.dialects import split
from zset_join.sql.query_statements import bind_query
from zset_join.sql.results import Message, Query, Running
from zset_join.sql.session import Session
from zset_join.sql.statements import execute

__all__ = ["check_file", "explain_file", "file_text", "run_shell", "show", "write_lines"]


def check_file(path: str, *, dialect: str, output: TextIO | None = None) -> int:
    """Parse, bind and plan every statement of a file; say what each query keeps, and run nothing."""
    stream = output or sys.stdout
    text = file_text(path)
    with connect(dialect=dialect) as session:
        for number, statement in enumerate(split(text, dialect=dialect), 1):
            made = execute(session, statement) if statement.words[0] != "INSERT" else _checked_insert(session, statement)
            if isinstance(made, Query):
                kept = [line.strip() for line in made.explain().splitlines() if "remembers" in line]
                _say(f"{number}: query of {', '.join(made.columns)}; {'; '.join(kept) or 'remembers: nothing'}", stream)
            else:
                _say(f"{number}: {made}", stream)
    return 0


def _checked_insert(session: Session, statement: Any) -> Message | Query:
    if "VALUES" in statement.words:
        return Message("rows are inserted")
    begin = next(place for place, word in enumerate(statement.words) if word in {"SELECT", "WITH"})
    return bind_query(session, statement, begin)


def explain_file(path: str, *, dialect: str, output: TextIO | None = None) -> int:
    """Print the plan of every query of a file."""
    stream = output or sys.stdout
    with connect(dialect=dialect) as session:
        for statement in split(file_text(path), dialect=dialect):
            made = execute(session, statement) if statement.words[0] != "INSERT" else _checked_insert(session, statement)
            if isinstance(made, Query):
                _say(made.explain(), stream)
    return 0


def show(result: Message | Query | Running, stream: TextIO) -> None:
    """Print what a statement gave."""
    if isinstance(result, Message):
        _say(str(result), stream)
    else:
        write_lines(result.table(), stream)


def write_lines(table: pa.Table, stream: TextIO) -> None:
    """Print rows as lines of JSON."""
    for row in table.to_pylist():
        _say(json.dumps(row, default=str, ensure_ascii=False), stream)


def file_text(path: str) -> str:
    """Return the statements of a file.

    Raises:
        SqlError: it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SqlError(f"{path} cannot be read: {error}.", code="NO_FILE") from error


def _say(text: str, stream: TextIO) -> None:
    print(text, file=stream)


def run_shell(*, dialect: str) -> int:
    """Read statements from the terminal until the end of input; a statement ends with a semicolon."""
    from zset_join.sql.shell import prompt

    with connect(dialect=dialect) as session:
        consoles: list[Running] = []
        for text in prompt(session):
            try:
                made = session.sql(text)
                if isinstance(made, Query) and made.emits_changelog and not made.bound.is_bounded:
                    running = made.start()
                    consoles.append(running)
                    _say(
                        f"{running.name}: {', '.join(running.query.columns)}; its changes are printed as they come", sys.stdout
                    )
                else:
                    show(made, sys.stdout)
                for running in consoles:
                    lines = running.changelog()
                    if lines.num_rows:
                        _say(f"-- {running.name}", sys.stdout)
                        write_lines(lines, sys.stdout)
            except ZsetJoinError as error:
                _say(str(error), sys.stderr)
    return 0
