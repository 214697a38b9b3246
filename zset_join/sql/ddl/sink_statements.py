"""CREATE SINK: a query that writes its changes to an external system, or into a table of the session.

    CREATE SINK s [INTO t [(columns)]] FROM v | AS SELECT ... [WITH (...)] [FORMAT ... ENCODE JSON]
    CREATE SINK s (columns) WITH (...)                    a table that is only written, as CREATE TABLE

The law: a sink gets every change of its query, in the order of epochs; one into a table is INSERT INTO t SELECT under a name.
`type` and `primary_key` of a sink into a table request what the table is, and are refused where it is not.

Limits: rows are never changed on their way, so `force_append_only` drops no deletes; it warns.
"""

from __future__ import annotations

import dataclasses
import warnings

from sqlglot import exp

from zset_join.core.errors import SqlError, ZsetJoinError
from zset_join.sql.ddl.definitions import read_table
from zset_join.sql.ddl.table_clauses import add_options, encoding
from zset_join.sql.dml import bind_query, bound_by, fitted, retracts, writer_of
from zset_join.sql.parse.readers import Reader
from zset_join.sql.tables.catalog import ColumnDefinition, Table
from zset_join.sql.tables.connectors import check_options, is_outside, sink_options
from zset_join.sql.tables.results import Message, Query, StatementContext
from zset_join.sql_expressions.consumed import Position, SqlWarning, check_distinct, near

__all__ = ["columns_of", "create_sink", "written_table"]

_OF_TABLES = ("force_append_only", "primary_key", "type")
_TYPES = ("append-only", "upsert")


def create_sink(session: StatementContext, reader: Reader, *, replace: bool) -> Message:
    """Run CREATE SINK, from behind the word SINK on."""
    may_exist, begin, at = reader.has("IF", "NOT", "EXISTS"), reader.index, reader.statement.place(reader.index)
    name = reader.name("the name of the sink")
    if may_exist and replace:
        raise SqlError("OR REPLACE rebuilds it, IF NOT EXISTS leaves it as it is. Keep one of them.", code="SAID_TWICE", at=at)
    if may_exist and name in {*session.catalog.sinks, *session.catalog.tables}:
        return Message(f"{name} is there already")
    if reader.word == "(":
        reader.index = begin
        table, _ = read_table(reader, "SINK")
        session.catalog.add(table, at=at, replace=replace)
        return Message(f"sink {table.name}")
    if reader.has("INTO"):
        return _into_table(session, reader, name, at=at, replace=replace)
    query = _query(session, reader)
    options = sink_options({"connector": "print", **_options(reader)})
    key = tuple(one.strip() for one in options.pop("primary_key", "").split(",") if one.strip())
    for warning in check_options(options, at=at):
        warnings.warn(SqlWarning(warning), stacklevel=5)
    columns = tuple(ColumnDefinition(field.name, field.type) for field in query.schema)
    table = Table(name=name, word="SINK", columns=columns, mode="append", primary_key=key, options=options)
    missing = [column for column in key if column not in table.schema.names]
    if missing:
        raise SqlError(
            f"primary_key names {missing[0]}, which the sink does not have.{near(missing[0], table.schema.names)}",
            code="UNKNOWN_COLUMN",
            at=at,
        )
    if not is_outside(table):
        raise SqlError(
            f"a sink is written outside; '{options['connector']}' is not. Write INSERT INTO a table.", code="NOT_OFFERED", at=at
        )
    writer = writer_of(session, table, query, at=at)
    if replace and session.catalog.is_kept(name):
        session.forget(name)
    session.catalog.add(table, at=at, replace=replace)
    try:
        session.start(query, name=name, output=writer)
    except ZsetJoinError:
        session.catalog.drop(name, if_exists=True)
        raise
    return Message(f"sink {name}: {options['connector']}")


def _into_table(session: StatementContext, reader: Reader, name: str, *, at: Position, replace: bool) -> Message:
    table = written_table(session, reader)
    columns = columns_of(table, reader) if reader.word == "(" else None
    query = _query(session, reader)
    options_at = reader.statement.place(reader.index)
    _check_table_options(table, _options(reader), query, at=options_at)
    fitting = bound_by(session, lambda: fitted(query if query.again is None else query.again(), table, columns, at=at))
    if replace and session.catalog.is_kept(name):
        session.forget(name)
    writer = writer_of(session, table, fitting, at=at)
    session.catalog.add_sink(name, table.name, at=at, replace=replace)
    try:
        session.start(fitting, name=name, output=writer)
    except ZsetJoinError:
        session.catalog.drop(name, if_exists=True)
        raise
    return Message(f"sink {name} writes into {table.name}")


def _query(session: StatementContext, reader: Reader) -> Query:
    """Bind the query of a sink, and advance past it."""
    if reader.has("FROM"):
        at = reader.statement.place(reader.index)
        entry = session.catalog.find(reader.name("a view"), at=at)
        node = exp.select("*").from_(exp.Table(this=exp.to_identifier(entry.name, quoted=True)))
        cut = dataclasses.replace(reader.statement, tokens=reader.tokens[: reader.index])
        return bound_by(session, lambda: session.query(cut, node.copy(), {}, emits_changelog=True))
    reader.expect("AS")
    begin = reader.index
    while not reader.is_done and not (reader.index > begin and _begins_options(reader)):
        reader.index += 1
    cut = dataclasses.replace(reader.statement, tokens=reader.tokens[: reader.index])
    return bound_by(session, lambda: bind_query(session, cut, begin))


def _begins_options(reader: Reader) -> bool:
    following = reader.tokens[reader.index + 1 : reader.index + 2]
    return reader.word == "WITH" and bool(following) and following[0].text == "("


def _options(reader: Reader) -> dict[str, str]:
    """Read WITH (...) and FORMAT ... ENCODE ... up to the end of the statement."""
    options: dict[str, str] = {}
    while not reader.is_done:
        at = reader.statement.place(reader.index)
        if reader.has("WITH"):
            reader.expect("(")
            add_options(options, reader.options(), reader.statement, at)
            reader.expect(")")
        else:
            add_options(options, encoding(reader), reader.statement, at)
    return options


def _check_table_options(table: Table, options: dict[str, str], query: Query, *, at: Position) -> None:
    kind, forces = options.get("type"), options.get("force_append_only", "false").lower() == "true"
    unknown = [option for option in options if option not in _OF_TABLES]
    if unknown:
        raise SqlError(
            f"the option '{unknown[0]}' of a sink into a table is not known.{near(unknown[0], _OF_TABLES)}",
            code="UNKNOWN_OPTION",
            at=at,
        )
    if kind not in {None, *_TYPES}:
        raise SqlError(
            f"type = '{kind}' of a sink into a table is not known.{near(str(kind), _TYPES)}", code="UNKNOWN_OPTION", at=at
        )
    if forces:
        text = "force_append_only changes nothing: rows that the query retracts are retracted in the table."
        warnings.warn(SqlWarning(text), stacklevel=6)
    elif kind == "append-only" and retracts(query):
        raise SqlError("the query retracts rows, so its sink is not append-only. Leave type out.", code="NOT_OFFERED", at=at)
    key = tuple(one.strip().lower() for one in options.get("primary_key", "").split(",") if one.strip())
    if key and sorted(key) != sorted(one.lower() for one in table.primary_key):
        shown = f"({', '.join(table.primary_key)})" if table.primary_key else "none"
        raise SqlError(
            f"primary_key = '{options['primary_key']}', and the primary key of \"{table.name}\" is {shown}. Leave it out.",
            code="NOT_OFFERED",
            at=at,
        )


def written_table(session: StatementContext, reader: Reader) -> Table:
    at = reader.statement.place(reader.index)
    name = reader.name("the name of a table")
    entry = session.catalog.find(name, at=at)
    if not isinstance(entry, Table):
        raise SqlError(f'"{name}" is a view; write into a table.', code="NOT_A_TABLE", at=at, name=name)
    return entry


def columns_of(table: Table, reader: Reader) -> tuple[str, ...]:
    """Read the columns that are written, in brackets; return them as the table names them."""
    at = reader.statement.place(reader.index)
    known = {name.lower(): name for name in table.schema.names}
    names = reader.names()
    check_distinct(names, f'the list of columns of "{table.name}"', at)
    missing = [name for name in names if name.lower() not in known]
    if missing:
        raise SqlError(
            f'"{table.name}" has no column {missing[0]}.{near(missing[0], table.schema.names)}', code="UNKNOWN_COLUMN", at=at
        )
    return tuple(known[name.lower()] for name in names)
