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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from zset_join.core.errors import BadInputError, SqlError, StateError
from zset_join.evolution.changed_columns import ChangeTerms, ColumnWords
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.tree import in_zone
from zset_join.query import View
from zset_join.runners.local.contents import repeated
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sinks.sink import Sink
from zset_join.sql.runtime import refusals
from zset_join.sql.runtime.claims import TableClaims
from zset_join.sql.runtime.session_directory import (
    Catalogued,
    Declaration,
    SessionDirectory,
    StatementLog,
    declared_table,
    table_of,
)
from zset_join.sql.runtime.session_epochs import SessionEpochs
from zset_join.sql.runtime.session_plan import BASE, ROWS, SessionPlan, SessionSources, TableRows, base_view, held_relation
from zset_join.sql.runtime.written_tables import Rows, as_started, named_error
from zset_join.sql.tables.catalog import Catalog, Table, refuse_our_columns
from zset_join.sql.tables.connectors import SinkWriter, has_records
from zset_join.sql.tables.results import (
    Query,
    QueryChange,
    QueryView,
    Running,
    TableWriter,
    has_row_of_nothing,
    sorted_rows,
)
from zset_join.sql.tables.settings import driver_options, idle_timeout, stage_options
from zset_join.sql.tables.table_sources import TableSource, decoded_rows, source_of
from zset_join.sql_expressions.dialects import Statement
from zset_join.stages.written import read_relation
from zset_join.zset import ZSet

__all__ = ["Runtime"]

_SNAPSHOT = "(snapshot)"
_WAIT_SECONDS = 2.0
_PAUSE = "PAUSE MATERIALIZED VIEW lets the others take rows that one view cannot."
RunStatement = Callable[[str, str, str | None, Collection[str] | None], None]


class Runtime:
    """Run the queries of a session and keep the rows of its tables.

    Attributes:
        plan: the views of the pipeline.
        running: the queries.
        apart: queries that are to run beside the pipeline.
        sources: of the tables that connectors fill.
        claims: of keys of the tables that queries write.
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
        self.catalog = Catalog(partial(decoded_rows, dialect=dialect)) if catalog is None else catalog
        self.dialect = dialect
        self.keeps_statements = directory is not None
        is_inserted, fed = self.is_inserted, self._fed
        self.plan = SessionPlan(self.catalog, dialect=dialect, keep_tables=keep_tables, is_inserted=is_inserted, fed=fed)
        self.running = self.plan.running
        self.apart: list[Running] = []
        self.sources = SessionSources(self._tables_read, self._source, connects_at_once=self.keeps_statements)
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._rows = TableRows(
            lambda: self.pipeline, self.plan, self.sources, is_inserted=is_inserted, fed=fed, clock=self._clock, dialect=dialect
        )
        self.claims = TableClaims(self.catalog, self.running, self._rows.own)
        self._epochs = SessionEpochs(
            lambda: self.pipeline,
            self.running,
            self.claims,
            completed=self._rows.completed,
            clock=self._clock,
            lists_unread=self.keeps_statements,
        )
        self._directory, self._keep_inputs = directory, keep_inputs
        self._allow_env = frozenset((allow_env,) if isinstance(allow_env, str) else allow_env)
        self._log = StatementLog(self.plan)
        self._once: str | None = None
        self._pipeline: Pipeline[dict[str, ZSet]] | None = None
        self._is_restoring = False

    # ---------------------------------------------------------------- opening

    def restore(self, run: RunStatement) -> None:
        """Open the session, or restore it as it was closed; once, before the first statement."""
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
        self._epochs.restore_written()
        self._epochs.publish()

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
            before_begin=lambda positions: self.sources.settle(self.sources.opened(positions.get("read", {}))),
        )
        self._pipeline = pipeline
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
            self.sources.close()
            self.claims.close()
            if self._pipeline is not None:
                self._pipeline.close()
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
        """Give a table that a program registers its name; return whether it is new."""
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
        """Refuse rows of a program or statement for a table that is filled from elsewhere."""
        if not self.is_inserted(table):
            raise SqlError(
                f'"{table.name}" is filled by its connector; insert into a table without one.',
                code="NOT_A_TABLE",
                name=table.name,
            )
        refuse_our_columns(table)

    def insert(self, table: Table, rows: Rows) -> int:
        """Take rows of a table as one epoch of all queries, or of none; return how many they are."""
        now_us = self._clock()
        given = self._rows.completed(table, rows, now_us)
        if self._once is None or self._once not in self.pipeline.positions.get("once", ()):
            self._take({table.name: given}, now_us, once=self._once)
        return len(given) if isinstance(given, ZSet) else int(given.num_rows)

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
        if not self.is_inserted(table) and (self._directory is None or self._is_given_again(table)):
            raise refusals.no_more_columns(table.name, is_registered=self._is_given_again(table))
        views, source = self.plan.views, self.sources.current.pop(table.name, None)
        before = [(running, running.query, running.output) for running in self.running]
        for running in self.running:
            running.query = queries.get(running, running.query)
            if running.writer is not None and running.writes == table.name:
                running.output = replace(running.writer, table=table)
        there = views.get(f"{ROWS}{table.name}")
        lacking = [] if there is None else [one for one in table.columns if one.name not in there.columns]
        defaults = {one.name: one.default.as_py() for one in lacking if one.default is not None}
        try:
            again = None if reread is None else {table.name: partial(self._rows.again, table, reread)}
            self._change({}, defaults={table.name: defaults} if defaults else None, reread=again)
        finally:
            if self.plan.views is not views:
                self.claims.drop(table.name)
                if source is not None:
                    source.close()
            elif not self._is_restoring:
                for running, query, output in before:
                    running.query, running.output = query, output
                if source is not None:
                    self.sources.current[table.name] = source

    def _is_given_again(self, table: Table) -> bool:
        """Return whether a program registers a table whenever the session is opened."""
        return table.lookup is not None

    # ---------------------------------------------------------------- connectors

    def read(self, *, wait_seconds: float, rounds: int | None = None) -> int:
        """Take the new rows in the files and topics of tables, each round as one epoch; return the number of rounds."""
        done = 0
        while rounds is None or done < rounds:
            try:
                polled, positions = self.sources.poll(wait_seconds)
                if not polled:
                    return done
                self._take(polled, self._clock(), positions=positions, origin="the connector")
            except BaseException:
                self.sources.read_again(self.pipeline.positions.get("read", {}))
                raise
            done += 1
        return done

    def _source(self, table: Table, *, is_kept: bool = True) -> TableSource:
        where = self._directory.read if is_kept and self._directory is not None else None
        return source_of(table, self._rows.all_columns, self.catalog.settings, where)

    def _tables_read(self) -> dict[str, Table]:
        return {name: table for name, table in self.plan.tables().items() if not self.is_inserted(table)}

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
        running = Running(name, query, self._view_of(name, query), output)
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
                self._epochs.unfed = []
                self.running.remove(running)
                if name in {*self.catalog.views, *self.catalog.sinks}:
                    self.catalog.drop(name)
                self._change({})
                raise
            claims.add(contents)
        self._epochs.feed_written()
        if self.pipeline.epoch == 0 and has_row_of_nothing(query.bound):
            self._take({}, self._clock())
        return running

    def _gone_on_with(self, known: Running, query: Query, output: Callable[[ZSet], None] | None) -> Running:
        """Return a query that was present when the session was opened."""
        if (known.query.sql, known.query.settings) != (query.sql, query.settings):
            raise refusals.query_changed(known)
        known.is_restored = False
        if known.writer is None and _sink_of(known.output) is None:
            known.output = output
        return known

    def _free_name(self, output: object, query: Query) -> str:
        """Return the name of a query that has none: after where it writes, or a number; that of a restored one of its text."""
        table = output.table.name if isinstance(output, TableWriter) else getattr(output, "table_name", None)
        base = "query" if table is None else f"into_{table}"
        taken = {one.name: one for one in (*self.running, *self.apart)}
        number = 1
        while True:
            name = f"{base}_{number}" if number > 1 or table is None else base
            known = taken.get(name)
            if known is None or (known.is_restored and known.query.sql == query.sql):
                return name
            number += 1

    def _view_of(self, name: str, query: Query, *, is_paused: bool = False) -> QueryView:
        return QueryView(lambda: self.pipeline, name, query.schema, is_paused=is_paused)

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
        """Let a query catch up with its tables; its first change is what became of its rows meanwhile."""
        view, held, since, views = running.pipeline, running.held, running.since, self.plan.views
        running.held, running.since = None, self._came_at(running.query)
        running.pipeline = self._view_of(running.name, running.query)
        try:
            self.claims.check_change([running], self._differences)
            self._change({}, of=running)
        finally:
            if self.plan.views is views:
                running.pipeline, running.held, running.since = view, held, since
        self._epochs.feed_written()

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
        self._epochs.feed_written()
        return [] if diff is None else refusals.change_lines(diff, change.queries)

    def _differences(self) -> PlanDiff:
        """Return what would differ if the pipeline were one of the queries that are present now."""
        diff: PlanDiff = self.pipeline.diff(self.plan.wanted(), as_now=True)
        return diff

    def snapshot(self, query: Query) -> pa.Table:
        """Return the result of a query over the contents of its tables."""
        known = [self.catalog.tables[name] for name in sorted(query.bound.reads) if self.plan.is_kept(name)]
        # What is kept of these is not what their source gives: it is without what orders the rows, or decoded.
        is_of_plan = self.plan.reads_state(query) or any(len(one.hidden) or has_records(one) for one in known)
        if is_of_plan and self.pipeline.epoch:
            others = [one for one in map(self.catalog.tables.__getitem__, sorted(query.bound.reads)) if one not in known]
            if unread := [one.name for one in others if one.lookup is None and not self.is_inserted(one)]:
                raise refusals.unread_beside(unread[0], [one.name for one in known])
            view = self._fed(self.plan.with_written(query, self._came_at(query)))
            diff = self.pipeline.diff({**self.plan.views, _SNAPSHOT: view}, as_now=True)
            return sorted_rows(repeated(diff.views[_SNAPSHOT].added, query.schema), query.bound)
        view = replace(query.bound.view, node=in_zone(query.bound.view.node, self.catalog.zone))
        with Pipeline(view, options=stage_options(query.settings)) as pipeline:
            sources = {source.name for source in query.bound.view.plan().sources}
            there = [self.catalog.tables[name] for name in sorted(query.bound.reads & sources)]
            rows = {one.name: self._rows.held(one) for one in there if one not in known or self.pipeline.epoch}
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
        return self._epochs.views()

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
        """Let the pipeline be one of the present tables and queries, or leave it as it was. Return what differs."""
        if self._is_restoring:
            return None
        self._begin_with(self.catalog.settings)
        pipeline, wanted, settings = self.pipeline, self.plan.wanted(), self.plan.settings
        before, known, number = pipeline.epoch, pipeline.positions, 0
        # A table that nobody has read is read from its beginning, whatever was read of it before.
        read = {name: one for name, one in known.get("read", {}).items() if name in pipeline.sources}
        fed = [name for name in known.get("fed", ()) if name in pipeline.sources]
        sources = self.sources.opened(read)
        declared = [] if self._directory is None else self._log.now(made)
        if self._directory is not None:
            catalogued = Catalogued(declared=tuple(declared), views=tuple(wanted), settings=settings)
            number = self._directory.declarations.write(catalogued)
        pipeline.positions = {**known, "read": read, "fed": fed, "changed": before}
        try:
            terms = ChangeTerms(
                words=ColumnWords(defaults=defaults or {}),
                reread=reread,
                as_now=True,
                first_rows=first_rows or {},
                fresh=frozenset(self.plan.tables()) - {*pipeline.sources},
                note={"catalog": number},
            )
            diff = pipeline.evolve_with(wanted, terms, outputs or None)
        except BaseException as error:
            if pipeline.epoch == before:
                pipeline.positions = known
                if self._directory is not None:
                    self._directory.declarations.drop(number)
                self.sources.discard(sources)
                if isinstance(error, BadInputError) and of is not None:
                    raise named_error(error, [of], "It takes nothing.") from error
                raise
            self._settle(number, declared, wanted, sources)  # an output failed: the change counts
            raise
        self._settle(number, declared, wanted, sources)
        self._epochs.show_change(diff)
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
        self.sources.settle(sources)
        self.plan.views = wanted
        self.plan.forget_stopped()
        self._log.settle(declared)

    # ---------------------------------------------------------------- epochs

    def advance_due(self) -> bool:
        """Let an epoch pass if a query is due by now; return whether one was."""
        if not any(one.is_due(self._clock()) for one in self.running if not one.is_paused):
            return False
        self._take({}, self._clock())
        return True

    def _take(self, rows: Mapping[str, Any], now_us: int, **more: Any) -> None:
        """Take rows as one epoch; see `SessionEpochs.take`."""
        self._epochs.take(rows, now_us, **more)

    # ---------------------------------------------------------------- of Spark

    def settle(self) -> None:
        """Wait until every query has answered the present content."""

    def run_as(self, *, once: bool, trigger: str | None) -> None:
        """Set how queries run that are started from now on."""

    def start_on_executors(self) -> Any:
        """Start the queries that were given to Spark's executors, and return the query that they are; None: there is none."""


def _sink_of(output: object) -> Sink | None:
    """Return the sink outside that an output is; None for a function, a table of the session, or nothing."""
    return output.sink if isinstance(output, SinkWriter) else None
