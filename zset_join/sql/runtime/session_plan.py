"""The views of a session's pipeline: its tables and queries as one plan.

Every table is a source of the pipeline, and a view of it, so that its rows are kept; every query is a view. The materialized
views in a query are those that run: their stages are its stages too.

A paused query is replaced by a source of the rows that it held, so its outputs continue: they get nothing while it is paused,
and the difference by the epoch of RESUME.

`SessionSources`, `TableRows`: the tables of a session: the readers of those that connectors fill, what they hold, and what rows
become on the way in.

`completed`, `completed_table`: completion of rows of a table: missing columns get their DEFAULT, the processing time, or a
computed value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from zset_join.changelog import AppendFormat
from zset_join.core.errors import SqlError
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.core.row_conversion import repeated_positions
from zset_join.evolution.refusals import bad_reread
from zset_join.expressions.rows import compute
from zset_join.expressions.zones import expression_in_zone
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.tree import Node, Read, depends_on_arrival, started
from zset_join.query import View, appends
from zset_join.query.reading import Reading
from zset_join.query.sources import with_jump
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.taking import PartlyRead
from zset_join.sources.source import rows_again
from zset_join.sql.ddl.definitions import TP_DELTA
from zset_join.sql.runtime.written_tables import Rows, in_order, is_fed, read_with_writers, rows_for, together
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.results import Query, Running
from zset_join.sql.tables.settings import jump_in, stage_options
from zset_join.sql.tables.table_rows import check_required, fit, of_table, repeated_default
from zset_join.sql.tables.table_sources import TableSource
from zset_join.sql_expressions.consumed import near
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.stages.effect import own_of
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet, single_batch

__all__ = ["BASE", "ROWS", "SessionPlan", "SessionSources", "TableRows", "base_view", "held_relation"]

BASE = "(session)"
"""A view without rows, so that the pipeline is present before the first table."""
ROWS = "rows of "
"""Before the name of a table: the view that keeps its rows."""


class SessionPlan:
    """Build the views of the pipeline from the names of a session and its queries.

    Attributes:
        running: the queries.
        stopped: queries that run no more and whose statement counts: others may read their stages.
        gone: names that the statement drops.
        settings: of the pipeline.
        views: of the pipeline now.
        order: in which the views of a directory came.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        dialect: str,
        keep_tables: bool,
        is_inserted: Callable[[Table], bool],
        fed: Callable[[View], View],
    ) -> None:
        self.catalog = catalog
        self.running: list[Running] = []
        self.stopped: list[Running] = []
        self.gone: set[str] = set()
        self.settings: dict[str, str] = {}
        self.views: dict[str, View] = {}
        self.order: Sequence[str] = ()
        self.keep_tables = keep_tables
        self._dialect, self._is_inserted, self._fed = dialect, is_inserted, fed

    def wanted(self) -> dict[str, View]:
        """Return the views of the pipeline as names and queries are now, in the order in which they came."""
        queries: dict[str, View] = {}
        self.written(queries)
        jump, kept = jump_in(self.settings), self.tables() if self.keep_tables else {}
        tables = {f"{ROWS}{name}": with_jump(table.rows, jump) for name, table in kept.items()}
        wanted = {name: self._fed(view) for name, view in {BASE: base_view(), **tables, **queries}.items()}
        before = self.views or self.order
        order = [name for name in before if name in wanted]
        return {name: wanted[name] for name in [*order, *(one for one in wanted if one not in before)]}

    def tables(self) -> dict[str, Table]:
        """Return the tables that are inserted into, or that a query reads from a connector."""
        read = frozenset[str]().union(*(one.reads for one in self.running))
        outside = {getattr(one.output, "table_name", None) for one in self.running}
        return {
            name: table
            for name, table in self.catalog.tables.items()
            if table.lookup is None
            and table.word != "SINK"
            and name not in outside
            and name not in self.gone
            and (self._is_inserted(table) or name in read)
        }

    def written(self, queries: dict[str, View] | None = None) -> dict[str, list[View]]:
        """Return by table the rows of the queries that write into it, and put all queries as they read these into `queries`."""
        written: dict[str, list[View]] = {}
        for running in in_order(self.running):
            view = (
                held_view(running.held)
                if running.held is not None
                else self.with_written(running.query, running.since, written)
            )
            if queries is not None:
                queries[running.name] = view
            if running.writer is not None and not is_fed(running):
                rows = rows_for(running.writer.table, view, running.writer.names, self._dialect)
                written.setdefault(running.writer.table.name, []).append(rows)
        return written

    def with_written(self, query: Query, since: int, written: dict[str, list[View]] | None = None) -> View:
        """Return a query as it is run, over what other queries write as well."""
        added = {table.name: table.added for table in self.catalog.tables.values()}
        return read_with_writers(self.as_run(query, since), self.written() if written is None else written, added)

    def as_run(self, query: Query, since: int = 0) -> View:
        view = query.bound.view
        return replace(view, node=self._started(query, view.node, stage_options(self.settings), since))

    def is_kept(self, name: str) -> bool:
        """Return whether the pipeline keeps the rows of a table."""
        return f"{ROWS}{name}" in self.views

    def reads_state(self, query: Query) -> bool:
        """Return whether a query reads a running query whose rows the tables alone do not show."""
        read = [one for one in self.views_read(query) if one in self.running and not one.is_paused]
        return any(depends_on_arrival(self.catalog.views[one.name].query.view.node) for one in read)

    def views_read(self, query: Query) -> list[Running]:
        """Return the queries of the materialized views that a query reads, without those that only these read."""
        found: dict[str, Running] = {}
        waiting, views = [*query.bound.names], self.catalog.views
        kept = {one.name: one for one in self.kept if one.name in views and views[one.name].is_materialized}
        while waiting:
            name = waiting.pop()
            if name in kept:
                found[name] = kept[name]
            elif name in views:
                waiting += views[name].query.names
        return [found[name] for name in sorted(found)]

    @property
    def kept(self) -> list[Running]:
        """Return the queries whose state others may read."""
        return [*self.running, *self.stopped]

    def put_aside(self, running: Running) -> None:
        """Let a query run no more; while its statement counts, others read its stages, which have its epoch and options."""
        self.running.remove(running)
        table = self.catalog.tables.get(running.name)
        is_named = running.name in {*self.catalog.views, *self.catalog.sinks} or (table is not None and table.word == "SINK")
        if is_named and running.name not in self.gone:
            self.stopped.append(running)

    def forget_stopped(self) -> None:
        """Forget the stopped queries whose statements count no more."""
        named = {*self.catalog.views, *self.catalog.sinks, *self.catalog.tables} - self.gone
        self.stopped = [one for one in self.stopped if one.name in named]

    def _started(self, query: Query, node: Node, known: StageOptions, since: int = 0) -> Node:
        others = dict[int, Node]()
        for one in self.views_read(query):
            view = self.catalog.views[one.name].query.view.node
            others[id(view)] = self._started(one.query, view, known, one.since)
        own = own_of(stage_options(query.settings))
        return started(node, since=since, own=None if own == own_of(known) else own, others=others)


def base_view() -> View:
    return appends(BASE, pa.schema([("nothing", pa.int64())]))


def held_relation(view: Relation, source: str) -> Relation:
    """Return the rows of a source that has the columns, the key and the time of a view, and changes only by what it is fed."""
    # It has no watermark, so that it holds up nobody's.
    mode: ChangelogMode = "append" if view.mode == "append" else "changelog"
    return replace(view, name=source, join_key=(), sequence_by=(), mode=mode, watermark_delay=None)


def held_view(relation: Relation) -> View:
    source = PlanSource(relation=relation)
    reading = Reading(source=source, given=relation.schema, changelog_format=AppendFormat())
    return View(node=Read(source), name=relation.name, bindings=(reading,))


def completed(table: Table, rows: pa.Table | ZSet, now_us: int, dialect: str, zone: str = "UTC") -> pa.Table | ZSet:
    """Return rows with all columns of a table, and their weights; see `completed_table`."""
    if isinstance(rows, ZSet):
        given = pa.Table.from_batches([rows.rows])
        return ZSet(single_batch(completed_table(table, given, now_us, dialect, rows.weights, zone)), rows.weights)
    return completed_table(table, rows, now_us, dialect, zone=zone)


def completed_table(
    table: Table, given: pa.Table, now_us: int, dialect: str, weights: Any = None, zone: str = "UTC"
) -> pa.Table:
    known = table.schema.names
    hidden = table.hidden.names
    unknown = [name for name in given.column_names if name not in known and name not in hidden]
    if unknown:
        raise SqlError(
            f'"{table.name}" has no column {", ".join(unknown)}.{near(unknown[0], known)}',
            code="UNKNOWN_COLUMN",
            name=table.name,
        )
    columns: dict[str, pa.Array] = {}
    for column in table.columns:
        if column.name in given.column_names:
            array = given.column(column.name).combine_chunks()
            is_plain = array.type == column.type
            # The metadata of a record is an instant, which a column without a zone has in UTC.
            is_beside = not is_plain and column.metadata is not None
            columns[column.name] = array if is_plain else array.cast(column.type) if is_beside else fit(table, column, array)
        elif column.is_processing_time:
            columns[column.name] = pa.repeat(pa.scalar(now_us, pa.int64()), given.num_rows).cast(column.type)
        elif column.computed is not None:
            schema = pa.schema([(name, array.type) for name, array in columns.items()])
            tree = ScalarBinder.over(schema, Statement("", (), dialect)).bind(column.computed)
            tree = expression_in_zone(tree, {"row": schema}, zone)
            columns[column.name] = compute(tree, columns, given.num_rows).cast(column.type)
        elif column.name == TP_DELTA:
            columns[column.name] = pa.repeat(pa.scalar(1, column.type), given.num_rows)
        else:
            columns[column.name] = repeated_default(column, given.num_rows)
    beside = {name: given.column(name) for name in hidden}
    whole = pa.table({**columns, **beside}, schema=pa.schema([*table.schema, *table.hidden]))
    check_required(table, whole, weights)
    return whole


_WAIT_SECONDS = 2.0


class SessionSources:
    """Hold the readers of a session, which change together with the plan.

    Attributes:
        current: the readers by table.
    """

    def __init__(
        self, tables: Callable[[], Mapping[str, Table]], made: Callable[..., TableSource], *, connects_at_once: bool
    ) -> None:
        self.current: dict[str, TableSource] = {}
        self._tables, self._made, self._connects_at_once = tables, made, connects_at_once

    def opened(self, positions: Mapping[str, Any]) -> dict[str, TableSource]:
        """Return the readers of the present tables, at their positions; `settle` or `discard` comes next."""
        opened: dict[str, TableSource] = {}
        try:
            for name, table in self._tables().items():
                opened[name] = known = self.current.get(name) or self._made(table)
                if name not in self.current and self._connects_at_once:
                    known.open(positions.get(name))
        except BaseException:
            self.discard(opened)
            raise
        return opened

    def settle(self, opened: dict[str, TableSource]) -> None:
        """Continue with these readers, and close the others."""
        gone = {name: one for name, one in self.current.items() if name not in opened}
        self.current = opened
        _close(gone)

    def discard(self, opened: Mapping[str, TableSource]) -> None:
        """Close the new ones of these readers."""
        _close({name: one for name, one in opened.items() if name not in self.current})

    def poll(self, wait_seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return new rows and the positions behind them, by table."""
        polled: dict[str, Any] = {}
        positions: dict[str, Any] = {}
        for name, source in self.current.items():
            # The first source may wait; after it the others are polled once.
            rows, position = source.poll(wait_seconds=0.02 if polled else wait_seconds)
            if rows is not None:
                polled[name], positions[name] = rows, position
        return polled, positions

    def read_again(self, positions: Mapping[str, Any]) -> None:
        """Go back to the positions of the rows that were taken."""
        for name, source in self.current.items():
            source.open(positions.get(name))

    def all_rows(self, table: Table) -> Iterator[Rows | PartlyRead]:
        """Yield all rows of a connector, for a table that no query reads."""
        source = self._made(table, is_kept=False)
        try:
            source.open(None)
            while (rows := source.poll(wait_seconds=_WAIT_SECONDS)[0]) is not None:
                yield rows
        finally:
            source.close()

    def close(self) -> None:
        _close(self.current)
        self.current = {}


class TableRows:
    """Read the rows of tables, and complete new ones."""

    def __init__(
        self,
        pipeline: Callable[[], Pipeline[dict[str, ZSet]]],
        plan: SessionPlan,
        sources: SessionSources,
        *,
        is_inserted: Callable[[Table], bool],
        fed: Callable[[View], View],
        clock: Callable[[], int],
        dialect: str,
    ) -> None:
        self._pipeline, self._plan, self._sources = pipeline, plan, sources
        self._is_inserted, self._fed, self._clock, self._dialect = is_inserted, fed, clock, dialect

    def completed(self, table: Table, rows: Rows, now_us: int) -> Rows:
        """Return rows of a program, statement or query with all columns of their table."""
        return completed(table, rows, now_us, self._dialect, self._plan.catalog.zone)

    def all_columns(self, table: Table, rows: pa.Table) -> pa.Table:
        return completed_table(table, rows, self._clock(), self._dialect, zone=self._plan.catalog.zone)

    def again(self, table: Table, place: Callable[[], str]) -> pa.Table:
        """Return the rows of a table that are at a place now, with all its columns."""
        rows = rows_again(place())
        found = rows.column_names if isinstance(rows, pa.Table) else [*rows]
        missing = [one.name for one in table.columns if one.is_given and one.metadata is None and one.name not in found]
        if missing:
            raise bad_reread(table.name, f"have no column {', '.join(missing)}")
        known = [name for name in found if name in table.schema.names]
        chosen = rows.select(known) if isinstance(rows, pa.Table) else {name: rows[name] for name in known}
        return self.all_columns(table, of_table(table, chosen))

    def own(self, table: Table) -> ZSet:
        """Return the rows that a table holds, without those that queries have in the plan."""
        kept = self._plan.is_kept(table.name)
        return self._pipeline().contents(f"{ROWS}{table.name}") if kept else ZSet.empty(table.schema)

    def _read_whole(self, table: Table) -> Rows | PartlyRead | None:
        """Return the rows of a connector as the sources of a query take them."""
        view, read = self._fed(table.rows), self._sources.all_rows(table)
        if view is table.rows:
            parts = list(read)
            return together(parts) if parts else None
        with Pipeline(view) as pipeline:
            for rows in read:
                pipeline.step({table.name: rows}, processing_time=self._clock())
            return pipeline.contents()

    def held(self, table: Table) -> Rows | PartlyRead | None:
        """Return the rows of a table, those that queries write into it among them."""
        if not self._plan.is_kept(table.name):
            return None if self._is_inserted(table) else self._read_whole(table)
        held = self.own(table)
        parts = [held]
        for running in self._plan.running:
            if running.writer is not None and running.writes == table.name and not is_fed(running):
                rows = running.pipeline.contents()
                given = pa.RecordBatch.from_arrays(rows.rows.columns, names=list(running.writer.names))
                written = self.completed(table, ZSet(given, rows.weights), self._clock())
                assert isinstance(written, ZSet)  # noqa: S101 - as it was given
                parts.append(ZSet(written.rows.select(held.rows.schema.names), written.weights))
        whole = ZSet.concat(parts, schema=held.rows.schema)
        if table.mode != "append":
            return whole
        return pa.Table.from_batches([whole.rows]).take(pa.array(repeated_positions(whole.weights)))


def _close(sources: Mapping[str, TableSource]) -> None:
    for source in sources.values():
        source.close()
