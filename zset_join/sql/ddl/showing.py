"""SHOW, DESCRIBE, EXPLAIN and the statements about indexes.

`create_index`, `drop_index`: CREATE INDEX, DROP INDEX, SHOW INDEXES: names for the copy of a table that joins look up in.

    CREATE INDEX by_currency ON rates (currency);
    SHOW INDEXES FROM rates;

Joins by event time and by processing time share one copy of a table whether an index is declared or not; a declared one names
it in EXPLAIN, and lets joins by processing time on more columns go by its columns. It changes no answer. It is of a table or a
view as a whole: where a condition is pushed below a join, the copy holds other rows and has no index.

A table under two aliases of a statement has one copy; several statements are queries of their own, each with its copy.

Known limits. A query keeps the index it was planned with: DROP INDEX takes the name from later ones.

`check_kind`, `declaration`: SHOW and DESCRIBE: the objects of a session, as text and as rows.

SHOW TABLES, STREAMS, VIEWS, FUNCTIONS, QUERIES, SETTINGS, INDEXES [FROM t], COLUMNS FROM t, CREATE TABLE t; a session has one
catalog and one database, `default`.

`explain`: EXPLAIN: the plan of a query, in whichever statement; the statement is checked whole, and nothing is made or written.

    EXPLAIN ALTER [MATERIALIZED] VIEW v AS SELECT ...       what would differ, as rows added and removed
    EXPLAIN [PLAN FOR | EXTENDED | FORMATTED | COST | CODEGEN | LOGICAL | detail, ...] SELECT, INSERT or CREATE ...

The law: EXPLAIN refuses what the statement itself is refused for, before rows are read or something outside is opened.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from zset_join.core.errors import SqlError
from zset_join.core.hidden_settings import HiddenText
from zset_join.expressions.sql_text import quote_name, quote_text, type_name
from zset_join.sql.bind.aggregation import AGGREGATES
from zset_join.sql.ddl.views import alter
from zset_join.sql.parse.readers import Reader
from zset_join.sql.tables.catalog import Catalog, ColumnDefinition, Table, TableIndex
from zset_join.sql.tables.results import Message, Query, QueryChange, Running, StatementContext
from zset_join.sql.tables.settings import SETTINGS
from zset_join.sql_expressions.consumed import Position, SqlWarning, near, pick
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.scalars import SCALAR_FUNCTIONS
from zset_join.zset import ZSet

__all__ = ["check_kind", "create_index", "describe", "drop_index", "explain", "kind_named", "show", "use"]


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


_STYLES = ("CODEGEN", "COST", "EXTENDED", "FORMATTED", "LOGICAL")
_DETAILS = ("CHANGELOG_MODE", "ESTIMATED_COST", "JSON_EXECUTION_PLAN", "PLAN_ADVICE")
_WITH_QUERY = frozenset({"(", "CREATE", "INSERT", "SELECT", "WITH"})


def explain(
    session: StatementContext, statement: Statement, run: Callable[[StatementContext, Statement], Message | Query]
) -> Message:
    reader = Reader(statement, 1)
    styles = [] if reader.has("PLAN", "FOR") else _styles(reader)
    begin = reader.index
    if reader.word.split()[:1] == ["ALTER"]:
        return alter(session, statement, begin, is_preview=True)
    if (reader.word.split() or [""])[0] not in _WITH_QUERY:
        reader.fail("expected SELECT, INSERT, CREATE or ALTER")
    planning = _Planning(session)
    try:
        result = run(planning, replace(statement, tokens=statement.tokens[begin:]))
        query = result if isinstance(result, Query) else _view_made(planning)
    except _Planned as planned:
        query = planned.query
    if query is None:
        raise SqlError(
            "the statement holds no query, so there is no plan to show.", code="NOT_OFFERED", at=statement.place(begin)
        )
    if styles:
        warnings.warn(SqlWarning(f"{', '.join(styles)} changes nothing: EXPLAIN shows one plan."), stacklevel=6)
    return Message(query.explain())


def _styles(reader: Reader) -> list[str]:
    """Read the words behind EXPLAIN that request another kind of plan."""
    styles: list[str] = []
    while reader.word in (_DETAILS if styles else (*_DETAILS, *_STYLES)):
        styles.append(reader.word)
        reader.index += 1
        if styles[0] in _STYLES or not reader.has(","):
            break
        if reader.word not in _DETAILS:
            reader.fail(f"expected one of {', '.join(_DETAILS)}")
    return styles


class _Planned(Exception):  # noqa: N818 - no error: it ends a statement where its query would start
    """A query that would start now."""

    def __init__(self, query: Query) -> None:
        super().__init__()
        self.query = query


class _Planning:
    """A session in which statements are checked: names that they make are forgotten, and queries do not start."""

    writes = False

    def __init__(self, session: StatementContext) -> None:
        self._session = session
        self.dialect, self.running = session.dialect, session.running
        known = self.catalog = Catalog()
        for name, held in vars(session.catalog).items():
            setattr(known, name, dict(held) if isinstance(held, dict) else None)
        self.bound: Query | None = None

    def query(self, statement: Statement, node: Any, settings: Mapping[str, str], *, emits_changelog: bool) -> Query:
        self.bound = self._session.query(statement, node, settings, emits_changelog=emits_changelog)
        return self.bound

    def start(self, query: Query, *, name: str | None = None, output: Callable[[ZSet], None] | None = None) -> Running:  # noqa: ARG002 - as every session
        raise _Planned(query)

    def snapshot(self, query: Query) -> pa.Table:
        raise _Planned(query)

    def change(self, change: QueryChange, *, is_preview: bool) -> list[str]:  # noqa: ARG002 - as every session
        assert self.bound is not None  # noqa: S101 - a view is bound before it is changed
        raise _Planned(next((query for one, query in change.queries.items() if one.name == change.name), self.bound))

    def add_columns(self, table: Table, queries: Mapping[Running, Query], *, reread: Callable[[], str] | None = None) -> None:
        pass

    def insert(self, name: str, rows: Any) -> int:  # noqa: ARG002 - as every session
        return 0

    def forget(self, name: str) -> None:
        pass

    def stop(self, running: Running) -> None:
        pass

    def pause(self, running: Running) -> None:
        pass

    def resume(self, running: Running) -> None:
        pass

    def writer_id(self) -> str | None:
        return self._session.writer_id()

    def explain(self, query: Query) -> str:
        return self._session.explain(query)

    def view_of(self, query: Query) -> Any:
        return self._session.view_of(query)


def _view_made(planning: _Planning) -> Query | None:
    """Return the query of the view that a statement has made; None where it has made none."""
    made = planning.bound
    return made if made is not None and any(view.query is made.bound for view in planning.catalog.views.values()) else None
