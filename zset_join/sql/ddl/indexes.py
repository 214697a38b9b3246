"""CREATE INDEX, DROP INDEX, SHOW INDEXES: names for the copy of a table that joins look up in.

    CREATE INDEX by_currency ON rates (currency);
    SHOW INDEXES FROM rates;

Joins by event time and by processing time share one copy of a table whether an index is declared or not; a declared one names
it in EXPLAIN, and lets joins by processing time on more columns go by its columns. It changes no answer. It is of a table or a
view as a whole: where a condition is pushed below a join, the copy holds other rows and has no index.

A table under two aliases of a statement has one copy; several statements are queries of their own, each with its copy.

Known limits. A query keeps the index it was planned with: DROP INDEX takes the name from later ones.
"""

from __future__ import annotations

import pyarrow as pa

from zset_join.core.errors import SqlError
from zset_join.sql.parse.readers import Reader
from zset_join.sql.tables.catalog import Catalog, Table, TableIndex
from zset_join.sql.tables.contexts import StatementContext
from zset_join.sql.tables.results import Message
from zset_join.sql_expressions.positions import near, pick

__all__ = ["create_index", "drop_index", "index_lines", "show_indexes"]


def create_index(session: StatementContext, reader: Reader) -> Message:
    catalog = session.catalog
    may_exist = reader.has("IF", "NOT", "EXISTS")
    at = reader.statement.place(reader.index)
    name = reader.name("the name of the index")
    reader.expect("ON")
    entry = catalog.find(reader.name("the name of a table or view"), at=reader.statement.place(reader.index))
    columns_at = reader.statement.place(reader.index)
    columns = reader.names()
    if not reader.is_done:
        reader.fail("expected the end after the columns of the index")
    if name in catalog.indexes:
        if may_exist:
            return Message(f"{name} is there already")
        raise SqlError(f'there is an index "{name}" already. DROP INDEX it first.', code="NAME_TAKEN", at=at)
    known = entry.shown if isinstance(entry, Table) else entry.query.columns
    picked = [pick(dict(zip(known, known, strict=True)), column) for column in columns]
    missing = [column for column, there in zip(columns, picked, strict=True) if there is None]
    if missing:
        raise SqlError(
            f'"{entry.name}" has no column {missing[0]}.{near(missing[0], known)}',
            code="UNKNOWN_COLUMN",
            at=columns_at,
            name=missing[0],
        )
    if len(set(picked)) < len(picked):
        raise SqlError(f"the index {name} names a column twice.", code="INDEX_COLUMNS", at=columns_at)
    index = TableIndex(name, entry.name, tuple(str(column) for column in picked))
    catalog.indexes[name] = index
    return Message(f"index {index}")


def drop_index(session: StatementContext, reader: Reader) -> Message:
    may_lack = reader.has("IF", "EXISTS")
    at = reader.statement.place(reader.index)
    name = reader.name("the name of the index")
    reader.end()
    index = pick(session.catalog.indexes, name)
    if index is None and may_lack:
        return Message(f"there is no index {name}")
    if index is None:
        raise SqlError(
            f'there is no index "{name}".{near(name, session.catalog.indexes)}', code="NO_SUCH_INDEX", at=at, name=name
        )
    del session.catalog.indexes[index.name]
    return Message(f"index {index.name} is dropped")


def show_indexes(session: StatementContext, reader: Reader) -> Message:
    listed = list(session.catalog.indexes.values())
    if any(reader.has(word) for word in ("FROM", "IN", "ON")):
        at = reader.statement.place(reader.index)
        relation = session.catalog.find(reader.name("the name of a table or view"), at=at).name
        listed = [one for one in listed if one.relation == relation]
    reader.end()
    rows = {
        "name": [one.name for one in listed],
        "table": [one.relation for one in listed],
        "columns": [", ".join(one.columns) for one in listed],
    }
    return Message("\n".join(map(str, listed)), pa.table(rows, schema=pa.schema(dict.fromkeys(rows, pa.string()))))


def index_lines(catalog: Catalog, relation: str) -> list[str]:
    """Return the indexes of a table or view, as DESCRIBE lists them."""
    return [f"index {one.name} ({', '.join(one.columns)})" for one in catalog.indexes.values() if one.relation == relation]
