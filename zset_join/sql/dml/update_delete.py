"""DELETE and UPDATE of the rows of a session's table: one epoch, like an INSERT.

The law: the rows for which the condition is true are retracted, and UPDATE inserts them again as set; all of it is one change.

Refused: append-only and external tables. MERGE and TRUNCATE go by other names: INSERT replaces rows by their
key, DELETE FROM t takes all.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from sqlglot import exp

from zset_join.core.errors import SqlError
from zset_join.core.shown_values import counted
from zset_join.expressions.sql_text import type_name
from zset_join.sql.parse.readers import Reader
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.contexts import StatementContext
from zset_join.sql.tables.results import Message
from zset_join.sql.tables.sink_tables import is_outside
from zset_join.sql_expressions.dialects import Statement, parse_expression
from zset_join.sql_expressions.positions import near, pick
from zset_join.zset import ZSet, single_batch

__all__ = ["delete", "update"]


def delete(session: StatementContext, statement: Statement) -> Message:
    reader = Reader(statement, 1)
    reader.expect("FROM")
    table = _table(session, reader)
    rows = _stored(session, statement, reader, table, table.shown)
    if rows.num_rows:
        session.insert(table.name, ZSet(single_batch(rows), np.full(rows.num_rows, -1, np.int64)))
    return Message(f"{counted(rows.num_rows, 'row')} from {table.name}")


def update(session: StatementContext, statement: Statement) -> Message:
    reader = Reader(statement, 1)
    table = _table(session, reader)
    reader.expect("SET")
    given: dict[str, exp.Expr] = {}
    while True:
        at = statement.place(reader.index)
        name = reader.name("a column")
        column = pick({one: one for one in table.shown}, name)
        if column is None:
            raise SqlError(
                f'"{table.name}" has no column {name}.{near(name, table.shown)}', code="UNKNOWN_COLUMN", at=at, name=name
            )
        if column in table.primary_key:
            raise SqlError(
                f'"{column}" is in the primary key. DELETE the row and INSERT another.', code="NOT_OFFERED", at=at, name=column
            )
        if column in given:
            raise SqlError(f'SET gives "{column}" twice. Keep one.', code="SAID_TWICE", at=at, name=column)
        reader.expect("=")
        given[column] = parse_expression(statement, reader.until("WHERE"))
        if not reader.has(","):
            break
    # Old and new values of the same rows, side by side: one query.
    names = table.shown
    both = _stored(session, statement, reader, table, names, given)
    old = both.select(list(range(len(names)))).rename_columns(names)
    new = both.select(list(range(len(names), 2 * len(names)))).rename_columns(names)
    schema = pa.schema([table.schema.field(name) for name in names])
    rows = pa.concat_tables([old.cast(schema), new.cast(schema)])
    if rows.num_rows:
        weights = np.repeat(np.array([-1, 1], np.int64), old.num_rows)
        session.insert(table.name, ZSet(single_batch(rows), weights))
    return Message(f"{counted(old.num_rows, 'row')} of {table.name}")


def _table(session: StatementContext, reader: Reader) -> Table:
    at = reader.statement.place(reader.index)
    entry = session.catalog.find(reader.name("the name of a table"), at=at)
    if not isinstance(entry, Table) or is_outside(entry) or entry.lookup is not None:
        raise SqlError(
            f'"{entry.name}" stores no rows here, so none can be changed.', code="NOT_A_TABLE", at=at, name=entry.name
        )
    if entry.mode == "append":
        raise SqlError(
            f'"{entry.name}" is append-only. Declare it with a primary key to change or retract rows.',
            code="NOT_OFFERED",
            at=at,
            name=entry.name,
        )
    return entry


def _stored(
    session: StatementContext,
    statement: Statement,
    reader: Reader,
    table: Table,
    names: tuple[str, ...],
    given: dict[str, exp.Expr] | None = None,
) -> pa.Table:
    """Return stored rows that the condition is true for, with new values behind the old ones where some are given."""
    where: exp.Expr | None = None
    if reader.has("WHERE"):
        where = parse_expression(statement, statement.tokens[reader.index :])
    elif not reader.is_done:
        reader.fail("expected WHERE or the end")
    chosen = [exp.alias_(_column(name), f"old {place}", quoted=True) for place, name in enumerate(names)]
    for place, name in enumerate(names) if given is not None else ():
        value = given.get(name) if given is not None else None
        kind = exp.DataType.build(type_name(table.schema.field(name).type, "spark"), dialect="spark")
        new = _column(name) if value is None else exp.Cast(this=exp.Paren(this=value), to=kind)
        chosen.append(exp.alias_(new, f"new {place}", quoted=True, copy=False))
    # No text is put together: a condition is one expression, parsed as such.
    source = exp.Table(this=exp.Anonymous(this="table", expressions=[_column(table.name)]))
    node = exp.Select(expressions=chosen, from_=exp.From(this=source))
    if where is not None:
        node.set("where", exp.Where(this=where))
    rows = session.snapshot(session.query(statement, node, {}, emits_changelog=False))
    return rows if given is not None else rows.rename_columns(names)


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))
