"""The rows of one stream of Spark's, polled by a pipeline of this process: Spark reads and decodes, the pipeline commits.

    foreachBatch -> rows are collected -> poll() returns them with a position -> the pipeline commits both in one epoch
                                                                              -> the next poll lets Spark complete the batch

The law: a batch of Spark's is taken once. Its number is in the position, which the pipeline commits with the rows; Spark
completes the batch only after that, so after any crash it repeats the last batch at most, and that one is passed over. A batch
of an equal number over other input is refused, as is a checkpoint that was rolled back, on either side: the last batch that was
committed is noted beside Spark's files too, before Spark completes it.

Memory: the rows of one batch. Cost: one job per batch; where queries end, one start of a streaming query per look for rows.

Limits: not over Spark Connect, whose `foreachBatch` runs in another process than the pipeline: see `staged_rows`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from zset_join.runners.spark.driver.collecting import collected_slices, collected_table, first_tables
from zset_join.runners.spark.driver.driver_query import CollectedLayout, collected_layout, united_rows
from zset_join.runners.spark.driver.epochs import spark_query_id
from zset_join.runners.spark.driver.rows_taken import batch_taken
from zset_join.runners.spark.driver.staging import note_taken, remove_place, taken_through
from zset_join.runners.spark.epoch.batches import offsets_digest
from zset_join.runners.spark.epoch.failures import foreign_reading, reading_failed, replanned, rolled_back
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.baseline import has_start, make_start, with_made_start

__all__ = ["PolledRows"]


@dataclass(frozen=True)
class _Batch:
    """The rows of a batch until the pipeline has committed them."""

    number: int
    rows: Any
    position: dict[str, Any]


class PolledRows:
    """Poll the rows of a stream; a source of rows as `zset_join.sources.source.Source` describes it."""

    def __init__(
        self,
        stream: SourceStream,
        location: str,
        *,
        on_bad_input: str,
        is_kept: bool = True,
        is_endless: bool = False,
        trigger: str | None = None,
        max_bytes: Callable[[], int],  # of a batch in Arrow; 0: any
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._stream = stream
        self._location = location
        self._on_bad_input = on_bad_input
        self._is_kept = is_kept
        self._trigger: dict[str, Any] = {} if is_endless else {"availableNow": True}
        if is_endless and trigger is not None:
            self._trigger = {"processingTime": trigger}
        self._is_endless = is_endless
        self._max_bytes = max_bytes
        self._check = check
        self._layout = collected_layout({stream.name: stream})
        self._baseline_layout = collected_layout({stream.name: stream}, baselines=True)
        self._done: dict[str, Any] | None = None
        self._topics: Any = None
        self._topic_ids: Any = {}
        self._changed = threading.Condition()
        self._held: _Batch | None = None
        self._is_given = False
        self._is_closing = False
        self._has_ended = False
        self._failure: BaseException | None = None
        self._own: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._watcher: threading.Thread | None = None

    def __repr__(self) -> str:
        return f'rows of "{self._stream.name}" as Spark reads them'

    def open(self, position: Any) -> None:
        found = spark_query_id(self._location)
        if position is not None and found != position["query"]:
            raise foreign_reading(self._stream.name, self._location, found, position["query"])
        done, taken = -1 if position is None else int(position["batch"]), taken_through(self._location)
        if taken > done:
            raise rolled_back(self._stream.name, self._location, taken, done)
        with self._changed:
            self._done, self._is_given = position, False
            if self._held is not None and position is not None and self._held.number <= position["batch"]:
                self._held = None
                self._changed.notify_all()

    def look(self) -> None:
        """Let Spark begin to read the rows since its query ended, beside other sources."""
        self._has_ended = False
        if self._held is None and self._query is None:
            self._start()

    def poll(self, *, wait_seconds: float) -> tuple[Any, Any]:
        until = time.monotonic() + wait_seconds
        with self._changed:
            if self._is_given and self._held is not None:
                self._done, self._held = self._held.position, None
                self._changed.notify_all()
            self._is_given = False
        while True:
            if self._held is None and self._query is None:
                if self._has_ended and not self._is_endless:
                    return None, self._done
                self._start()
            with self._changed:
                timeout = max(0.0, until - time.monotonic()) if self._is_endless else None
                self._changed.wait_for(self._has_news, timeout)
                failure, self._failure = self._failure, None
                held = self._held
                if held is not None:
                    self._is_given = True
                    return held.rows, held.position
            if failure is not None:
                raise reading_failed(failure, self._stream.name, self._location) from failure
            if self._is_endless or self._query is None:
                return None, self._done

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        query = self._query  # its watcher may forget it meanwhile
        if query is not None:
            query.stop()
        if self._watcher is not None:
            self._watcher.join()
        if self._topics is not None:
            self._topics.close()
        if not self._is_kept:
            remove_place(self._location)

    def _has_news(self) -> bool:
        return self._held is not None or self._failure is not None or self._query is None

    # ---------------------------------------------------------------- the query

    def _start(self) -> None:
        from zset_join.runners.spark.frames.classic.kafka_topics import KafkaTopics

        stream, name = self._stream, self._stream.name
        if self._topics is None:
            topics = KafkaTopics([(name, stream.dataframe)], self._location)
            try:
                self._topic_ids = topics.start({} if self._done is None else self._done["topics"])
            except BaseException:
                topics.close()
                raise
            self._topics = topics
        rows = united_rows(self._layout, {name: stream.collected})
        if stream.baseline is not None:
            make_start(self._location)
        if has_start(self._location):
            rows = with_made_start(rows, self._location)
        writer = rows.writeStream.option("checkpointLocation", self._location).trigger(**self._trigger).foreachBatch(self._take)
        self._query = writer.start()
        self._watcher = threading.Thread(target=self._watch, args=(self._query,), name=f"zset_join-{name}", daemon=True)
        self._watcher.start()

    def _watch(self, query: StreamingQuery) -> None:
        failure: BaseException | None = None
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - who polls raises it; a JVM that is gone is no exception of Spark's
            failure = error
        with self._changed:
            self._query, self._has_ended = None, failure is None
            self._failure, self._own = self._own or failure, None
            self._changed.notify_all()

    # ---------------------------------------------------------------- a batch, in a thread of Spark's

    def _take(self, batch: DataFrame, number: int) -> None:
        try:
            held = self._collected(batch, number)
        except BaseException as error:
            self._own = error
            raise
        if held is None:
            return
        with self._changed:
            self._held = held
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._held is not held or self._is_closing)
            if self._held is held:
                self._held = None
                raise InterruptedError(f"batch {number} was not committed: the session is closed")
        note_taken(self._location, number)

    def _collected(self, batch: DataFrame, number: int) -> _Batch | None:
        """Return the rows of a batch; None where it has none, or was committed before."""
        read = offsets_digest(self._location, number)
        done = self._done
        if done is not None and number <= done["batch"]:
            if number < done["batch"] or read != done["read"]:
                raise replanned(self._stream.name, self._location, number, done["batch"])
            note_taken(self._location, number)
            return None
        self._check()
        rows = batch_taken(self._stream, self._tables(batch, number), number, on_bad_input=self._on_bad_input)
        if self._topics is not None:
            self._topic_ids = self._topics.check_epoch(self._topic_ids)
        if rows is None:
            return None
        query_id = spark_query_id(self._location)
        position = {"batch": number, "read": read, "query": query_id, "topics": dict(self._topic_ids)}
        return _Batch(number, rows, position)

    def _tables(self, batch: DataFrame, number: int) -> Iterator[tuple[pa.Table, CollectedLayout]]:
        """Yield the rows of a batch, behind those of a baseline, and how they lie."""
        if number:
            yield collected_table(batch, number, self._max_bytes()), self._layout
            return
        if self._stream.baseline is not None:
            layout = self._baseline_layout
            rows = united_rows(layout, {self._stream.name: self._stream.baseline})
            yield from ((table, layout) for table in collected_slices(rows, number, 0))
        yield from ((table, self._layout) for table in first_tables(batch, number, self._max_bytes()))
