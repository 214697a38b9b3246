"""Statements that write rows, and queries as statements.

`fitted`, `retracts`: INSERT INTO ... SELECT: the target of a query's changes, and the check of its columns.

The law: the columns of the query go to those of the table in their order. Types are assigned as Spark's ANSI mode does: numbers
to numbers (what does not fit fails when it comes), anything to a string, dates and timestamps to each other; nothing else.

`delete`, `update`: DELETE and UPDATE of the rows of a session's table: one epoch, like an INSERT.

The law: the rows for which the condition is true are retracted, and UPDATE inserts them again as set; all of it is one change.

Refused: append-only and external tables. MERGE and TRUNCATE go by other names: INSERT replaces rows by their
key, DELETE FROM t takes all.

`bind_query`, `bound_by`: a query as a statement: SELECT, and its tail.

    SELECT ... EMIT CHANGELOG SETTINGS max_hot_keys = 1000

The tail is taken off before the rest is parsed, so no dialect of the parser needs to read it.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from zset_join.core.errors import PlanError, SqlError
from zset_join.core.frames import own_frames
from zset_join.core.shown_values import counted
from zset_join.expressions import Cast
from zset_join.expressions.rows import named
from zset_join.expressions.sql_text import type_name
from zset_join.expressions.type_rules import kind_of, plain_type
from zset_join.query import View
from zset_join.sql.parse.readers import Reader, refuse_secrets
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.connectors import SinkWriter, is_outside, sink_of
from zset_join.sql.tables.results import Message, Query, StatementContext, TableWriter
from zset_join.sql.tables.settings import check_setting
from zset_join.sql.tables.table_rows import default_tree, required_value
from zset_join.sql_expressions.consumed import Position, SqlWarning, near, pick
from zset_join.sql_expressions.dialects import Statement, parse_expression, parse_query
from zset_join.sql_expressions.option_values import hints
from zset_join.sql_expressions.unknown import EMITS, OTHER_EMITS
from zset_join.zset import ZSet, single_batch

__all__ = ["bind_query", "bound_by", "delete", "fitted", "retracts", "update", "writer_of"]

_NUMBERS = frozenset({"integer", "float", "decimal"})
_TIMES = frozenset({"date", "timestamp", "instant"})


def retracts(query: Query) -> bool:
    return query.bound.view.node.relation.mode != "append"


def fitted(query: Query, table: Table, names: Sequence[str] | None, *, at: Position) -> Query:
    """Return a query with the columns of a table, cast where that is allowed."""
    given = [column for column in table.columns if column.is_given and column.metadata is None]
    wanted = given if names is None else [column for column in given if column.name in names]
    if names is None and len(query.schema) < len(given):  # what was written before the table got columns continues
        wanted = given = [column for column in given if column.name not in table.added]
    wanted = wanted if names is None else sorted(wanted, key=lambda column: list(names).index(column.name))
    schema = query.schema
    if len(schema) != len(wanted) or not all(
        _is_assignable(field.type, column.type) for field, column in zip(schema, wanted, strict=True)
    ):
        expected = ", ".join(f"{column.name} {column.type}" for column in wanted)
        have = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise SqlError(
            f'"{table.name}" takes ({expected}), the query gives ({have}). Select and cast the columns in this order.',
            code="INSERT_COLUMNS",
            at=at,
        )
    chosen: dict[str, Any] = {}
    for field, column in zip(schema, wanted, strict=True):
        tree = named(field.name)
        chosen[column.name] = tree if field.type == column.type else Cast(tree, column.type)
    for column in given:
        if column.name not in chosen:
            chosen[column.name] = default_tree(column)
    required = [column for column in given if column.is_required]
    chosen.update({column.name: required_value(chosen[column.name], column, table.name) for column in required})
    ordered = {column.name: chosen[column.name] for column in given}
    is_same = list(ordered) == schema.names and all(tree is chosen[name] for name, tree in ordered.items())
    if not required and is_same and _is_plain(ordered):
        return query
    try:
        view: View = query.bound.view.select(ordered)
    except PlanError as error:
        raise SqlError(error.message, code=error.code, at=at) from error
    called = {field.name: column.name for field, column in zip(schema, wanted, strict=True)}
    order = tuple((called[name], descending, nulls) for name, descending, nulls in query.bound.order_by)
    return replace(query, bound=replace(query.bound, view=view, shown=None, order_by=order))


def _is_plain(chosen: dict[str, Any]) -> bool:
    return not any(isinstance(tree, Cast) for tree in chosen.values())


def _is_assignable(source: pa.DataType, target: pa.DataType) -> bool:
    kinds = kind_of(plain_type(source)), kind_of(plain_type(target))
    if source == target or kinds[0] == "null" or kinds[1] == "string":
        return kinds[0] not in {"other", "array", "duration"} or source == target
    return set(kinds) <= _NUMBERS or set(kinds) <= _TIMES


def writer_of(session: StatementContext, table: Table, query: Query, *, at: Position) -> SinkWriter | TableWriter:
    if is_outside(table):
        key = table.primary_key or query.bound.view.node.relation.primary_key
        sink = sink_of(table, retracts=retracts(query), query_key=key)
        schema = pa.schema([pa.field(field.name, field.type) for field in query.schema])
        return SinkWriter(table, sink, schema, key, session.writer_id() or str(uuid.uuid4()))
    _refuse_circle(session, table, query, at=at)
    if table.mode == "append" and retracts(query):
        raise SqlError(
            f'"{table.name}" is append-only, and the query retracts rows. Declare it with a primary key, or APPEND ONLY '
            "sources.",
            code="INSERT_COLUMNS",
            at=at,
        )
    return TableWriter(session.insert, table, tuple(query.schema.names))


def _refuse_circle(session: StatementContext, table: Table, query: Query, *, at: Position) -> None:
    """Refuse a query that reads what follows from what it writes: its own rows would come back to it without end."""
    reached, left = {table.name}, [table.name]
    while left:
        name = left.pop()
        following = {running.writes for running in session.running if running.writes is not None and name in running.reads}
        left += following - reached
        reached |= following
    read = sorted(reached & query.bound.reads)
    if read:
        raise SqlError(
            f'this query reads "{read[0]}", which follows from "{table.name}", into which it writes: it would read its '
            f"own rows forever. Write into another table, or once, from table({read[0]}).",
            code="CIRCLE",
            at=at,
            name=table.name,
        )


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
