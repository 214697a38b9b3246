"""A session in this process that lasts: its queries go on where they were, whenever its statements are run again.

    session = connect(directory="shop")
    session.sql("CREATE TABLE orders (...) WITH ('connector' = 'kafka', ...); INSERT INTO revenue SELECT ... FROM orders")
    while True:
        session.read()

    shop/tables/orders/000000000001.parquet      an INSERT into a table without a connector
    shop/queries/into_revenue/                   a pipeline: state, log, positions of what it reads
    shop/once/statement-...                      an INSERT of stored rows outside, see `in_directory`

The law: after a stop at any moment, killed or not, the same statements run again take every row of every table once, and a
sink has every epoch once. A printed change may come again: a screen does not say what it has shown.

A query is known by its name: that of the view or sink, `into_t` of INSERT INTO t SELECT, and `query_1`, `query_2` of the
SELECTs in their order. Its text must stay what it was; DROP forgets it, with its state.

Known limits: an INSERT ... VALUES that is run again inserts again, unless it is run within `once`, as `zset-join run` does.
Records of changes are decoded inside each query: no column of theirs holds the processing time. Every query reads for itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.core.errors import SqlError, ZsetJoinError
from zset_join.pipeline import Pipeline
from zset_join.sql.dml.shared_epochs import SharedEpoch, in_order
from zset_join.sql.dml.writing import table_written
from zset_join.sql.runtime.completing import completed_table
from zset_join.sql.runtime.durable_queries import DurableRunning, advance_together, groups_of
from zset_join.sql.runtime.in_directory import InDirectory, claim_directory
from zset_join.sql.runtime.in_process import ProcessRuntime
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.results import Query, Running, has_row_of_nothing, sorted_rows
from zset_join.sql.tables.settings import idle_timeout, stage_options
from zset_join.sql.tables.stored_tables import StoredTables
from zset_join.sql.tables.table_sources import DecodingCatalog, TableSource, decoded_rows, source_of
from zset_join.storage import local
from zset_join.zset import ZSet

__all__ = ["DirectoryRuntime"]

_WAIT_SECONDS = 2.0


class DirectoryRuntime(InDirectory, ProcessRuntime):
    """Run queries in this process, in a directory.

    Args:
        directory: where rows that are inserted, state and positions are kept; of one session at a time.
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
        self._directory_lock = claim_directory(self._directory)
        self._tables = StoredTables(self._directory / "tables")

    def close(self) -> None:
        """End all queries; another session may take the directory."""
        try:
            super().close()
        finally:
            self._directory_lock.release()

    def check_insert(self, table: Table) -> None:
        """Refuse rows for a table that its connector fills."""
        if not _is_stored(table):
            raise SqlError(
                f'"{table.name}" is filled by its connector; insert into a table without one.',
                code="NOT_A_TABLE",
                name=table.name,
            )

    def start(self, query: Query, *, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        """Run a query, from where it was."""
        name = name or self._free_name(output)
        sink = self._sink(output)
        sources: dict[str, TableSource] = {}

        def open_sources(positions: Mapping[str, Any]) -> None:
            for table in self._read_by(query):
                where = self._place(name) / "read"
                source = source_of(table, self._tables, self._all_columns, query.settings, where, query=name)
                source.open(positions.get(table.name))
                sources[table.name] = source

        try:
            pipeline = Pipeline(
                query.bound.view,
                self._place(name),
                outputs=() if sink is None else (sink,),
                options=stage_options(query.settings),
                idle_timeout_seconds=idle_timeout(query.settings),
                keep_inputs=self._keep_inputs,
                before_begin=open_sources,
            )
        except BaseException:
            for source in sources.values():
                source.close()
            raise
        printed = None if sink is not None else output
        running = DurableRunning(name, query, pipeline, printed, table_written(output), sources=sources)
        try:
            self._claim(running)
        except BaseException:
            running.close()
            raise
        self.running.append(running)
        running.is_paused = self._pause_of(running).exists()
        if running.is_paused:
            self._publish()
            return running
        try:
            if running.writes is not None and not running.takes_back:
                self.claims_of(running.writes)  # its rows may not go over keys that others claim
            self.settle()
            if running.pipeline.epoch == 0 and has_row_of_nothing(query.bound):
                running.take({}, running.pipeline.positions, self._clock(), claims=self.claims)
        except BaseException:
            self.stop(running)
            raise
        return running

    def stop(self, running: Running) -> None:
        """End a query that runs; its state stays."""
        if running in self.running:
            self.running.remove(running)
            assert isinstance(running, DurableRunning)  # noqa: S101 - this session starts no other
            self._unclaim(running)
            running.close()
            self._publish()

    def pause(self, running: Running) -> None:
        """Let a query take nothing until `resume`, also where its statements are run again meanwhile."""
        local.write_atomic(self._pause_of(running), b"")
        running.is_paused = True

    def resume(self, running: Running) -> None:
        """Let a query take what was inserted meanwhile, in one epoch, and go on.

        Raises:
            ZsetJoinError: it cannot be answered; it stays paused.
        """
        assert isinstance(running, DurableRunning)  # noqa: S101 - this session starts no other
        running.is_paused = False
        try:
            advance_together([running], self._clock(), self.claims, wait_seconds=0.0, is_behind=True)
        except BaseException:
            running.is_paused = True
            raise
        local.remove_file(self._pause_of(running))
        self.settle()

    def _pause_of(self, running: Running) -> Path:
        """Return the file that is there as long as a query is paused."""
        return self._place(running.name) / "paused"

    def read(self, *, wait_seconds: float, rounds: int | None = None) -> int:
        """Let every query take what has come in its tables, until none has anything; return the number of rounds."""
        groups = [(one, None) for one in groups_of(self._going())]
        return self._drain(groups, wait_seconds=wait_seconds, most=rounds)

    def settle(self) -> None:
        """Let queries take what was inserted.

        Raises:
            ZsetJoinError: what stopped one of them; all others have taken it.
        """
        stored = {name for name, table in self.catalog.tables.items() if _is_stored(table)}
        self._drain([([one], stored) for one in self._going()], wait_seconds=0.0)

    def advance(self) -> None:
        """Let an epoch without rows pass in every query, so that what is due is done."""
        for running in self._going():
            self._step(running, self._clock())
        self.settle()

    def advance_due(self) -> bool:
        """Let an epoch pass in the queries that are due by now; return whether there were any."""
        now = self._clock()
        due = [running for running in self._going() if running.is_due(now)]
        for running in due:
            self._step(running, now)
        if due:
            self.settle()
        return bool(due)

    def _step(self, running: DurableRunning, now: int) -> None:
        """Take an epoch without rows of one query; those that read what it writes take it from the table."""
        running.take({}, {}, now, claims=self.claims)
        self._publish()

    def _going(self) -> list[DurableRunning]:
        """Return the queries that are not paused, in the order in which they write and read."""
        return [one for one in in_order(self.running) if isinstance(one, DurableRunning) and not one.is_paused]

    def _drain(
        self,
        groups: Sequence[tuple[Sequence[DurableRunning], set[str] | None]],
        *,
        wait_seconds: float,
        most: int | None = None,
    ) -> int:
        """Let groups of queries take what their tables have until none has anything; return the number of rounds.

        Raises:
            ZsetJoinError: what stopped the first group that was stopped; the others go on.
        """
        rounds, left, failed = 0, list(groups), list[ZsetJoinError]()
        moved = True
        while moved and (most is None or rounds < most):
            moved = False
            for group in list(left):
                try:
                    moved = (
                        advance_together(group[0], self._clock(), self.claims, wait_seconds=wait_seconds, only=group[1])
                        or moved
                    )
                except ZsetJoinError as error:
                    failed.append(error)
                    left.remove(group)
            rounds += moved
        self._publish()
        if failed:
            raise failed[0]
        return rounds

    def snapshot(self, query: Query) -> pa.Table:
        """Return what a query holds over everything that its tables have; they are read from the beginning."""
        with Pipeline(query.bound.view, options=stage_options(query.settings)) as pipeline:
            running = DurableRunning("snapshot", query, pipeline)
            try:
                for table in self._read_by(query):
                    running.sources[table.name] = source_of(table, self._tables, self._all_columns, query.settings)
                    running.sources[table.name].open(None)
                taken = 0
                while advance_together([running], self._clock(), {}, wait_seconds=_WAIT_SECONDS):
                    taken += 1
                if not taken:
                    pipeline.step({}, processing_time=self._clock())
                return sorted_rows(pipeline.view(), query.bound)
            finally:
                for source in running.sources.values():
                    source.close()

    def forget(self, name: str) -> None:
        """Release a dropped table or view: its rows, and the queries of it with their state."""
        gone = [running.name for running in self.running if name in running.reads or running.name == name]
        for running in [one for one in self.running if one.name in gone]:
            self.stop(running)
        claims = self.claims.pop(name, None)
        if claims is not None:
            claims.close()
        for one in {*gone, name}:
            shutil.rmtree(self._place(one), ignore_errors=True)
        self._tables.forget(name)  # last: a query would miss rows of a table that begins again

    def _feed(self, table: Table, rows: Any, now: int) -> None:
        """Answer rows in all queries that they reach, write them down, and only then let the queries commit."""
        once = self.statement
        self.settle()
        if once is not None and self._tables.digest_of(table, once) is not None:
            return
        with SharedEpoch(self, now) as epoch:
            epoch.answer({table.name: rows})
            accepted = epoch.accepted[table.name]
            self._tables.make(table)
            self._tables.write(table, accepted.rows, once=once, aside=accepted.aside)
            epoch.claim_others()
            for one in epoch.prepared:
                (running,) = one.queries
                assert isinstance(running, DurableRunning)  # noqa: S101 - this session starts no other
                running.prepared = one.rows, one.prepared
            try:
                self.settle()
            finally:
                for running in self._going():
                    running.prepared = None

    def _add(self, table: Table, rows: pa.Table | ZSet, once: str | None, digest: str = "") -> None:
        self._tables.make(table)
        self._tables.write(table, rows, once=once, digest=digest)

    def _all_columns(self, table: Table, rows: pa.Table) -> pa.Table:
        return completed_table(table, rows, self._clock(), self.dialect)

    def _rows_held(self, table: Table) -> pa.Table | ZSet | None:
        return self._tables.inserted(table)

    def _read_by(self, query: Query) -> list[Table]:
        known = {source.name for source in query.bound.view.plan().sources}
        return [self.catalog.tables[name] for name in sorted(query.bound.reads & known)]


def _is_stored(table: Table) -> bool:
    """Return whether a table has no connector that gives or takes its rows."""
    return table.options.get("connector") in {None, "memory"}
