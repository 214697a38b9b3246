"""The plan of a session in a directory: what statements declare, and one pipeline that is one of it, changed together.

The law: what is declared and the plan of the pipeline are of one commit record; a statement that fails has changed neither.

Cost: of a statement that declares something, what the pipeline builds for it, one commit, and a file of all declarations.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.core.errors import BadInputError, SqlError, StateError
from zset_join.evolution.changed_columns import ChangeTerms, ColumnWords
from zset_join.evolution.differences import PlanDiff
from zset_join.query import View, appends
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sinks.sink import Sink
from zset_join.sql.dml.shared_epochs import as_started, in_order, named_error
from zset_join.sql.runtime.completing import completed_table
from zset_join.sql.runtime.declarations import (
    Catalogued,
    Declaration,
    Declarations,
    described_table,
    table_of,
    with_queries,
)
from zset_join.sql.runtime.durable_queries import DurableQuery, PipelineOfQueries, held_view, is_fed, sink_of
from zset_join.sql.runtime.in_directory import claim_directory, declarations_named
from zset_join.sql.runtime.in_process import ProcessRuntime
from zset_join.sql.runtime.written_tables import read_with_writers, rows_for
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.results import Query, QueryChange, Running
from zset_join.sql.tables.settings import driver_options, idle_timeout, stage_options
from zset_join.sql.tables.sink_tables import SinkWriter
from zset_join.sql.tables.table_sources import DecodingCatalog, TableSource, decoded_rows, source_of
from zset_join.sql.tables.view_groups import GroupView
from zset_join.sql_expressions.dialects import Statement
from zset_join.zset import ZSet

__all__ = ["BASE", "ROWS", "DurablePlan", "options_of"]

BASE = "(session)"
"""A view without rows, so that the pipeline is present before the first table."""
ROWS = "rows of "
"""Before the name of a table: the view that keeps its rows."""
_CATALOG = ("tables", "views", "functions", "sinks", "indexes")


class DurablePlan(ProcessRuntime):
    """Keep a pipeline in a directory that is one of the tables and queries of a session."""

    _layout = 4  # one pipeline; 5: one whose files and topics Spark reads
    keeps_statements = True

    def __init__(
        self,
        directory: str | Path,
        *,
        dialect: str,
        clock: Callable[[], int] | None,
        keep_inputs: bool = False,
        allow_env: Collection[str] = (),
        catalog: Catalog | None = None,
    ) -> None:
        self._allow_env = frozenset((allow_env,) if isinstance(allow_env, str) else allow_env)
        names = DecodingCatalog(dialect, decoded_rows) if catalog is None else catalog
        super().__init__(names, dialect=dialect, clock=clock, keep_inputs=keep_inputs)
        self._directory = Path(directory).absolute()
        self._lock = claim_directory(self._directory, self._layout)
        self._declarations = Declarations(self._directory / "catalog")
        self._declared: list[Declaration] = []
        self._restored: list[Declaration] = []
        self._statement: tuple[Statement, Mapping[str, str], dict[str, Any]] | None = None
        self._once: str | None = None
        self._group = PipelineOfQueries()
        self._pipeline: Pipeline[dict[str, ZSet]] | None = None
        self._views: dict[str, View] = {}
        self._order: Sequence[str] = ()
        self._settings: Mapping[str, str] = {}
        self._sources: dict[str, TableSource] = {}
        self._gone: set[str] = set()
        self._stopped: list[DurableQuery] = []
        self._unfed: list[tuple[str, str, pa.Table | ZSet]] = []
        self._is_restoring = False
        self._repeated: dict[tuple[str, ...], int] = {}
        self._replacing: QueryChange | None = None

    @abstractmethod
    def _restored_rows(self) -> None:
        """Take what the last epoch has for tables, where the process died before they took it."""

    @abstractmethod
    def _hold(self, running: Running, written: Mapping[str, Any]) -> None:
        """Let a query be paused that was so when the session was closed.

        Args:
            running: the query.
            written: see `Declaration.paused`.
        """

    # ---------------------------------------------------------------- opening

    def restore(self, run: Callable[[str, str, str | None, Collection[str] | None], None]) -> None:
        """Restore the session as it was closed; once, before the first statement.

        Args:
            run: see `Runtime.restore`.

        Raises:
            StateError: something is missing or damaged; `ENV_NOT_ALLOWED`: statements of another user, or of another place,
                refer to variables of the environment that `allow_env` does not name.
            SqlError: a statement that cannot be run any more, as one whose lookup table is not registered yet.
        """
        if self._pipeline is not None or self._is_restoring:
            return
        named = declarations_named(self._directory / "pipeline")
        refused: StateError | None = None
        for known in self._declarations.candidates(named):
            self._is_restoring = True
            settings = dict(self.catalog.settings)
            try:
                self._order, self._settings = known.views, known.settings
                for one in known.declared:
                    self.catalog.settings = dict(one.settings)
                    if one.table is not None:
                        self.catalog.add(table_of(one.table))
                    else:
                        run(one.created or one.sql, one.dialect, one.query, None if known.is_own else self._allow_env)
                    for running in [each for each in self.running if each.name in one.names]:
                        assert isinstance(running, DurableQuery)  # noqa: S101 - this runtime starts no other
                        running.since = one.since
                        if one.stopped:
                            self._put_aside(running)
                        if one.paused:
                            self._hold(running, one.paused)
                self.catalog.settings = settings
                self._open(self._wanted())
                self._declared, self._restored = list(known.declared), list(known.declared)
                break
            except SqlError as error:
                if error.code == "ENV_NOT_ALLOWED":
                    self._forget_everything()
                    raise self._unconfirmed({error.facts["name"], *known.variables()} - self._allow_env) from None
                raise
            except StateError as error:
                if error.code != "QUERY_CHANGED" or named is not None:
                    raise
                refused = error
                self._forget_everything()
            finally:
                self.catalog.settings = settings
                self._is_restoring = False
        else:
            assert refused is not None  # noqa: S101 - there is always a candidate
            raise refused
        self.running[:] = as_started(self.running, self._order)
        for running in self.running:
            assert isinstance(running, DurableQuery)  # noqa: S101 - this runtime starts no other
            running.is_restored = True
            self._claims_beside(running)
        self._restored_rows()
        self._publish()

    def _unconfirmed(self, names: set[str]) -> StateError:
        listed = sorted(names)
        return StateError(
            f"statements in {self._directory / 'catalog'}, which this user did not write at this place, refer to variables of "
            f"the environment: {', '.join(listed)}. They choose where the values are sent. Read them, and open the directory "
            f"with allow_env={listed}, or {' '.join(f'--allow-env {name}' for name in listed)}.",
            code="ENV_NOT_ALLOWED",
            directory=str(self._directory),
            names=listed,
        )

    def _open(self, views: dict[str, View]) -> None:
        outputs = {one.name: sink for one in self.running if (sink := sink_of(one.output)) is not None}
        settings = self._settings

        def open_sources(positions: Mapping[str, Any]) -> None:
            self._sources = self._opened(views, positions.get("read", {}))

        pipeline: Pipeline[dict[str, ZSet]] = Pipeline(
            views,
            self._directory / "pipeline",
            outputs=outputs,
            options=stage_options(settings),
            idle_timeout_seconds=idle_timeout(settings),
            snapshot_after_bytes=driver_options(settings).snapshot_after_bytes,
            threads=driver_options(settings).driver_threads,
            keep_state=driver_options(settings).keep_state,
            keep_inputs=self._keep_inputs,
            before_begin=open_sources,
        )
        self._pipeline = self._group.pipeline = pipeline
        self._views = views

    def _forget_everything(self) -> None:
        self.catalog.tables = {name: one for name, one in self.catalog.tables.items() if self._is_given_again(one)}
        self.catalog.views, self.catalog.functions, self.catalog.sinks, self.catalog.indexes = {}, {}, {}, {}
        self.running.clear()
        self._stopped.clear()

    def _put_aside(self, running: Running) -> None:
        """Let a query run no more; while its statement counts, others read its stages, which have its epoch and options."""
        self.running.remove(running)
        table = self.catalog.tables.get(running.name)
        is_named = running.name in {*self.catalog.views, *self.catalog.sinks} or (table is not None and table.word == "SINK")
        if isinstance(running, DurableQuery) and is_named and running.name not in self._gone:
            self._stopped.append(running)

    def is_inserted(self, table: Table) -> bool:
        return table.options.get("connector") in {None, "memory"}

    def _is_given_again(self, table: Table) -> bool:
        """Return whether a program registers a table whenever the session is opened."""
        return table.lookup is not None

    @property
    def pipeline(self) -> Pipeline[dict[str, ZSet]]:
        assert self._pipeline is not None  # noqa: S101 - `restore` comes first
        return self._pipeline

    def _opened(self, views: Mapping[str, View], positions: Mapping[str, Any]) -> dict[str, TableSource]:
        """Return readers of the tables of views that connectors fill, at their positions."""
        opened: dict[str, TableSource] = {}
        try:
            for name in [one.removeprefix(ROWS) for one in views if one.startswith(ROWS)]:
                table = self.catalog.tables[name]
                if not self.is_inserted(table):
                    opened[name] = known = self._sources.get(name) or self._source(table)
                    if name not in self._sources:
                        known.open(positions.get(name))
        except BaseException:
            for name, source in opened.items():
                if name not in self._sources:
                    source.close()
            raise
        return opened

    def _source(self, table: Table, *, is_kept: bool = True) -> TableSource:
        where = self._directory / "read" if is_kept else None
        return source_of(table, self._all_columns, self.catalog.settings, where)

    def _all_columns(self, table: Table, rows: pa.Table) -> pa.Table:
        return completed_table(table, rows, self._clock(), self.dialect, zone=self.catalog.zone)

    # ---------------------------------------------------------------- statements

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

    @contextmanager
    def declaring(self, statement: Statement) -> Iterator[None]:
        """Store the declarations of a statement; a failed one leaves the names unchanged."""
        if self._is_restoring:
            yield
            return
        before = _entries(self)
        self._statement = (statement, dict(self.catalog.settings), before)
        try:
            yield
            if _entries(self) != self._statement[2] or self._gone:
                self._change({})
        except BaseException:
            for kind, entries in self._statement[2].items():  # what the pipeline is of
                if kind in _CATALOG:
                    setattr(self.catalog, kind, dict(entries))
            raise
        finally:
            self._statement = None

    def declare(self, table: Table) -> bool:
        """Keep a table that a program registers; return False where it was present before."""
        wanted = Declaration(names=(table.name,), table=described_table(table))
        found = next((one for one in self._restored if one.is_same(wanted)), None)
        if found is not None:
            self._restored.remove(found)
            return False
        self.catalog.add(table)
        try:
            self._change({}, wanted)
        except BaseException:
            self.catalog.drop(table.name)
            raise
        return True

    def _now_declared(self, more: Declaration | None) -> list[Declaration]:
        """Return the declarations, including those of the running statement."""
        now = _entries(self)
        there = {name for entries in now.values() for name in entries}
        queries = {one.name: one.noted() for one in self.running if isinstance(one, DurableQuery)}
        queries |= {one.name: replace(one.noted(), stopped=True) for one in self._stopped}
        if self._replacing is not None and self._statement is not None:
            change, (statement, settings, _) = self._replacing, self._statement
            (old,) = [one for one in self._declared if change.name in one.names]
            behind = {*change.following, *(running.name for running in change.queries)} - {change.name}
            declared = [
                *(one for one in self._declared if one is not old and not behind & set(one.names)),
                old.changed(statement.sql, statement.dialect, settings, change.created),
                *(one for one in self._declared if one is not old and behind & set(one.names)),
            ]
            return with_queries(declared, queries)
        made: Declaration | None = more
        if self._statement is not None:
            statement, settings, before = self._statement
            changed = {
                kind: [name for name in entries if before[kind].get(name) is not entries[name]] for kind, entries in now.items()
            }
            # What a table gets beside its columns is declared beside it, in order: views before it are of those it had.
            names = changed["columns"] or [name for entries in changed.values() for name in entries]
            if names:
                made = Declaration(
                    names=tuple(dict.fromkeys(names)), sql=statement.sql, dialect=statement.dialect, settings=settings
                )
                if self._holds_rows(statement, names):
                    made = Declaration(names=(names[0],), table=described_table(self.catalog.tables[names[0]]))
        replaced = set() if made is None else set(made.names)
        kept = [one for one in self._declared if not replaced >= set(one.names) and set(one.names) & there]
        return with_queries(kept if made is None else [*kept, made], queries)

    def _holds_rows(self, statement: Statement, names: Sequence[str]) -> bool:
        """Return whether a statement makes a table of rows that are present: CREATE TABLE t AS SELECT FROM table(s)."""
        is_table = len(names) == 1 and names[0] in self.catalog.tables
        words = statement.words
        return (
            is_table
            and "AS" in words
            and "(" not in words[: words.index("AS")]
            and not any(one.writes == names[0] for one in self.running)
        )

    # ---------------------------------------------------------------- the plan

    def _wanted(self) -> dict[str, View]:
        """Return the views of the pipeline, in the order in which they came."""
        queries: dict[str, View] = {}
        self._written(queries)
        read = frozenset[str]().union(*(one.reads for one in self.running))
        outside = {getattr(one.output, "table_name", None) for one in self.running}
        tables = {
            f"{ROWS}{name}": table.rows
            for name, table in self.catalog.tables.items()
            if table.lookup is None
            and table.word != "SINK"
            and name not in outside
            and name not in self._gone
            and (self.is_inserted(table) or name in read)
        }
        wanted = {name: self._fed(view) for name, view in {BASE: base_view(), **tables, **queries}.items()}
        before = self._views or self._order
        order = [name for name in before if name in wanted]
        return {name: wanted[name] for name in [*order, *(one for one in wanted if one not in before)]}

    def _written(self, queries: dict[str, View] | None = None) -> dict[str, list[View]]:
        """Return by table the rows of the queries that write into it, and put all queries as they read these into `queries`."""
        written: dict[str, list[View]] = {}
        for running in self._in_order():
            held = running.held if isinstance(running, DurableQuery) else None
            view = self.as_run(running.query, running.since)
            view = read_with_writers(view, written, self._added) if held is None else held_view(held)
            if queries is not None:
                queries[running.name] = view
            if running.writer is not None and not is_fed(running):
                rows = rows_for(running.writer.table, view, running.writer.names, self.dialect)
                written.setdefault(running.writer.table.name, []).append(rows)
        return written

    @property
    def _added(self) -> dict[str, tuple[str, ...]]:
        """Return by table the columns that it got later."""
        return {table.name: table.added for table in self.catalog.tables.values()}

    def came_at(self, query: Query) -> int:
        """Return the epoch at which a query comes that begins now; 0 where none of its tables has had rows."""
        views = [f"{ROWS}{name}" for name in query.bound.reads if f"{ROWS}{name}" in self._views]
        written = {one.writes for one in self.running}
        had_rows = query.bound.reads & {*self.pipeline.positions.get("fed", ()), *written}
        has_rows = bool(had_rows) or any(len(self.pipeline.contents(name)) for name in views)
        return self.pipeline.epoch if has_rows else 0

    def as_run(self, query: Query, since: int = 0) -> View:
        """Return the rows of a query as it is run.

        Args:
            query: the query; its stages have its own options, where they differ from those of the pipeline.
            since: the epoch at which it came, where its tables had rows.
        """
        view = query.bound.view
        return replace(view, node=self._started(query, view.node, stage_options(self._settings), since))

    @property
    def _kept(self) -> list[Running]:
        return [*self.running, *self._stopped]

    def explain(self, query: Query) -> str:
        return self.as_run(query).plan(keep_state=driver_options(self._settings).keep_state).explain(buckets=1)

    def _fed(self, view: View) -> View:
        """Return a query over its tables as their sources give them."""
        return view

    def _in_order(self) -> list[Running]:
        return in_order(self.running)

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
        pipeline, wanted, declared = self.pipeline, self._wanted(), self._now_declared(made)
        # A table that nobody has read is read from its beginning, whatever was read of it before.
        read = {name: one for name, one in pipeline.positions.get("read", {}).items() if f"{ROWS}{name}" in self._views}
        sources = self._opened(wanted, read)
        fed = [name for name in pipeline.positions.get("fed", ()) if f"{ROWS}{name}" in self._views]
        pipeline.positions = {**pipeline.positions, "read": read, "fed": fed}
        number = self._declarations.write(Catalogued(declared=tuple(declared), views=tuple(wanted), settings=self._settings))
        before = pipeline.epoch
        try:
            terms = ChangeTerms(
                words=ColumnWords(defaults=defaults or {}),
                reread=reread,
                as_now=True,
                first_rows=first_rows or {},
                fresh=self._fresh(wanted),
                note={"catalog": number},
            )
            diff = pipeline.evolve_with(wanted, terms, outputs or None)
        except BaseException as error:
            if pipeline.epoch == before:
                self._declarations.drop(number)
                for name, source in sources.items():
                    if name not in self._sources:
                        source.close()
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
                view = running.pipeline
                assert isinstance(view, GroupView)  # noqa: S101 - this runtime makes no other
                delta = view.answer_of({running.name: delta})
                if change.status == "columns":
                    running.deltas.clear()
                failed += self._emit(running, delta)
                self._note_written(running, delta)
                is_counted = running.writer is None or is_fed(running) or running.writes not in self.claims
                if running.writer is not None and change.status != "added" and not is_counted:
                    self.claims[running.writer.table.name].add([(delta, running.writer.names)])
                view.took()
        self._publish()
        if failed:
            raise failed[0]
        return diff

    def _begin_with(self, settings: Mapping[str, str]) -> None:
        """Let the operators have some settings, where there are none yet."""
        if (
            self._is_restoring
            or len(self._views) > 1
            or self.pipeline.epoch
            or options_of(settings) == options_of(self._settings)
        ):
            return
        self._settings = dict(settings)
        self.pipeline.close()
        self._open({BASE: base_view()})

    def _fresh(self, wanted: Mapping[str, View]) -> frozenset[str]:
        """Return the sources that begin without rows, whatever there was under their names."""
        return frozenset(name.removeprefix(ROWS) for name in wanted if name.startswith(ROWS) and name not in self._views)

    def _settle(
        self, number: int, declared: list[Declaration], wanted: dict[str, View], sources: dict[str, TableSource]
    ) -> None:
        self._declarations.settle(number)
        for name, source in self._sources.items():
            if name not in sources:
                source.close()
        self._declared, self._views, self._sources = declared, wanted, sources
        named = {*self.catalog.views, *self.catalog.sinks, *self.catalog.tables} - self._gone
        self._stopped = [one for one in self._stopped if one.name in named]
        there = {(one.names, one.sql) for one in declared}
        self._restored = [one for one in self._restored if (one.names, one.sql) in there]
        if self._statement is not None:
            self._statement = (*self._statement[:2], _entries(self))

    def _note_written(self, running: Running, delta: ZSet) -> None:
        """Keep what a query that never retracts has for a table with a key, until the next epoch gives it to that."""
        writer = running.writer
        if writer is not None and is_fed(running) and len(delta):
            rows = self.completed(writer.table, writer.rows(delta), self._clock())
            self._unfed.append((running.name, writer.table.name, rows))

    @staticmethod
    def _emit(running: Running, delta: ZSet) -> list[Exception]:
        """Give a delta to the program that reads a query; return its error, which stops no other query."""
        running.deltas.append(delta)
        if running.output is not None and running.writer is None and not isinstance(running.output, SinkWriter):
            try:
                running.output(delta)
            except Exception as error:  # noqa: BLE001 - the caller raises it behind the other queries
                return [error]
        return []


def options_of(settings: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the settings of a pipeline, fixed while it is open."""
    driver = driver_options(settings)
    of_driver = (driver.driver_threads, driver.keep_state, driver.snapshot_after_bytes)
    return stage_options(settings), idle_timeout(settings), *of_driver


def base_view() -> View:
    return appends(BASE, pa.schema([("nothing", pa.int64())]))


def _entries(runtime: ProcessRuntime) -> dict[str, dict[str, Any]]:
    """Return everything that has a name now."""
    named = {kind: dict(getattr(runtime.catalog, kind)) for kind in _CATALOG}
    columns = {f"{table.name} column {name}": name for table in runtime.catalog.tables.values() for name in table.added}
    return {**named, "running": {one.name: one for one in runtime.running}, "columns": columns}
