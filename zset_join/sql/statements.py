"""Statements: which there are, and what each does to a session.

SELECT, WITH                      CREATE TABLE, STREAM, MUTABLE STREAM, SOURCE, SINK, VIEW, MATERIALIZED VIEW, INDEX
INSERT INTO ... VALUES, SELECT    DROP, SHOW, DESCRIBE, EXPLAIN, SET, RESET, USE, UPDATE, DELETE
PAUSE, RESUME MATERIALIZED VIEW  ALTER VIEW, MATERIALIZED VIEW
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot.tokenizer_core import Token, TokenType

from zset_join.core.errors import PlanError, SqlError
from zset_join.core.frames import own_frames
from zset_join.core.shown_values import counted
from zset_join.sql.ddl.adding_columns import declared_again
from zset_join.sql.ddl.definitions import Model, find_like, model_of, read_table
from zset_join.sql.ddl.showing import check_kind, create_index, describe, drop_index, explain, kind_named, show, use
from zset_join.sql.ddl.sink_statements import columns_of, create_sink, written_table
from zset_join.sql.ddl.views import alter, create_materialized_view, create_view, pause, refuse_both, release, resume
from zset_join.sql.dml import bind_query, bound_by, delete, fitted, retracts, update, writer_of
from zset_join.sql.parse.readers import Reader, constant
from zset_join.sql.tables.catalog import ColumnDefinition, Mode, Table
from zset_join.sql.tables.connectors import SinkWriter, is_outside
from zset_join.sql.tables.results import Message, Query, StatementContext
from zset_join.sql.tables.settings import check_setting, is_ignored, is_misspelt, known_setting
from zset_join.sql_expressions.consumed import SqlWarning, check_distinct, near
from zset_join.sql_expressions.dialects import Statement, too_deep
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.zset import ZSet, single_batch

__all__ = ["execute"]

_WORDS = (
    "SELECT",
    "WITH",
    "CREATE",
    "ALTER",
    "INSERT",
    "UPDATE",
    "DELETE",
    "DROP",
    "SHOW",
    "DESCRIBE",
    "EXPLAIN",
    "SET",
    "RESET",
    "USE",
    "FLUSH",
    "PAUSE",
    "RESUME",
)
_ELSEWHERE = {
    "MERGE": "INSERT INTO a table with a primary key replaces the row of a key; DELETE removes rows.",
    "TRUNCATE": "Write DELETE FROM t.",
    "VALUES": "Write INSERT INTO t VALUES ...",
    "ANALYZE": "Statistics do not exist.",
    "ADD": "There are no jars: a column that the source brings, or a UDF inside Spark through the fluent API.",
    "CALL": "Procedures do not exist.",
    "GRANT": "Rights are those of the process and of the systems it reads and writes.",
    "KILL": "End the process; DROP a view or sink to forget it.",
    "REVOKE": "Rights are those of the process and of the systems it reads and writes.",
    "STOP": "End the process: with a directory it resumes when it is run again. zset-join backup copies a checkpoint.",
    "SYSTEM": "End the process: with a directory it resumes when it is run again.",
    "WAIT": "Every INSERT is answered when it returns.",
}
_MOST_ROWS = 100_000
_ALONE = frozenset({"CATALOG", "DATABASE", "INDEX", "SCHEMA"})
"""What CREATE makes without a word before it."""


def execute(session: StatementContext, statement: Statement) -> Message | Query:
    try:
        with own_frames():
            return _executed(session, statement)
    except RecursionError as error:
        raise too_deep(statement) from error
    except PlanError as error:
        if "line" in error.facts:
            raise
        place = statement.place(0)
        facts = {**error.facts, "line": place.line, "column": place.column}
        raise type(error)(f"{error.message}\n{place}", code=error.code, **facts) from error


def _executed(session: StatementContext, statement: Statement) -> Message | Query:
    first = (statement.words[0].split() or [""])[0]
    run = _RUN.get(first)
    if run is None and first in _ELSEWHERE:
        raise SqlError(f"{first} is not supported. {_ELSEWHERE[first]}", code="NOT_OFFERED", at=statement.place(0))
    if run is None:
        raise SqlError(
            f"a statement does not begin with {statement.words[0]}.{near(first, _WORDS)}",
            code="SQL_SYNTAX",
            at=statement.place(0),
        )
    return run(session, statement)


def _select(session: StatementContext, statement: Statement) -> Query:
    return bound_by(session, lambda: bind_query(session, statement))


def _create(session: StatementContext, statement: Statement) -> Message:
    reader = Reader(statement, 1)
    replaces = reader.has("OR", "REPLACE")
    begin = reader.index
    is_temporary = reader.has("TEMPORARY") or reader.has("TEMP")
    is_external = not is_temporary and reader.has("EXTERNAL")
    at = statement.place(reader.index)
    made = (reader.word.split() or [""])[0]
    refused = [
        *(["OR REPLACE"] if replaces and made in _ALONE else []),
        *([statement.words[begin]] if is_temporary and made in {*_ALONE, "MATERIALIZED"} else []),
        *(["EXTERNAL"] if is_external and made in {*_ALONE, "MATERIALIZED", "MUTABLE", "SINK", "SOURCE", "VIEW"} else []),
    ]
    if refused:
        raise SqlError(
            f"CREATE {refused[0]} {made} is not supported. Leave {refused[0]} out.", code="NOT_OFFERED", at=statement.place(1)
        )
    if reader.has("MATERIALIZED", "VIEW"):
        return create_materialized_view(session, reader, replaces)
    if reader.has("VIEW"):
        return create_view(session, reader, replaces)
    for words in (("MUTABLE", "STREAM"), ("STREAM",), ("TABLE",), ("SOURCE",)):
        if reader.has(*words):
            copied = _like_or_as(session, reader, " ".join(words), replaces)
            if copied is not None:
                return copied
            table, may_exist = read_table(reader, " ".join(words), model=_model(session, reader))
            refuse_both(replaces, may_exist, at=at)
            if is_external and "connector" not in table.options:
                raise SqlError(
                    f"\"{table.name}\" is EXTERNAL, and has no place for its rows. Name a connector: WITH ('connector' = "
                    "...), SETTINGS type = 'kafka' or USING a format; or leave EXTERNAL out.",
                    code="MISSING_OPTION",
                    at=at,
                )
            if may_exist and table.name in session.catalog.tables:
                return Message(f"{table.name} is there already")
            more = None if replaces else declared_again(session, table, at=at)
            if more is not None:
                return more
            release(session, table.name, replaces, at=at)
            session.catalog.add(table, at=at, replace=replaces)
            qualifier = "temporary " if is_temporary else "external " if is_external else ""
            return Message(f"{qualifier}{table.word.lower()} {table.name}: {table.mode}, {table.why()}")
    for one in ("DATABASE", "SCHEMA", "CATALOG"):
        if reader.has(one):
            reader.has("IF", "NOT", "EXISTS")
            name = reader.name()
            reader.end()
            return Message(f"one catalog and one database: {name}")
    if reader.has("SINK"):
        return create_sink(session, reader, replace=replaces)
    if reader.has("INDEX"):
        return create_index(session, reader)
    if reader.word in {"FUNCTION", "AGGREGATE"}:
        raise SqlError(
            "CREATE FUNCTION is not supported: expressions are Spark's. Let the source bring the column, or use a UDF inside "
            "Spark through the fluent API.",
            code="NOT_OFFERED",
            at=at,
        )
    known = ("TABLE", "STREAM", "MUTABLE STREAM", "SOURCE", "SINK", "VIEW", "MATERIALIZED VIEW", "INDEX")
    raise SqlError(f"CREATE {reader.word} is not supported.{near(reader.word, known)}", code="NOT_OFFERED", at=at)


def _like_or_as(session: StatementContext, reader: Reader, word: str, replaces: bool) -> Message | None:
    """Run CREATE TABLE t LIKE s and CREATE TABLE t AS SELECT; None where it is another statement."""
    begin, at = reader.index, reader.statement.place(reader.index)
    may_exist = reader.has("IF", "NOT", "EXISTS")
    refuse_both(replaces, may_exist, at=at)
    name = reader.name("the name of the table")
    if may_exist and name in session.catalog.tables:
        return Message(f"{name} is there already")
    if reader.has("LIKE"):
        model = written_table(session, reader)
        if not reader.is_done:
            reader.index = begin
            return None
        release(session, name, replaces, at=at)
        session.catalog.add(replace(model, name=name, word=word), at=at, replace=replaces)
        return Message(f"{word.lower()} {name}: like {model.name}")
    if not reader.has("AS"):
        reader.index = begin
        return None
    after = reader.index
    query = bound_by(session, lambda: bind_query(session, reader.statement, after))
    check_distinct(query.columns, f'"{name}"', at)
    columns = tuple(ColumnDefinition(field.name, field.type) for field in query.schema)
    mode: Mode = "changelog" if retracts(query) else "append"
    table = Table(name=name, word=word, columns=columns, mode=mode)
    release(session, name, replaces, at=at)
    session.catalog.add(table, at=at, replace=replaces)
    if query.bound.is_bounded:
        session.insert(name, session.snapshot(query))
    else:
        session.start(query, output=writer_of(session, table, query, at=at))
    return Message(f"{word.lower()} {name}: {', '.join(query.columns)}")


def _model(session: StatementContext, reader: Reader) -> Model | None:
    """Return the parts that a declaration copies by LIKE; None without LIKE."""
    clause = find_like(reader)
    if clause is None:
        return None
    return model_of(written_table(session, Reader(reader.statement, clause.name_index)), clause)


def _insert(session: StatementContext, statement: Statement) -> Message | Query:
    reader = Reader(statement, 1)
    if reader.has("OVERWRITE"):
        raise SqlError("INSERT OVERWRITE is not supported; rows change by key.", code="NOT_OFFERED", at=statement.place(1))
    reader.expect("INTO")
    reader.has("TABLE")
    table = written_table(session, reader)
    names = columns_of(table, reader) if reader.word == "(" and not _is_query_in_brackets(reader) else None
    if reader.has("VALUES"):
        rows = _values(reader, table, names, session.catalog.zone)
        session.insert(table.name, rows)
        return Message(f"{rows.num_rows} row{'s' if rows.num_rows != 1 else ''} into {table.name}")
    at = statement.place(0)
    query = bound_by(session, lambda: fitted(bind_query(session, statement, reader.index), table, names, at=at))
    if not session.writes:
        return query
    if query.bound.is_bounded:
        if is_outside(table):
            return _written_once(session, table, query, statement)
        rows = session.snapshot(query)
        session.insert(table.name, rows)
        return Message(f"{counted(rows.num_rows, 'row')} into {table.name}")
    running = session.start(query, output=writer_of(session, table, query, at=at))
    return Message(f"{running.name} writes into {table.name}")


def _written_once(session: StatementContext, table: Table, query: Query, statement: Statement) -> Message:
    """Write the result of a query over stored rows as one epoch; a repeated statement writes nothing."""
    writer = writer_of(session, table, query, at=statement.place(0))
    assert isinstance(writer, SinkWriter)  # noqa: S101 - the caller has checked
    try:
        if not writer.begin_once():
            return Message(f"{table.name} has the rows of this statement already")
        rows = session.snapshot(query)
        writer(ZSet(single_batch(rows), np.ones(rows.num_rows, np.int64)))
    finally:
        writer.close()
    return Message(f"{counted(rows.num_rows, 'row')} into {table.name}")


def _is_query_in_brackets(reader: Reader) -> bool:
    following = reader.tokens[reader.index + 1 : reader.index + 2]
    return bool(following) and following[0].text.upper() in {"SELECT", "WITH"}


def _values(reader: Reader, table: Table, names: tuple[str, ...] | None, zone: str) -> pa.Table:
    statement = reader.statement
    wanted = names or tuple(column.name for column in table.columns if column.is_given and column.name != table.delta_column)
    kinds = [table.schema.field(name).type for name in wanted]
    columns: list[list[Any]] = [[] for _ in wanted]
    binder = ScalarBinder.over(pa.schema([]), statement)
    while True:
        at = statement.place(reader.index)
        reader.expect("(")
        row = []
        while True:
            row.append(reader.until())
            if not reader.has(","):
                break
        reader.expect(")")
        if len(row) != len(wanted):
            raise SqlError(
                f'a row of "{table.name}" has {len(wanted)} values here ({", ".join(wanted)}), this one has {len(row)}.',
                code="INSERT_COLUMNS",
                at=at,
            )
        for name, column, tokens, kind in zip(wanted, columns, row, kinds, strict=True):
            place = f'row {len(column) + 1} of the VALUES for "{table.name}", column "{name}"'
            column.append(constant(binder, statement, tokens, kind, place, zone))
        if len(columns[0]) > _MOST_ROWS:
            raise SqlError(f"at most {_MOST_ROWS} rows are inserted by one statement.", code="SQL_TOO_LONG", at=at)
        if not reader.has(","):
            break
    if not reader.is_done:
        reader.fail("expected a comma or the end")
    return pa.table({name: pa.array(column, kind) for name, column, kind in zip(wanted, columns, kinds, strict=True)})


def _drop(session: StatementContext, statement: Statement) -> Message:
    reader = Reader(statement, 1)
    if reader.has("INDEX"):
        return drop_index(session, reader)
    reader.has("TEMPORARY")
    kind = kind_named(reader)
    if kind is None:
        reader.fail("expected TABLE, STREAM, VIEW, MATERIALIZED VIEW, SOURCE, SINK or INDEX")
    may_lack = reader.has("IF", "EXISTS")
    at = statement.place(reader.index)
    name = reader.name()
    reader.end()
    check_kind(session.catalog, name, str(kind), at=at)
    dropped = session.catalog.drop(name, at=at, if_exists=may_lack)
    if dropped is None:
        return Message(f"there is no {name}")
    session.forget(dropped)
    return Message(f"{dropped} is dropped")


def _set(session: StatementContext, statement: Statement) -> Message:
    if len(statement.tokens) == 1:
        return show(session, replace(statement, tokens=(*statement.tokens, Token(TokenType.VAR, "SETTINGS"))))
    reader = Reader(statement, 1)
    is_to = len(statement.words) > 2 and statement.words[-2] == "TO"
    given = reader.options(equals="TO" if is_to else "=")
    if not reader.is_done:
        reader.fail("expected SET key = value")
    for name, value in given.items():
        if is_ignored(name) and not is_misspelt(name):
            warnings.warn(SqlWarning(f"the setting '{name}' is of another system and changes nothing here."), stacklevel=4)
            continue
        session.catalog.settings[check_setting(name, value, at=statement.place(1))] = value
    return Message(", ".join(f"{name} = {value}" for name, value in given.items()))


def _reset(session: StatementContext, statement: Statement) -> Message:
    """Reset one setting, or all, to its default."""
    reader = Reader(statement, 1)
    if reader.is_done:
        session.catalog.settings.clear()
        return Message("all settings are as they were")
    given = reader.key()
    reader.end()
    name = known_setting(given, at=statement.place(1))
    session.catalog.settings.pop(name, None)
    return Message(f"{name} is as it was")


def _statement_set(session: StatementContext, statement: Statement) -> Message | Query:
    """Take BEGIN STATEMENT SET, END and EXECUTE STATEMENT SET: every INSERT runs from its own place anyway."""
    reader = Reader(statement, 1)
    if reader.word == "INSERT" and statement.words[0] == "EXECUTE":
        return _insert(session, replace(statement, tokens=statement.tokens[1:]))
    first = statement.words[0]
    whole = {"BEGIN": ("STATEMENT", "SET"), "END": (), "EXECUTE": ("STATEMENT", "SET", "BEGIN")}[first]
    is_whole = reader.has(*whole)
    if not is_whole or not reader.is_done:
        reader.fail("expected BEGIN STATEMENT SET, EXECUTE STATEMENT SET BEGIN, EXECUTE INSERT or END")
    return Message("statements run one by one")


def _flush(_: StatementContext, statement: Statement) -> Message:
    Reader(statement, 1).end()
    return Message("every INSERT is answered when it returns")


_RUN: dict[str, Callable[[StatementContext, Statement], Message | Query]] = {
    "(": _select,
    "ALTER": alter,
    "BEGIN": _statement_set,
    "CREATE": _create,
    "DELETE": delete,
    "DESC": describe,
    "DESCRIBE": describe,
    "DROP": _drop,
    "END": _statement_set,
    "EXECUTE": _statement_set,
    "EXPLAIN": lambda session, statement: explain(session, statement, _executed),
    "FLUSH": _flush,
    "INSERT": _insert,
    "PAUSE": pause,
    "RESET": _reset,
    "RESUME": resume,
    "SELECT": _select,
    "SET": _set,
    "SHOW": show,
    "UPDATE": update,
    "USE": use,
    "WITH": _select,
}
