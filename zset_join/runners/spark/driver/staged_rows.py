"""The rows of one stream of Spark's, polled by a pipeline in a client of Spark Connect: see `PolledRows` beside a JVM.

    on the server   foreachBatch -> a batch is written down (`staging`) -> Spark completes it
    here            batches that wait are listed -> Spark reads the next one -> poll() returns it with a position
                    -> the pipeline commits both in one epoch -> the batch is removed

The law: a batch of Spark's is taken once. Its number is in the position, which the pipeline commits with the rows. A batch that
was committed is passed over where it comes again; one of an equal number over other input is refused. Where client or server
die, what waits is present, and is taken before Spark reads on.

Memory: the rows of one batch. Cost: of each look for rows, one job with one task and one start of a streaming query; of each
batch, one writing and one reading, and another such job.

Limits: a Kafka topic that was rebuilt under its name is not noticed: the ids of topics are read by a JVM beside the driver.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from zset_join.core.row_conversion import take_rows
from zset_join.runners.spark.driver.collecting import collected_slices, collected_table
from zset_join.runners.spark.driver.driver_query import CollectedLayout, collected_layout, united_rows
from zset_join.runners.spark.driver.on_server import on_server
from zset_join.runners.spark.driver.rows_taken import batch_taken
from zset_join.runners.spark.driver.staging import (
    PLACE,
    StagedBatch,
    Staging,
    batch_uri,
    note_reader,
    remove_place,
    staged_batches,
    stored_name,
)
from zset_join.runners.spark.epoch.failures import foreign_reading, other_columns, reading_failed, replanned, rolled_back
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.baseline import make_start, with_made_start
from zset_join.zset import single_batch

__all__ = ["StagedRows"]

_LOOK_SECONDS = 0.5
"""How often a query that runs on and on is looked at."""


class StagedRows:
    """Poll the rows of a stream; a source of rows as `zset_join.sources.source.Source` describes it."""

    def __init__(
        self,
        stream: SourceStream,
        location: str,
        *,
        on_bad_input: str,
        is_kept: bool = True,
        most_waiting: Callable[[], int] | None = None,
        trigger: str | None = None,
        max_bytes: Callable[[], int],  # of a batch in Arrow; 0: any
    ) -> None:
        self._stream = stream
        self._location = location
        self._on_bad_input = on_bad_input
        self._is_kept = is_kept
        self._is_endless = is_endless = most_waiting is not None
        self._trigger: dict[str, Any] = {} if is_endless else {"availableNow": True}
        if is_endless and trigger is not None:
            self._trigger = {"processingTime": trigger}
        self._max_bytes, self._most_waiting = max_bytes, most_waiting
        self._reader = uuid.uuid4().hex
        self._layout = collected_layout({stream.name: stream})
        self._done: dict[str, Any] | None = None
        self._held: tuple[int, Any, dict[str, Any]] | None = None
        self._waiting: list[StagedBatch] = []
        self._through = -1
        self._run = ""
        self._taken: set[int] = set()
        self._is_given = False
        self._has_ended = False
        self._query: Any = None
        self._failure: BaseException | None = None
        self._has_start = False
        self._listed_at = 0.0

    def __repr__(self) -> str:
        return f'rows of "{self._stream.name}" as a server of Spark reads them'

    def open(self, position: Any) -> None:
        self._done, self._is_given = position, False
        through = -1 if position is None else int(position["batch"])
        if self._held is not None and self._held[0] <= through:
            self._held = None
        self._through = max(self._through, through)

    def look(self) -> None:
        """Let Spark begin to read the rows since its query ended, beside other sources."""
        self._has_ended = False
        if self._held is None and self._query is None and not self._list():
            self._start()

    def poll(self, *, wait_seconds: float) -> tuple[Any, Any]:
        if self._is_given and self._held is not None:
            self._through, _, self._done = self._held
            self._held = None
        self._is_given = False
        until = time.monotonic() + wait_seconds
        while True:
            if self._held is not None or self._has_taken():
                assert self._held is not None  # noqa: S101 - one of the two
                self._is_given = True
                return self._held[1], self._held[2]
            if self._query is None:
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise reading_failed(failure, self._stream.name, self._location) from failure
                if self._has_ended and not self._is_endless:
                    return None, self._done
                self._start()
            if self._is_endless and time.monotonic() >= until:
                return None, self._done
            self._wait(max(0.0, min(_LOOK_SECONDS, until - time.monotonic())) if self._is_endless else None)

    def close(self) -> None:
        if self._query is not None:
            location = self._location
            if self._is_endless:  # it may wait for room, and cannot be stopped then
                on_server(self._stream.session, lambda: note_reader(location, ""))
            self._query.stop()
            self._query = None
        if not self._is_kept:
            remove_on_server(self._stream.session, self._location)

    # ---------------------------------------------------------------- what waits

    def _has_taken(self) -> bool:
        """Collect the next batch that has rows; return whether there is one."""
        while self._waiting or (self._is_due() and self._list()):
            staged = self._waiting[0]
            number = staged.number
            if not set(self._stored_names.values()).issuperset(staged.columns):
                raise other_columns(self._stream.name, self._location, number)
            rows = batch_taken(self._stream, self._tables(number), number, on_bad_input=self._on_bad_input)
            self._waiting.pop(0)
            self._taken.add(number)
            if rows is None:
                self._through = number
                continue
            topics = {} if self._done is None else self._done["topics"]
            self._held = (number, rows, {"batch": number, "read": staged.read, "query": staged.query, "topics": topics})
            return True
        return False

    def _is_due(self) -> bool:
        """Return whether batches are listed now, which takes a job."""
        is_running_on = self._is_endless and self._query is not None
        return not is_running_on or time.monotonic() - self._listed_at >= _LOOK_SECONDS

    def _list(self) -> bool:
        """List the batches that wait, and remove those that are taken; return whether there are some."""
        location, through, done, reader = self._location, self._through, self._done, self._reader
        committed = -1 if done is None else int(done["batch"])
        found = json.loads(on_server(self._stream.session, lambda: staged_batches(location, through, committed, reader)))
        if done is not None and found["query"] != done["query"]:
            raise foreign_reading(self._stream.name, location, found["query"], done["query"])
        if found["taken"] > committed:
            raise rolled_back(self._stream.name, location, found["taken"], committed)
        batches = [StagedBatch(**one) for one in found["batches"]]
        if done is not None:
            last, read = done["batch"], done["read"]
            for one in batches:
                is_again = one.number <= last and one.run == self._run and one.number not in self._taken
                if is_again and (one.number < last or one.read != read):
                    raise replanned(self._stream.name, location, one.number, last)
        self._has_start = bool(found["start"])
        self._listed_at = time.monotonic()
        self._waiting = [one for one in batches if one.number > through]
        return bool(self._waiting)

    def _tables(self, number: int) -> Iterator[tuple[pa.Table, CollectedLayout]]:
        if not number and self._stream.baseline is not None:
            layout = collected_layout({self._stream.name: self._stream}, baselines=True)
            rows = united_rows(layout, {self._stream.name: self._stream.baseline})
            yield from ((table, layout) for table in collected_slices(rows, number, 0))
        staged = self._stream.session.read.schema(self._staged_schema).parquet(batch_uri(self._location, number))
        table = collected_table(staged, number, self._max_bytes())
        table = table.rename_columns([*(at.name for at in self._rows.schema), PLACE])
        places = np.asarray(table.column(PLACE).combine_chunks())
        table = table.drop_columns([PLACE])
        if (np.diff(places) < 0).any():  # a reading has the files of a batch in an order of its own
            table = pa.Table.from_batches([take_rows(single_batch(table), np.argsort(places, kind="stable"))])
        yield table, self._layout

    @cached_property
    def _staged_schema(self) -> StructType:
        names = self._stored_names
        fields = [StructField(names.get(at.name, at.name), at.dataType) for at in self._rows.schema]
        return StructType([*fields, StructField(PLACE, LongType())])

    @cached_property
    def _stored_names(self) -> dict[str, str]:
        slots = self._layout.slots
        columns = zip(slots.slots[0], slots.schemas[0].names, strict=True)
        return {slots.names[slot]: stored_name(name) for slot, name in columns}

    @cached_property
    def _rows(self) -> DataFrame:
        return united_rows(self._layout, {self._stream.name: self._stream.collected})

    # ---------------------------------------------------------------- the query

    def _start(self) -> None:
        stream = self._stream
        rows = self._rows
        location = self._location
        if stream.baseline is not None and not self._has_start:
            on_server(stream.session, lambda: make_start(location))
            self._has_start = True
        if self._has_start:
            rows = with_made_start(rows, location)
        self._run, self._taken = uuid.uuid4().hex, set()
        most_waiting = 0 if self._most_waiting is None else self._most_waiting()
        staging = Staging(location, self._run, self._stored_names, self._reader, most_waiting)
        writer = rows.writeStream.option("checkpointLocation", location).trigger(**self._trigger)
        try:
            self._query = writer.foreachBatch(staging).start()
        except PySparkException as error:
            raise reading_failed(error, stream.name, location) from error

    def _wait(self, seconds: float | None) -> None:
        """Wait for the query, at most so long; keep what it ended of."""
        try:
            if seconds is None:
                self._query.awaitTermination()
            elif not self._query.awaitTermination(seconds):
                return
        except Exception as error:  # noqa: BLE001 - who polls raises it, behind the batches that wait
            self._failure = error
        self._query, self._has_ended = None, self._failure is None


def remove_on_server(session: Any, location: str) -> None:
    """Remove all that Spark has read of a stream, on the server."""
    on_server(session, lambda: remove_place(location))
