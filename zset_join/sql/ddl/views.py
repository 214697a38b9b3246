"""CREATE VIEW, CREATE MATERIALIZED VIEW, and what changes one that is present.

    CREATE [OR REPLACE] VIEW v AS SELECT ...               a name for a query
    CREATE [OR REPLACE] MATERIALIZED VIEW v AS SELECT ...  a query that runs
    ALTER [MATERIALIZED] VIEW v AS SELECT ...              another query under the name
    PAUSE, RESUME MATERIALIZED VIEW v                      one view that cannot be answered does not stop the others

The law: behind ALTER and OR REPLACE the view, and every query that reads it, holds what it would hold had the new text been
there from the start. Readers of their changes get new minus old, as one epoch. All follow or none: what one of them is
refused for leaves all as they were.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zset_join.core.errors import PlanError, SqlError
from zset_join.core.shown_values import counted
from zset_join.evolution.refusals import of_taken_rows
from zset_join.expressions.rows import named
from zset_join.sql.ddl.adding_columns import alter_table
from zset_join.sql.ddl.sink_statements import written_table
from zset_join.sql.dml import bind_query, bound_by, fitted, writer_of
from zset_join.sql.parse.readers import Reader
from zset_join.sql.tables.catalog import Catalog, NamedView
from zset_join.sql.tables.results import Message, Query, QueryChange, Running, StatementContext
from zset_join.sql.tables.settings import unplanned
from zset_join.sql_expressions.consumed import Position, SqlWarning, check_distinct, near
from zset_join.sql_expressions.dialects import Statement

__all__ = ["alter", "create_materialized_view", "create_view", "pause", "refuse_both", "release", "resume"]


def refuse_both(replaces: bool, may_exist: bool, *, at: Position) -> None:
    if replaces and may_exist:
        raise SqlError("OR REPLACE rebuilds it, IF NOT EXISTS leaves it as it is. Keep one of them.", code="SAID_TWICE", at=at)


def release(session: StatementContext, name: str, replaces: bool, *, at: Position) -> None:
    """End the query of a redefined name and release its rows, as DROP does."""
    if not replaces:
        return
    running = [
        one.name for one in session.running if one.name != name and (name in one.query.bound.names or one.writes == name)
    ]
    bound_to_it = list(dict.fromkeys([*session.catalog.readers_of(name), *running]))
    if bound_to_it:
        raise SqlError(
            f'"{name}" is read or written by {", ".join(bound_to_it)}, which would not follow. DROP these views and sinks, '
            "stop() these queries, and create them again after CREATE OR REPLACE.",
            code="STILL_READ",
            at=at,
            name=name,
        )
    if session.catalog.is_kept(name):
        session.forget(name)


def create_view(session: StatementContext, reader: Reader, replaces: bool) -> Message:
    """Run CREATE VIEW, from behind the word VIEW on."""
    may_exist = reader.has("IF", "NOT", "EXISTS")
    at = reader.statement.place(reader.index)
    refuse_both(replaces, may_exist, at=at)
    name = reader.name("the name of the view")
    if may_exist and name in session.catalog.views:
        return Message(f"{name} is there already")
    view, query = _view(session, reader, name, is_materialized=False)
    for setting in (one for one, value in query.settings.items() if session.catalog.settings.get(one) != value):
        if unplanned(setting):
            text = f"the setting '{setting}' of a view changes nothing: write it behind the query that reads the view."
            warnings.warn(SqlWarning(text), stacklevel=5)
    old = session.catalog.views.get(name) if replaces else None
    if old is not None and not old.is_materialized:
        return _changed(session, view, {}, at=at)
    release(session, name, replaces, at=at)
    session.catalog.add(view, at=at, replace=replaces)
    return Message(f"view {name}: {', '.join(query.columns)}")


def create_materialized_view(session: StatementContext, reader: Reader, replaces: bool) -> Message:
    """Run CREATE MATERIALIZED VIEW, from behind the word VIEW on."""
    may_exist = reader.has("IF", "NOT", "EXISTS")
    at = reader.statement.place(reader.index)
    refuse_both(replaces, may_exist, at=at)
    name = reader.name("the name of the view")
    if may_exist and name in session.catalog.views:
        return Message(f"{name} is there already")
    table = written_table(session, reader) if reader.has("INTO") else None
    view, query = _view(session, reader, name, is_materialized=True)
    fitting = query if table is None else bound_by(session, lambda: fitted(_again(query), table, None, at=at))
    running = _running(session, name) if replaces else None
    if running is not None and running.into == (None if table is None else table.name):
        return _changed(session, view, {running: fitting}, at=at)
    release(session, name, replaces, at=at)
    output = None if table is None else writer_of(session, table, fitting, at=at)
    session.catalog.add(view, at=at, replace=replaces)
    session.start(fitting, name=name, output=output)
    return Message(f"materialized view {name}: {', '.join(query.columns)}")


def alter(session: StatementContext, statement: Statement, begin: int = 0, *, is_preview: bool = False) -> Message:
    """Run ALTER [MATERIALIZED] VIEW v AS SELECT, and ALTER TABLE t ADD COLUMN."""
    reader = Reader(statement, begin + 1)
    if any(reader.has(*words) for words in (("MUTABLE", "STREAM"), ("STREAM",), ("TABLE",), ("SOURCE",))):
        return alter_table(session, statement, reader)
    is_materialized = reader.has("MATERIALIZED", "VIEW")
    if not is_materialized and not reader.has("VIEW"):
        raise SqlError(
            f"ALTER {reader.word} is not supported; ALTER MATERIALIZED VIEW v AS SELECT ... and ALTER TABLE t ADD COLUMN are.",
            code="NOT_OFFERED",
            at=statement.place(0),
        )
    at = statement.place(reader.index)
    name = reader.name("the name of the view")
    old = session.catalog.views.get(name)
    running = _running(session, name)
    if old is None or old.is_materialized != is_materialized or (is_materialized and running is None):
        if old is not None and old.is_materialized != is_materialized:
            word = "VIEW" if is_materialized else "MATERIALIZED VIEW"
            raise SqlError(f'"{name}" is a {word}. Write ALTER {word} {name}.', code="WRONG_KIND", at=at, name=name)
        word = "materialized view" if is_materialized else "view"
        known = [one.name for one in session.catalog.views.values() if one.is_materialized == is_materialized]
        raise SqlError(f'there is no {word} "{name}" to alter.{near(name, known)}', code="UNKNOWN_TABLE", at=at, name=name)
    after = reader.index
    try:
        view, query = _view(session, reader, name, is_materialized=is_materialized)
    except PlanError as error:
        raise of_taken_rows(error, partial(_most_rows, session, name, running)) from error.__cause__
    changes: dict[Running, Query] = {}
    if running is not None:
        table = None if running.into is None else session.catalog.tables[running.into]
        changes[running] = query if table is None else bound_by(session, lambda: fitted(_again(query), table, None, at=at))
    into = f"INTO {_quoted(running.into)} " if running is not None and running.into is not None else ""
    word = "MATERIALIZED VIEW" if is_materialized else "VIEW"
    created = f"CREATE {word} {_quoted(name)} {into}{statement.sql_from(after)}"
    return _changed(session, view, changes, at=at, created=created, is_preview=is_preview)


def _quoted(name: str) -> str:
    """Return a name in the quotes that all dialects read."""
    return "`" + name.replace("`", "``") + "`"


def _running(session: StatementContext, name: str) -> Running | None:
    """Return the query of a materialized view; None where there is none of the name."""
    view = session.catalog.views.get(name)
    found = [one for one in session.running if one.name == name and view is not None and view.is_materialized]
    return found[0] if found else None


def _view(session: StatementContext, reader: Reader, name: str, *, is_materialized: bool) -> tuple[NamedView, Query]:
    """Read `(a, b) COMMENT 'text' AS SELECT ...`; return the view, and its query."""
    at = reader.statement.place(reader.index)
    names = reader.names() if reader.word == "(" else None
    if reader.has("COMMENT"):
        reader.string("a comment")
    reader.expect("AS")
    begin, statement = reader.index, reader.statement
    query = bound_by(
        session, lambda: _renamed(bind_query(session, statement, begin, is_named=not is_materialized), names, at=at)
    )
    view = NamedView(
        name,
        query.bound,
        statement.sql_from(begin),
        is_materialized=is_materialized,
        columns=names or (),
        again=lambda: _again(query).bound,
    )
    return view, query


def _again(query: Query) -> Query:
    assert query.again is not None  # noqa: S101 - `bound_by` made it
    return query.again()


def _renamed(query: Query, names: tuple[str, ...] | None, *, at: Position) -> Query:
    """Return a query whose columns have the names that its view gives them."""
    if names is None:
        return query
    check_distinct(names, "the view", at)
    if len(names) != len(query.columns):
        raise SqlError(
            f"the view names {counted(len(names), 'column')} ({', '.join(names)}), and its query has {len(query.columns)} "
            f"({', '.join(query.columns)}). Name each, once.",
            code="INSERT_COLUMNS",
            at=at,
        )
    if query.bound.first_rows is not None:
        raise SqlError(
            "a view of a ROW_NUMBER() that nothing uses yet names its columns in the query: SELECT a AS b, ...",
            code="NOT_OFFERED",
            at=at,
        )
    view = query.bound.view.select({new: named(old) for new, old in zip(names, query.columns, strict=True)})
    return replace(query, bound=replace(query.bound, view=view, shown=None))


# ---------------------------------------------------------------- change


def _changed(
    session: StatementContext,
    view: NamedView,
    own: dict[Running, Query],
    *,
    at: Position,
    created: str | None = None,
    is_preview: bool = False,
) -> Message:
    """Let a view, and all that reads it, follow a new text; or leave everything as it was."""
    catalog, name = session.catalog, view.name
    before = dict(catalog.views)
    following = _following(catalog, name)
    reached = {name, *following}
    if reached & view.query.names:
        read = min(reached & view.query.names)
        raise SqlError(
            f'"{name}" would read "{read}", which reads "{name}": they would depend on each other.',
            code="CIRCLE",
            at=at,
            name=name,
        )
    _check_indexes(catalog, view, at=at)
    changes = dict(own)
    try:
        # Behind all that it reads, and before all that reads it.
        catalog.views = {other: one for other, one in before.items() if other not in reached}
        catalog.views[name] = view
        for other in following:
            catalog.views[other] = before[other]
        for other in following:
            entry = before[other]
            catalog.views[other] = replace(entry, query=_followed(other, name, entry.again, at=at))
        for running in session.running:
            if running not in changes and reached & running.query.bound.names:
                changes[running] = _followed(running.name, name, running.query.again, at=at)
        text = session.change(QueryChange(name, tuple(following), changes, created), is_preview=is_preview)
        if is_preview:
            catalog.views = before
    except BaseException:
        if is_preview or not changes or any(running.query is not query for running, query in changes.items()):
            catalog.views = before  # else it counts, and an output failed
        raise
    word = "materialized view" if view.is_materialized else "view"
    return Message("\n".join([f"{word} {name}: {', '.join(view.query.columns)}", *text]))


def _most_rows(session: StatementContext, name: str, running: Running | None) -> tuple[int, str]:
    """Return how many rows the largest query over a view has, and its name in quotes."""
    reached = {name, *_following(session.catalog, name)}
    reading = [one for one in session.running if one is running or reached & one.query.bound.names]
    rows = {one.name: one.pipeline.seen()().num_rows for one in reading}
    most = max(rows, key=lambda one: rows[one], default=name)
    return rows.get(most, 0), f'"{most}"'


def _following(catalog: Catalog, name: str) -> list[str]:
    """Return the views that read one, directly or through others, in the order in which they were made."""
    reached = {name}
    while True:
        more = {one.name for one in catalog.views.values() if reached & one.query.names} - reached
        if not more:
            return [one for one in catalog.views if one in reached and one != name]
        reached |= more


def _followed(reader: str, name: str, again: Any, *, at: Position) -> Any:
    """Bind the query of a reader over the new text."""
    if again is None:
        raise SqlError(
            f'"{reader}" reads "{name}" and cannot follow it: no statement made it. DROP it first.',
            code="STILL_READ",
            at=at,
            name=reader,
        )
    try:
        return again()
    except PlanError as error:
        facts = {key: fact for key, fact in error.facts.items() if key not in {"message", "code", "line", "column", "name"}}
        text = f'"{reader}", which reads "{name}", cannot follow: {error.message}'
        raise type(error)(text, code=error.code, **{**facts, "name": reader}) from error


def _check_indexes(catalog: Catalog, view: NamedView, *, at: Position) -> None:
    lost: Sequence[str] = [
        one.name for one in catalog.indexes.values() if one.relation == view.name and set(one.columns) - set(view.query.columns)
    ]
    if lost:
        raise SqlError(
            f'the index {lost[0]} is of columns that "{view.name}" would no longer have. DROP INDEX {lost[0]} first.',
            code="STILL_READ",
            at=at,
            name=view.name,
        )


# A paused view takes nothing and shows what it held; behind RESUME it holds what it would hold without the pause, and readers
# of its changes get the difference as one epoch.


def pause(session: StatementContext, statement: Statement) -> Message:
    running = _view_that_runs(session, statement)
    if running.is_paused:
        return Message(f"{running.name} is paused already")
    session.pause(running)
    return Message(f"{running.name} is paused")


def resume(session: StatementContext, statement: Statement) -> Message:
    running = _view_that_runs(session, statement)
    if not running.is_paused:
        return Message(f"{running.name} runs already")
    session.resume(running)
    return Message(f"{running.name} goes on")


def _view_that_runs(session: StatementContext, statement: Statement) -> Running:
    reader = Reader(statement, 1)
    reader.expect("MATERIALIZED", "VIEW")
    at = statement.place(reader.index)
    name = reader.name("the name of the view")
    reader.end()
    known = {view.name for view in session.catalog.views.values() if view.is_materialized}
    found = [running for running in session.running if running.name in known and running.name == name]
    if not found:
        raise SqlError(
            f'there is no materialized view "{name}" that runs.{near(name, sorted(known))}',
            code="UNKNOWN_TABLE",
            at=at,
            name=name,
        )
    return found[0]
