"""Queries and tables in a directory, in this process: one pipeline, with one checkpoint.

    shop/session.lock                           held as long as the session is open
    shop/session.json                           how the directory is laid out
    shop/catalog/000000000007.json              the statements that made the present content
    shop/pipeline/                              one pipeline: the rows of tables, the queries, what sources were read
    shop/read/                                  names of files that were read
    shop/once/                                  under which id a statement wrote outside

Every table is a source of the pipeline, and a view of it, so that its rows are kept; every query is a view. An INSERT, and
what a connector brings, is one epoch of all of them or of none. CREATE and DROP change the plan of the pipeline: a new query
begins with what its tables hold.

The law: whenever a session is opened again, killed or not, it is at the last epoch that all its queries took: tables,
queries and positions of sources are of one commit record. A statement that is run again, as it was, changes nothing; an INSERT
does so within `once`.

Memory: the rows of all tables and queries. Cost: of an INSERT, one commit; of CREATE and DROP, what they build, and one commit.

Known limits: all queries have the `on_bad_input` and the idle timeout that are set when the first one is made. Of a table that
a connector fills, everything that arrived is kept. Joins by time that arrive when there are rows keep an index of their own,
and take these rows as if they came then; a lookup join looks all of them up then.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from zset_join.core.errors import BadInputError, SqlError, StateError, ZsetJoinError
from zset_join.core.row_conversion import repeated_positions
from zset_join.core.shown_values import counted
from zset_join.plan.tree import in_zone
from zset_join.runners.local.contents import repeated
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.sql.dml.shared_epochs import accepted_rows, combined, failing_queries, named_error
from zset_join.sql.dml.writing import table_written
from zset_join.sql.runtime.declarations import Declaration
from zset_join.sql.runtime.durable_changes import DurableChanges
from zset_join.sql.runtime.durable_plan import BASE, ROWS
from zset_join.sql.runtime.durable_queries import DurableQuery, OwnView, held_relation, is_fed, sink_of
from zset_join.sql.runtime.written_tables import read_with_writers
from zset_join.sql.tables.catalog import Table, refuse_our_columns
from zset_join.sql.tables.file_names import file_name
from zset_join.sql.tables.results import Query, Running, has_row_of_nothing, sorted_rows
from zset_join.sql.tables.settings import driver_options, idle_timeout, stage_options
from zset_join.sql.tables.view_groups import GroupView
from zset_join.sql_expressions.positions import SqlWarning
from zset_join.stages.written import read_relation
from zset_join.storage import local
from zset_join.zset import ZSet

__all__ = ["DirectoryRuntime"]

_NOTHING = "No table and no query took any of the rows."
_SNAPSHOT = "(snapshot)"
_WAIT_SECONDS = 2.0
_PAUSE = "PAUSE MATERIALIZED VIEW lets the others take rows that one view cannot."


class DirectoryRuntime(DurableChanges):
    # ---------------------------------------------------------------- queries

    def start(self, query: Query, *, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        """Run a query, or continue with the one of its name; see `Session.start`."""
        name = name or self._free_name(output, query)
        known = next((one for one in self.running if one.name == name), None)
        if isinstance(known, DurableQuery) and known.is_restored:
            return self._gone_on_with(known, query, output)
        if known is not None or name == BASE or name.startswith(ROWS) or any(one.name == name for one in self._stopped):
            raise SqlError(f'the name "{name}" is taken. Start the query under another one.', code="NAME_TAKEN", name=name)
        self._begin_with(query.settings)
        self._check_options(query)
        running = DurableQuery(name, query, OwnView(self._group, name, query.schema), output, table_written(output))
        running.since = 0 if self._is_restoring else self.came_at(query)
        if self._is_restoring:
            self.running.append(running)
            return running
        claims = self._claims_beside(running)
        made = None
        if self._statement is None:
            dialect = query.dialect or self.dialect
            made = Declaration(names=(name,), sql=query.sql, dialect=dialect, settings=query.settings, query=name)
        sink = sink_of(output)
        self.running.append(running)
        try:
            self._change({} if sink is None else {name: sink}, made, of=running)
        except BaseException:
            if name not in self._views:
                self.running.remove(running)
            raise
        if running.writer is not None:
            self._claim_contents(running, claims)
        self._feed_written()
        if self.pipeline.epoch == 0 and has_row_of_nothing(query.bound):
            self._take({}, self._clock())
        return running

    def _claim_contents(self, running: Running, claims: Any) -> None:
        """Count the rows of a query that has begun, or stop it where one of them has a key that another row claims."""
        if claims is None:
            return
        assert running.writer is not None  # noqa: S101 - as the caller checks
        contents = [(running.pipeline.contents(), running.writer.names)]
        try:
            claims.check(contents, running.name)
        except BaseException:
            self.running.remove(running)
            if running.name in {*self.catalog.views, *self.catalog.sinks}:
                self.catalog.drop(running.name)
            self._change({})
            raise
        claims.add(contents)

    def _gone_on_with(self, known: DurableQuery, query: Query, output: Callable[[ZSet], None] | None) -> Running:
        """Return a query that was present when the session was opened."""
        if (known.query.sql, known.query.settings) != (query.sql, query.settings):
            raise StateError(
                f'the session has a query "{known.name}" with another text or other settings: {known.query.sql} Start this one '
                "under another name, or stop that one.",
                code="QUERY_CHANGED",
                query=known.name,
            )
        known.is_restored = False
        if sink_of(known.output) is None:
            known.output = output
        return known

    def _check_options(self, query: Query) -> None:
        """Refuse settings of a query that its stages cannot have by themselves, and that differ from those of the session.

        Threads, snapshots and the columns that are stored are those of the session too: they change no answer, so others warn.
        """
        if self._is_restoring:
            return
        whole = {"on_bad_input": _bad_input, "idle_timeout": idle_timeout}
        wanted, had = driver_options(query.settings), driver_options(self._settings)
        for name in ("driver_threads", "keep_state", "snapshot_after_bytes"):
            if getattr(wanted, name) != getattr(had, name):
                warnings.warn(
                    SqlWarning(
                        f"the setting '{name}' has no effect: the directory keeps {getattr(had, name)}, of its first table."
                    ),
                    stacklevel=6,
                )
        other = [name for name, read in whole.items() if read(query.settings) != read(self._settings)]
        if other:
            raise SqlError(
                f"this query has another {' and '.join(other)} than the session. It decides on the rows of tables, which all "
                "queries of a directory read as one pipeline, so it is the same for all. SET it before the first table, or use "
                "another directory.",
                code="SESSION_SETTINGS",
                settings=other,
            )

    def stop(self, running: Running) -> None:
        """End a query; what it wrote into a table of the session goes with it."""
        if running in self.running:
            self._ended([running])

    def _ended(self, ended: Sequence[Running]) -> None:
        """End queries by one change of the plan; where that fails, they are present as before."""
        before, views, stopped = list(self.running), self._views, list(self._stopped)
        for running in ended:
            self._put_aside(running)
        try:
            self._change({})
        finally:
            if self._views is views and not self._is_restoring:
                self.running[:], self._stopped = before, stopped
            else:
                for running in ended:
                    self._unclaim_stopped(running)

    def _unclaim_stopped(self, running: Running) -> None:
        if running.writes is not None and running.writes in self.claims:
            self.claims.pop(running.writes).close()

    def pause(self, running: Running) -> None:
        """Let a query take nothing until `resume`, also where the session is opened again meanwhile.

        Its outputs, and the tables that it writes, keep what they have of it. One change of the plan; see `held_rows`.
        """
        assert isinstance(running, DurableQuery)  # noqa: S101 - this runtime starts no other
        pipeline, view, views = self.pipeline, OwnView(self._group, running.name, running.query.schema), self._views
        view.pause()
        relation = held_relation(pipeline.plan.output_of(running.name), f"{running.name} (paused at epoch {pipeline.epoch})")
        running.held, running.is_paused = relation, True
        rows = pipeline.contents(running.name)
        named = ZSet(pa.RecordBatch.from_arrays(rows.rows.columns, schema=relation.schema), rows.weights)
        try:
            self._change({}, first_rows={relation.name: named})
        finally:
            if self._views is views:
                running.held, running.is_paused = None, False
            else:
                running.pipeline = view
        self._feed_written()

    def resume(self, running: Running) -> None:
        """Let a query catch up with its tables; its first change is what became of its rows meanwhile.

        Raises:
            ZsetJoinError: it cannot be answered; it stays paused.
        """
        assert isinstance(running, DurableQuery)  # noqa: S101 - this runtime starts no other
        view, held, since, views = running.pipeline, running.held, running.since, self._views
        running.held, running.is_paused, running.since = None, False, self.came_at(running.query)
        running.pipeline = OwnView(self._group, running.name, running.query.schema)
        try:
            self._check_claims([running])
            self._change({}, of=running)
        finally:
            if self._views is views:
                running.pipeline, running.held, running.is_paused, running.since = view, held, True, since
        self._feed_written()

    def _hold(self, running: Running, written: Mapping[str, Any]) -> None:
        assert isinstance(running, DurableQuery)  # noqa: S101 - this runtime starts no other
        running.held, running.is_paused = read_relation(written), True
        running.pipeline = OwnView(self._group, running.name, running.query.schema)
        running.pipeline.pause()

    def snapshot(self, query: Query) -> pa.Table:
        known = [name for name in sorted(query.bound.reads) if f"{ROWS}{name}" in self._views]
        if (self._reads_state(query) or any(len(self.catalog.tables[name].hidden) for name in known)) and self.pipeline.epoch:
            view = self._fed(read_with_writers(self.as_run(query, self.came_at(query)), self._written(), self._added))
            diff = self.pipeline.diff({**self._views, _SNAPSHOT: view}, as_now=True)
            return sorted_rows(repeated(diff.views[_SNAPSHOT].added, query.schema), query.bound)
        view = replace(query.bound.view, node=in_zone(query.bound.view.node, self.catalog.zone))
        with Pipeline(view, options=stage_options(query.settings)) as pipeline:
            sources = {source.name for source in query.bound.view.plan().sources}
            rows = {name: self._held(self.catalog.tables[name]) for name in sorted(query.bound.reads & sources)}
            pipeline.step({name: one for name, one in rows.items() if one is not None}, processing_time=self._clock())
            return sorted_rows(pipeline.view(), query.bound)

    def _held(self, table: Table) -> pa.Table | ZSet | None:
        """Return the rows of a table, those that queries write into it among them."""
        if f"{ROWS}{table.name}" not in self._views:
            return self._read_whole(table)
        held = self.pipeline.contents(f"{ROWS}{table.name}")
        parts = [held]
        for running in self.running:
            if running.writer is not None and running.writes == table.name and not is_fed(running):
                rows = running.pipeline.contents()
                written = self.completed(table, ZSet(_renamed(rows, running.writer.names), rows.weights), self._clock())
                assert isinstance(written, ZSet)  # noqa: S101 - as it was given
                parts.append(ZSet(written.rows.select(held.rows.schema.names), written.weights))
        whole = ZSet.concat(parts, schema=held.rows.schema)
        if table.mode != "append":
            return whole
        return pa.Table.from_batches([whole.rows]).take(pa.array(repeated_positions(whole.weights)))

    def _read_whole(self, table: Table) -> pa.Table | ZSet | None:
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

    # ---------------------------------------------------------------- epochs

    def check_insert(self, table: Table) -> None:
        if not self.is_inserted(table):
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

    def advance_due(self) -> bool:
        if not any(one.is_due(self._clock()) for one in self.running if not one.is_paused):
            return False
        self._take({}, self._clock())
        return True

    def _take(self, rows: Mapping[str, Any], now_us: int, **more: Any) -> None:
        """Take rows of tables as one epoch, and then what queries that never retract write into tables with a key."""
        self._feed_written()
        self._take_one(rows, now_us, **more)
        self._feed_written()

    def _feed_written(self) -> None:
        """Write the rows of queries that never retract into tables with a key, where the newest row of a key counts.

        Raises:
            ZsetJoinError: a query cannot take them; they wait, and come before any other rows.
        """
        while self._unfed:
            waiting, self._unfed = self._unfed, []
            by_table: dict[str, list[Any]] = {}
            for _, table, rows in waiting:
                by_table.setdefault(table, []).append(rows)
            try:
                fed = {table: combined(parts) for table, parts in by_table.items()}
                self._take_one(fed, self._clock(), origin=f'the query "{waiting[0][0]}"')
            except BaseException:
                self._unfed = [*waiting, *self._unfed]
                raise

    def _restored_rows(self) -> None:
        """Find what the last epoch of the directory has for tables with a key: a process that died had not given it to them."""
        pipeline = self.pipeline
        if pipeline.epoch and any(is_fed(one) for one in self.running):
            answers = pipeline.step(epoch=pipeline.epoch - 1)
            for running in self.running:
                if running.name in answers:
                    self._note_written(running, answers[running.name])
            self._feed_written()

    def _take_one(
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
                "fed": sorted({*before.get("fed", ()), *rows}),
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
        failed: list[Exception] = []
        for running in self.running:
            view = running.pipeline
            if not running.is_paused and isinstance(view, GroupView):
                delta = view.answer_of(prepared.answers)
                failed += self._emit(running, delta)
                self._note_written(running, delta)
                view.took()
        for name in self.catalog.tables:
            self._warn_of(name)
        self._publish()
        if failed:
            raise failed[0]

    def _warn_of(self, name: str) -> None:
        """Warn of rows that a table did not take and that no query lists."""
        letters = self.pipeline.dead_letters
        if letters.num_rows and not any(name in one.reads for one in self.running):
            own = letters.filter(pa.array([source == name for source in letters.column("source").to_pylist()]))
            if own.num_rows:
                first = own.slice(0, 1).to_pylist()[0]
                warnings.warn(
                    SqlWarning(
                        f'table "{name}": {counted(own.num_rows, "row")} quarantined, the first: '
                        f"[{first['code']}] {first['reason']}"
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
            claims = None if writer is None or running.is_paused or is_fed(running) else self.claims.get(writer.table.name)
            if claims is None or writer is None:
                continue
            delta = running.answer_in(prepared)
            if len(delta):
                by_table.setdefault(writer.table.name, []).append((delta, writer.names))
                claims.check(by_table[writer.table.name], running.name)
        for running in [one for one in self.running if is_fed(one) and not one.is_paused]:
            writer, delta = running.writer, running.answer_in(prepared)
            claims = None if writer is None or not len(delta) else self.claims_of(writer.table.name)
            if claims is not None and writer is not None:
                claimed = by_table.get(writer.table.name, [])
                claims.check_others(writer.rows(delta), claimed, f'the query "{running.name}"')
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
        if f"{ROWS}{table.name}" not in self._views:
            return None
        rows = self.pipeline.contents(f"{ROWS}{table.name}")
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
            if known is None or (isinstance(known, DurableQuery) and known.is_restored and known.query.sql == query.sql):
                return name
            number += 1

    def forget(self, name: str) -> None:
        """Release the state of a dropped table or view, and end its queries: one change of the plan."""
        reading = [one.name for one in self._kept if name in one.query.bound.names - one.reads and one.name != name]
        if reading:
            raise SqlError(f'"{name}" is read by {", ".join(reading)}. Stop those first.', code="STILL_READ", name=name)
        self._gone.add(name)
        try:
            self._ended([one for one in self.running if name in one.reads or one.name == name])
        finally:
            self._gone.discard(name)
        claims = self.claims.pop(name, None)
        if claims is not None:
            claims.close()

    def close(self) -> None:
        """Release the directory; queries continue when it is opened again."""
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


def _bad_input(settings: Mapping[str, str]) -> str:
    return settings.get("on_bad_input", "error")


def _renamed(rows: ZSet, names: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(rows.rows.columns, names=list(names))
