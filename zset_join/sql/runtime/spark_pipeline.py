"""What a running query asks of a pipeline, for one that is a streaming query of Spark.

Where no sink is given, the deltas come to the driver: it keeps the contents of the view and the newest deltas, as a pipeline
does.

The law: `process` returns when what the sources had is in the output.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.errors import SqlError, ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.query.reading import Reading, readings_of
from zset_join.runners.local.contents import Contents
from zset_join.sinks.sink import Sink, SinkProgress
from zset_join.sql.tables.results import Running
from zset_join.zset import ZSet, single_batch

__all__ = ["RunningOnSpark", "SparkPipeline"]


class SparkPipeline:
    """Run a query inside Spark.

    Args:
        running: what runs, and whom to tell of its deltas.
        view: makes the view of the fluent API.
        options: of the query.
        sink: where the deltas go; None: they come to the driver.
        place: of its checkpoint and its local state. Without a sink it is emptied first: contents that are on a driver end
            with it.
    """

    def __init__(
        self, running: Running, view: Callable[[], Any], options: Mapping[str, str], sink: Sink | None, place: Path
    ) -> None:
        self.schema: pa.Schema = running.query.schema
        self._name = running.name
        self._view = view
        self._options = options
        self._sink = sink
        self._place = place
        self._taken = _Taken(self.schema, running)
        self._handle: Any = None
        if sink is None:
            shutil.rmtree(place, ignore_errors=True)

    def start(self, *, trigger: str | None = None) -> None:
        """Run on and on.

        Args:
            trigger: an interval between epochs, such as "5 seconds"; None: one after the other.
        """
        writer = self._writer().queryName(self._name)
        self._handle = (writer if trigger is None else writer.trigger(processingTime=trigger)).start()

    def run(self) -> None:
        """Answer what the sources have, and end; go on when called again.

        Raises:
            ZsetJoinError: what stopped the query.
        """
        self._handle = self._writer().trigger(availableNow=True).start()
        self._handle.awaitTermination()

    def process(self) -> None:
        """Wait until what the sources have is answered.

        Raises:
            ZsetJoinError: what stopped the query.
        """
        self._handle.processAllAvailable()

    def check(self) -> None:
        """Do nothing while the query runs.

        Raises:
            ZsetJoinError: what stopped it.
            StreamingQueryException: what stopped it, where that was Spark.
        """
        if self._handle is not None and not self._handle.isActive:
            self._handle.awaitTermination()

    def progress(self) -> dict[str, Any] | None:
        """Return what the newest epoch did: its number, rows in and out, seconds; None before the first."""
        recent = [] if self._handle is None else self._handle.recentProgress
        newest = next((one for one in reversed(recent) if one["join"] is not None), None)
        if newest is None:
            return None
        ours = newest["join"]
        return {
            "query": self._name,
            "epoch": ours["epoch"],
            "rows_in": sum(ours["rows_in"].values()),
            "rows_out": ours["delta_rows"],
            **({"dead_letters": aside} if (aside := sum(ours["quarantined"].values())) else {}),
            "seconds": round(newest["batchDuration"] / 1000, 3),
        }

    def view(self) -> pa.Table:
        """Return the contents of the view.

        Raises:
            SqlError: they are in a sink.
            ZsetJoinError: what stopped the query.
        """
        self.check()
        if self._sink is not None:
            raise SqlError(f"this query writes into {self._sink!r}; read that.", code="NOT_A_TABLE")
        return self._taken.read()

    def contents(self) -> ZSet:
        """Return every distinct row that it has answered, with its weight, where no sink takes them."""
        return self._taken.rows()

    def verify(self) -> Any:
        """Compare what was written with Spark's batch query; see `JoinQuery.verify`."""
        return self._handle.verify()

    def console(self, *, port: int = 0) -> Any:
        """Serve a page about the query; see `JoinQuery.console`."""
        return self._handle.console(port=port)

    def close(self) -> None:
        """End the query."""
        if self._handle is not None:
            self._handle.stop()

    def _writer(self) -> Any:
        writer = self._view().writeStream.options(**self._options)
        writer = writer.option("checkpointLocation", str(self._place / "checkpoint"))
        writer = writer.option("localStateDir", str(self._place / "local"))
        return writer.toSink(self._taken if self._sink is None else self._sink)


class RunningOnSpark(Running):
    """A query that runs inside Spark.

    Attributes:
        stopped_by: the error that stopped it; None while it runs.
    """

    stopped_by: ZsetJoinError | None = None

    def table(self) -> pa.Table:
        """Return the contents of the view.

        Raises:
            ZsetJoinError: what stopped the query.
        """
        if self.stopped_by is not None:
            raise self.stopped_by
        return super().table()

    def reading_of(self, name: str) -> Reading | None:
        """Return how the query reads the rows of a table in process; None where it does not."""
        return readings_of([one for one in self.query.bound.view.bindings if not one.is_of_versions]).get(name)

    def progress(self) -> dict[str, Any] | None:
        """Return what its newest epoch did."""
        pipeline: Any = self.pipeline
        progress: dict[str, Any] | None = pipeline.progress()
        return progress


class _Taken:
    """A sink that keeps the contents of a query on the driver, and hands its deltas to whom they concern.

    Args:
        schema: the columns as the statement has them.
        running: the query.
    """

    def __init__(self, schema: pa.Schema, running: Running) -> None:
        self._schema = schema
        self._running = running
        self._contents = Contents(schema)
        self._epoch: int | None = None

    def __repr__(self) -> str:
        return f"contents of {self._running.name} on the driver"

    def rows(self) -> ZSet:
        """Return every distinct row with its weight."""
        return self._contents.rows()

    def read(self) -> pa.Table:
        """Return every row as often as it is there."""
        rows = self.rows()
        copies = np.repeat(np.arange(len(rows)), rows.weights)
        return pa.Table.from_batches([rows.rows]).take(pa.array(copies))

    def open(self, output: Relation, query_id: str) -> None:
        """Do nothing: the columns are known."""

    def last_epoch(self) -> int | None:
        """Return the last epoch it took."""
        return self._epoch

    def write(self, epoch: int, chunks: Iterable[ZSet]) -> SinkProgress:
        """Take a delta."""
        started = time.perf_counter()
        parts = [ZSet(single_batch(pa.Table.from_batches([chunk.rows]).cast(self._schema)), chunk.weights) for chunk in chunks]
        delta = ZSet.concat(parts, schema=self._schema)
        self._contents.add(delta)
        self._running.deltas.append(delta)
        if self._running.output is not None:
            self._running.output(delta)
        self._epoch = epoch
        return SinkProgress(epoch, len(delta), int((delta.weights < 0).sum()), time.perf_counter() - started)

    def close(self) -> None:
        """Keep what was taken; whoever started the query reads it."""
