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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.errors import SqlError
from zset_join.pipeline import Pipeline
from zset_join.sql.catalog import Table
from zset_join.sql.in_directory import InDirectory, claim_directory
from zset_join.sql.results import Query, Running, sorted_rows
from zset_join.sql.session import Session
from zset_join.sql.settings import idle_timeout, stage_options
from zset_join.sql.stored_tables import StoredTables
from zset_join.sql.table_sources import DecodingCatalog, TableSource, decoded_rows, source_of
from zset_join.sql.writing import table_written
from zset_join.zset import ZSet

__all__ = ["LastingSession"]

_WAIT_SECONDS = 2.0


class LastingSession(InDirectory, Session):
    """Run statements in this process, in a directory; made by `connect(directory=...)`.

    Args:
        dialect: whose SQL statements are written in.
        clock: returns the processing time in microseconds since 1970.
        directory: where rows that are inserted, state and positions are kept; of one session at a time.
        keep_inputs: let running queries keep every change that comes, for `Running.verify()`.

    Raises:
        StateError: another session has the directory, or it is laid out otherwise.
    """

    def __init__(
        self, *, dialect: str, clock: Callable[[], int] | None, directory: str | Path, keep_inputs: bool = False
    ) -> None:
        super().__init__(dialect=dialect, keep_tables=False, clock=clock, keep_inputs=keep_inputs)
        self.catalog = DecodingCatalog(dialect, decoded_rows)
        self._directory = Path(directory).absolute()
        self._claim = claim_directory(self._directory)
        self._tables = StoredTables(self._directory / "tables")

    def close(self) -> None:
        """End all queries; another session may take the directory."""
        try:
            super().close()
        finally:
            self._claim.release()

    def insert(self, name: str, rows: Any) -> int:
        """Add rows to a table, as one epoch of every query that reads it.

        Raises:
            SqlError: as of any session; or the rows of the table come from elsewhere.
        """
        table = self.catalog.find(name)
        if isinstance(table, Table) and not _is_stored(table):
            raise SqlError(
                f'"{name}" is filled by its connector; insert into a table without one.', code="NOT_A_TABLE", name=name
            )
        return super().insert(name, rows)

    def start(self, query: Query, *, name: str | None = None, output: Callable[[ZSet], None] | None = None) -> Running:
        """Run a query, from where it was; see `Session.start`."""
        if query.bound.is_bounded:
            raise SqlError("this query reads what is stored and ends; take its table().", code="BOUNDED")
        name = name or self._free_name(output)
        sink = self._sink(output)
        pipeline = Pipeline(
            query.bound.view,
            self._place(name),
            outputs=() if sink is None else (sink,),
            options=stage_options(query.settings),
            idle_timeout_seconds=idle_timeout(query.settings),
            keep_inputs=self._keep_inputs,
        )
        running = _LastingRunning(name, query, pipeline, None if sink is not None else output, table_written(output))
        try:
            for table in self._read_by(query):
                source = source_of(table, self._tables, self._all_columns, query.settings, self._place(name) / "read")
                source.open(pipeline.positions.get(table.name))
                running.sources[table.name] = source
        except BaseException:
            running.close()
            raise
        self.running.append(running)
        self.settle()
        return running

    def stop(self, running: Running) -> None:
        """End a query that runs; its state stays."""
        if running in self.running:
            self.running.remove(running)
            assert isinstance(running, _LastingRunning)  # noqa: S101 - this session starts no other
            running.close()

    def read(self, *, wait_seconds: float = _WAIT_SECONDS) -> int:
        """Let every query take what has come in its tables, until none has anything; return the number of epochs.

        Args:
            wait_seconds: how long a source that says nothing is waited for.
        """
        epochs = 0
        moved = True
        while moved:
            moved = False
            for running in list(self.running):
                assert isinstance(running, _LastingRunning)  # noqa: S101 - this session starts no other
                moved = running.advance(self._clock(), wait_seconds=wait_seconds) or moved
            epochs += moved
        return epochs

    def settle(self) -> None:
        """Let queries take what was inserted."""
        moved = True
        while moved:
            moved = False
            for running in list(self.running):
                assert isinstance(running, _LastingRunning)  # noqa: S101 - this session starts no other
                own = {name for name in running.sources if _is_stored(self.catalog.tables[name])}
                moved = running.advance(self._clock(), wait_seconds=0.0, only=own) or moved

    def snapshot(self, query: Query) -> pa.Table:
        """Return what a query holds over everything that its tables have; they are read from the beginning."""
        with Pipeline(query.bound.view, options=stage_options(query.settings)) as pipeline:
            running = _LastingRunning("snapshot", query, pipeline)
            try:
                for table in self._read_by(query):
                    running.sources[table.name] = source_of(table, self._tables, self._all_columns, query.settings)
                    running.sources[table.name].open(None)
                taken = 0
                while running.advance(self._clock(), wait_seconds=_WAIT_SECONDS):
                    taken += 1
                if not taken:
                    pipeline.step({}, processing_time=self._clock())
                return sorted_rows(pipeline.view(), query.bound)
            finally:
                for source in running.sources.values():
                    source.close()

    def forget(self, name: str) -> None:
        """Let go of a dropped table or view: its rows, and the queries of it with their state."""
        gone = [running.name for running in self.running if name in running.reads or running.name == name]
        super().forget(name)
        for one in {*gone, name}:
            shutil.rmtree(self._place(one), ignore_errors=True)
        self._tables.forget(name)  # last: a query would miss rows of a table that begins anew

    def _feed(self, table: Table, rows: Any, now: int) -> None:  # noqa: ARG002 - epochs that take them have times of their own
        self._add(table, rows, self.statement)
        self.settle()

    def _add(self, table: Table, rows: pa.Table | ZSet, once: str | None, digest: str = "") -> None:
        self._tables.make(table)
        self._tables.write(table, rows, once=once, digest=digest)

    def _all_columns(self, table: Table, rows: pa.Table) -> pa.Table:
        return self._completed(table, rows, self._clock())

    def _read_by(self, query: Query) -> list[Table]:
        known = {source.name for source in query.bound.view.plan().sources}
        return [self.catalog.tables[name] for name in sorted(query.bound.reads & known)]


def _is_stored(table: Table) -> bool:
    """Say whether a table has no connector that gives or takes its rows."""
    return table.options.get("connector") in {None, "memory"}


@dataclass(eq=False)
class _LastingRunning(Running):
    """A query that reads for itself.

    Args:
        sources: by the names of its tables.
    """

    sources: dict[str, TableSource] = field(default_factory=dict)

    def advance(self, now_us: int, *, wait_seconds: float, only: set[str] | None = None) -> bool:
        """Take an epoch of what has come; say whether there was something.

        Raises:
            ZsetJoinError: what stopped it; what was read and not taken is read again by the next call.
        """
        try:
            return self._advance(now_us, wait_seconds=wait_seconds, only=only)
        except BaseException:
            for name, source in self.sources.items():
                source.open(self.pipeline.positions.get(name))
            raise

    def _advance(self, now_us: int, *, wait_seconds: float, only: set[str] | None) -> bool:
        rows: dict[str, Any] = {}
        positions: dict[str, Any] = {}
        for name, source in self.sources.items():
            if only is not None and name not in only:
                continue
            # The first one may wait; whoever has nothing by then is asked once.
            taken, position = source.poll(wait_seconds=0.02 if rows else wait_seconds)
            if taken is not None:
                rows[name], positions[name] = taken, position
        if rows:
            self.take(rows, positions, now_us)
        return bool(rows)

    def take(self, rows: Mapping[str, Any], positions: Mapping[str, Any], now_us: int) -> None:
        """Take an epoch, and the positions behind it."""
        delta = self.pipeline.step(rows, processing_time=now_us, positions=positions)
        self.deltas.append(delta)
        if self.output is not None:
            self.output(delta)

    def close(self) -> None:
        """Let go of its sources and its state."""
        for source in self.sources.values():
            source.close()
        self.pipeline.close()
