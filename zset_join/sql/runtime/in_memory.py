"""Queries and tables in memory, in this process.

The law: every INSERT is one epoch of every query that reads the table. A query that is started later begins with what its
tables hold; after every epoch it holds what it would hold had it run from the beginning.

Remembers per table its current rows (upsert and changelog) or all of its rows (append), so that later queries and `FROM
table(t)` have them; `keep_tables=False` keeps none. Queries hold the rows of a keyed table together with it, as far as their
keys allow: a table takes an epoch before they do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa

from zset_join.core.errors import BadInputError, SinkError, SqlError
from zset_join.evolution.differences import PlanDiff
from zset_join.evolution.refusals import none_taken
from zset_join.query import View
from zset_join.runners.local.changing import ChangingPipeline
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.runners.local.rereading import check_same_rows
from zset_join.sql.dml.shared_epochs import SharedEpoch, in_order, named_error
from zset_join.sql.dml.writing import table_written
from zset_join.sql.runtime.in_process import ProcessRuntime, change_lines, refuse_other_columns, refuse_replaced_rows
from zset_join.sql.tables.added_columns import repeated_default
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.decoded_records import DecodedRecords, rows_read
from zset_join.sql.tables.records import has_records
from zset_join.sql.tables.results import Query, QueryChange, Running, has_row_of_nothing, sorted_rows
from zset_join.sql.tables.settings import idle_timeout, stage_options
from zset_join.sql.tables.sink_tables import SinkWriter
from zset_join.sql.tables.table_sources import TableSource, has_source, source_of
from zset_join.sql.tables.view_groups import GroupView, ViewGroup
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet

__all__ = ["MemoryRuntime"]

_SNAPSHOT = "(snapshot)"


class MemoryRuntime(ProcessRuntime):
    def __init__(
        self,
        catalog: Catalog,
        *,
        dialect: str,
        clock: Callable[[], int] | None,
        keep_tables: bool = True,
        keep_inputs: bool = False,
    ) -> None:
        super().__init__(catalog, dialect=dialect, clock=clock, keep_inputs=keep_inputs)
        self._keep_tables = keep_tables
        self._stored: dict[str, Pipeline] = {}
        self._is_held_once = True
        self._groups: list[ViewGroup] = []
        self._fed: set[str] = set()
        self._sources: dict[str, tuple[Table, TableSource]] = {}
        self._held: dict[str, Any] = {}
        self._is_closing = False
        self._numbered = 0

    def read(self, *, wait_seconds: float, rounds: int | None = None) -> int:
        self._open_sources()
        epochs, taken, moved = 0, 0, True
        while moved and (rounds is None or taken < rounds):
            moved, taken = False, taken + 1
            for name, (table, source) in self._sources.items():
                rows = self._held.pop(name, None)
                if rows is None:
                    polled, _ = source.poll(wait_seconds=wait_seconds)
                    rows = rows_read(table, polled)
                if rows is not None:
                    self._held[name] = rows  # until they are taken: the source gives them once
                    self.insert(table, rows)
                    del self._held[name]
                    epochs, moved = epochs + 1, True
        return epochs

    def _open_sources(self) -> None:
        """Read the tables that have a connector and that no query of the session writes, and no others."""
        tables = self.catalog.tables
        for name in [name for name, (table, _) in self._sources.items() if tables.get(name) is not table]:
            self._sources.pop(name)[1].close()
            self._held.pop(name, None)
        written = {getattr(running.output, "table_name", None) for running in self.running}
        for name, table in tables.items():
            if name not in self._sources and name not in written and has_source(table):
                settings = self.catalog.settings
                source = source_of(table, lambda _, rows: rows, settings)  # INSERT completes them
                self._sources[name] = (table, DecodedRecords(source, table, settings) if has_records(table) else source)

    def advance_due(self) -> bool:
        now = self._clock()
        due = [running for running in self._by_pipeline() if running.is_due(now)]
        for running in due:
            self._step({running: {}}, now)
        return bool(due)

    def start(self, query: Query, *, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        if isinstance(output, SinkWriter):
            output.begin()
        if name is None:
            self._numbered += 1
            name = f"query_{self._numbered}"
        writer = table_written(output)
        group, begun = self._begun(name, query, stays_alone=writer is not None)
        running = Running(name, query, group.views[name], output, writer)
        try:
            self._claim(running)
            rows = self._contents(query)
            if begun is not None or rows or has_row_of_nothing(query.bound):
                self._begin(running, rows, begun)
        except BaseException:
            group.pipeline.close()
            if isinstance(output, SinkWriter):
                output.close()
            raise
        self.running.append(running)
        self._join(group, query)
        self._publish()
        return running

    def pause(self, running: Running) -> None:
        view = running.pipeline
        if not self._keep_tables and running.reads:
            raise SqlError(
                f'"{running.name}" could not catch up: the session keeps no rows of its tables. Open the session with '
                "keep_tables=True.",
                code="TABLES_NOT_KEPT",
                name=running.name,
            )
        if isinstance(view, GroupView):
            view.pause()
            self._groups = [group for group in self._groups if group.views]
        running.is_paused = True
        self._publish()

    def resume(self, running: Running) -> None:
        paused = running.pipeline
        group, begun = self._begun(running.name, running.query, stays_alone=running.writer is not None)
        epoch = group.pipeline.epoch
        running.pipeline, running.is_paused = group.views[running.name], False
        try:
            if isinstance(paused, GroupView):
                running.pipeline = running.pipeline.behind(paused)
            self._begin(running, self._contents(running.query), begun)
        except BaseException:
            if group.pipeline.epoch == epoch:
                running.pipeline, running.is_paused = paused, True
                group.pipeline.close()
            raise
        finally:
            if not running.is_paused:
                self._join(group, running.query)
            self._publish()

    def add_columns(self, table: Table, queries: Mapping[Running, Query], *, reread: Callable[[], str] | None = None) -> None:
        if table.name in self._sources or not self.kept_in_memory(table):
            raise SqlError(
                f'"{table.name}" is filled by its connector: in memory it keeps its columns. Use a directory.',
                code="NOT_OFFERED",
                name=table.name,
            )
        old = self._stored.get(table.name)
        again = None if reread is None else ZSet.of(self.rows_again(table, reread))
        if again is not None and old is None and len(again):
            raise none_taken(table.name, len(again))
        before = [(running, running.output, running.writer) for running in self.running]
        if old is not None:
            rows, wanted = old.contents(), table.kept().node.relation.schema
            there = dict(zip(rows.rows.schema.names, rows.rows.columns, strict=True))
            there |= {one.name: repeated_default(one, len(rows)) for one in table.columns if one.name not in there}
            if again is not None:
                check_same_rows(table.name, again, rows)
                rows, there = again, dict(zip(again.rows.schema.names, again.rows.columns, strict=True))
            columns = [there[one.name] for one in wanted]
            new = self._stored[table.name] = Pipeline(
                table.kept(), options=StageOptions(on_bad_input=old.options_in_force()["on_bad_input"])
            )
            if len(rows):
                new.step({table.name: ZSet(pa.RecordBatch.from_arrays(columns, schema=wanted), rows.weights)})
        for running in self.running:
            writer = table_written(running.output)
            if writer is not None and running.writes == table.name:
                running.output = running.writer = replace(writer, table=table)
        try:
            self.change(QueryChange(table.name, (), queries), is_preview=False)
        except BaseException:
            if old is not None and any(running.query is not query for running, query in queries.items()):
                self._stored[table.name] = old
                for running, output, kept in before:
                    running.output, running.writer = output, kept
            raise
        self.claims.pop(table.name, None)

    @staticmethod
    def kept_in_memory(table: Table) -> bool:
        """Return whether the rows of a table come by INSERT."""
        return table.options.get("connector") in {None, "memory"}

    def change(self, change: QueryChange, *, is_preview: bool) -> list[str]:
        self._check_change(change)
        before = [(running, running.query, running.pipeline) for running in change.queries]
        groups: dict[Running, ViewGroup] = {}
        changed: dict[Running, PreparedEpoch] = {}
        lines: list[str] = []
        took = False
        try:
            for running, query in change.queries.items():
                running.query = query
                if not running.is_paused:
                    self._claims_beside(running)  # while it is known what it holds
            for running, query in change.queries.items():
                if not running.is_paused:
                    groups[running], diff, changed[running] = self._continued(running, query)
                    running.pipeline = groups[running].views[running.name]
                    running.pipeline.begins = diff.views[running.name].status == "columns"
                    lines += change_lines(diff, [running])
            with SharedEpoch(self, self._clock()) as epoch:
                epoch.answer({}, changed=changed)
                for one in epoch.prepared:
                    self._check_only_added(one.queries, groups, one.prepared)
                if not is_preview:
                    took = True
                    self._fed |= epoch.tables
                    for running in groups:
                        if isinstance(running.pipeline, GroupView) and running.pipeline.begins:
                            running.deltas.clear()
                    epoch.commit()
        finally:
            for running, old, view in before:
                if not took:
                    running.query, running.pipeline = old, view
                elif running in groups:
                    view.close()
            self._groups = [group for group in self._groups if group.views]
            for running, group in groups.items():
                if took:
                    self._join(group, running.query)
                else:
                    group.pipeline.close()
            self._publish()
        return lines

    def _continued(self, running: Running, query: Query) -> tuple[ViewGroup, PlanDiff, PreparedEpoch]:
        """Return a group in which a query is another one from now on, what differs, and the epoch of that."""
        group = self._group(running.name, query, stays_alone=running.writer is not None)
        try:
            return group, *self._begin_from(group, [running])
        except BadInputError as error:
            raise named_error(error, [running], "It takes nothing.") from error

    def _begun(self, name: str, query: Query, *, stays_alone: bool) -> tuple[ViewGroup, PreparedEpoch | None]:
        """Return a group of a query; with its first epoch, where it reads views with rows that only their state shows."""
        group, read = self._group(name, query, stays_alone=stays_alone), self._reads_state(query)
        pipelines = {id(one.whole) for one in read}
        is_one = len(pipelines) == 1 or not self._keep_inputs  # inputs of one pipeline are not those of another
        if not read or not is_one or not query.bound.reads & self._fed:
            return group, None
        return group, self._begin_from(group, read)[1]

    def _begin_from(self, group: ViewGroup, read: Sequence[Running]) -> tuple[PlanDiff, PreparedEpoch]:
        """Let the query of a group continue with the state of other queries; where it cannot, the group is closed."""
        origins: dict[int, tuple[ChangingPipeline, list[str]]] = {}
        for one in read:
            assert isinstance(one.whole, ChangingPipeline)  # noqa: S101 - this runtime makes no other
            origins.setdefault(id(one.whole), (one.whole, []))[1].append(one.name)
        try:
            return group.pipeline.begin_from(list(origins.values()), tables=self._stored)
        except BaseException:
            group.pipeline.close()
            raise

    def _check_change(self, change: QueryChange) -> None:
        """Reject a change that the tables cannot build, or that written tables cannot follow."""
        for running, query in change.queries.items():
            if not self._keep_tables and query.bound.reads:
                raise SqlError(
                    f'"{running.name}" could not be built again: the session keeps no rows of its tables. Open the '
                    "session with keep_tables=True.",
                    code="TABLES_NOT_KEPT",
                    name=running.name,
                )
            refuse_replaced_rows(running, query)
            if running.is_paused:
                refuse_other_columns(running, query)
            old, new = running.query.bound.view.node.relation, query.bound.view.node.relation
            if isinstance(running.output, SinkWriter) and (
                not old.schema.equals(new.schema) or old.primary_key != new.primary_key
            ):
                raise SinkError(
                    f'"{running.name}" gets other columns or another key, and "{running.into}" has those of before. DROP it, '
                    "and write into a new table.",
                    code="EVOLVE_OUTPUT",
                    views=(running.name,),
                )
        written = {running.writes for running in change.queries if running.writes is not None}
        for running in in_order(self.running):  # and what follows from their rows
            if running.writes is not None and running.reads & written:
                written.add(running.writes)
        for running, query in change.queries.items():
            both = sorted(written & query.bound.reads)
            if both:
                raise SqlError(
                    f'"{running.name}" reads the table "{both[0]}", which another query writes that follows "{change.name}" as '
                    "well: in memory they do not change at once. Read the view in place of the table.",
                    code="NOT_OFFERED",
                    name=running.name,
                )

    @staticmethod
    def _check_only_added(queries: Sequence[Running], changed: Collection[Running], prepared: PreparedEpoch) -> None:
        """Refuse to retract rows of a table that is append-only."""
        for running in [one for one in queries if one in changed]:
            only_adds = running.writer is not None and running.writer.table.mode == "append"
            if only_adds and (running.answer_in(prepared).weights < 0).any():
                raise SqlError(
                    f'"{running.name}" writes into "{running.into}", which is append-only, and the change retracts '
                    "rows. DROP it, and write into a table with a primary key.",
                    code="NOT_OFFERED",
                    name=running.name,
                )

    def _whole(self, query: Query) -> Collection[str]:
        """Return the tables of a query of which one copy serves all queries, also those to come."""
        return query.bound.reads if self._keep_tables else ()

    def _group(self, name: str, query: Query, *, stays_alone: bool) -> ViewGroup:
        options = stage_options(query.settings)
        view, others = query.bound.view, dict[str, View]()
        for one in self._reads_state(query):  # beside them its stages have the form that theirs have
            node = self.catalog.views[one.name].query.view
            others[one.name] = replace(node, node=self._started(one.query, node.node, options))
        pipeline = ChangingPipeline(
            {**others, name: replace(view, node=self._started(query, view.node, options))},
            options=options,
            idle_timeout_seconds=idle_timeout(query.settings),
            keep_inputs=self._keep_inputs,
            whole=self._whole(query),
        )
        for other in others:
            pipeline.drop(other)
        return ViewGroup(name, pipeline, options=options, stays_alone=stays_alone)

    def _join(self, group: ViewGroup, query: Query) -> None:
        """Let a query that holds what its tables do be answered with others, where there are some like it."""
        may_join = self._keep_tables or not query.bound.reads & self._fed
        taker = next((one for one in self._groups if may_join and one.can_take_over(group)), None)
        if taker is None:
            self._groups.append(group)
        else:
            taker.take_over(group, fed=self._fed)
        self._hold_once()

    def _hold_once(self) -> None:
        """Let tables and queries hold the rows of a table together; no thread reads them meanwhile."""
        groups, self._is_held_once = [group.pipeline for group in self._groups if group.views], True
        with ExitStack() as stack:
            for lock in [one.lock for one in self._stored.values()] + [one.lock for one in groups]:
                stack.enter_context(lock)
            for one in groups:
                one.hold_with(self._stored)

    def stop(self, running: Running) -> None:
        if running in self.running:
            if running.writes is not None and not self._is_closing:
                self.claims_of(running.writes)  # while it is known which rows of the table are its own
            self.running.remove(running)
            self._unclaim(running)
            running.pipeline.close()
            self._groups = [group for group in self._groups if group.views]
            self._publish()
            if isinstance(running.output, SinkWriter):
                running.output.close()

    def snapshot(self, query: Query) -> pa.Table:
        group, begun = self._begun(_SNAPSHOT, query, stays_alone=True)
        with group.pipeline as pipeline:
            if begun is None:
                pipeline.step(self._contents(query), processing_time=self._clock())
            return sorted_rows(pipeline.view(_SNAPSHOT), query.bound)

    def forget(self, name: str) -> None:
        for running in [one for one in self.running if name in one.reads or one.name == name]:
            self.stop(running)
        self._fed.discard(name)
        for kept in (self._stored.pop(name, None), self.claims.pop(name, None)):
            if kept is not None:
                kept.close()

    def close(self) -> None:
        self._is_closing = True
        for running in list(self.running):
            self.stop(running)
        for stored in self._stored.values():
            stored.close()
        for claims in self.claims.values():
            claims.close()
        for _, source in self._sources.values():
            source.close()
        self._stored, self._sources, self.claims, self._is_closing = {}, {}, {}, False

    def _by_pipeline(self) -> list[Running]:
        """Return a query of each pipeline, in the order in which they write and read."""
        return list({id(running.whole): running for running in in_order(self.running) if not running.is_paused}.values())

    def _contents(self, query: Query) -> dict[str, Any]:
        known = {source.name for source in query.bound.view.plan().sources}
        return {name: self._stored[name].contents() for name in sorted(query.bound.reads & known) if name in self._stored}

    def _feed(self, table: Table, rows: Any, now: int) -> None:
        """Take rows of a table as one epoch of all queries that they reach, and of what is kept of the table; or of none."""
        with SharedEpoch(self, now) as epoch:
            epoch.answer({table.name: rows})
            self._fed |= epoch.tables
            try:
                epoch.commit()
            finally:  # an output that fails has its epoch, as all queries have
                self._publish()
        if not self._is_held_once:
            self._hold_once()

    def _begin(self, running: Running, rows: Mapping[str, Any], begun: PreparedEpoch | None) -> None:
        """Let a query begin with the rows of its tables, or with an epoch that its pipeline has taken."""
        if begun is None:
            self._step({running: rows}, self._clock())
        else:
            self._step({}, self._clock(), {running: begun})

    def _step(
        self, first: Mapping[Running, Mapping[str, Any]], now: int, changed: Mapping[Running, PreparedEpoch] | None = None
    ) -> None:
        """Take an epoch of some queries, and of those that read what they write; or of none."""
        with SharedEpoch(self, now) as epoch:
            epoch.answer({}, first=first, changed=changed)
            self._fed |= epoch.tables
            try:
                epoch.commit()
            finally:  # an output that fails has its epoch, as all queries have
                self._publish()
        if not self._is_held_once:
            self._hold_once()

    def table_pipeline(self, table: Table) -> Pipeline | None:
        if self._keep_tables and table.name not in self._stored:
            policy = self.catalog.settings.get("on_bad_input", "error")
            self._stored[table.name] = Pipeline(table.kept(), options=StageOptions(on_bad_input=policy))
            self._is_held_once = False
        return self._stored.get(table.name)

    def _rows_held(self, table: Table) -> pa.Table | ZSet | None:
        """Return the rows that a table holds, perhaps with those of retracting queries; None for none."""
        stored = self._stored.get(table.name)
        rows = None if stored is None else stored.contents()
        return rows if rows is not None and len(rows) else None
