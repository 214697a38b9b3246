"""The queries of a session inside Spark, run in process beside it: an INSERT is answered here before it is written.

    rehearsal = Rehearsal(catalog, tables, dialect=dialect, clock=clock)
    rehearsal.begin(running, is_read=..., is_settled=True)
    with SharedEpoch(rehearsal, now_us) as epoch:
        epoch.answer({"orders": rows})            raises where one query cannot answer; nothing has changed
        ...                                       write the rows down
        epoch.commit()

Spark answers each query in an epoch of its own, and cannot undo the epoch of one query when another one fails. The law:
rows that a rehearsed query cannot answer, by its own WHERE or SELECT or behind a join or group, reach no table and no query;
nor do rows after which two live rows of queries claim one key of a table.

A query is rehearsed where all its tables are filled by INSERT, where it looks nothing up outside, where the engine in process
has all its steps, and where the files of its tables have no more than 64 MiB when it begins.

Memory: on the driver, what these queries remember in process. Cost: of an INSERT, an epoch in process; of the first one after
a query was started or stopped, an epoch per file of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zset_join.checkpoint.reading import read_committed
from zset_join.core.errors import BadInputError, PlanError, ZsetJoinError
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sql.dml.shared_epochs import Accepted, Rows, accepted_rows, in_order
from zset_join.sql.runtime.in_memory import MemoryRuntime
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.file_names import file_name
from zset_join.sql.tables.results import Query, Running
from zset_join.sql.tables.settings import idle_timeout, stage_options
from zset_join.sql.tables.stored_tables import StoredTables
from zset_join.sql.tables.table_sources import source_of
from zset_join.storage.folder import folder_below
from zset_join.zset import ZSet

__all__ = ["Rehearsal", "write_letters"]

_MOST_BYTES = 67_108_864


class Rehearsal(MemoryRuntime):
    """Answer INSERTs in process.

    Args:
        catalog: of the session inside Spark.
        tables: the files of its tables.
        dialect: of its statements.
        clock: returns the processing time in microseconds since 1970.
    """

    def __init__(self, catalog: Catalog, tables: StoredTables, *, dialect: str, clock: Callable[[], int]) -> None:
        super().__init__(catalog, dialect=dialect, clock=clock, keep_tables=False)
        self._tables = tables

    @property
    def names(self) -> set[str]:
        """Return the names of the queries that are rehearsed."""
        return {one.name for one in self.running}

    def begin(
        self, running: Sequence[Running], *, is_stored: Callable[[Table], bool], is_settled: bool, first: str | None = None
    ) -> None:
        """Bring queries to where their tables are.

        Args:
            running: the queries inside Spark.
            is_stored: whether INSERTs fill a table.
            is_settled: whether the tables hold all that queries write into them; where not, their readers are left out.
            first: the name of a query that is about to start, whose errors are raised.

        Raises:
            ZsetJoinError: of the query `first`: the rows of its tables cannot be answered.
        """
        left_out = set() if is_settled else {one.writes for one in running}
        for one in in_order(running):
            own = self._begun(one, left_out, is_stored, is_first=one.name == first)
            if own is None:
                left_out.add(one.writes)
            else:
                self.running.append(own)

    def _begun(
        self, one: Running, left_out: set[str | None], is_stored: Callable[[Table], bool], *, is_first: bool
    ) -> Running | None:
        """Return a query that has answered what its tables hold; None where it is not rehearsed."""
        tables = [self.catalog.tables[name] for name in sorted(one.reads) if name in self.catalog.tables]
        if any(table.name in left_out or table.lookup is not None or not is_stored(table) for table in tables):
            return None
        if sum(self._tables.size(table.name) for table in tables) > _MOST_BYTES:
            return None
        try:
            pipeline = self._rehearsing(one.query, keep_view=one.writer is not None)
        except PlanError:
            return None  # a step that only Spark has
        own = Running(one.name, one.query, pipeline, None, one.writer)
        try:
            self._answer_again(own, tables)
            self._claim(own)
        except ZsetJoinError:
            pipeline.close()
            if is_first:
                raise
            return None  # Spark stops on the same rows, and names the query
        except BaseException:
            pipeline.close()
            raise
        return own

    def _answer_again(self, own: Running, tables: Sequence[Table]) -> None:
        """Let a query answer the files of its tables, in their order, without the rows that its own steps raise for."""
        known = {source.name for source in own.query.bound.view.plan().sources}
        sources = {one.name: source_of(one, self._tables, lambda _, rows: rows) for one in tables if one.name in known}
        while True:
            polled = {name: source.poll(wait_seconds=0.0)[0] for name, source in sources.items()}
            rows = {name: one for name, one in polled.items() if one is not None}
            if not rows:
                return
            try:
                own.whole.step(rows, processing_time=self._clock())
            except BadInputError:
                taken = {name: accepted_rows([own], name, one).of([own]) for name, one in rows.items()}
                if all(taken[name] is rows[name] for name in rows):
                    raise
                own.whole.step(taken, processing_time=self._clock())

    def _claim(self, running: Running) -> None:
        """Count the rows of a query that has answered what its tables hold; how it came there is not checked.

        Raises:
            SinkError: one of them has a key that another row claims.
        """
        claims = self._claims_beside(running)
        if claims is not None and running.writer is not None:
            claims.check([(running.pipeline.contents(), running.writer.names)], running.name)
            super()._claim(running)

    def _rows_held(self, table: Table) -> pa.Table | ZSet | None:
        return self._tables.inserted(table)

    def _publish(self) -> None:
        """Do nothing: nobody reads what is rehearsed."""

    @staticmethod
    def _rehearsing(query: Query, *, keep_view: bool) -> Pipeline:
        return Pipeline(
            query.bound.view,
            options=stage_options(query.settings),
            idle_timeout_seconds=idle_timeout(query.settings),
            keep_view=keep_view,
        )


def write_letters(accepted: Accepted, given: Rows, *, table: str, file: int, checkpoint_of: Callable[[str], Path]) -> None:
    """Write rows that were put aside as dead letters of the queries that they failed in.

    They count with the next epoch of the query, as the rows beside them do.

    Args:
        accepted: what was put aside.
        given: the rows it was put aside of.
        table: their table.
        file: the number of the file that the other rows are written to; letters of one number are written once.
        checkpoint_of: returns the checkpoint of a query.
    """
    for query, unread in accepted.aside.items():
        places = pa.array(np.asarray(accepted.places[query], np.int64))
        rows = given.rows if isinstance(given, ZSet) else given.combine_chunks()
        columns = [rows.take(places).column(name) for name in rows.schema.names]
        arrays = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns]
        weights = given.weights[places.to_numpy()] if isinstance(given, ZSet) else np.ones(len(places), np.int64)
        letters = pa.table(
            {
                "stream": pa.repeat(table, len(places)),
                "weight": weights,
                "code": unread["code"],
                "reason": unread["reason"],
                table: pc.make_struct(*arrays, field_names=rows.schema.names),
            }
        )
        checkpoint = checkpoint_of(query)
        committed = read_committed(str(checkpoint))
        epoch = 0 if committed is None or committed.last is None else committed.last.epoch + 1
        encoded = pa.BufferOutputStream()
        pq.write_table(letters, encoded, compression="zstd")
        name = f"epoch={epoch}/part-insert-{file_name(table)}-{file:012d}.parquet"
        folder_below(str(checkpoint), "quarantine").put(name, encoded.getvalue().to_pybytes())
