"""Queries and tables in a directory, in this process: one pipeline, with one checkpoint.

    shop/session.lock                           held as long as the session is open
    shop/session.json                           how the directory is laid out
    shop/catalog/000000000007.json              the statements that made what is there
    shop/pipeline/                              one pipeline: the rows of tables, the queries, what sources were read
    shop/read/                                  names of files that were read
    shop/once/                                  under which id a statement wrote outside

Every table is a source of the pipeline, and a view of it, so that its rows are kept; every query is a view. An INSERT, and
what a connector brings, is one epoch of all of them or of none. CREATE and DROP change the plan of the pipeline: a new query
begins with what its tables hold.

The law: whenever a session is opened again, killed or not, it stands behind the last epoch that all its queries took: tables,
queries and positions of sources are of one commit record. A statement that is run again, as it was, changes nothing; an INSERT
does so within `once`.

Memory: the rows of all tables and queries. Cost: of an INSERT, one commit; of CREATE and DROP, what they build, and one commit.

Known limits: operators of all queries have the options that are set when the first one is made. Of a table that a connector
fills, everything that came is kept. A query that joins by time, or keeps first rows, has to be made before there are rows.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.checkpoint.changed_plans import read_changed_plan
from zset_join.checkpoint.reading import read_committed
from zset_join.core.errors import BadInputError, SqlError, StateError, ZsetJoinError
from zset_join.pipeline import Pipeline
from zset_join.pipeline.contents import repeated
from zset_join.pipeline.dead_letters import PartlyRead
from zset_join.pipeline.prepared import PreparedEpoch
from zset_join.query import View, appends
from zset_join.sinks.sink import Sink
from zset_join.sql.dml.shared_epochs import accepted_rows, failing_queries, in_order, named_error
from zset_join.sql.dml.writing import table_written
from zset_join.sql.runtime.completing import completed_table
from zset_join.sql.runtime.declarations import Catalogued, Declaration, Declarations, described_table, table_of
from zset_join.sql.runtime.in_directory import claim_directory
from zset_join.sql.runtime.in_process import ProcessRuntime
from zset_join.sql.runtime.written_tables import read_with_writers, rows_for
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.file_names import file_name
from zset_join.sql.tables.results import Query, Running, has_row_of_nothing, sorted_rows
from zset_join.sql.tables.settings import idle_timeout, stage_options
from zset_join.sql.tables.sink_tables import SinkWriter
from zset_join.sql.tables.stored_tables import refuse_our_columns
from zset_join.sql.tables.table_sources import DecodingCatalog, TableSource, decoded_rows, source_of
from zset_join.sql.tables.view_groups import GroupView
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.places import SqlWarning
from zset_join.stages.stage import StageOptions
from zset_join.storage import local
from zset_join.zset import ZSet, single_batch

__all__ = ["DirectoryRuntime"]

_BASE = "(session)"
"""A view without rows, so that the pipeline is there before the first table."""
_ROWS = "rows of "
"""Before the name of a table: the view that keeps its rows."""
_CATALOG = ("tables", "views", "functions", "sinks", "indexes")
_NOTHING = "No table and no query took any of the rows."
_WEIGHT = "_weight"
_SNAPSHOT = "(snapshot)"
_WAIT_SECONDS = 2.0
_PAUSE = "PAUSE MATERIALIZED VIEW lets the others take rows that one view cannot."


class _Group:
    """The pipeline, as its queries see it."""

    pipeline: Pipeline[dict[str, ZSet]]

    def drop(self, name: str) -> None:
        """Do nothing: the runtime changes the plan for all that go, at once."""


class _OwnView(GroupView):
    """A query of the pipeline, with its own dead letters among those of all."""

    @property
    def dead_letters(self) -> pa.Table:
        """Return the rows of the last epoch that were put aside, without those that only another query cannot evaluate."""
        letters = super().dead_letters
        texts = letters.column("reason").to_pylist() if letters.num_rows else []
        is_own = [not str(text).startswith('query "') or str(text).startswith(f'query "{self._name}":') for text in texts]
        return letters.filter(pa.array(is_own, pa.bool_()))


@dataclass(eq=False)
class _Query(Running):
    """A query of the pipeline.

    Attributes:
        is_restored: it was there when the session was opened, and nobody has started it again.
    """

    is_restored: bool = False


class DirectoryRuntime(ProcessRuntime):
    """Run queries in this process, in a directory.

    Args:
        directory: where everything is kept; of one session at a time.
        dialect: whose SQL statements are written in.
        clock: returns the processing time in microseconds since 1970; None: the wall clock.
        keep_inputs: let running queries keep every change that comes, for `Running.verify()`.

    Raises:
        StateError: another session has the directory, or it is laid out otherwise.
    """

    def __init__(
        self, directory: str | Path, *, dialect: str, clock: Callable[[], int] | None, keep_inputs: bool = False
    ) -> None:
        super().__init__(DecodingCatalog(dialect, decoded_rows), dialect=dialect, clock=clock, keep_inputs=keep_inputs)
        self._directory = Path(directory).absolute()
        self._lock = claim_directory(self._directory, 2)
        self._declarations = Declarations(self._directory / "catalog")
        self._declared: list[Declaration] = []
        self._restored: list[Declaration] = []
        self._statement: tuple[Statement, Mapping[str, str], dict[str, Any]] | None = None
        self._once: str | None = None
        self._group = _Group()
        self._pipeline: Pipeline[dict[str, ZSet]] | None = None
        self._views: dict[str, View] = {}
        self._order: Sequence[str] = ()
        self._settings: Mapping[str, str] = {}
        self._sources: dict[str, TableSource] = {}
        self._gone: set[str] = set()
        self._is_restoring = False

    # ---------------------------------------------------------------- opening

    def restore(self, run: Callable[[str, str, str | None], None]) -> None:
        """Make what was there when the session was closed; once, before the first statement.

        Args:
            run: see `Runtime.restore`.

        Raises:
            StateError: something is missing or damaged.
            SqlError: a statement that cannot be run any more, as one whose lookup table is not registered yet.
        """
        if self._pipeline is not None or self._is_restoring:
            return
        named = _number_of(self._directory / "pipeline")
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
                        run(one.sql, one.dialect, one.query)
                    for running in [each for each in self.running if one.paused and each.name in one.names]:
                        self._hold(running)
                self.catalog.settings = settings
                self._open(self._wanted())
                self._declared, self._restored = list(known.declared), list(known.declared)
                break
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
        for running in self.running:
            assert isinstance(running, _Query)  # noqa: S101 - this runtime starts no other
            running.is_restored = True
            self._claims_beside(running)
        self._publish()

    def _open(self, views: dict[str, View]) -> None:
        outputs = {one.name: sink for one in self.running if (sink := _sink(one.output)) is not None}
        settings = self._settings

        def open_sources(positions: Mapping[str, Any]) -> None:
            self._sources = self._opened(views, positions.get("read", {}))

        pipeline: Pipeline[dict[str, ZSet]] = Pipeline(
            views,
            self._directory / "pipeline",
            outputs=outputs,
            options=stage_options(settings),
            idle_timeout_seconds=idle_timeout(settings),
            keep_inputs=self._keep_inputs,
            before_begin=open_sources,
        )
        self._pipeline = self._group.pipeline = pipeline
        self._views = views

    def _forget_everything(self) -> None:
        self.catalog.tables = {name: one for name, one in self.catalog.tables.items() if one.lookup is not None}
        self.catalog.views, self.catalog.functions, self.catalog.sinks, self.catalog.indexes = {}, {}, {}, {}
        self.running.clear()

    @property
    def pipeline(self) -> Pipeline[dict[str, ZSet]]:
        """Return the pipeline."""
        assert self._pipeline is not None  # noqa: S101 - `restore` comes first
        return self._pipeline

    def _opened(self, views: Mapping[str, View], positions: Mapping[str, Any]) -> dict[str, TableSource]:
        """Return what reads the tables of views that connectors fill, at their positions."""
        opened: dict[str, TableSource] = {}
        try:
            for name in [one.removeprefix(_ROWS) for one in views if one.startswith(_ROWS)]:
                table = self.catalog.tables[name]
                if not _is_inserted(table):
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
        return source_of(table, None, self._all_columns, self.catalog.settings, where)

    def _all_columns(self, table: Table, rows: pa.Table) -> pa.Table:
        return completed_table(table, rows, self._clock(), self.dialect)

    # ---------------------------------------------------------------- statements

    def repeated(self, statement: Statement, settings: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return what a statement made that is run again; None where it has to run."""
        wanted = Declaration(names=(), sql=statement.sql, dialect=statement.dialect, settings=settings)
        found = next((one for one in self._restored if one.is_same(wanted)), None)
        if found is not None:
            self._restored.remove(found)
        return None if found is None else found.names

    @contextmanager
    def declaring(self, statement: Statement) -> Iterator[None]:
        """Keep what a statement declares; one that fails leaves the names as they were."""
        if self._is_restoring:
            yield
            return
        before = _entries(self)
        self._statement = (statement, dict(self.catalog.settings), before)
        try:
            yield
            if _entries(self) != before or self._gone:
                self._change({})
        except BaseException:
            for kind, entries in before.items():
                if kind != "running":
                    setattr(self.catalog, kind, dict(entries))
            raise
        finally:
            self._statement = None

    def declare(self, table: Table) -> bool:
        """Keep a table that a program registers; return False where it was there before."""
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
        """Return what is declared, with what the statement that runs has made so far."""
        now = _entries(self)
        there = {name for entries in now.values() for name in entries}
        made: Declaration | None = more
        if self._statement is not None:
            statement, settings, before = self._statement
            names = [name for kind, entries in now.items() for name in entries if before[kind].get(name) is not entries[name]]
            if names:
                made = Declaration(
                    names=tuple(dict.fromkeys(names)), sql=statement.sql, dialect=statement.dialect, settings=settings
                )
                if self._holds_rows(statement, names):
                    made = Declaration(names=(names[0],), table=described_table(self.catalog.tables[names[0]]))
        replaced = set() if made is None else set(made.names)
        kept = [one for one in self._declared if not replaced >= set(one.names) and set(one.names) & there]
        paused = {one.name for one in self.running if one.is_paused}
        return [replace(one, paused=bool(paused & set(one.names))) for one in (kept if made is None else [*kept, made])]

    def _holds_rows(self, statement: Statement, names: Sequence[str]) -> bool:
        """Return whether a statement makes a table of rows that are there: CREATE TABLE t AS SELECT FROM table(s)."""
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
            f"{_ROWS}{name}": table.rows
            for name, table in self.catalog.tables.items()
            if table.lookup is None
            and table.word != "SINK"
            and name not in outside
            and name not in self._gone
            and (_is_inserted(table) or name in read)
        }
        wanted = {_BASE: _base(), **tables, **queries}
        before = self._views or self._order
        order = [name for name in before if name in wanted]
        return {name: wanted[name] for name in [*order, *(one for one in wanted if one not in before)]}

    def _written(self, queries: dict[str, View] | None = None) -> dict[str, list[View]]:
        """Return by table the rows of the queries that write into it, and put all queries as they read these into `queries`."""
        written: dict[str, list[View]] = {}
        for running in self._in_order():
            view = read_with_writers(running.query.bound.view, written)
            if queries is not None:
                queries[running.name] = view
            if running.writer is not None:
                rows = rows_for(running.writer.table, view, running.writer.names, self.dialect)
                written.setdefault(running.writer.table.name, []).append(rows)
        return written

    def _in_order(self) -> list[Running]:
        return in_order([one for one in self.running if not one.is_paused])

    def _change(self, outputs: Mapping[str, Sink], made: Declaration | None = None, *, of: Running | None = None) -> None:
        """Let the pipeline be one of the tables and queries that are there now; or leave it as it was.

        Args:
            outputs: of queries that are new, by name.
            made: what a program declares.
            of: the query that the change is made for, which errors name.
        """
        if self._is_restoring:
            return
        self._begin_with(self.catalog.settings)
        pipeline, wanted, declared = self.pipeline, self._wanted(), self._now_declared(made)
        sources = self._opened(wanted, pipeline.positions.get("read", {}))
        number = self._declarations.write(Catalogued(declared=tuple(declared), views=tuple(wanted), settings=self._settings))
        before = pipeline.epoch
        try:
            diff = pipeline.evolve(wanted, outputs=outputs or None, note={"catalog": number}, fresh=self._fresh(wanted))
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
        for running in self.running:
            change = diff.views.get(running.name)
            if change is not None and change.status != "unchanged" and not running.is_paused:
                delta = change.added if change.status in {"added", "columns"} else change.delta
                view = running.pipeline
                assert isinstance(view, GroupView)  # noqa: S101 - this runtime makes no other
                self._emit(running, view.answer_of({running.name: delta}))
                view.took()
        self._publish()

    def _begin_with(self, settings: Mapping[str, str]) -> None:
        """Let the operators have some settings, where there are none yet."""
        if self._is_restoring or len(self._views) > 1 or self.pipeline.epoch or _options(settings) == _options(self._settings):
            return
        self._settings = dict(settings)
        self.pipeline.close()
        self._open({_BASE: _base()})

    def _fresh(self, wanted: Mapping[str, View]) -> frozenset[str]:
        """Return the sources that begin without rows, whatever there was under their names."""
        return frozenset(name.removeprefix(_ROWS) for name in wanted if name.startswith(_ROWS) and name not in self._views)

    def _settle(
        self, number: int, declared: list[Declaration], wanted: dict[str, View], sources: dict[str, TableSource]
    ) -> None:
        self._declarations.settle(number)
        for name, source in self._sources.items():
            if name not in sources:
                source.close()
        self._declared, self._views, self._sources = declared, wanted, sources

    @staticmethod
    def _emit(running: Running, delta: ZSet) -> None:
        running.deltas.append(delta)
        if running.output is not None and running.writer is None and not isinstance(running.output, SinkWriter):
            running.output(delta)

    # ---------------------------------------------------------------- queries

    def start(self, query: Query, *, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        """Run a query, or go on with the one of its name; see `Session.start`."""
        name = name or self._free_name(output, query)
        known = next((one for one in self.running if one.name == name), None)
        if isinstance(known, _Query) and known.is_restored:
            return self._gone_on_with(known, query, output)
        if known is not None or name == _BASE or name.startswith(_ROWS):
            raise SqlError(f'the name "{name}" is taken. Start the query under another one.', code="NAME_TAKEN", name=name)
        self._begin_with(query.settings)
        self._check_options(query)
        running = _Query(name, query, _OwnView(self._group, name, query.schema), output, table_written(output))
        self._check_writer(running)
        if self._is_restoring:
            self.running.append(running)
            return running
        claims = self._claims_beside(running)
        made = None
        if self._statement is None:
            dialect = query.dialect or self.dialect
            made = Declaration(names=(name,), sql=query.sql, dialect=dialect, settings=query.settings, query=name)
        sink = _sink(output)
        self.running.append(running)
        try:
            self._change({} if sink is None else {name: sink}, made, of=running)
        except BaseException:
            if name not in self._views:
                self.running.remove(running)
            raise
        if running.writer is not None:
            self._claim_contents(running, claims)
        if self.pipeline.epoch == 0 and has_row_of_nothing(query.bound):
            self._take({}, self._clock())
        return running

    def _claim_contents(self, running: Running, claims: Any) -> None:
        """Count the rows of a query that has begun, or stop it where one of them has a key that another row claims."""
        if claims is None:
            return
        assert running.writer is not None  # noqa: S101 - as the caller knows
        contents = [(running.pipeline.contents(), running.writer.names)]
        try:
            claims.check(contents, running.name)
        except BaseException:
            self.running.remove(running)
            self._change({})
            raise
        claims.add(contents)

    def _gone_on_with(self, known: _Query, query: Query, output: Callable[[ZSet], None] | None) -> Running:
        """Return a query that was there when the session was opened."""
        if (known.query.sql, known.query.settings) != (query.sql, query.settings):
            raise StateError(
                f'the session has a query "{known.name}" with another text or other settings: {known.query.sql} Start this one '
                "under another name, or stop that one.",
                code="QUERY_CHANGED",
                query=known.name,
            )
        known.is_restored = False
        if _sink(known.output) is None:
            known.output = output
        return known

    def _check_options(self, query: Query) -> None:
        """Refuse settings of a query that are those of the pipeline, and differ."""
        if self._is_restoring:
            return
        if _options(query.settings) != _options(self._settings):
            raise SqlError(
                "the queries of a directory are one pipeline, and have the same settings of operators; this one has others. "
                "SET them before the first table, or use another directory.",
                code="SESSION_SETTINGS",
            )

    def _check_writer(self, running: Running) -> None:
        """Refuse a query whose rows would replace one another in the table that it writes."""
        writer = running.writer
        if writer is not None and writer.table.primary_key and not running.takes_back:
            raise SqlError(
                f'"{writer.table.name}" has a primary key, and the query only ever adds rows: in a directory they would not '
                "replace one another. Keep the newest row of each key, by ROW_NUMBER() or by GROUP BY, or leave the key out.",
                code="NOT_OFFERED",
                name=writer.table.name,
            )

    def stop(self, running: Running) -> None:
        """End a query; what it wrote into a table of the session goes with it."""
        if running not in self.running:
            return
        self.running.remove(running)
        self._unclaim_stopped(running)
        self._change({})

    def _unclaim_stopped(self, running: Running) -> None:
        if running.writes is not None and running.writes in self.claims:
            self.claims.pop(running.writes).close()

    def pause(self, running: Running) -> None:
        """Let a query take nothing until `resume`, also where the session is opened again meanwhile.

        Raises:
            SqlError: `NOT_OFFERED`: it writes into a table or outside.
        """
        if running.output is not None:
            raise SqlError(
                f'"{running.name}" writes what it answers, and would have to go on where it was: in a directory only views are '
                "paused. DROP it, and make it again.",
                code="NOT_OFFERED",
                name=running.name,
            )
        view = running.pipeline
        assert isinstance(view, GroupView)  # noqa: S101 - this runtime makes no other
        local.make_directories(self._directory / "paused")
        rows = view.contents()
        held = pa.Table.from_batches([rows.rows]).append_column(_WEIGHT, pa.array(rows.weights))
        encoded = pa.BufferOutputStream()
        with pa.ipc.new_file(encoded, held.schema) as file:
            file.write_table(held)
        local.write_atomic(self._held_by(running), encoded.getvalue().to_pybytes())
        view.pause()
        running.is_paused = True
        try:
            self._change({})
        except BaseException:
            running.is_paused = False
            running.pipeline = _OwnView(self._group, running.name, running.query.schema)
            raise

    def resume(self, running: Running) -> None:
        """Let a query catch up with its tables; its first change is what became of its rows meanwhile.

        Raises:
            ZsetJoinError: it cannot be answered; it stays paused.
        """
        paused, running.is_paused = running.pipeline, False
        assert isinstance(paused, GroupView)  # noqa: S101 - this runtime makes no other
        running.pipeline = _OwnView(self._group, running.name, running.query.schema).behind(paused)
        try:
            self._change({}, of=running)
        except BaseException:
            if running.name not in self._views:
                running.pipeline, running.is_paused = paused, True
            raise
        local.remove_file(self._held_by(running))

    def _held_by(self, running: Running) -> Path:
        return self._directory / "paused" / f"{file_name(running.name)}.arrow"

    def _hold(self, running: Running) -> None:
        """Let a query be paused that was so when the session was closed."""
        held = pa.ipc.open_file(pa.BufferReader(local.read_bytes(self._held_by(running)) or b"")).read_all()
        weights = held.column(_WEIGHT).to_numpy()
        view = _OwnView(self._group, running.name, running.query.schema)
        running.pipeline = view.holding(ZSet(single_batch(held.drop_columns([_WEIGHT])), weights))
        running.is_paused = True

    def snapshot(self, query: Query) -> pa.Table:
        """Return what a query holds over what its tables hold."""
        known = [name for name in sorted(query.bound.reads) if f"{_ROWS}{name}" in self._views]
        if any(len(self.catalog.tables[name].hidden) for name in known) and self.pipeline.epoch:
            view = read_with_writers(query.bound.view, self._written())
            diff = self.pipeline.diff({**self._views, _SNAPSHOT: view})
            return sorted_rows(repeated(diff.views[_SNAPSHOT].added, query.schema), query.bound)
        with Pipeline(query.bound.view, options=stage_options(query.settings)) as pipeline:
            sources = {source.name for source in query.bound.view.plan().sources}
            rows = {name: self._held(self.catalog.tables[name]) for name in sorted(query.bound.reads & sources)}
            pipeline.step({name: one for name, one in rows.items() if one is not None}, processing_time=self._clock())
            return sorted_rows(pipeline.view(), query.bound)

    def _held(self, table: Table) -> pa.Table | ZSet | None:
        """Return the rows of a table, those that queries write into it among them."""
        if f"{_ROWS}{table.name}" not in self._views:
            return self._read_whole(table)
        held = self.pipeline.contents(f"{_ROWS}{table.name}")
        parts = [held]
        for running in self.running:
            if running.writer is not None and running.writes == table.name:
                rows = running.pipeline.contents()
                written = self.completed(table, ZSet(_renamed(rows, running.writer.names), rows.weights), self._clock())
                assert isinstance(written, ZSet)  # noqa: S101 - as it was given
                parts.append(ZSet(written.rows.select(held.rows.schema.names), written.weights))
        whole = ZSet.concat(parts, schema=held.rows.schema)
        if table.mode != "append":
            return whole
        return pa.Table.from_batches([whole.rows]).take(pa.array(np.repeat(np.arange(len(whole)), whole.weights)))

    def _read_whole(self, table: Table) -> pa.Table | ZSet | None:
        """Return what a connector has from its beginning, of a table that no query reads."""
        source = self._source(table, is_kept=False)
        try:
            source.open(None)
            with Pipeline(table.rows) as pipeline:
                while True:
                    rows, _ = source.poll(wait_seconds=_WAIT_SECONDS)
                    if rows is None:
                        return pipeline.contents()
                    pipeline.step({table.name: rows}, processing_time=self._clock())
        finally:
            source.close()

    # ---------------------------------------------------------------- epochs

    def check_insert(self, table: Table) -> None:
        """Refuse rows for a table that its connector fills."""
        if not _is_inserted(table):
            raise SqlError(
                f'"{table.name}" is filled by its connector; insert into a table without one.',
                code="NOT_A_TABLE",
                name=table.name,
            )
        refuse_our_columns(table)

    def _feed(self, table: Table, rows: pa.Table | ZSet, now_us: int) -> None:
        if self._once is None or self._once not in self.pipeline.positions.get("once", ()):
            self._take({table.name: rows}, now_us, once=self._once)

    def read(self, *, wait_seconds: float, rounds: int | None = None) -> int:
        """Take what has come in the files and topics of tables, each round as one epoch; return the number of rounds."""
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

    def advance(self) -> None:
        """Let an epoch without rows pass."""
        self._take({}, self._clock())

    def advance_due(self) -> bool:
        """Let an epoch pass if the pipeline is due; return whether it was."""
        if not any(one.is_due(self._clock()) for one in self.running if not one.is_paused):
            return False
        self._take({}, self._clock())
        return True

    def _take(
        self,
        rows: Mapping[str, Any],
        now_us: int,
        *,
        positions: Mapping[str, Any] | None = None,
        once: str | None = None,
        origin: str = "the INSERT",
    ) -> None:
        """Take rows of tables as one epoch, or nothing.

        Args:
            rows: by table; what is known of them that could not be read goes along.
            now_us: the processing time.
            positions: by table, how far its source has been read with them.
            once: the name of the statement, which then counts as run.
            origin: where rows come from, for messages.
        """
        pipeline, taken = self.pipeline, rows
        with ExitStack() as stack:
            try:
                prepared = self._prepared(rows, now_us)
            except BadInputError as error:
                taken = {name: self._accepted(name, one) for name, one in rows.items()}
                if all(taken[name] is rows[name] for name in rows):
                    raise self._named(error) from error
                prepared = self._prepared(taken, now_us, is_last=True)
            except ZsetJoinError as error:
                raise self._named(error) from error
            stack.enter_context(prepared)
            claimed = self._claimed(prepared, taken, origin)
            before = pipeline.positions
            known = {
                "read": {**before.get("read", {}), **(positions or {})},
                "once": [*before.get("once", ()), *([] if once is None else [once])],
            }
            epoch = pipeline.epoch
            try:
                pipeline.commit(prepared, positions=known)
            finally:
                if pipeline.epoch > epoch:
                    self._took(prepared, claimed)

    def _took(self, prepared: PreparedEpoch, claimed: Sequence[Callable[[], None]]) -> None:
        """Show an epoch that counts."""
        for count in claimed:
            count()
        for running in self.running:
            view = running.pipeline
            if not running.is_paused and isinstance(view, GroupView):
                self._emit(running, view.answer_of(prepared.answers))
                view.took()
        for name in self.catalog.tables:
            self._warn_of(name)
        self._publish()

    def _warn_of(self, name: str) -> None:
        """Warn of rows that a table did not take and that no query lists."""
        letters = self.pipeline.dead_letters
        if letters.num_rows and not any(name in one.reads for one in self.running):
            own = letters.filter(pa.array([stream == name for stream in letters.column("stream").to_pylist()]))
            if own.num_rows:
                first = own.slice(0, 1).to_pylist()[0]
                warnings.warn(
                    SqlWarning(
                        f'table "{name}": {own.num_rows} rows are put aside, the first: [{first["code"]}] {first["reason"]}'
                    ),
                    stacklevel=6,
                )

    def _prepared(self, rows: Mapping[str, Any], now_us: int, *, is_last: bool = False) -> PreparedEpoch:
        try:
            return self.pipeline.prepare(rows, processing_time=now_us)
        except BadInputError as error:
            if is_last:
                raise self._named(error) from error
            raise

    def _named(self, error: ZsetJoinError) -> ZsetJoinError:
        """Return an error that names the queries that cannot be answered, where it is of these."""
        names = set(error.facts.get("views", ()))
        going = [one for one in self.running if one.name in names]
        if not going:
            return error
        return named_error(error, failing_queries(error, going), _NOTHING if len(self.running) == 1 else f"{_NOTHING} {_PAUSE}")

    def _accepted(self, name: str, rows: Any) -> Any:
        """Return rows without those that some query cannot evaluate by its own steps, and what is listed of these."""
        given = rows.rows if isinstance(rows, PartlyRead) else rows
        accepted = accepted_rows(self.running, name, given)
        if not accepted.aside:
            return rows
        unread = [rows.unread] if isinstance(rows, PartlyRead) else []
        return PartlyRead(accepted.rows, pa.concat_tables([*unread, *accepted.aside.values()], promote_options="default"))

    def _claimed(self, prepared: PreparedEpoch, rows: Mapping[str, Any], origin: str) -> list[Callable[[], None]]:
        """Refuse an epoch in which two live rows claim a key; return what counts its rows once it is taken."""
        counts: list[Callable[[], None]] = []
        by_table: dict[str, list[Any]] = {}
        for running in self.running:
            writer = running.writer
            claims = None if writer is None or running.is_paused else self.claims.get(writer.table.name)
            if claims is None or writer is None:
                continue
            delta = running.answer_in(prepared)
            if len(delta):
                by_table.setdefault(writer.table.name, []).append((delta, writer.names))
                claims.check(by_table[writer.table.name], running.name)
        for name, claimed in by_table.items():
            counts.append(lambda name=name, claimed=claimed: self.claims[name].add(claimed))  # type: ignore[misc]
        for name, one in rows.items():
            claims = self.claims_of(name)
            if claims is not None:
                given = one.rows if isinstance(one, PartlyRead) else one
                claims.check_others(given, by_table.get(name, []), origin)
                counts.append(lambda claims=claims, given=given: claims.add_others(given))  # type: ignore[misc]
        return counts

    def _rows_held(self, table: Table) -> pa.Table | ZSet | None:
        if f"{_ROWS}{table.name}" not in self._views:
            return None
        rows = self.pipeline.contents(f"{_ROWS}{table.name}")
        return rows if len(rows) else None

    # ---------------------------------------------------------------- the rest

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
        if self._once is None:
            return None
        place = self._directory / "once" / file_name(self._once)
        known = local.read_bytes(place)
        if known is None:
            known = str(uuid.uuid4()).encode()
            local.make_directories(place.parent)
            local.write_atomic(place, known)
        return known.decode()

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
            if known is None or (isinstance(known, _Query) and known.is_restored and known.query.sql == query.sql):
                return name
            number += 1

    def forget(self, name: str) -> None:
        """Release what is kept of a dropped table or view, and end the queries of it: one change of the plan."""
        for running in [one for one in self.running if name in one.reads or one.name == name]:
            self.running.remove(running)
            self._unclaim_stopped(running)
        claims = self.claims.pop(name, None)
        if claims is not None:
            claims.close()
        self._gone.add(name)
        try:
            self._change({})
        finally:
            self._gone.discard(name)

    def close(self) -> None:
        """Release the directory; queries go on when it is opened again."""
        try:
            for source in self._sources.values():
                source.close()
            for claims in self.claims.values():
                claims.close()
            if self._pipeline is not None:
                self._pipeline.close()
            self._sources, self.claims = {}, {}
            self.running.clear()
        finally:
            self._lock.release()


def _options(settings: Mapping[str, str]) -> tuple[StageOptions, float | None]:
    return stage_options(settings), idle_timeout(settings)


def _base() -> View:
    return appends(_BASE, pa.schema([("nothing", pa.int64())]))


def _sink(output: object) -> Sink | None:
    """Return the sink outside that an output is; None for a function, a table of the session, or nothing."""
    return output.sink if isinstance(output, SinkWriter) else None


def _is_inserted(table: Table) -> bool:
    """Return whether rows of a table come by INSERT."""
    return table.options.get("connector") in {None, "memory"}


def _renamed(rows: ZSet, names: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(rows.rows.columns, names=list(names))


def _entries(runtime: ProcessRuntime) -> dict[str, dict[str, Any]]:
    """Return everything that has a name now."""
    named = {kind: dict(getattr(runtime.catalog, kind)) for kind in _CATALOG}
    return {**named, "running": {one.name: one for one in runtime.running}}


def _number_of(pipeline: Path) -> int | None:
    """Return the number of the declarations that the pipeline's last record names; None where there is none."""
    committed = read_committed(str(pipeline))
    if committed is None or committed.last is None or committed.last.plan is None:
        return None
    note = read_changed_plan(committed.files.folder, committed.last.plan).note
    return None if note is None else int(note["catalog"])
