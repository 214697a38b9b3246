"""Interface between a session and its runtime, and the part shared by all runtimes.

| runtime | of | rows and state |
|---|---|---|
| `in_memory.MemoryRuntime` | `Session()` | in this process; views share stages |
| `durable.DirectoryRuntime` | `Session(directory=...)` | one pipeline in a directory, which continues after a stop or crash |
| `on_spark.SparkRuntime` | `Session(engine="spark")` | the same; Spark reads files, topics and DataFrames |

The law: statements are bound and dispatched by the session, once; a runtime is given bound queries and complete tables.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from zset_join.evolution.refusals import bad_reread
from zset_join.sources.again import rows_again
from zset_join.sql.runtime.completing import completed
from zset_join.sql.tables.arrow_rows import of_table
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.results import Query, QueryChange, Running
from zset_join.sql_expressions.dialects import Statement
from zset_join.zset import ZSet

__all__ = ["Runtime"]


class Runtime(ABC):
    """Interface of a runtime: runs the queries of a session and keeps the rows of its tables.

    Args:
        catalog: of names.
        dialect: of computed columns.
        clock: returns the processing time in microseconds since 1970; None: the wall clock.

    Attributes:
        running: the queries.
        keeps_statements: their texts are written to a file.
    """

    keeps_statements = False

    def __init__(self, catalog: Catalog, *, dialect: str, clock: Callable[[], int] | None) -> None:
        self.catalog = catalog
        self.dialect = dialect
        self.running: list[Running] = []
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._seen: Mapping[str, Callable[[], pa.Table]] = {}

    # ---------------------------------------------------------------- statements

    def restore(self, run: Callable[[str, str, str | None, Collection[str] | None], None]) -> None:  # noqa: B027 - of a directory
        """Restore the session as it was closed; once, before the first statement.

        Args:
            run: runs a statement: its text, its dialect, the name of the query that it is to be started as, if so, and the
                variables of the environment that it may refer to, None for all.
        """

    def repeated(self, statement: Statement, settings: Mapping[str, str]) -> tuple[str, ...] | None:  # noqa: ARG002 - of a directory
        """Return the names that a statement made when it ran before, and that are present; None where it has to run."""
        return None

    @contextmanager
    def declaring(self, statement: Statement) -> Iterator[None]:  # noqa: ARG002 - of a directory
        """Store the declarations of a statement."""
        yield

    # ---------------------------------------------------------------- tables

    def declare(self, table: Table) -> bool:
        """Give a table that a program registers its name; return whether it is new.

        Raises:
            SqlError: the name is taken.
        """
        self.catalog.add(table)
        return True

    def adopt(self, name: str, rows: Any, *, keys: tuple[str, ...], watermark: tuple[str, int] | None) -> bool:  # noqa: ARG002 - of Spark's
        """Make a table of what only this runtime reads, such as a DataFrame; return whether it is one of these."""
        return False

    def given(self, name: str, rows: Any) -> Any:  # noqa: ARG002 - of Spark's
        """Return registered rows in a form that converts to an Arrow table."""
        return rows

    def check_insert(self, table: Table) -> None:  # noqa: B027 - not all refuse
        """Refuse rows of a program or statement for a table that is filled from elsewhere.

        Raises:
            SqlError: `NOT_A_TABLE`.
        """

    def insert(self, table: Table, rows: pa.Table | ZSet) -> int:
        """Take rows of a table as one epoch of all queries that read it, or of none; return how many they are.

        Raises:
            ZsetJoinError: of the table, or of a query, which it names.
        """
        now_us = self._clock()
        given = self.completed(table, rows, now_us)
        self._feed(table, given, now_us)
        return len(given) if isinstance(given, ZSet) else int(given.num_rows)

    def completed(self, table: Table, rows: pa.Table | ZSet, now_us: int) -> pa.Table | ZSet:
        return completed(table, rows, now_us, self.dialect, self.catalog.zone)

    def rows_again(self, table: Table, place: Callable[[], str]) -> pa.Table:
        """Return the rows of a table that are at a place now, with all its columns.

        Raises:
            OptionError: `REREAD`: they cannot be read.
            SqlError: `SECRET_MISSING`: the place refers to a variable of the environment that is not set.
            StateError: `EVOLVE_REREAD`: they lack a column.
        """
        rows = rows_again(place())
        found = rows.column_names if isinstance(rows, pa.Table) else [*rows]
        missing = [one.name for one in table.columns if one.is_given and one.metadata is None and one.name not in found]
        if missing:
            raise bad_reread(table.name, f"have no column {', '.join(missing)}")
        known = [name for name in found if name in table.schema.names]
        chosen = rows.select(known) if isinstance(rows, pa.Table) else {name: rows[name] for name in known}
        complete = self.completed(table, of_table(table, chosen), self._clock())
        assert isinstance(complete, pa.Table)  # noqa: S101 - of a table, not of changes
        return complete

    def table(self, name: str) -> Table:
        return self.catalog.tables[name]

    @abstractmethod
    def _feed(self, table: Table, rows: pa.Table | ZSet, now_us: int) -> None:
        """Take complete rows of a table."""

    @abstractmethod
    def read(self, *, wait_seconds: float, rounds: int | None = None) -> int:
        """Take the new rows in files and topics; see `Session.read`."""

    @contextmanager
    def once(self, name: str) -> Iterator[None]:  # noqa: ARG002 - in a directory
        """Let INSERTs within it change nothing where they were run before; see `Session.once`."""
        yield

    def writer_id(self) -> str | None:
        return None

    @abstractmethod
    def forget(self, name: str) -> None:
        """Release the state of a dropped table or view, and end its queries."""

    # ---------------------------------------------------------------- queries

    @abstractmethod
    def start(self, query: Query, *, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        """Run a query; see `Session.start`."""

    @abstractmethod
    def stop(self, running: Running) -> None: ...

    @abstractmethod
    def pause(self, running: Running) -> None: ...

    @abstractmethod
    def resume(self, running: Running) -> None: ...

    @abstractmethod
    def change(self, change: QueryChange, *, is_preview: bool) -> list[str]:
        """Let queries become others, all or none; see `Session.change`."""

    @abstractmethod
    def add_columns(self, table: Table, queries: Mapping[Running, Query], *, reread: Callable[[], str] | None = None) -> None:
        """Give a table more columns; see `Session.add_columns`."""

    @abstractmethod
    def snapshot(self, query: Query) -> pa.Table:
        """Return the result of a query over the contents of its tables."""

    def explain(self, query: Query) -> str:
        return query.bound.view.plan().explain(buckets=1)

    def view_of(self, query: Query) -> Any:
        """Return a query as a view of the fluent API of this engine."""
        return query.bound.view

    # ---------------------------------------------------------------- time

    def settle(self) -> None:  # noqa: B027 - in memory every query has
        """Wait until every query has answered the present content."""

    @abstractmethod
    def advance_due(self) -> bool:
        """Let an epoch pass in the queries that are due by now; return whether there were any."""

    def run_as(self, *, once: bool, trigger: str | None) -> None:  # noqa: B027 - of Spark's
        """Set how queries run that are started from now on.

        Args:
            once: they answer what there is when `read` is called, and end; else they run on and on.
            trigger: the interval between epochs.
        """

    def check(self) -> None:  # noqa: B027 - of Spark's
        """Do nothing while all queries run.

        Raises:
            ZsetJoinError: what stopped one.
        """

    def views(self) -> dict[str, pa.Table]:
        """Return the contents of all running queries after one common epoch."""
        return {name: read() for name, read in self._seen.items()}

    def _publish(self) -> None:
        """Make an epoch visible that all queries have taken: one assignment."""
        self._seen = {running.name: running.seen() for running in self.running}

    @abstractmethod
    def close(self) -> None:
        """End all queries."""
