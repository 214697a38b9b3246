"""INSERT INTO ... SELECT: the target of a query's changes, and the check of its columns.

The law: the columns of the query go to those of the table in their order. Types are assigned as Spark's ANSI mode does: numbers
to numbers (what does not fit fails when it comes), anything to a string, dates and timestamps to each other; nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Cast
from zset_join.expressions.rows import named
from zset_join.expressions.type_rules import kind_of, plain_type
from zset_join.query import View
from zset_join.sql.tables.added_columns import default_tree
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.contexts import StatementContext
from zset_join.sql.tables.required import required_value
from zset_join.sql.tables.results import Query, TableWriter
from zset_join.sql.tables.sink_tables import SinkWriter, is_outside, sink_of
from zset_join.sql_expressions.positions import Position

__all__ = ["fitted", "retracts", "writer_of"]

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
