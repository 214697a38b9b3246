"""SHOW and DESCRIBE: the objects of a session, as text and as rows.

SHOW TABLES, STREAMS, VIEWS, FUNCTIONS, QUERIES, SETTINGS, INDEXES [FROM t], COLUMNS FROM t, CREATE TABLE t; a session has one
catalog and one database, `default`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from zset_join.core.errors import SqlError
from zset_join.core.hidden_settings import HiddenText
from zset_join.expressions.sql_text import quote_name, quote_text, type_name
from zset_join.sql.bind.aggregation import AGGREGATES
from zset_join.sql.ddl.indexes import index_lines, show_indexes
from zset_join.sql.parse.readers import Reader
from zset_join.sql.tables.catalog import Catalog, ColumnDefinition, Table
from zset_join.sql.tables.contexts import StatementContext
from zset_join.sql.tables.results import Message
from zset_join.sql.tables.settings import SETTINGS
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.positions import Position, near, pick
from zset_join.sql_expressions.scalars import SCALAR_FUNCTIONS

__all__ = ["check_kind", "declaration", "describe", "kind_named", "show", "use"]


def show(session: StatementContext, statement: Statement) -> Message:
    words = " ".join(statement.words[1:]).split()
    what = words[0] if words else ""
    catalog = session.catalog
    listed: dict[str, Callable[[], list[str]]] = {
        "CATALOGS": lambda: ["default"],
        "DATABASES": lambda: ["default"],
        "FUNCTIONS": lambda: sorted({*catalog.functions, *SCALAR_FUNCTIONS, *AGGREGATES.values()}),
        "JOBS": lambda: [running.name for running in session.running],
        "MATERIALIZED": lambda: [view.name for view in catalog.views.values() if view.is_materialized],
        "QUERIES": lambda: [running.name for running in session.running],
        "SCHEMAS": lambda: ["default"],
        "SOURCES": lambda: [table.name for table in catalog.tables.values() if table.word == "SOURCE"],
        "SINKS": lambda: [*(table.name for table in catalog.tables.values() if table.word == "SINK"), *catalog.sinks],
        "STREAMS": lambda: list(catalog.tables),
        "TABLES": catalog.relations,
        "VIEWS": lambda: list(catalog.views),
    }
    if len(words) > 1 and (what == "SETTINGS" or what in listed) and words != ["MATERIALIZED", "VIEWS"]:
        Reader(statement, 2).fail(f"expected the end after SHOW {what}")
    if what == "SETTINGS":
        rows = pa.table({"name": list(SETTINGS), "value": [catalog.settings.get(name) for name in SETTINGS]})
        return Message("\n".join(f"{name} = {catalog.settings.get(name, 'not set')}" for name in SETTINGS), rows)
    reader = Reader(statement, 1)
    if reader.has("COLUMNS"):
        if not reader.has("FROM"):
            reader.expect("IN")
        return _described(session, reader)
    if reader.has("INDEXES") or reader.has("INDEX"):
        return show_indexes(session, reader)
    if reader.has("CREATE"):
        return _created(session, reader)
    if what not in listed:
        known = [*listed, "SETTINGS", "COLUMNS", "CREATE", "INDEXES"]
        raise SqlError(f"SHOW {what} is not supported.{near(what, known)}", code="NOT_OFFERED", at=statement.place(0))
    names = listed[what]()
    if what in {"JOBS", "MATERIALIZED", "QUERIES"}:
        paused = {running.name for running in session.running if running.is_paused}
        states = ["paused" if name in paused else "running" for name in names]
        lines = [f"{name} (paused)" if name in paused else name for name in names]
        return Message(
            "\n".join(lines), pa.table({"name": pa.array(names, pa.string()), "state": pa.array(states, pa.string())})
        )
    return Message("\n".join(names), pa.table({"name": pa.array(names, pa.string())}))


def use(_: StatementContext, statement: Statement) -> Message:
    """Run USE [CATALOG] name: a session has one catalog and one database, which go by every name."""
    reader = Reader(statement, 1)
    if not reader.has("CATALOG") and not reader.has("DATABASE"):
        reader.has("SCHEMA")
    name = reader.name()
    reader.end()
    return Message(f"one catalog and one database: {name}")


def describe(session: StatementContext, statement: Statement) -> Message:
    """Run DESCRIBE: the columns, what rows mean, and versioned or latest-only, and why."""
    reader = Reader(statement, 1)
    kind = kind_named(reader)
    if not reader.has("EXTENDED"):
        reader.has("FORMATTED")
    return _described(session, reader, kind)


_KINDS = ("MATERIALIZED VIEW", "VIEW", "TABLE", "STREAM", "SOURCE", "SINK")


def kind_named(reader: Reader) -> str | None:
    """Read the kind of a name, such as MATERIALIZED VIEW; None where it is not given."""
    return next((kind for kind in _KINDS if reader.has(*kind.split())), None)


def check_kind(catalog: Catalog, name: str, kind: str | None, *, at: Position) -> None:
    # TABLE, STREAM, SOURCE and SINK are one kind where rows are read and written; a materialized view is a VIEW, too.
    view = pick(catalog.views, name)
    if view is not None:
        is_right_kind = kind == "VIEW" or (kind == "MATERIALIZED VIEW" and view.is_materialized)
        really = "MATERIALIZED VIEW" if view.is_materialized else "VIEW"
    elif pick({one: one for one in catalog.sinks}, name) is not None:
        is_right_kind, really = kind == "SINK", "SINK"
    else:
        entry = pick(catalog.tables, name)
        is_right_kind, really = kind not in {"VIEW", "MATERIALIZED VIEW"}, "TABLE" if entry is None else entry.word
        if entry is None:
            return
    if kind is not None and not is_right_kind:
        raise SqlError(f'"{name}" is no {kind} but a {really}. Write {really} {name}.', code="WRONG_KIND", at=at, name=name)


def _described(session: StatementContext, reader: Reader, kind: str | None = None) -> Message:
    at = reader.statement.place(reader.index)
    entry = session.catalog.find(reader.name(), at=at)
    reader.end()
    check_kind(session.catalog, entry.name, kind, at=at)
    if isinstance(entry, Table):
        lines = [f"{column.name} {column.type}{_more(column)}" for column in entry.columns]
        lines += [f"{name} (processing time, in FOR SYSTEM_TIME AS OF)" for name in entry.processing_times]
        lines += [f"rows: {entry.mode}", entry.why(), *index_lines(session.catalog, entry.name)]
        names, kinds = entry.schema.names, [str(kind) for kind in entry.schema.types]
    else:
        schema = entry.query.view.schema
        lines = [f"{field.name} {field.type}" for field in schema]
        lines += [*str(entry.query.view.describe()).splitlines(), *index_lines(session.catalog, entry.name)]
        names, kinds = schema.names, [str(kind) for kind in schema.types]
    return Message("\n".join(lines), pa.table({"column": names, "type": kinds}))


def _created(session: StatementContext, reader: Reader) -> Message:
    kind = kind_named(reader)
    at = reader.statement.place(reader.index)
    entry = session.catalog.find(reader.name(), at=at)
    reader.end()
    if kind != "TABLE":  # SHOW CREATE TABLE shows views too
        check_kind(session.catalog, entry.name, kind, at=at)
    text = declaration(entry) if isinstance(entry, Table) else _view_text(entry)
    return Message(text, pa.table({"statement": [text]}))


def _view_text(entry: Any) -> str:
    word = "MATERIALIZED VIEW" if entry.is_materialized else "VIEW"
    columns = f" ({', '.join(quote_name(one, 'spark') for one in entry.columns)})" if entry.columns else ""
    return f"CREATE {word} {quote_name(entry.name, 'spark')}{columns} AS {entry.sql}"


def declaration(table: Table) -> str:
    """Return a table as a statement of Spark's dialect; secrets are not shown."""
    parts = []
    for column in table.columns:
        name = quote_name(column.name, "spark")
        if column.is_processing_time:
            parts.append(f"{name} AS PROCTIME()")
        elif column.computed is not None:
            parts.append(f"{name} AS {column.computed.sql(dialect='spark')}")
        else:
            metadata = "" if column.metadata is None else f" METADATA FROM {quote_text(column.metadata, 'spark')}"
            parts.append(f"{name} {type_name(column.type, 'spark')}{metadata}{' NOT NULL' if column.is_required else ''}")
    parts += [f"{quote_name(name, 'spark')} AS PROCTIME()" for name in table.processing_times]
    if table.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(quote_name(one, 'spark') for one in table.primary_key)}) NOT ENFORCED")
    if table.watermark is not None:
        column_name, delay = quote_name(table.watermark[0], "spark"), table.watermark[1]
        parts.append(f"WATERMARK FOR {column_name} AS {column_name} - INTERVAL '{delay}' MICROSECOND")
    text = f"CREATE {table.word} {quote_name(table.name, 'spark')} (\n  " + ",\n  ".join(parts) + "\n)"
    if table.version_column is not None:
        text += f" ON CONFLICT OVERWRITE WITH VERSION COLUMN ({quote_name(table.version_column, 'spark')})"
    if table.options:
        shown = {name: value.written if isinstance(value, HiddenText) else value for name, value in table.options.items()}
        pairs = ", ".join(f"{quote_text(name, 'spark')} = {quote_text(value, 'spark')}" for name, value in shown.items())
        text += f" WITH ({pairs})"
    return text


def _more(column: ColumnDefinition) -> str:
    if column.is_processing_time:
        return " (processing time)"
    if column.metadata is not None:
        return f" (metadata {column.metadata})"
    return " (computed)" if column.computed is not None else ""
