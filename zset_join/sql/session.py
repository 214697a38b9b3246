"""A session: tables, the queries that run over them, and the statements that make and feed them.

    session = zset_join.sql.Session()                                             in memory, in this process
    session = zset_join.sql.Session(directory="shop")                             it lasts: run its statements again to continue
    session = zset_join.sql.Session(engine="spark", directory="/data/shop")       the same; Spark reads

    session.sql("CREATE TABLE orders (id INT, customer STRING, total INT, PRIMARY KEY (id))")
    revenue = session.sql("SELECT customer, sum(total) AS revenue FROM orders GROUP BY customer").start()
    session.sql("INSERT INTO orders VALUES (1, 'Ada', 30)")
    revenue.table()

Statements are bound and dispatched here; what runs the bound queries is a `zset_join.sql.runtime.runtime.Runtime`.

Known limits: one thread; others may call `views()`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.core.errors import OptionError, SqlError
from zset_join.core.extras import needed_for, raising_interrupts
from zset_join.lookup.source import LookupSource
from zset_join.query.sources import with_jump
from zset_join.sql.bind.queries import QueryBinder
from zset_join.sql.runtime.runtime import Runtime
from zset_join.sql.runtime.session_directory import SessionDirectory
from zset_join.sql.statements import execute
from zset_join.sql.tables.catalog import Catalog, ColumnDefinition, Table, TemporalFunction
from zset_join.sql.tables.results import Message, Query, QueryChange, Running
from zset_join.sql.tables.settings import jump_in, without_effect
from zset_join.sql.tables.table_rows import of_table, registered
from zset_join.sql_expressions.consumed import SqlWarning, check_consumed, near
from zset_join.sql_expressions.dialects import Statement, dialect_named, split
from zset_join.storage.operations import no_epoch, reporting_full_disk
from zset_join.zset import ZSet

__all__ = ["Session", "SqlWarning", "connect"]

_WAIT_SECONDS = 2.0

_reporting_full_disk = reporting_full_disk("the session and its files lie", {"none": "run the statement again"}, no_epoch)


class Session:
    """Run SQL statements.

    Statements: `sql`, `run`, `once`. Rows: `register`, `insert`, `read`, `register_lookup`.
    Queries: `running`, `views`, `start`, `stop`, `pause`, `resume`, `settle`, `advance_due`, `console`.

    Args:
        engine: `local`, in this process, or `spark`.
        spark: a SparkSession, for `engine="spark"`; default: the active one, or a new one on this machine.
        dialect: of the statements: spark, flink, timeplus, risingwave or laminardb.
        keep_tables: keep the rows of tables for later queries, or refuse these; with a directory and inside Spark they are
            always kept.
        clock: returns the processing time in microseconds since 1970; default: the wall clock.
        directory: makes the session durable: the same statements resume where they were. For one session at a time.
            Default: in memory, inside Spark a temporary directory.
        keep_inputs: running queries keep every input change, for `Running.verify()`.
        spark_directory: for `engine="spark"`, where Spark stores the rows of tables that it has read: a path or URI for Spark;
            over Spark Connect one on the server. Default: `spark` in `directory`.
        allow_env: variables of the environment that the statements in `directory` may refer to; those that this user wrote
            there may refer to all.

    Attributes:
        writes: whether INSERT INTO ... SELECT writes; if False, it is only planned.
        dialect: of its statements.
        runtime: runs its queries.

    Raises:
        OptionError: an unknown engine or dialect, or an argument of the other engine.
        StateError: another session has the directory, or its layout is another one.

    >>> session = Session()
    >>> session.sql("CREATE TABLE t (k STRING, v INT)") and session.sql("INSERT INTO t VALUES ('a', 1), ('a', 2)")
    Message(text='2 rows into t', rows=None)
    >>> session.sql("SELECT k, sum(v) AS total FROM t GROUP BY k").table().to_pylist()
    [{'k': 'a', 'total': 3}]
    """

    writes = True

    @_reporting_full_disk
    def __init__(
        self,
        *,
        engine: str = "local",
        spark: Any = None,
        dialect: str = "spark",
        keep_tables: bool = True,
        clock: Callable[[], int] | None = None,
        directory: str | Path | None = None,
        keep_inputs: bool = False,
        spark_directory: str | Path | None = None,
        allow_env: Collection[str] = (),
    ) -> None:
        if engine not in {"local", "spark"}:
            raise OptionError(f"engine={engine!r}; use local or spark.{near(engine, ('local', 'spark'))}", code="ENGINE")
        if engine == "local" and spark is not None:
            raise OptionError("spark=... belongs to engine='spark'.", code="ENGINE")
        if engine == "local" and spark_directory is not None:
            raise OptionError("spark_directory=... belongs to engine='spark'.", code="ENGINE")
        dialect_named(dialect)
        self.dialect = dialect
        self.runtime: Runtime
        if engine == "spark":
            with needed_for("engine='spark'"):
                from zset_join.sql.runtime.on_spark import SparkRuntime
            self.runtime = SparkRuntime(
                spark,
                dialect=dialect,
                clock=clock,
                directory=directory,
                keep_inputs=keep_inputs,
                spark_directory=spark_directory,
                allow_env=allow_env,
            )
        else:
            self.runtime = Runtime(
                dialect=dialect,
                clock=clock,
                directory=None if directory is None else SessionDirectory(directory, layout=4),
                keep_tables=keep_tables or directory is not None,
                keep_inputs=keep_inputs,
                allow_env=allow_env,
            )

    @property
    def catalog(self) -> Catalog:
        """Return the tables, views and functions by name."""
        self._restore()
        return self.runtime.catalog

    @property
    def running(self) -> list[Running]:
        """Return the running queries in the order of their start."""
        self._restore()
        return self.runtime.running

    def sql(self, text: str, *, dialect: str | None = None) -> Message | Query:
        """Run statements in order; return the result of the last one.

        Args:
            text: one statement, or several separated by semicolons.
            dialect: for this text only.

        Raises:
            SqlError: a statement cannot be parsed or is rejected; those before it have run.
            BadInputError: rows that cannot be inserted.
        """
        statements = split(text, dialect=dialect or self.dialect)
        if not statements:
            raise SqlError("there is no statement to run.", code="SQL_SYNTAX")
        last: Message | Query = Message("")
        for statement in statements:
            last = self.run(statement)
        return last

    @_reporting_full_disk
    @raising_interrupts()
    def run(self, statement: Statement) -> Message | Query:
        """Run one statement; it has no effect if the directory already contains it.

        Raises:
            ZsetJoinError: as `sql`.
        """
        self._restore()
        repeated = self.runtime.repeated(statement, self.catalog.settings)
        if repeated is not None:
            return Message(f"{', '.join(repeated)} {'is' if len(repeated) == 1 else 'are'} there already")
        with self.runtime.declaring(statement):
            return execute(self, replace(statement, is_kept=self.runtime.keeps_statements))

    @_reporting_full_disk
    def _restore(self) -> None:
        self.runtime.restore(self._run_again)

    def _run_again(self, text: str, dialect: str, query: str | None, variables: Collection[str] | None) -> None:
        """Run a statement of a session that was closed; start it as a query where it was one."""
        (statement,) = split(text, dialect=dialect or self.dialect)
        with warnings.catch_warnings(action="ignore"):  # they were given when it ran first
            made = execute(self, replace(statement, variables=variables))
        if query is not None and isinstance(made, Query):
            self.runtime.start(made, name=query, output=None)

    def register(
        self, name: str, rows: Any, *, keys: Sequence[str] | str = (), watermark: tuple[str, int] | None = None
    ) -> None:
        """Create a table from an Arrow table, a list of dicts, a dict of columns, or a pandas or polars frame.

        Inside Spark also from a DataFrame, streaming or not, or a view of `zset_join.spark`.

        Args:
            name: of the table.
            rows: its first rows; if empty, only the columns are used.
            keys: columns that identify a row; later rows replace those of their key.
            watermark: event-time column, and the delay of its watermark in microseconds.

        Raises:
            SqlError: the name is taken.
            OptionError: the rows cannot be converted to an Arrow table.
        """
        key = (keys,) if isinstance(keys, str) else tuple(keys)
        if self.runtime.adopt(name, rows, keys=key, watermark=watermark):
            return
        self._restore()
        table, held = registered(name, self.runtime.given(name, rows), keys=key, watermark=watermark)
        if self.runtime.declare(table) and held.num_rows:
            self.insert(name, held)

    def register_lookup(self, source: LookupSource) -> None:
        """Name an external table, for joins FOR SYSTEM_TIME AS OF PROCTIME().

        Raises:
            SqlError: the name is taken.
            OptionError: it is not a lookup source.
        """
        if not isinstance(getattr(source, "schema", None), pa.Schema):
            raise OptionError(
                f"{type(source).__name__} is not a lookup source, which has a name and a schema; see zset_join.lookup.",
                code="NOT_A_TABLE",
            )
        columns = tuple(ColumnDefinition(field.name, field.type) for field in source.schema)
        self.runtime.catalog.add(Table(name=source.name, word="TABLE", columns=columns, mode="append", lookup=source))

    def read(self, *, wait_seconds: float = _WAIT_SECONDS, rounds: int | None = None) -> int:
        """Process the new rows in files and topics of all tables; return the number of epochs, inside Spark 0.

        Args:
            wait_seconds: how long to wait for a source without rows.
            rounds: how often each source is polled at most; None: until none has rows.

        Raises:
            SqlError: a source that cannot be read.
            BadInputError: rows that a table or query cannot apply.
        """
        self._restore()
        return self.runtime.read(wait_seconds=wait_seconds, rounds=rounds)

    def insert(self, name: str, rows: Any) -> int:
        """Add rows to a table, as one epoch of every query that reads it.

        Args:
            name: of the table.
            rows: as for `register`, or a ZSet; missing columns are NULL, or computed.

        Returns:
            The number of rows.
        """
        self._restore()
        table = self.catalog.tables.get(self.catalog.find(name).name)
        if table is None:
            raise SqlError(f'"{name}" is a view; insert into the tables it reads.', code="NOT_A_TABLE", name=name)
        if table.lookup is not None:
            raise SqlError(f'"{name}" is an external table; it is read only.', code="NOT_A_TABLE", name=name)
        self.runtime.check_insert(table)
        return self.runtime.insert(table, rows if isinstance(rows, ZSet) else of_table(table, rows))

    def once(self, name: str) -> AbstractContextManager[None]:
        """Return a context in which INSERTs have no effect if they were run before; needs a directory.

        Args:
            name: of the statement, unique in the directory.
        """
        return self.runtime.once(name)

    def writer_id(self) -> str | None:
        """Return the id under which the running statement writes to external systems; None for a new one."""
        return self.runtime.writer_id()

    def advance_due(self) -> bool:
        """Run an epoch in the queries that are due; return whether there were any."""
        return self.runtime.advance_due()

    def create_temporal_table_function(self, name: str, relation: str, time: str, key: str) -> None:
        """Name the versions of a table, for `LATERAL TABLE(name(o.time))`.

        Args:
            name: of the function.
            relation: table or view whose rows are the versions.
            time: column with the time of a version.
            key: column that identifies what is versioned.

        Raises:
            SqlError: there is no such table or column.
        """
        entry = self.catalog.find(relation)
        columns = entry.schema.names if isinstance(entry, Table) else entry.query.columns
        missing = [column for column in (time, key) if column not in columns]
        if missing:
            raise SqlError(
                f'"{relation}" has no column {", ".join(missing)}.{near(missing[0], columns)}',
                code="UNKNOWN_COLUMN",
                name=relation,
            )
        self.catalog.add(TemporalFunction(name, entry.name, time, key))

    def query(self, statement: Statement, node: Any, settings: Mapping[str, str], *, emits_changelog: bool) -> Query:
        """Bind a query; options without effect become warnings."""
        binder = QueryBinder(self.catalog, statement, {**self.catalog.settings, **settings})
        bound = binder.bind(node)
        check_consumed(node, statement.text, statement.place(0))
        if bound.first_rows is not None:
            raise SqlError(
                f"nothing uses the ROW_NUMBER(): keep the first rows with WHERE {bound.first_rows.name} = 1 around it.",
                code="NOT_OFFERED",
                at=statement.place(0),
            )
        for warning in (*binder.warnings, *without_effect({**self.catalog.settings, **settings})):
            warnings.warn(SqlWarning(warning), stacklevel=4)
        bound = replace(bound, view=with_jump(bound.view, jump_in(binder.settings)), names=frozenset(binder.names))
        return Query(self, bound, statement.sql, dict(binder.settings), emits_changelog, statement.dialect)

    def start(self, query: Query, *, name: str | None = None, output: Callable[[ZSet], None] | None = None) -> Running:
        """Run a query; see `Query.start`.

        Args:
            query: the query.
            name: default: that of its target, or a number.
            output: called with every delta; a writer of a table or sink.
        """
        if query.bound.is_bounded:
            raise SqlError("this query reads stored rows and ends; use its table().", code="BOUNDED")
        return self.runtime.start(query, name=name, output=output)

    def stop(self, running: Running) -> None:
        """End a running query; with a directory its state stays."""
        self.runtime.stop(running)

    def pause(self, running: Running) -> None:
        """Stop applying epochs to a query until `resume`; it keeps its rows, and the others continue.

        Raises:
            SqlError: `TABLES_NOT_KEPT`: it could not catch up later.
        """
        self.runtime.pause(running)

    def resume(self, running: Running) -> None:
        """Bring a paused query up to date with its tables, and continue.

        Raises:
            ZsetJoinError: it cannot be evaluated; it stays paused.
        """
        self.runtime.resume(running)

    def add_columns(self, table: Table, queries: Mapping[Running, Query], *, reread: Callable[[], str] | None = None) -> None:
        """Add columns to a table; existing rows get their DEFAULT, or NULL, or what is read again.

        Args:
            table: with the new columns.
            queries: the running queries that read it, bound to the new table; their contents do not change.
            reread: returns the place of all its rows, with the new columns; see `sources.source`. Memory: all of them.

        Raises:
            StateError: `EVOLVE_REREAD`: these are other rows than it has.
            ZsetJoinError: they cannot be added; nothing has changed.
        """
        self.runtime.add_columns(table, queries, reread=reread)

    def change(self, change: QueryChange, *, is_preview: bool = False) -> list[str]:
        """Replace queries by others, all or none; readers of their changes receive the difference as one epoch.

        Args:
            change: of a view and its readers.
            is_preview: change nothing.

        Returns:
            The differences, a line per query.

        Raises:
            ZsetJoinError: one query cannot be replaced; none is.
        """
        return self.runtime.change(change, is_preview=is_preview)

    def snapshot(self, query: Query) -> pa.Table:
        """Return the result of a query over the present contents of its tables."""
        return self.runtime.snapshot(query)

    def explain(self, query: Query) -> str:
        """Return a text that describes what a query computes and stores."""
        return self.runtime.explain(query)

    def console(self, name: str | None = None, *, port: int = 0) -> Any:
        """Serve a page about a running query, and the others of its pipeline, until it is closed.

        Args:
            name: of the query; optional if one pipeline runs all of them.
            port: of 127.0.0.1; 0 picks a free one. The attribute `url` of the result is the address.

        Raises:
            OptionError: `VIEW_NAME`: no query runs, none has this name, or several pipelines run and none is named; or the
                port is taken.
            MissingPackageError: the extra `console` is not installed.
        """
        found = [one for one in self.running if name in (None, one.name)]
        if len({id(one.whole) for one in found}) != 1:
            names = [one.name for one in self.running]
            raise OptionError(
                f"console({name!r}): expected the name of one of the queries that run, {names}.",
                code="VIEW_NAME",
                name=name,
                expected=names,
            )
        return found[0].console(port=port)

    def view_of(self, query: Query) -> Any:
        """Return a query as a view of the fluent API of this session's engine."""
        return self.runtime.view_of(query)

    def forget(self, name: str) -> None:
        """Release the rows of a dropped table, and end its queries."""
        self.runtime.forget(name)

    def settle(self) -> None:
        """Wait until every query has processed the present input; in memory it always has."""
        self.runtime.settle()

    def views(self) -> dict[str, pa.Table]:
        """Return the contents of all running queries by name, all after the same INSERT; any thread may call it.

        A paused query shows its last rows; so does, with a directory, one that an error stopped. Cost: per epoch a reference
        per query, per call the rows that arrived since the last call.
        """
        self._restore()
        return self.runtime.views()

    @_reporting_full_disk
    def close(self) -> None:
        """End all queries and release the directory."""
        self.runtime.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


connect = Session
"""The same under the name that database drivers give it."""
