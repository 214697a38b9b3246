"""EXPLAIN: the plan of a query, in whichever statement; the statement is checked whole, and nothing is made or written.

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
from zset_join.sql.ddl.views import alter
from zset_join.sql.parse.readers import Reader
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.contexts import StatementContext
from zset_join.sql.tables.results import Message, Query, QueryChange, Running
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.positions import SqlWarning
from zset_join.zset import ZSet

__all__ = ["explain"]

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
        for name in vars(known):
            setattr(known, name, dict(getattr(session.catalog, name)))
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
