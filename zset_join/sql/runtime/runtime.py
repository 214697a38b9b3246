"""The queries and tables of a session as one pipeline, in memory or in a directory.

Every INSERT, and what connectors bring, is one epoch of all queries or of none: `SessionPlan` has the views of the pipeline.
Rows that queries write into tables are of the same epoch. CREATE and DROP change the plan: a new query begins with what its
tables hold. `on_spark.SparkRuntime` is the same over tables that Spark reads.

The law: statements are bound and dispatched by the session, once; a runtime is given bound queries and complete tables. What is
declared and the plan of the pipeline change together; a statement that fails has changed neither. A session in a directory that
is opened again, killed or not, is at the last epoch that all its queries took: tables, queries and positions of sources are of
one commit record. A statement that is run again there, as it was, changes nothing; an INSERT does so within `once`.

Memory: the rows of all tables and queries. Cost: of an INSERT, one epoch, and one answer more where a table takes the rows of a
query (`is_fed`); of CREATE and DROP, what they build; in a directory one commit each.

Known limits: all queries have the `on_bad_input` and the idle timeout that are set when the first one is made. Of a table that
a connector fills, everything that arrived is kept. Joins by time that arrive when there are rows keep an index of their own,
and take these rows as if they came then; a lookup join looks all of them up then.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from zset_join.core.errors import BadInputError, SqlError, StateError, ZsetJoinError
from zset_join.core.row_conversion import repeated_positions
from zset_join.core.shown_values import counted
from zset_join.evolution.differences import PlanDiff
from zset_join.evolution.refusals import bad_reread
from zset_join.plan.tree import in_zone
from zset_join.query import View
from zset_join.runners.local.contents import repeated
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.sinks.sink import Sink
from zset_join.sources.again import rows_again
from zset_join.sql.dml.writing import table_written
from zset_join.sql.runtime import refusals
from zset_join.sql.runtime.claims import TableClaims, WrittenRows
from zset_join.sql.runtime.completing import completed, completed_table
from zset_join.sql.runtime.declarations import Catalogued, Declaration, table_of
from zset_join.sql.runtime.epoch_rows import NOTHING, Rows, accepted, as_started, combined, named_error
from zset_join.sql.runtime.session_directory import SessionDirectory
from zset_join.sql.runtime.session_plan import BASE, ROWS, SessionPlan, base_view, held_relation
from zset_join.sql.runtime.statement_log import StatementLog, declared_table
from zset_join.sql.runtime.written_tables import is_fed
from zset_join.sql.tables.arrow_rows import of_table
from zset_join.sql.tables.catalog import Catalog, Table, refuse_our_columns
from zset_join.sql.tables.query_view import QueryView, SessionPipeline
from zset_join.sql.tables.results import Query, QueryChange, Running, has_row_of_nothing, sorted_rows
from zset_join.sql.tables.settings import driver_options, idle_timeout, stage_options
from zset_join.sql.tables.sink_tables import SinkWriter
from zset_join.sql.tables.table_sources import DecodingCatalog, TableSource, decoded_rows, source_of
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.positions import SqlWarning
from zset_join.stages.written import read_relation
from zset_join.zset import ZSet

__all__ = ["Runtime"]

_SNAPSHOT = "(snapshot)"
_WAIT_SECONDS = 2.0
_PAUSE = "PAUSE MATERIALIZED VIEW lets the others take rows that one view cannot."
RunStatement = Callable[[str, str, str | None, Collection[str] | None], None]


class Runtime:
    """Run the queries of a session and keep the rows of its tables.

    Args:
        catalog: of names; default: one whose tables of records are decoded inside the queries.
        dialect: of computed columns.
        clock: returns the processing time in microseconds since 1970; None: the wall clock.
        directory: of the session; None: in memory.
        keep_tables: keep the rows of tables for later queries.
        keep_inputs: keep every input change, for `verify`.
        allow_env: variables of the environment that statements of others in the directory may refer to.

    Attributes:
        running: the queries.
        keeps_statements: their texts are written to a file.
    """

    def __init__(
        self,
        catalog: Catalog | None = None,
        *,
        dialect: str,
        clock: Callable[[], int] | None,
        directory: SessionDirectory | None = None,
        keep_tables: bool = True,
        keep_inputs: bool = False,
        allow_env: Collection[str] = (),
    ) -> None:
        self.catalog = DecodingCatalog(dialect, decoded_rows) if catalog is None else catalog
        self.dialect = dialect
        self.keeps_statements = directory is not None
        self.plan = SessionPlan(
            self.catalog, dialect=dialect, keep_tables=keep_tables, is_inserted=self.is_inserted, fed=self._fed
        )
        self.running = self.plan.running
        self.claims = TableClaims(self.catalog, self.running, self._rows_held)
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._seen: Mapping[str, Callable[[], pa.Table]] = {}
        self._directory, self._keep_inputs = directory, keep_inputs
        self._allow_env = frozenset((allow_env,) if isinstance(allow_env, str) else allow_env)
        self._log = StatementLog(self.plan)
        self._once: str | None = None
        self._shared = SessionPipeline()
        self._pipeline: Pipeline[dict[str, ZSet]] | None = None
        self._sources: dict[str, TableSource] = {}
        self._unfed: list[WrittenRows] = []
        self._is_restoring = False

    # ---------------------------------------------------------------- opening

    def restore(self, run: RunStatement) -> None:
        """Open the session, or restore it as it was closed; once, before the first statement.

        Args:
            run: runs a statement: its text, its dialect, the name of the query that it is to be started as, if so, and the
                variables of the environment that it may refer to, None for all.

        Raises:
            StateError: something is missing or damaged; `ENV_NOT_ALLOWED`: statements of another user, or of another place,
                refer to variables of the environment that `allow_env` does not name.
            SqlError: a statement that cannot be run any more, as one whose lookup table is not registered yet.
        """
        if self._pipeline is not None or self._is_restoring:
            return
        if self._directory is None:
            self._open(self.plan.wanted())
            return
        self._restore(self._directory, run)
        self.running[:] = as_started(self.running, self.plan.order)
        for running in self.running:
            running.is_restored = True
            self.claims.beside(running)
        self._restore_written()
        self._publish()

    def _restore(self, directory: SessionDirectory, run: RunStatement) -> None:
        named, settings = directory.declarations_named(), dict(self.catalog.settings)
        refused: StateError | None = None
        for known in directory.declarations.candidates(named):
            self._is_restoring = True
            try:
                self._run_again(known, run)
                self.catalog.settings = settings
                self._open(self.plan.wanted())
                self._log.begin(known.declared)
                return
            except SqlError as error:
                if error.code == "ENV_NOT_ALLOWED":
                    self._forget_everything()
                    names = {error.facts["name"], *known.variables()} - self._allow_env
                    raise refusals.unconfirmed(directory.path / "catalog", names) from None
                raise
            except StateError as error:
                if error.code != "QUERY_CHANGED" or named is not None:
                    raise
                refused = error
                self._forget_everything()
            finally:
                self.catalog.settings = settings
                self._is_restoring = False
        assert refused is not None  # noqa: S101 - there is always a candidate
        raise refused

    def _run_again(self, known: Catalogued, run: RunStatement) -> None:
        self.plan.order, self.plan.settings = known.views, dict(known.settings)
        for one in known.declared:
            self.catalog.settings = dict(one.settings)
            if one.table is not None:
                self.catalog.add(table_of(one.table))
            else:
                run(one.created or one.sql, one.dialect, one.query, None if known.is_own else self._allow_env)
            for running in [each for each in self.running if each.name in one.names]:
                running.since = one.since
                if one.stopped:
                    self.plan.put_aside(running)
                if one.paused:
                    running.held = read_relation(one.paused)
                    running.pipeline = self._view_of(running.name, running.query, is_paused=True)

    def _open(self, views: dict[str, View]) -> None:
        settings, driver = self.plan.settings, driver_options(self.plan.settings)
        pipeline: Pipeline[dict[str, ZSet]] = Pipeline(
            views,
            None if self._directory is None else self._directory.pipeline,
            outputs={one.name: sink for one in self.running if (sink := _sink_of(one.output)) is not None},
            options=stage_options(settings),
            idle_timeout_seconds=idle_timeout(settings),
            snapshot_after_bytes=driver.snapshot_after_bytes,
            threads=driver.driver_threads,
            keep_state=driver.keep_state,
            keep_inputs=self._keep_inputs,
            before_begin=lambda positions: self._sources.update(self._opened(positions.get("read", {}))),
        )
        self._pipeline = self._shared.pipeline = pipeline
        self.plan.views = views

    def _forget_everything(self) -> None:
        catalog = self.catalog
        catalog.tables = {name: one for name, one in catalog.tables.items() if self._is_given_again(one)}
        catalog.views, catalog.functions, catalog.sinks, catalog.indexes = {}, {}, {}, {}
        self.running.clear()
        self.plan.stopped.clear()

    @property
    def pipeline(self) -> Pipeline[dict[str, ZSet]]:
        assert self._pipeline is not None  # noqa: S101 - `restore` comes first
        return self._pipeline

    def close(self) -> None:
        """End all queries; those in a directory continue when it is opened again."""
        try:
            for source in self._sources.values():
                source.close()
            self.claims.close()
            if self._pipeline is not None:
                self._pipeline.close()
            self._sources = {}
            self.running.clear()
        finally:
            if self._directory is not None:
                self._directory.release()

    # ---------------------------------------------------------------- statements

    def repeated(self, statement: Statement, settings: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return the names that a statement made when it ran before, and that are present; None where it has to run."""
        return self._log.repeated(statement, settings)

    @contextmanager
    def declaring(self, statement: Statement) -> Iterator[None]:
        """Take what a statement declares into the plan; a failed one leaves the names unchanged."""
        if self._is_restoring:
            yield
            return
        with self._log.running(statement):
            yield
            if self._log.has_changed():
                self._change({})

    @contextmanager
    def once(self, name: str) -> Iterator[None]:
        """Let INSERTs within it change nothing where they were run before; see `Session.once`."""
        before, self._once = self._once, name
        try:
            yield
        finally:
            self._once = before

    def writer_id(self) -> str | None:
        """Return under which id the statement that runs writes outside, the same whenever it runs; None where there is none."""
        return None if self._once is None or self._directory is None else self._directory.writer_id(self._once)

    # ---------------------------------------------------------------- tables

    def declare(self, table: Table) -> bool:
        """Give a table that a program registers its name; return whether it is new.

        Raises:
            SqlError: the name is taken.
        """
        wanted = declared_table(table)
        if self._log.is_repeated(wanted):
            return False
        self.catalog.add(table)
        try:
            self._change({}, wanted)
        except BaseException:
            self.catalog.drop(table.name)
            raise
        return True

    def adopt(self, name: str, rows: Any, *, keys: tuple[str, ...], watermark: tuple[str, int] | None) -> bool:  # noqa: ARG002 - of Spark's
        """Make a table of what only this runtime reads, such as a DataFrame; return whether it is one of these."""
        return False

    def given(self, name: str, rows: Any) -> Any:  # noqa: ARG002 - of Spark's
        """Return registered rows in a form that converts to an Arrow table."""
        return rows

    def is_inserted(self, table: Table) -> bool:
        """Return whether statements and programs fill a table, not a connector."""
        return table.options.get("connector") in {None, "memory"}

    def check_insert(self, table: Table) -> None:
        """Refuse rows of a program or statement for a table that is filled from elsewhere.

        Raises:
            SqlError: `NOT_A_TABLE`.
        """
        if not self.is_inserted(table):
            raise SqlError(
                f'"{table.name}" is filled by its connector; insert into a table without one.',
                code="NOT_A_TABLE",
                name=table.name,
            )
        refuse_our_columns(table)

    def insert(self, table: Table, rows: Rows) -> int:
        """Take rows of a table as one epoch of all queries, or of none; return how many they are.

        Raises:
            ZsetJoinError: of the table, or of a query, which it names.
        """
        now_us = self._clock()
        given = self._completed(table, rows, now_us)
        if self._once is None or self._once not in self.pipeline.positions.get("once", ()):
            self._take({table.name: given}, now_us, once=self._once)
        return len(given) if isinstance(given, ZSet) else int(given.num_rows)

    def _completed(self, table: Table, rows: Rows, now_us: int) -> Rows:
        return completed(table, rows, now_us, self.dialect, self.catalog.zone)

    def forget(self, name: str) -> None:
        """Release the state of a dropped table or view, and end its queries: one change of the plan."""
        reading = [one.name for one in self.plan.kept if name in one.query.bound.names - one.reads and one.name != name]
        if reading:
            raise SqlError(f'"{name}" is read by {", ".join(reading)}. Stop those first.', code="STILL_READ", name=name)
        self.plan.gone.add(name)
        try:
            self._end([one for one in self.running if name in one.reads or one.name == name])
        finally:
            self.plan.gone.discard(name)
        self.claims.drop(name)

    def add_columns(self, table: Table, queries: Mapping[Running, Query], *, reread: Callable[[], str] | None = None) -> None:
        """Give a table more columns: one change of the plan, in which no query differs; see `Session.add_columns`."""
        if not self.is_inserted(table) and self._is_given_again(table):
            raise SqlError(
                f'"{table.name}" is what a program registers; register it with the columns that it is to have.',
                code="NOT_OFFERED",
                name=table.name,
            )
        views, source = self.plan.views, self._sources.pop(table.name, None)
        before = [(running, running.query, running.output, running.writer) for running in self.running]
        for running in self.running:
            running.query = queries.get(running, running.query)
            writer = table_written(running.output)
            if writer is not None and running.writes == table.name:
                running.output = running.writer = replace(writer, table=table)
        there = views.get(f"{ROWS}{table.name}")
        lacking = [] if there is None else [one for one in table.columns if one.name not in there.columns]
        defaults = {one.name: one.default.as_py() for one in lacking if one.default is not None}
        try:
            again = None if reread is None else {table.name: partial(self._rows_again, table, reread)}
            self._change({}, defaults={table.name: defaults} if defaults else None, reread=again)
        finally:
            if self.plan.views is not views:
                self.claims.drop(table.name)
                if source is not None:
                    source.close()
            elif not self._is_restoring:
                for running, query, output, old in before:
                    running.query, running.output, running.writer = query, output, old
                if source is not None:
                    self._sources[table.name] = source

    def _rows_again(self, table: Table, place: Callable[[], str]) -> pa.Table:
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
        return self._all_columns(table, of_table(table, chosen))

    def _all_columns(self, table: Table, rows: pa.Table) -> pa.Table:
        return completed_table(table, rows, self._clock(), self.dialect, zone=self.catalog.zone)

    def _is_given_again(self, table: Table) -> bool:
        """Return whether a program registers a table whenever the session is opened."""
        return table.lookup is not None

    def _rows_held(self, table: Table) -> ZSet:
        """Return the rows that a table holds, without those that queries have in the plan."""
        kept = self.plan.is_kept(table.name)
        return self.pipeline.contents(f"{ROWS}{table.name}") if kept else ZSet.empty(table.schema)

    def _held(self, table: Table) -> Rows | None:
        """Return the rows of a table, those that queries write into it among them."""
        if not self.plan.is_kept(table.name):
            return None if self.is_inserted(table) else self._read_whole(table)
        held = self._rows_held(table)
        parts = [held]
        for running in self.running:
            if running.writer is not None and running.writes == table.name and not is_fed(running):
                rows = running.pipeline.contents()
                given = pa.RecordBatch.from_arrays(rows.rows.columns, names=list(running.writer.names))
                written = self._completed(table, ZSet(given, rows.weights), self._clock())
                assert isinstance(written, ZSet)  # noqa: S101 - as it was given
                parts.append(ZSet(written.rows.select(held.rows.schema.names), written.weights))
        whole = ZSet.concat(parts, schema=held.rows.schema)
        if table.mode != "append":
            return whole
        return pa.Table.from_batches([whole.rows]).take(pa.array(repeated_positions(whole.weights)))

    # ---------------------------------------------------------------- connectors

    def read(self, *, wait_seconds: float, rounds: int | None = None) -> int:
        """Take the new rows in the files and topics of tables, each round as one epoch; return the number of rounds."""
        done = 0
        while rounds is None or done < rounds:
            polled: dict[str, Any] = {}
            positions: dict[str, Any] = {}
            try:
                for name, source in self._sources.items():
                    # The first source may wait; after it the others are polled once.
                    rows, position = source.poll(wait_seconds=0.02 if polled else wait_seconds)
                    if rows is not None:
                        polled[name], positions[name] = rows, position
                if not polled:
                    return done
                self._take(polled, self._clock(), positions=positions, origin="the connector")
            except BaseException:
                for name, source in self._sources.items():
                    source.open(self.pipeline.positions.get("read", {}).get(name))
                raise
            done += 1
        return done

    def _opened(self, positions: Mapping[str, Any]) -> dict[str, TableSource]:
        """Return readers of the tables that connectors fill, at their positions; in memory they connect when they are read."""
        opened: dict[str, TableSource] = {}
        try:
            for name, table in self.plan.tables().items():
                if not self.is_inserted(table):
                    opened[name] = known = self._sources.get(name) or self._source(table)
                    if name not in self._sources and self._directory is not None:
                        known.open(positions.get(name))
        except BaseException:
            self._close_sources(opened, self._sources)
            raise
        return opened

    def _source(self, table: Table, *, is_kept: bool = True) -> TableSource:
        where = self._directory.read if is_kept and self._directory is not None else None
        return source_of(table, self._all_columns, self.catalog.settings, where)

    def _read_whole(self, table: Table) -> Rows | None:
        """Return all rows of a connector, for a table that no query reads."""
        source = self._source(table, is_kept=False)
        try:
            source.open(None)
            with Pipeline(self._fed(table.rows)) as pipeline:
                while True:
                    rows, _ = source.poll(wait_seconds=_WAIT_SECONDS)
                    if rows is None:
                        return pipeline.contents()
                    pipeline.step({table.name: rows}, processing_time=self._clock())
        finally:
            source.close()

    @staticmethod
    def _close_sources(sources: Mapping[str, TableSource], kept: Mapping[str, TableSource]) -> None:
        for name, source in sources.items():
            if name not in kept:
                source.close()

    def _fed(self, view: View) -> View:
        """Return a query over its tables as their sources give them."""
        return view

    # ---------------------------------------------------------------- queries

    def start(self, query: Query, *, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        """Run a query, or continue with the one of its name; see `Session.start`."""
        name = name or self._free_name(output, query)
        known = next((one for one in self.running if one.name == name), None)
        if known is not None and known.is_restored:
            return self._gone_on_with(known, query, output)
        if known is not None or name == BASE or name.startswith(ROWS) or any(one.name == name for one in self.plan.stopped):
            raise SqlError(f'the name "{name}" is taken. Start the query under another one.', code="NAME_TAKEN", name=name)
        running = Running(name, query, self._view_of(name, query), output, table_written(output))
        if self._is_restoring:
            self.running.append(running)
            return running
        self._begin_with(query.settings)
        refusals.check_settings(query, self.plan.settings)
        if not self.plan.keep_tables and query.bound.reads & self._tables_fed() & {*self.pipeline.sources}:
            raise refusals.tables_not_kept(name, "begin with the rows of its tables")
        running.since = self._came_at(query)
        claims = self.claims.beside(running)
        made = None
        if not self._log.is_running:
            dialect = query.dialect or self.dialect
            made = Declaration(names=(name,), sql=query.sql, dialect=dialect, settings=query.settings, query=name)
        sink = _sink_of(output)
        self.running.append(running)
        try:
            self._change({} if sink is None else {name: sink}, made, of=running)
        except BaseException:
            if name not in self.plan.views:
                self.running.remove(running)
            raise
        if claims is not None and running.writer is not None:
            contents = [(running.pipeline.contents(), running.writer.names)]
            try:
                claims.check(contents, name)
            except BaseException:
                self._unfed = []
                self.running.remove(running)
                if name in {*self.catalog.views, *self.catalog.sinks}:
                    self.catalog.drop(name)
                self._change({})
                raise
            claims.add(contents)
        self._feed_written()
        if self.pipeline.epoch == 0 and has_row_of_nothing(query.bound):
            self._take({}, self._clock())
        return running

    def _gone_on_with(self, known: Running, query: Query, output: Callable[[ZSet], None] | None) -> Running:
        """Return a query that was present when the session was opened."""
        if (known.query.sql, known.query.settings) != (query.sql, query.settings):
            raise refusals.query_changed(known)
        known.is_restored = False
        if _sink_of(known.output) is None:
            known.output = output
        return known

    def _free_name(self, output: object, query: Query) -> str:
        """Return the name of a query that has none: after where it writes, or a number; that of a restored one of its text."""
        writer = table_written(output)
        table = writer.table.name if writer is not None else getattr(output, "table_name", None)
        base = "query" if table is None else f"into_{table}"
        taken = {one.name: one for one in self.running}
        number = 1
        while True:
            name = f"{base}_{number}" if number > 1 or table is None else base
            known = taken.get(name)
            if known is None or (known.is_restored and known.query.sql == query.sql):
                return name
            number += 1

    def _view_of(self, name: str, query: Query, *, is_paused: bool = False) -> QueryView:
        return QueryView(self._shared, name, query.schema, is_paused=is_paused)

    def _came_at(self, query: Query) -> int:
        """Return the epoch at which a query comes that begins now; 0 where none of its tables has had rows."""
        views = [f"{ROWS}{name}" for name in query.bound.reads if self.plan.is_kept(name)]
        written = {one.writes for one in self.running}
        had_rows = query.bound.reads & (self._tables_fed() | written)
        has_rows = bool(had_rows) or any(len(self.pipeline.contents(name)) for name in views)
        return self.pipeline.epoch if has_rows else 0

    def _tables_fed(self) -> set[str]:
        return {*self.pipeline.positions.get("fed", ())}

    def stop(self, running: Running) -> None:
        """End a query; what it wrote into a table of the session goes with it, but for what the table took."""
        if running in self.running:
            self._end([running])

    def _end(self, ended: Sequence[Running]) -> None:
        """End queries by one change of the plan; where that fails, they are present as before."""
        before, views, stopped = list(self.running), self.plan.views, list(self.plan.stopped)
        for running in ended:
            self.plan.put_aside(running)
        try:
            self._change({})
        finally:
            if self.plan.views is views and not self._is_restoring:
                self.running[:], self.plan.stopped = before, stopped
            else:
                for running in ended:
                    self.claims.drop(running.writes)

    def pause(self, running: Running) -> None:
        """Let a query take nothing until `resume`, also where the session is opened again meanwhile.

        Its outputs, and the tables that it writes, keep what they have of it. One change of the plan.

        Raises:
            SqlError: `TABLES_NOT_KEPT`: it could not catch up later.
        """
        if not self.plan.keep_tables and running.reads:
            raise refusals.tables_not_kept(running.name, "catch up")
        pipeline, views = self.pipeline, self.plan.views
        relation = held_relation(pipeline.plan.output_of(running.name), f"{running.name} (paused at epoch {pipeline.epoch})")
        running.held = relation
        rows = pipeline.contents(running.name)
        named = ZSet(pa.RecordBatch.from_arrays(rows.rows.columns, schema=relation.schema), rows.weights)
        try:
            self._change({}, first_rows={relation.name: named})
        finally:
            if self.plan.views is views:
                running.held = None
            else:
                running.pipeline = self._view_of(running.name, running.query, is_paused=True)

    def resume(self, running: Running) -> None:
        """Let a query catch up with its tables; its first change is what became of its rows meanwhile.

        Raises:
            ZsetJoinError: it cannot be answered; it stays paused.
        """
        view, held, since, views = running.pipeline, running.held, running.since, self.plan.views
        running.held, running.since = None, self._came_at(running.query)
        running.pipeline = self._view_of(running.name, running.query)
        try:
            self.claims.check_change([running], self._differences)
            self._change({}, of=running)
        finally:
            if self.plan.views is views:
                running.pipeline, running.held, running.since = view, held, since
        self._feed_written()

    def change(self, change: QueryChange, *, is_preview: bool) -> list[str]:
        """Let queries become others, all or none, by one record; see `Session.change`."""
        for running, query in change.queries.items():
            if not self.plan.keep_tables and query.bound.reads:
                raise refusals.tables_not_kept(running.name, "be built again")
            refusals.check_settings(query, self.plan.settings)
            refusals.refuse_replaced_rows(running, query)
            refusals.refuse_other_columns(running, query)
        before = [(running, running.query, running.pipeline) for running in change.queries]
        views, self._log.replacing = self.plan.views, change
        diff: PlanDiff | None
        try:
            for running, query in change.queries.items():
                running.query = query
                if not running.is_paused:
                    running.pipeline = self._view_of(running.name, query)
            if is_preview:
                diff = self._differences()
            else:
                self.claims.check_change(change.queries, self._differences)
                named = next((one for one in change.queries if one.name == change.name), next(iter(change.queries), None))
                diff = self._change({}, of=named)
        finally:
            self._log.replacing = None
            if self.plan.views is views:
                for running, old, view in before:
                    running.query, running.pipeline = old, view
        self._feed_written()
        return [] if diff is None else refusals.change_lines(diff, change.queries)

    def _differences(self) -> PlanDiff:
        """Return what would differ if the pipeline were one of the queries that are present now."""
        diff: PlanDiff = self.pipeline.diff(self.plan.wanted(), as_now=True)
        return diff

    def snapshot(self, query: Query) -> pa.Table:
        """Return the result of a query over the contents of its tables."""
        known = [name for name in sorted(query.bound.reads) if self.plan.is_kept(name)]
        is_of_plan = self.plan.reads_state(query) or any(len(self.catalog.tables[name].hidden) for name in known)
        if is_of_plan and self.pipeline.epoch:
            view = self._fed(self.plan.with_written(query, self._came_at(query)))
            diff = self.pipeline.diff({**self.plan.views, _SNAPSHOT: view}, as_now=True)
            return sorted_rows(repeated(diff.views[_SNAPSHOT].added, query.schema), query.bound)
        view = replace(query.bound.view, node=in_zone(query.bound.view.node, self.catalog.zone))
        with Pipeline(view, options=stage_options(query.settings)) as pipeline:
            sources = {source.name for source in query.bound.view.plan().sources}
            rows = {name: self._held(self.catalog.tables[name]) for name in sorted(query.bound.reads & sources)}
            pipeline.step({name: one for name, one in rows.items() if one is not None}, processing_time=self._clock())
            return sorted_rows(pipeline.view(), query.bound)

    def explain(self, query: Query) -> str:
        keep_state = driver_options(self.plan.settings).keep_state
        return self.plan.as_run(query).plan(keep_state=keep_state).explain(buckets=1)

    def view_of(self, query: Query) -> Any:
        """Return a query as a view of the fluent API of this engine."""
        return query.bound.view

    def views(self) -> dict[str, pa.Table]:
        """Return the contents of all running queries after one common epoch."""
        return {name: read() for name, read in self._seen.items()}

    def _publish(self) -> None:
        """Make an epoch visible that all queries have taken: one assignment."""
        self._seen = {running.name: running.seen() for running in self.running}

    # ---------------------------------------------------------------- changes of the plan

    def _change(
        self,
        outputs: Mapping[str, Sink],
        made: Declaration | None = None,
        *,
        of: Running | None = None,
        first_rows: Mapping[str, ZSet] | None = None,
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
        reread: Mapping[str, Any] | None = None,
    ) -> PlanDiff | None:
        """Let the pipeline be one of the tables and queries that are present now; or leave it as it was. Return what differs.

        Args:
            outputs: of queries that are new, by name.
            made: what a program declares.
            of: the query that the change is made for, which errors name.
            first_rows: of new sources that take the place of queries, by their names.
            defaults: by table, the values of columns that it gets, in rows that it has.
            reread: by table, what returns all its rows with these columns.
        """
        if self._is_restoring:
            return None
        self._begin_with(self.catalog.settings)
        pipeline, wanted, settings = self.pipeline, self.plan.wanted(), self.plan.settings
        before, known, number = pipeline.epoch, pipeline.positions, 0
        # A table that nobody has read is read from its beginning, whatever was read of it before.
        read = {name: one for name, one in known.get("read", {}).items() if name in pipeline.sources}
        fed = [name for name in known.get("fed", ()) if name in pipeline.sources]
        sources = self._opened(read)
        declared = [] if self._directory is None else self._log.now(made)
        if self._directory is not None:
            catalogued = Catalogued(declared=tuple(declared), views=tuple(wanted), settings=settings)
            number = self._directory.declarations.write(catalogued)
        pipeline.positions = {**known, "read": read, "fed": fed, "changed": before}
        try:
            diff = pipeline.evolve(
                wanted,
                outputs=outputs or None,
                note={"catalog": number},
                fresh=frozenset(self.plan.tables()) - {*pipeline.sources},
                as_now=True,
                first_rows=first_rows,
                defaults=defaults,
                reread=reread,
            )
        except BaseException as error:
            if pipeline.epoch == before:
                pipeline.positions = known
                if self._directory is not None:
                    self._directory.declarations.drop(number)
                self._close_sources(sources, self._sources)
                if isinstance(error, BadInputError) and of is not None:
                    raise named_error(error, [of], "It takes nothing.") from error
                raise
            self._settle(number, declared, wanted, sources)  # an output failed: the change counts
            raise
        self._settle(number, declared, wanted, sources)
        failed: list[Exception] = []
        for running in self.running:
            change = diff.views.get(running.name)
            if change is not None and change.status != "unchanged" and not running.is_paused:
                delta = change.added if change.status in {"added", "columns"} else change.delta
                if change.status == "columns":
                    running.deltas.clear()
                failed += _emit(running, delta)
                self._unfed += self._written_rows([(running, delta)], self._clock())
                if change.status != "added":
                    self.claims.count(running, delta)
                running.pipeline.took()
        self._publish()
        if failed:
            raise failed[0]
        return diff

    def _begin_with(self, settings: Mapping[str, str]) -> None:
        """Let the operators have some settings, where there are none yet."""
        is_first = len(self.plan.views) == 1 and not self.pipeline.epoch
        if is_first and refusals.options_of(settings) != refusals.options_of(self.plan.settings):
            self.plan.settings = dict(settings)
            self.pipeline.close()
            self._open({BASE: base_view()})

    def _settle(
        self, number: int, declared: list[Declaration], wanted: dict[str, View], sources: dict[str, TableSource]
    ) -> None:
        if self._directory is not None:
            self._directory.declarations.settle(number)
        self._close_sources(self._sources, sources)
        self.plan.views, self._sources = wanted, sources
        self.plan.forget_stopped()
        self._log.settle(declared)

    # ---------------------------------------------------------------- epochs

    def advance_due(self) -> bool:
        """Let an epoch pass if a query is due by now; return whether one was."""
        if not any(one.is_due(self._clock()) for one in self.running if not one.is_paused):
            return False
        self._take({}, self._clock())
        return True

    def _feed_written(self) -> None:
        """Let tables take the rows that queries have for them since a change of the plan.

        Raises:
            ZsetJoinError: a query cannot take them; they wait, and come with the next rows.
        """
        if self._unfed:
            self._take({}, self._clock(), origin=f'the query "{self._unfed[0].running.name}"')

    def _restore_written(self) -> None:
        """Find what the last change of the plan has for tables: a process that died had not given it to them."""
        pipeline = self.pipeline
        is_of_change = pipeline.epoch and pipeline.positions.get("changed") == pipeline.epoch - 1
        if is_of_change and any(is_fed(one) for one in self.running):
            answers = pipeline.step(epoch=pipeline.epoch - 1)
            there = [(one, answers[one.name]) for one in self.running if one.name in answers]
            self._unfed += self._written_rows(there, self._clock())
            self._feed_written()

    def _take(
        self,
        rows: Mapping[str, Any],
        now_us: int,
        *,
        positions: Mapping[str, Any] | None = None,
        once: str | None = None,
        origin: str = "the INSERT",
    ) -> None:
        """Take rows of tables as one epoch, with what queries write into tables by it, or nothing.

        Args:
            rows: by table; what is known of them that could not be read goes along.
            now_us: the processing time.
            positions: by table, how far its source has been read with them.
            once: the name of the statement, which then counts as run.
            origin: where rows come from, for messages.
        """
        pipeline, taken = self.pipeline, rows
        try:
            prepared, written = self._prepared(rows, now_us)
        except BadInputError as error:
            taken = {name: accepted(self.running, name, one) for name, one in rows.items()}
            if all(taken[name] is rows[name] for name in rows):
                raise self._named(error) from error
            try:
                prepared, written = self._prepared(taken, now_us)
            except BadInputError as again:
                raise self._named(again) from again
        except ZsetJoinError as error:
            raise self._named(error) from error
        with prepared:
            counts = self.claims.check_epoch(prepared, taken, written, origin)
            before, epoch = pipeline.positions, pipeline.epoch
            known = {
                **before,
                "read": {**before.get("read", {}), **(positions or {})},
                "once": [*before.get("once", ()), *([] if once is None else [once])],
                "fed": sorted({*before.get("fed", ()), *rows, *(one.writer.table.name for one in written)}),
            }
            try:
                pipeline.commit(prepared, positions=known)
            finally:
                if pipeline.epoch > epoch:
                    self._unfed = []
                    self._took(prepared, counts)

    def _prepared(self, rows: Mapping[str, Any], now_us: int) -> tuple[PreparedEpoch, list[WrittenRows]]:
        """Answer an epoch of rows, and of those that queries write into tables by it."""
        written = list(self._unfed)
        writers = [one for one in self.running if is_fed(one) and not one.is_paused]
        for _ in writers:  # until the answer has no other rows for tables: one query may read what another one writes
            prepared = self.pipeline.prepare(self._together(rows, written), processing_time=now_us)
            answers = [(one, one.answer_in(prepared)) for one in writers]
            found = [*self._unfed, *self._written_rows(answers, now_us)]
            if len(found) == len(written) and all(one.is_same(other) for one, other in zip(found, written, strict=True)):
                return prepared, written
            prepared.close()
            written = found
        return self.pipeline.prepare(self._together(rows, written), processing_time=now_us), written

    def _written_rows(self, answers: Sequence[tuple[Running, ZSet]], now_us: int) -> list[WrittenRows]:
        """Return the rows that tables take of answers of queries."""
        return [
            WrittenRows(running, writer, delta, self._completed(writer.table, writer.rows(delta), now_us))
            for running, delta in answers
            if (writer := running.writer) is not None and is_fed(running) and len(delta)
        ]

    def _together(self, rows: Mapping[str, Any], written: Sequence[WrittenRows]) -> dict[str, Any]:
        """Return the rows of the sources of the pipeline."""
        parts: dict[str, list[Any]] = {name: [one] for name, one in rows.items()}
        for one in written:
            parts.setdefault(one.writer.table.name, []).append(one.rows)
        whole: dict[str, Any] = {}
        for name in [name for name in parts if name in self.pipeline.sources]:
            given = [one.rows if isinstance(one, PartlyRead) else one for one in parts[name]]
            unread = [one.unread for one in parts[name] if isinstance(one, PartlyRead)]
            whole[name] = PartlyRead(combined(given), unread[0]) if unread else combined(given)
        return whole

    def _took(self, prepared: PreparedEpoch, counts: Sequence[Callable[[], None]]) -> None:
        """Show an epoch that counts."""
        for count in counts:
            count()
        failed: list[Exception] = []
        for running in self.running:
            if not running.is_paused:
                failed += _emit(running, running.answer_in(prepared))
                running.pipeline.took()
        self._warn_of_unlisted()
        self._publish()
        if failed:
            raise failed[0]

    def _warn_of_unlisted(self) -> None:
        """Warn of rows that a table did not take and that no query lists, and in memory of records that cannot be read."""
        letters = self.pipeline.dead_letters
        listed = frozenset[str]().union(*(one.reads for one in self.running))
        unlisted: dict[str, list[dict[str, Any]]] = {}
        for one in letters.to_pylist() if letters.num_rows else ():
            is_lost = self._directory is None and one["code"].startswith("UNDECODABLE")
            if is_lost or one["source"] not in listed:
                unlisted.setdefault(one["source"], []).append(one)
        for name, (first, *more) in unlisted.items():
            place = f" ({first['topic']}, partition {first['partition']}, offset {first['offset']})"
            where = (place if first["topic"] is not None else "") if first["row"] is None else f", {first['row']}"
            count = counted(1 + len(more), "record" if first["row"] is None else "row")
            text = f'table "{name}": {count} quarantined, the first{where}: [{first["code"]}] {first["reason"]}'
            warnings.warn(SqlWarning(text), stacklevel=6)

    def _named(self, error: ZsetJoinError) -> ZsetJoinError:
        """Return an error that names the queries that cannot be answered, where it is of these."""
        names = set(error.facts.get("views", ()))
        going = [one for one in self.running if one.name in names]
        outcome = NOTHING if len(self.running) == 1 else f"{NOTHING} {_PAUSE}"
        return named_error(error, going, outcome) if going else error

    # ---------------------------------------------------------------- of Spark

    def settle(self) -> None:
        """Wait until every query has answered the present content."""

    def run_as(self, *, once: bool, trigger: str | None) -> None:
        """Set how queries run that are started from now on.

        Args:
            once: they answer what there is when `read` is called, and end; else they run on and on.
            trigger: the interval between epochs.
        """


def _sink_of(output: object) -> Sink | None:
    """Return the sink outside that an output is; None for a function, a table of the session, or nothing."""
    return output.sink if isinstance(output, SinkWriter) else None


def _emit(running: Running, delta: ZSet) -> list[Exception]:
    """Give a delta to the program that reads a query; return its error, which stops no other query."""
    running.deltas.append(delta)
    if running.output is not None and running.writer is None and not isinstance(running.output, SinkWriter):
        try:
            running.output(delta)
        except Exception as error:  # noqa: BLE001 - the caller raises it behind the other queries
            return [error]
    return []
