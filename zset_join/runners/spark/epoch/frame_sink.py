"""A user's function as a sink of the driver: it is given every epoch's lines as a DataFrame.

The law: the lines are those that tasks would write, in the same form. Only a function itself has which epochs it has seen:
after a restart the last one is given to it again, unless Spark has seen that epoch through.

Memory: the lines of an epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.changelog import ChangelogForm, format_named
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.sinks.changelog_directory import ChangelogLines
from zset_join.sinks.sink import SinkProgress
from zset_join.zset import ZSet

__all__ = ["FrameSink", "TakesSession"]


@runtime_checkable
class TakesSession(Protocol):
    """A sink that writes by Spark.

    Attributes:
        session: makes its DataFrames; set before it is opened and before each epoch.
    """

    session: SparkSession | None


class TakesFrames(Protocol):
    """Output that calls a function with lines."""

    @property
    def form(self) -> ChangelogForm:
        """Return how weights are shown in the lines."""

    def describe(self) -> str: ...

    def open(self, relation: Relation, query_id: str) -> None: ...

    def give(self, rows: DataFrame, epoch: int, digest: str | None) -> None:
        """Call the function with the lines of an epoch, and with the epoch's digest where it takes one."""


class FrameSink:
    """Call a function with the lines of every epoch."""

    keeps_epochs = False

    def __init__(self, output: TakesFrames) -> None:
        self._output = output
        self.session: SparkSession | None = None
        self._opened: Relation | None = None
        self._last: int | None = None

    def __repr__(self) -> str:
        return self._output.describe()

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "session": None}

    def open(self, output: Relation, query_id: str) -> None:
        self._output.open(output, query_id)
        self.written_as = (), format_named(self._output.form)
        self._opened = output

    def goes_on_behind(self, epoch: int | None) -> None:
        """Take an epoch for the last one that the function was given; None: that is not known."""
        self._last = epoch

    def last_epoch(self) -> int | None:
        return self._last

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = time.perf_counter()
        if self._opened is None or self.session is None:
            raise SinkError("a function was given an epoch before it was opened.", code="SINK_CLOSED", epoch=epoch)
        form, rows = self._output.form, self._opened
        lines = ChangelogLines(
            f"the answer of epoch {epoch}",
            rows.schema,
            form,
            rows.primary_key,
            chunks,
            epoch=epoch,
            committed_at_us=time.time_ns() // 1000,
        )
        table = pa.Table.from_batches(list(lines), schema=lines.schema)
        schema = spark_schema(lines.schema)
        frame = self.session.createDataFrame(table, schema) if table.num_rows else self.session.createDataFrame([], schema)
        self._output.give(frame, epoch, None if link is None else link.digest)
        self._last = epoch
        return SinkProgress(epoch, lines.rows, lines.retractions, time.perf_counter() - started)

    def close(self) -> None:
        pass
