"""Columns that a table gets while it has rows: rows from before have their DEFAULT, or NULL.

    ALTER TABLE t ADD COLUMN c INT [DEFAULT 0] [, ADD ...]        also ADD c INT, and ADD [COLUMNS] (c INT, d STRING)
    ALTER TABLE t ADD COLUMN c INT WITH ('reread' = 'PLACE')      rows from before have the values of `sources.again`
    CREATE TABLE t (..., c INT)                                   a table that is declared again, with more columns

The law: every view and query answers what it answered, also one of `*`; what is made from now on sees the new columns. What is
refused changes nothing.

Refused: columns that are computed, of metadata, a key, or NOT NULL without a DEFAULT, for rows from before have none; and
external tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from zset_join.core.errors import SqlError
from zset_join.sql.ddl.definitions import read_columns
from zset_join.sql.parse.readers import Reader, with_environment
from zset_join.sql.tables.catalog import ColumnDefinition, Table
from zset_join.sql.tables.results import Message, StatementContext
from zset_join.sql.tables.table_rows import columns_behind, over_more_columns, with_columns_added
from zset_join.sql_expressions.consumed import Position, check_distinct
from zset_join.sql_expressions.dialects import Statement

__all__ = ["alter_table", "declared_again"]


def alter_table(session: StatementContext, statement: Statement, reader: Reader) -> Message:
    """Run ALTER TABLE t ADD COLUMN, from behind the word TABLE on."""
    at = statement.place(reader.index)
    name = reader.name("the name of the table")
    table = session.catalog.find(name, at=at)
    if not isinstance(table, Table):
        raise SqlError(f'"{name}" is a view; write ALTER VIEW {name} AS SELECT ....', code="WRONG_KIND", at=at, name=name)
    columns: list[ColumnDefinition] = []
    while not columns or reader.has(","):
        at = statement.place(reader.index)
        if not reader.has("ADD"):
            raise SqlError(
                f"ALTER TABLE {name} {reader.word} is not supported; ADD COLUMN is. Make a view over the table for others.",
                code="NOT_OFFERED",
                at=at,
            )
        reader.has("COLUMNS") or reader.has("COLUMN")
        columns += read_columns(reader, table)
    reread = _reread(reader) if reader.has("WITH") else None
    reader.end()
    return _added(session, table, tuple(columns), at=at, reread=reread)


def _reread(reader: Reader) -> Callable[[], str]:
    """Read `('reread' = 'PLACE')`; the environment is read when that is called, which opening a directory does not."""
    at = reader.statement.place(reader.index)
    reader.expect("(")
    options = reader.options()
    reader.expect(")")
    if options.keys() != {"reread"}:
        raise SqlError(
            f"ADD COLUMN has the option 'reread' alone, and {sorted(options)} are given. It names the rows of the table again: "
            "a file, FILE.duckdb:TABLE or postgresql://...:TABLE.",
            code="UNKNOWN_OPTION",
            at=at,
        )
    return partial(with_environment, "reread", options["reread"], reader.statement, at)


def declared_again(session: StatementContext, declared: Table, *, at: Position) -> Message | None:
    """Run CREATE TABLE of a table that is present and now has more columns; None where it is another one."""
    before = session.catalog.tables.get(declared.name)
    more = () if before is None else columns_behind(before, declared)
    return None if before is None or not more else _added(session, before, more, at=at)


def _added(
    session: StatementContext,
    before: Table,
    columns: tuple[ColumnDefinition, ...],
    *,
    at: Position,
    reread: Callable[[], str] | None = None,
) -> Message:
    _check(session, before, columns, at)
    catalog, table = session.catalog, with_columns_added(before, columns)
    views, reading = dict(catalog.views), [one for one in session.running if table.name in one.reads]
    over = over_more_columns([*(one.query for one in views.values()), *(one.query.bound for one in reading)], table)
    catalog.tables[table.name] = table
    catalog.views = {name: replace(one, query=over[id(one.query)]) for name, one in views.items()}
    queries = {one: replace(one.query, bound=over[id(one.query.bound)]) for one in reading}
    try:
        session.add_columns(table, queries, reread=reread)
    except BaseException:
        if not queries or any(one.query is not query for one, query in queries.items()):
            catalog.tables[table.name], catalog.views = before, views  # else it counts, and an output failed
        raise
    return Message(f"{table.word.lower()} {table.name} has {', '.join(column.name for column in columns)} as well")


def _check(session: StatementContext, table: Table, columns: tuple[ColumnDefinition, ...], at: Position) -> None:
    check_distinct([column.name for column in (*table.columns, *columns)], f'"{table.name}"', at)
    written = table.word == "SINK" or any(one.into == table.name and one.writes is None for one in session.running)
    if table.lookup is not None or written:
        raise SqlError(
            f'"{table.name}" is an external table, whose columns are not changed here. DROP it with what writes into it, and '
            "CREATE both again.",
            code="NOT_OFFERED",
            at=at,
            name=table.name,
        )
    lacking = [one for one in columns if one.is_required and one.default is None]
    refused = [one.name for one in columns if not one.is_given or one.metadata is not None or one in lacking]
    if refused:
        raise SqlError(
            f'{", ".join(refused)} of "{table.name}" would have no value in the rows that there are: a column that is added is '
            "plain, and may be NULL, or has a DEFAULT. Compute it in a view.",
            code="NOT_OFFERED",
            at=at,
            name=table.name,
        )
