"""One epoch on the driver: what `foreachBatch` calls.

    committed already? -> no: Spark's rows are collected -> the pipeline answers, commits, writes its outputs
                       -> yes (a replay): the outputs that lack it are given the answer that was committed

The law: epoch N is Spark's batch N; the chain of the pipeline decides whether it counts already. The digest of what Spark
reports a batch reads (`offsets/<N>` in its checkpoint) is kept with the epoch, so that a batch of the same number over other
input is refused.

All that is needed is a plan, options and sinks, which can be pickled: over Spark Connect the function runs in a process of
the server, where the pipeline is opened with the first batch. No JVM is reached but through the batch itself.

Memory: the rows of an epoch as Arrow has them, and the state of the query.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.descriptions import SESSION
from zset_join.checkpoint.local_state import LOCAL_STATE_RETENTION_SECONDS
from zset_join.checkpoint.reading import (
    changed_plan_of,
    checkpoint_folder,
    has_commits,
    read_committed,
    reads_start,
    stored_description,
)
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.options import QueryOptions
from zset_join.core.progress_line import progress_line
from zset_join.evolution.changed_columns import NO_TERMS, ChangeTerms
from zset_join.evolution.differences import PlanDiff
from zset_join.query.rows import PlannedQuery
from zset_join.runners.local.checkpoint_diff import check_streams
from zset_join.runners.local.directory_plans import Place, described_plan
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.progress import explained_threads
from zset_join.runners.local.watermarks import processing_time_us
from zset_join.runners.spark.driver.choosing import (
    memory_budget,
    refuse_first_rows,
    refuse_outgrown,
    refuse_without_memory,
    state_bytes,
)
from zset_join.runners.spark.driver.collecting import collected_slices, collected_table, first_tables
from zset_join.runners.spark.driver.driver_query import CollectedLayout
from zset_join.runners.spark.driver.record_decoder import SourceRows
from zset_join.runners.spark.driver.rows_taken import rows_taken, together
from zset_join.runners.spark.epoch.batches import check_same_batch, epoch_before, has_ended, is_completed, offsets_digest
from zset_join.runners.spark.epoch.failures import disk_failure, lost_records
from zset_join.runners.spark.epoch.frame_sink import FrameSink, TakesSession
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.epoch.lookup_rows import keep_epoch_rows
from zset_join.runners.spark.epoch.named_outputs import ChosenSink
from zset_join.runners.spark.epoch.progress import ProgressLog
from zset_join.runners.spark.frames.sent import frame_of
from zset_join.runners.spark.rows.baseline import resolve_baselines
from zset_join.runners.spark.rows.user_functions import UserFunction, with_functions
from zset_join.sinks.sink import Sink
from zset_join.stages import StageOptions
from zset_join.storage.folder import open_folder
from zset_join.storage.operations import nothing_committed
from zset_join.tools.savepoint import Savepoint, backup

__all__ = ["DriverEpochs", "DriverSettings", "spark_query_id"]

_log = logging.getLogger("zset_join.epochs")


def _nothing() -> None:
    """Do nothing at the end of a start."""


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """Settings of the epochs of a query; picklable."""

    query: PlannedQuery
    layout: CollectedLayout
    baseline_layout: CollectedLayout
    options: QueryOptions
    stage_options: StageOptions
    sinks: Mapping[str, Sequence[ChosenSink]]
    dead_letters: str
    name: str
    inputs: tuple[Mapping[str, Any], ...] = ()
    functions: tuple[UserFunction, ...] = ()
    is_served: bool = False
    baseline: bytes | None = None  # as a plan, over Spark Connect
    execution = "driver"

    @property
    def needs_session(self) -> bool:
        """Return whether an output is written by Spark."""
        return any(isinstance(one.sink, TakesSession) for sinks in self.sinks.values() for one in sinks)

    def with_local_state(self, directory: str) -> DriverSettings:
        return replace(self, options=replace(self.options, local_state_dir=directory))

    def runner(self, session: SparkSession | None) -> DriverEpochs:
        """Return what runs the epochs in a process of the server."""
        rows = None if self.baseline is None or session is None else frame_of(self.baseline, session)
        return DriverEpochs(self, rows, session=session)

    def described(self, stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the description in a checkpoint besides the plan, under which the query continues."""
        is_loaded = has_commits(self.options.checkpoint_location)
        kind = {SESSION: "connect"} if self.is_served else {}
        given = resolve_baselines({"inputs": list(self.inputs), **kind}, stored, is_loaded=is_loaded)
        return with_functions(given, stored, self.functions, self.options.udf_version)

    @property
    def is_timed(self) -> bool:
        """Return whether a stage may have rows to emit when time passes."""
        return any(node.stage.waits_for_time for node in self.query.plan.nodes)


@dataclass(eq=False)
class DriverEpochs:
    """Run the epochs of one query on the driver; callable, for `foreachBatch`."""

    settings: DriverSettings
    baseline: DataFrame | None = None
    topics: Any = None
    session: SparkSession | None = None
    error: BaseException | None = None
    heartbeat: Heartbeat | None = None
    progress: ProgressLog = field(default_factory=ProgressLog)
    lock: threading.RLock = field(default_factory=threading.RLock)
    after_begin: Callable[[], None] = _nothing
    has_ended: bool = False
    given_through: int | None = None
    _pipeline: Pipeline[Any] | None = None
    _query_id: str = ""
    _topic_ids: Mapping[str, Any] = field(default_factory=dict)
    _last_outcome: Callable[[], Any] = nothing_committed

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the settings alone: what is open stays where it is."""
        return (DriverEpochs, (self.settings,))

    @property
    def location(self) -> str:
        return self.settings.options.checkpoint_location

    @property
    def options(self) -> QueryOptions:
        return self.settings.options

    @property
    def dead_letters(self) -> str:
        return self.settings.dead_letters

    @property
    def _sinks(self) -> dict[str, list[Sink]]:
        return {view: [one.sink for one in chosen] for view, chosen in self.settings.sinks.items()}

    @property
    def is_open(self) -> bool:
        return self._pipeline is not None

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the only view."""
        return self.settings.query.plan.output.schema

    @property
    def is_timed(self) -> bool:
        return self.settings.is_timed

    def described(self, stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the description by which a checkpoint recognises the query."""
        return {**described_plan(self.settings.query.plan), **self.settings.described(stored)}

    def attach(self, query_id: str | None) -> None:
        """Open checkpoint and outputs, and give the outputs the last epoch where they lack it."""
        given = self.settings
        self._query_id = query_id or ""
        options = given.options
        for sink in self._spark_sinks():
            sink.session = self.session or SparkSession.active()
            if isinstance(sink, FrameSink):
                known = self.given_through
                sink.goes_on_behind(_completed_epoch(options.checkpoint_location) if known is None else known)
        place = Place(
            location=options.checkpoint_location,
            query_id=query_id,
            local_state_dir=options.local_state_dir,
            local_state_retention_seconds=LOCAL_STATE_RETENTION_SECONDS,
            dead_letters=given.dead_letters,
            retain_input_log=options.retain_input_log,
            described=given.described,
        )
        self._pipeline = Pipeline(
            given.query,
            place,
            keep_view=False,
            keep_inputs=options.retain_input_log,
            outputs=self._sinks if given.query.has_several else [*next(iter(self._sinks.values()))],
            options=given.stage_options,
            idle_timeout_seconds=options.idle_timeout_seconds,
            snapshot_after_bytes=options.snapshot_after_bytes,
            threads=options.driver_threads,
            undo_epochs=options.undo_epochs,
            before_begin=self._check_topics,
        )

    def _check_topics(self, positions: Mapping[str, Any]) -> None:
        """Compare the ids of Kafka topics with those of the last epoch."""
        self._topic_ids = positions if self.topics is None else self.topics.start(positions)

    def begin(self) -> None:
        """Let `join_progress` find the counts of the query: the end of a start that nothing has refused."""
        self.opened()
        self.after_begin()
        self.progress.publish(self._query_id)

    def explanation(self, budget: int | None = None) -> str:
        budget = memory_budget(self.options) if budget is None else budget
        outputs = [repr(sink) for sinks in self._sinks.values() for sink in sinks]
        return "\n".join(
            [
                f"Output to {'; '.join(outputs)}",
                f"Runs on the driver: budget {budget:,} bytes of state",
                self.settings.query.plan.explain(buckets=1),
            ]
        ) + explained_threads(self.settings.query.plan, self.settings.stage_options, self.settings.options.driver_threads)

    def next_due(self) -> tuple[int, int] | None:
        """Return the last epoch, and the processing time at which a stage must run without input; None for never."""
        pipeline = self._pipeline
        due_us = None if pipeline is None else pipeline.directory.next_time_us()
        return None if pipeline is None or due_us is None else (pipeline.epoch - 1, due_us)

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        try:
            with self.lock:
                if self.has_ended:
                    raise has_ended(self.location, epoch)
                if epoch:
                    self._run(batch, epoch)
                    return
                with progress_line(f"{self.settings.name}: first load"):
                    self._run(batch, epoch)
        except BaseException as error:
            failure = self.failure_of(error)
            self.error = error if failure is None else failure
            if failure is not None:
                raise failure from error
            raise

    def failure_of(self, error: BaseException) -> StateError | None:
        return disk_failure(error, self.location, self._last_outcome) or lost_records(error, self.location)

    def close(self) -> None:
        """Close the outputs and release the checkpoint, once no epoch runs."""
        with self.lock, ExitStack() as closing:
            pipeline, self._pipeline = self._pipeline, None
            if self.topics is not None:
                closing.callback(self.topics.close)
            if pipeline is None:
                return
            closing.callback(pipeline.close)

    @contextmanager
    def pause(self) -> Iterator[None]:
        with self.lock:
            yield

    def evolve(
        self,
        query: PlannedQuery,
        outputs: Mapping[str, Sequence[ChosenSink]],
        terms: ChangeTerms = NO_TERMS,
    ) -> PlanDiff:
        """Change the query between two epochs; outputs get the difference, and this object takes no epoch any more.

        New outputs are given by view; one without keeps its own. Where the change does not count, the query continues.
        """
        with self.lock:
            sinks = {view: [one.sink for one in chosen] for view, chosen in outputs.items() if chosen}
            given = sinks if query.has_several else [sink for chosen in sinks.values() for sink in chosen]
            return self._changed(query, lambda pipeline: pipeline.evolve_with(query, terms, given or None))

    def undo(self, *, has_streams: bool = False) -> tuple[PlanDiff, PlannedQuery]:
        """Go back to the query before the last change; return the difference, and that query.

        Without `has_streams`, a change that gave streams other columns is refused (`EVOLVE_STREAM`).
        """
        with self.lock:
            query = self.opened()._query_before().query
            if not has_streams:
                self._check_columns(query)
            return self._changed(query, lambda pipeline: pipeline.undo()), query

    def _changed(self, query: PlannedQuery, change: Callable[[Pipeline[Any]], PlanDiff]) -> PlanDiff:
        """Change the pipeline to a query of the same streams; this object takes no epoch behind it."""
        pipeline = self.opened()
        before = pipeline.plan
        described, has_clock = stored_description(self.location) or {}, reads_start(checkpoint_folder(self.location))
        check_streams(before, query.plan, described, query, has_clock=has_clock)
        try:
            return change(pipeline)
        finally:
            self.has_ended = pipeline.plan is not before

    def _check_columns(self, query: PlannedQuery) -> None:
        now = {source.name: source.relation.schema for source in self.opened().plan.sources}
        for source in query.plan.sources:
            if source.name in now and not source.relation.schema.equals(now[source.name]):
                raise StateError(
                    f'the last change gave the stream "{source.name}" the columns {now[source.name].names}, and it had '
                    f"{source.relation.schema.names} or other types: the program of the query before is needed to read them. "
                    f"Give evolve() that query; or stop this one, run zset-join undo {self.location}, and start that program.",
                    code="EVOLVE_STREAM",
                    stream=source.name,
                )

    def backup(self, directory: str | Path) -> Savepoint:
        """Copy checkpoint and outputs between two epochs, also after the query has stopped."""
        with self.pause():
            places = [place for sinks in self._sinks.values() for sink in sinks for place in _at_rest(sink)]
            return backup(self.location, directory, outputs=tuple(places), is_held=self.is_open)

    def opened(self) -> Pipeline[Any]:
        if self._pipeline is None:
            raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
        return self._pipeline

    def _spark_sinks(self) -> list[TakesSession]:
        return [sink for sinks in self._sinks.values() for sink in sinks if isinstance(sink, TakesSession)]

    def _run(self, batch: DataFrame, epoch: int) -> None:
        session = batch.sparkSession
        if self._pipeline is None:
            self.session = session
            self.attach(spark_query_id(self.location))
            self.begin()
        pipeline = self.opened()
        for sink in self._spark_sinks():
            sink.session = session
        started, number = time.perf_counter(), epoch
        seconds: dict[str, float] = {}
        read = offsets_digest(self.location, epoch)
        checkpoint = pipeline.directory.checkpoint
        if (changed := checkpoint.changed) is not None:
            epoch += changed.changes
            if epoch == changed.epoch:  # it was taken before the change, and outputs got it then or at the start
                check_same_batch(checkpoint, epoch_before(checkpoint, changed), read)
                return
        is_replay = checkpoint.committed(epoch, read) is not None
        rows: dict[str, Any] = {}
        now_us = processing_time_us(None, None if checkpoint.last is None else checkpoint.last.processing_time_us)
        if not is_replay:
            rows = self._collected(batch, epoch)
            keep_epoch_rows(self.settings.query.plan.nodes, checkpoint_folder(self.location), Tick(epoch, now_us))
            if self.topics is not None:  # behind the reading: a topic that was exchanged meanwhile is noticed
                self._topic_ids = self.topics.check_epoch(self._topic_ids)
            seconds["collect"] = time.perf_counter() - started
        pipeline.directory.runner = "driver"
        pipeline.directory.seconds_outside = {name: round(value, 4) for name, value in seconds.items()}
        answering = time.perf_counter()
        pipeline.step(rows, epoch=epoch, read=read, processing_time=now_us, positions=self._topic_ids)
        finished = time.perf_counter()
        seconds |= {"answer": finished - answering, "total": finished - started}
        held = state_bytes(self.settings.options, pipeline.directory.query_id)
        rounded = {name: round(value, 4) for name, value in seconds.items()}
        counts = {**pipeline.progress, **({"batch": number} if number != epoch else {})}
        self.progress.entries.append({**counts, "replayed": is_replay, "state_bytes": held, "seconds": rounded})
        _log.info("%s: epoch %d on the driver, %s", self.settings.name, epoch, rounded)
        if self.heartbeat is not None:
            self.heartbeat.wake()
        refuse_outgrown(held, self.settings.options, epoch)

    def _collected(self, batch: DataFrame, epoch: int) -> dict[str, Any]:
        """Return the rows of an epoch; those of baselines come before the first ones of any stream."""
        options = self.settings.options
        if epoch:
            table = collected_table(batch, epoch, options.max_delta_bytes)
            refuse_without_memory(table.nbytes, epoch)
            return self._rows(self.settings.layout.parted(table), epoch)
        parts: dict[str, list[Any]] = {}
        size = 0
        for table, layout in self._first_tables(batch, epoch):
            size += table.nbytes
            refuse_first_rows(size, options, epoch)
            for name, rows in self._rows(layout.parted(table), epoch).items():
                parts.setdefault(name, []).append(rows)
        return {name: together(parts.pop(name)) for name in list(parts)}

    def _first_tables(self, batch: DataFrame, epoch: int) -> Iterator[tuple[pa.Table, CollectedLayout]]:
        """Yield the rows of baselines, then those of the first batch, and how they lie."""
        settings = self.settings
        if self.baseline is not None:
            yield from ((table, settings.baseline_layout) for table in collected_slices(self.baseline, epoch, 0))
        first = first_tables(batch, epoch, settings.options.max_delta_bytes)
        yield from ((table, settings.layout) for table in first)

    def _rows(self, parted: Mapping[str, SourceRows], epoch: int) -> dict[str, Any]:
        return {name: self._of_source(name, rows, epoch) for name, rows in parted.items()}

    def _of_source(self, name: str, rows: SourceRows, epoch: int) -> Any:
        key = self.settings.query.plan.source(name).relation.primary_key
        return rows_taken(name, rows, key, epoch, on_bad_input=self.settings.options.on_bad_input)


def _completed_epoch(location: str) -> int | None:
    """Return the last committed epoch, where Spark has completed it and does not request it again."""
    committed = read_committed(location)
    last = None if committed is None else committed.last
    if committed is None or last is None:
        return None
    changed = changed_plan_of(committed.files.folder, last)
    batch = last.epoch - (0 if changed is None else changed.changes)
    is_unseen = changed is not None and changed.epoch == last.epoch and changed.is_unseen
    return last.epoch - is_unseen if is_completed(location, batch) else None


def _at_rest(sink: Sink) -> tuple[str, ...]:
    rest: Callable[[], tuple[str, ...]] | None = getattr(sink, "at_rest", None)
    return () if rest is None else rest()


def spark_query_id(location: str) -> str | None:
    """Return the id of the query that Spark keeps in its checkpoint; None where it keeps none."""
    content = open_folder(location).read("metadata")
    return None if content is None else str(json.loads(bytes(content))["id"])
