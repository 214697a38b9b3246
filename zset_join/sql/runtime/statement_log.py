"""The statements that made what a session has: what they declare, and which of them have run before.

The law: a statement that fails leaves the names as they were before it, or as the pipeline has taken them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from zset_join.sql.runtime.declarations import Declaration, QueryNote, described_table, with_queries
from zset_join.sql.runtime.session_plan import SessionPlan
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.results import QueryChange, Running
from zset_join.sql_expressions.dialects import Statement
from zset_join.stages.written import write_relation

__all__ = ["StatementLog", "declared_table"]

_CATALOG = ("tables", "views", "functions", "sinks", "indexes")


class StatementLog:
    """Keep what statements declare.

    Attributes:
        declared: what counts.
        replacing: the change of queries that is under way.
        is_running: a statement runs; else a program declares.
    """

    def __init__(self, plan: SessionPlan) -> None:
        self.declared: list[Declaration] = []
        self.replacing: QueryChange | None = None
        self._plan = plan
        self._restored: list[Declaration] = []
        self._repeated: dict[tuple[str, ...], int] = {}
        self._statement: tuple[Statement, Mapping[str, str]] | None = None
        self._before: dict[str, dict[str, Any]] = {}

    @property
    def is_running(self) -> bool:
        return self._statement is not None

    def begin(self, declared: Sequence[Declaration]) -> None:
        """Continue with the statements of a session that was closed."""
        self.declared, self._restored = list(declared), list(declared)

    def repeated(self, statement: Statement, settings: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return the result of a statement that has run already; None if it must run.

        A plain CREATE that later statements changed is run again as well, and each of those behind the one before it.
        """
        wanted = Declaration(names=(), sql=statement.sql, dialect=statement.dialect, settings=settings)
        for one in self._restored:
            steps, at = one.steps, self._repeated.get(one.names, 0)
            if one.is_same(wanted) and at in {0, len(steps) - 1}:
                self._restored.remove(one)
                return one.names
            if steps[at].is_same(wanted) and (at or statement.words[1:2] != ("OR",)):
                self._repeated[one.names] = at + 1
                return one.names
        return None

    def is_repeated(self, wanted: Declaration) -> bool:
        """Return whether a program declares what was present when the session was opened, for the first time since."""
        found = next((one for one in self._restored if one.is_same(wanted)), None)
        if found is not None:
            self._restored.remove(found)
        return found is not None

    @contextmanager
    def running(self, statement: Statement) -> Iterator[None]:
        """Note what a statement makes; a failed one leaves the names as the pipeline has them."""
        self._statement, self._before = (statement, dict(self._plan.catalog.settings)), self._entries()
        try:
            yield
        except BaseException:
            for kind in _CATALOG:
                setattr(self._plan.catalog, kind, dict(self._before[kind]))
            raise
        finally:
            self._statement = None

    @contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """Exclude a table from the declarations of the running statement."""
        statement, self._statement = self._statement, None
        try:
            yield
        finally:
            self._statement = statement
            if statement is not None and name in self._plan.catalog.tables:
                self._before["tables"][name] = self._plan.catalog.tables[name]

    def has_changed(self) -> bool:
        """Return whether the running statement has made or dropped something that the pipeline has not taken."""
        return self._entries() != self._before or bool(self._plan.gone)

    def settle(self, declared: list[Declaration]) -> None:
        """Let declarations count, which the pipeline has taken."""
        self.declared = declared
        there = {(one.names, one.sql) for one in declared}
        self._restored = [one for one in self._restored if (one.names, one.sql) in there]
        if self._statement is not None:
            self._before = self._entries()

    def now(self, made: Declaration | None) -> list[Declaration]:
        """Return the declarations, including those of the running statement, or what a program makes."""
        now = self._entries()
        there = {name for entries in now.values() for name in entries}
        queries = {one.name: _noted(one) for one in self._plan.running}
        queries |= {one.name: replace(_noted(one), stopped=True) for one in self._plan.stopped}
        if self.replacing is not None and self._statement is not None:
            change, (statement, settings) = self.replacing, self._statement
            (old,) = [one for one in self.declared if change.name in one.names]
            behind = {*change.following, *(running.name for running in change.queries)} - {change.name}
            declared = [
                *(one for one in self.declared if one is not old and not behind & set(one.names)),
                old.changed(statement.sql, statement.dialect, settings, change.created),
                *(one for one in self.declared if one is not old and behind & set(one.names)),
            ]
            return with_queries(declared, queries)
        if self._statement is not None:
            statement, settings = self._statement
            changed = {
                kind: [name for name in entries if self._before[kind].get(name) is not entries[name]]
                for kind, entries in now.items()
            }
            # What a table gets beside its columns is declared beside it, in order: views before it are of those it had.
            names = changed["columns"] or [name for entries in changed.values() for name in entries]
            if names:
                made = Declaration(
                    names=tuple(dict.fromkeys(names)), sql=statement.sql, dialect=statement.dialect, settings=settings
                )
                if self._holds_rows(statement, names):
                    made = declared_table(self._plan.catalog.tables[names[0]])
        replaced = set() if made is None else set(made.names)
        kept = [one for one in self.declared if not replaced >= set(one.names) and set(one.names) & there]
        return with_queries(kept if made is None else [*kept, made], queries)

    def _holds_rows(self, statement: Statement, names: Sequence[str]) -> bool:
        """Return whether a statement makes a table of rows that are present: CREATE TABLE t AS SELECT FROM table(s)."""
        is_table = len(names) == 1 and names[0] in self._plan.catalog.tables
        words = statement.words
        return (
            is_table
            and "AS" in words
            and "(" not in words[: words.index("AS")]
            and not any(one.writes == names[0] for one in self._plan.running)
        )

    def _entries(self) -> dict[str, dict[str, Any]]:
        """Return everything that has a name now."""
        catalog = self._plan.catalog
        named = {kind: dict(getattr(catalog, kind)) for kind in _CATALOG}
        columns = {f"{table.name} column {name}": name for table in catalog.tables.values() for name in table.added}
        return {**named, "running": {one.name: one for one in self._plan.running}, "columns": columns}


def declared_table(table: Table) -> Declaration:
    """Return the declaration of a table that no statement makes."""
    return Declaration(names=(table.name,), table=described_table(table))


def _noted(running: Running) -> QueryNote:
    return QueryNote(paused=None if running.held is None else write_relation(running.held), since=running.since)
