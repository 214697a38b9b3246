"""The interface of a session to its statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.results import Query, QueryChange, QueryRunner, Running
from zset_join.sql_expressions.dialects import Statement

__all__ = ["StatementContext"]


class StatementContext(QueryRunner, Protocol):
    """A session, as statements see it.

    Attributes:
        writes: whether queries write where they name a table; not where statements are only checked.
        dialect: of statements.
    """

    writes: bool
    dialect: str

    @property
    def catalog(self) -> Catalog:
        """Return the objects of names."""
        ...

    @property
    def running(self) -> list[Running]:
        """Return the queries that run."""
        ...

    def query(self, statement: Statement, node: Any, settings: Mapping[str, str], *, emits_changelog: bool) -> Query:
        """Bind a query."""
        ...

    def insert(self, name: str, rows: Any) -> int:
        """Add rows to a table."""
        ...

    def writer_id(self) -> str | None:
        """Return under which id the statement that runs writes outside; None for a new one."""
        ...

    def forget(self, name: str) -> None:
        """Release the state of a dropped table."""
        ...

    def add_columns(self, table: Table, queries: Mapping[Running, Query], *, reread: Callable[[], str] | None = None) -> None:
        """Let a table have more columns, and queries that read it be what they were over it; `reread`: where values are."""
        ...

    def change(self, change: QueryChange, *, is_preview: bool) -> list[str]:
        """Let queries become others, all or none, or only find out what would differ; return that, line by line."""
        ...
