"""The views of a session's pipeline: its tables and queries as one plan.

Every table is a source of the pipeline, and a view of it, so that its rows are kept; every query is a view. The materialized
views in a query are those that run: their stages are its stages too.

A paused query is replaced by a source of the rows that it held, so its outputs continue: they get nothing while it is paused,
and the difference by the epoch of RESUME.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from zset_join.changelog import AppendFormat
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.tree import Node, Read, depends_on_arrival, started
from zset_join.query import View, appends
from zset_join.query.reading import Reading
from zset_join.query.sources import with_jump
from zset_join.sql.runtime.epoch_rows import in_order
from zset_join.sql.runtime.written_tables import is_fed, read_with_writers, rows_for
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.results import Query, Running
from zset_join.sql.tables.settings import jump_in, stage_options
from zset_join.stages.own_options import own_of
from zset_join.stages.stage import StageOptions

__all__ = ["BASE", "ROWS", "SessionPlan", "base_view", "held_relation"]

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
        """Return the rows of a query as it is run.

        Args:
            query: the query; its stages have its own options, where they differ from those of the pipeline.
            since: the epoch at which it came, where its tables had rows.
        """
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
