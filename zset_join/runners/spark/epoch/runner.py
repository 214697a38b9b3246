"""One epoch on the driver.

    committed already? -> no: one Spark job answers it -> commit record -> output
                       -> yes (a replay): the output is given the answer that was committed

The law: an epoch reaches the output exactly when it is committed, and with the answer of its commit record. Rows in = rows
applied + rows quarantined, for every stream and epoch; a difference stops the query. Epoch 0 also has the baselines, before
the first row of any stream.

One Spark job per epoch: the tasks write logs and answers themselves and return one line each. The settings that job needs
(batch size, no adaptive execution, UTC) are set on the batch's own session and put back before a user's function sees it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.descriptions import SESSION
from zset_join.checkpoint.local_state import LOCAL_STATE_RETENTION_SECONDS
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder, has_commits, stored_description
from zset_join.checkpoint.record import BucketHistory, CommitRecord, PartEntry
from zset_join.core.epochs import Tick
from zset_join.core.errors import SinkError, StateError
from zset_join.core.options import QueryOptions
from zset_join.core.progress_line import progress_line
from zset_join.core.relation import Relation
from zset_join.runners.common.rejected import Rejected, warn_of_late_changes
from zset_join.runners.common.stage_bucket import dues_after, histories_after
from zset_join.runners.local.directory_plans import note_given_change
from zset_join.runners.local.progress import write_epoch_span
from zset_join.runners.spark.epoch.batches import (
    change_rows,
    check_same_batch,
    epoch_before,
    given_changes,
    has_ended,
    is_completed,
    offsets_digest,
)
from zset_join.runners.spark.epoch.epoch_plan import EpochPlan, dead_letters_of
from zset_join.runners.spark.epoch.event_times import EventTimes
from zset_join.runners.spark.epoch.failures import disk_failure, lost_records
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.epoch.lookup_rows import keep_epoch_rows
from zset_join.runners.spark.epoch.progress import (
    ProgressLog,
    epoch_counts,
    epoch_line,
    epoch_title,
    recorded_seconds,
    stage_seconds,
)
from zset_join.runners.spark.epoch.several_outputs import SeveralOutputs
from zset_join.runners.spark.frames.topics import TopicIds, topics_of
from zset_join.runners.spark.planning.buffer_limit import QueryBuffer, limited_join
from zset_join.runners.spark.planning.job_settings import described_jobs, job_settings, wanted_settings
from zset_join.runners.spark.planning.normalise import TaggedStreams
from zset_join.runners.spark.planning.placed_query import PlacedQuery, described_query
from zset_join.runners.spark.planning.stages import check_rows, hybrid_stages, places_of, stage_order
from zset_join.runners.spark.worker.locality import Locality
from zset_join.runners.spark.worker.quarantine import DeadLetters, forget, publish_dead_letters
from zset_join.runners.spark.worker.receipts import TaskReceipt, error_of_receipt
from zset_join.stages import StageOptions
from zset_join.stages.lookup_join import explained_for
from zset_join.state.rows.directories import seed_of_query
from zset_join.storage.operations import EpochOutcome, nothing_committed
from zset_join.tools.savepoint import Savepoint, backup

__all__ = ["EpochRunner"]

_log = logging.getLogger("zset_join.epochs")


class EpochRunner:
    """Run the epochs of one query; callable, for `foreachBatch`."""

    def __init__(
        self,
        query: PlacedQuery,
        tagged: TaggedStreams,
        options: QueryOptions,
        *,
        buckets: int,
        output: SeveralOutputs,
        dead_letter_path: str,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.error: BaseException | None = None
        self.has_ended = False
        self.name = query.name
        self.progress = ProgressLog()
        self._seconds_before: Mapping[str, float] = {}
        self.checkpoint: Checkpoint | None = None
        self.lock = threading.RLock()
        self.is_open = False
        self.owner: Ownership | None = None
        self._epoch: int | None = None
        self.query = query
        self._tagged = tagged
        self.options = options
        self.buckets = buckets
        self.output = output
        output.set_aside_in(dead_letter_path, quarantines=options.on_bad_input == "quarantine")
        self.dead_letters = dead_letter_path
        self.buffer = QueryBuffer(limited_join(query.planned_stages, options.buffer_limit), options.buffer_limit, buckets)
        shared = buckets * max(1, hybrid_stages(query.planned_stages, options))
        self.operator_options = StageOptions(
            on_bad_input=options.on_bad_input,
            tombstone_retention_seconds=options.tombstone_retention_seconds,
            chunk_rows=options.chunk_rows,
            hot_budget=None if options.hot_budget is None else options.hot_budget.share(shared),
            table_budget=None if options.table_budget is None else options.table_budget.share(shared),
            more=dict(more or {}),
        )
        idle = options.idle_timeout_seconds
        self._times = EventTimes(query.planned_stages, idle_timeout_us=None if idle is None else idle * 1_000_000)
        self.heartbeat: Heartbeat | None = None
        self.after_begin: Callable[[], None] = lambda: None
        self._places = places_of(query.planned_stages)
        self._main_stage = next(one.name for one in query.planned_stages if not one.stage.forwards)
        self._wanted = wanted_settings(options.max_records_per_batch, is_routed=len(query.planned_stages) > 1)
        self._locality = Locality(buckets)
        self._statistics: dict[str, dict[str, int]] = {}
        self._kind = {SESSION: "connect"} if query.is_served else {}
        self._topics = topics_of(query.streams, options.checkpoint_location, is_served=query.is_served)
        self._topic_ids: TopicIds = {}

    def attach(self, query_id: str, owner: Ownership | None = None) -> None:
        """Open checkpoint and output for a query; the checkpoint stays as it was until `begin`."""
        # Claimed first: nothing is opened that another driver may be using.
        folder = checkpoint_folder(self.options.checkpoint_location)
        self.owner = owner or Ownership.claim(folder, query_id, on_trial=True)
        try:
            with self.owner.reporting_lost_ownership():
                self._open(query_id)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Write down what the checkpoint is for: the end of a start that nothing has refused."""
        checkpoint = self._opened()
        with self._owned().reporting_lost_ownership():
            checkpoint.begin()
            self._give_change(checkpoint)
            note_given_change(checkpoint)
            self.after_begin()
        self.progress.publish(checkpoint.query_id)

    def _give_change(self, checkpoint: Checkpoint) -> None:
        """Give outputs a change of the query that no batch has followed; functions, at every start."""
        for view, change in given_changes(checkpoint, [*self.relations]).items():
            rows = change_rows(checkpoint.files, change, self.relations[view].schema)
            rejected = self.output.give_change(self.query.session, checkpoint.files, view, change, rows)
            publish_dead_letters(self.dead_letters, self._letters(checkpoint, change.epoch, rejected))

    def _open(self, query_id: str) -> None:
        stored = stored_description(self.options.checkpoint_location)
        description = self.described(stored)
        checkpoint = Checkpoint(
            self.options.checkpoint_location,
            query_id=query_id,
            buckets=self.buckets,
            description=description,
            plan=self.query.to_json(),
            local_state_dir=self.options.local_state_dir,
            snapshot_after_bytes=self.options.snapshot_after_bytes,
            retain_input_log=self.options.retain_input_log,
            local_state_retention_seconds=LOCAL_STATE_RETENTION_SECONDS,
            owner=self.owner,
            begins=False,
        )
        changed, views = checkpoint.changed, [*self.relations]
        altered = () if changed is None or not given_changes(checkpoint, views) else changed.altered
        may_lack = views if altered and len(views) == 1 else altered
        self.output.open(self.relations, query_id, may_lack_columns=may_lack)
        self.is_open = True
        self.operator_options = replace(self.operator_options, hash_seed=seed_of_query(query_id))
        self._topic_ids = self._topics.start({} if checkpoint.last is None else checkpoint.last.positions)
        if checkpoint.last is not None:
            self._check_lacking(checkpoint, checkpoint.last)  # now, not when the next epoch is committed
        self.checkpoint = checkpoint

    def described(self, stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the description by which a checkpoint recognises the query."""
        return described_query(
            self.query,
            stored,
            is_loaded=has_commits(self.options.checkpoint_location),
            udf_version=self.options.udf_version,
            limits=self._kind,
        )

    def _check_lacking(self, checkpoint: Checkpoint, last: CommitRecord) -> None:
        """Refuse an output without the last epoch, unless Spark gives that epoch again, or it is a change of the query."""
        changed, changes = checkpoint.changed, given_changes(checkpoint, [*self.relations])
        if changes:
            for view, change in changes.items():
                self.output.lacking(change, [view])
            return
        lacking = self.output.lacking(last)
        batch = last.epoch - (0 if changed is None else changed.changes)
        if lacking and is_completed(self.options.checkpoint_location, batch):
            raise SinkError(
                f"{' and '.join(lacking)}: epoch {last.epoch} is not there, and Spark has completed it for the checkpoint "
                f"{self.options.checkpoint_location}, so it is not repeated. The output is new, or was replaced: "
                f"restore the one of the checkpoint, or start with a new output and a new checkpointLocation.",
                code="SINK_EPOCH_GAP",
                outputs=list(lacking),
                epoch=last.epoch,
            )

    def explanation(self) -> str:
        with explained_for(self.operator_options.more):
            return self.query.query_explanation(self.output.describe(), replace(self.options, buckets=self.buckets))

    @property
    def relations(self) -> Mapping[str, Relation]:
        return self.query.outputs

    @property
    def schema(self) -> pa.Schema:
        return self.query.output.schema

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        try:
            with self.lock, self._owned().reporting_lost_ownership():
                if self.has_ended:
                    raise has_ended(self.options.checkpoint_location, epoch)
                if epoch:
                    self._run(batch, epoch)
                    return
                with progress_line(f"{self.name}: first load"):
                    self._run(batch, epoch)
        except BaseException as error:
            failure = self.failure_of(error)
            self.error = error if failure is None else failure
            if failure is not None:
                raise failure from error
            raise

    def failure_of(self, error: BaseException) -> StateError | None:
        location = self.options.checkpoint_location
        return disk_failure(error, location, self._outcome) or lost_records(error, location)

    def close(self) -> None:
        """Close the output and release the checkpoint, once no epoch runs."""
        with self.lock:
            try:
                self.output.close()
                self.is_open = False
            finally:
                if self.owner is not None:
                    self.owner.release()
            self._locality.close()
            self._topics.close()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Keep epochs from running, with the output open, also after the query has stopped."""
        with self.lock:
            if self.is_open:
                yield
                return
            self.output.open(self.relations, self._opened().query_id)
            try:
                yield
            finally:
                self.output.close()

    def backup(self, directory: str | Path) -> Savepoint:
        """Copy checkpoint and output between two epochs, also after the query has stopped."""
        with self.pause():
            outputs = self.output.at_rest()
            return backup(self.options.checkpoint_location, directory, outputs=outputs, is_held=self.is_open)

    def _outcome(self) -> EpochOutcome:
        """Return whether the epoch that ran last is committed."""
        is_known = self.checkpoint is not None and self._epoch is not None
        return self._opened().outcome(self._epoch or 0) if is_known else nothing_committed()

    def _run(self, batch: DataFrame, epoch: int) -> None:
        started, number = time.perf_counter(), epoch
        checkpoint = self._opened()
        offsets = offsets_digest(self.options.checkpoint_location, epoch)
        if (changed := checkpoint.changed) is not None:
            epoch += changed.changes
            if epoch == changed.epoch:  # it was taken before the change, which outputs were given at the start
                check_same_batch(checkpoint, epoch_before(checkpoint, changed), offsets)
                return
        self._epoch = epoch
        before = {} if checkpoint.last is None else checkpoint.last.progress
        record = checkpoint.committed(epoch, offsets)
        seconds: dict[str, float] = {}
        is_replay = record is not None
        if record is None:
            answered = self._evaluate(batch, Tick(epoch, self._processing_time_us()), seconds)
            answered = self.checked_output(checkpoint, answered)
            answered = replace(answered, progress={**answered.progress, **recorded_seconds(seconds, self._seconds_before)})
            committing = time.perf_counter()
            self._topic_ids = self._topics.check_epoch(self._topic_ids)
            record = checkpoint.commit(replace(answered, offsets=offsets, positions=self._topic_ids))
            seconds["commit"] = time.perf_counter() - committing
        elif not self.output.has(record) and not self.output.can_publish(checkpoint.files, record):
            # Its parts are lost; the state before it and its logged input are still there, and give the same answer.
            record = checkpoint.take_replay(self._replay(batch.sparkSession, record, seconds))
        publish_dead_letters(self.dead_letters, record.quarantined)
        publishing = time.perf_counter()
        if not self.output.has(record):
            self.output.publish(batch.sparkSession, checkpoint.files, record)
        finished = time.perf_counter()
        seconds |= {"output": finished - publishing, "total": finished - started}
        rounded = {name: round(value, 4) for name, value in seconds.items()}
        self._seconds_before = {name: rounded[name] for name in ("commit", "output") if name in rounded}
        of_batch = {"batch": number} if number != epoch else {}
        self.progress.entries.append({**record.progress, **of_batch, "replayed": is_replay, "seconds": rounded})
        _log.info("%s", epoch_line(self.name, self.progress.entries[-1]))
        if not is_replay:
            parts = {name: seconds[name] for name in ("job", "commit", "output")}
            write_epoch_span(
                view=self.name, query_id=checkpoint.query_id, runner="executors", progress=record.progress, parts=parts
            )
        if self.heartbeat is not None:
            self.heartbeat.wake()
        warn_of_late_changes(record.progress, before)

    def checked_output(self, checkpoint: Checkpoint, answered: CommitRecord) -> CommitRecord:
        """Refuse, or set aside, the rows of an answer that the output can never hold, before the epoch is committed."""
        rejected = self.output.put_aside(checkpoint.files, answered)
        if not rejected:
            return answered
        letters = self._letters(checkpoint, answered.epoch, rejected)
        return replace(answered, quarantined=(*answered.quarantined, *letters))

    def _letters(self, checkpoint: Checkpoint, epoch: int, rejected: dict[str, Rejected]) -> Sequence[PartEntry]:
        """Write the rows that outputs cannot hold to the dead letters."""
        schemas_of = {self.output.known(view): relation.schema for view, relation in self.relations.items()}
        names, schemas = tuple(rejected), tuple(schemas_of[self.output.view_of(name)] for name in rejected)
        letters = DeadLetters(directory=self.dead_letters, query_id=checkpoint.query_id, names=names, schemas=schemas)
        return letters.write(Tick(epoch), 0, rejected) if rejected else ()

    def _opened(self) -> Checkpoint:
        if self.checkpoint is None:
            raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
        return self.checkpoint

    def _owned(self) -> Ownership:
        if self.owner is None:
            raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
        return self.owner

    def _evaluate(self, batch: DataFrame, tick: Tick, seconds: dict[str, float]) -> CommitRecord:
        """Answer an epoch with one Spark job."""
        started = time.perf_counter()
        title = self._title(tick.epoch)
        keep_epoch_rows(self.query.planned_stages, self._opened().files.folder, tick)
        with job_settings(batch.sparkSession, self._wanted), described_jobs(batch.sparkSession, title):
            self._locality.begin(batch.sparkSession)
            plan = self._plan(tick, self.buckets)
            if self._times.is_needed:
                lines, times = self._answered_in_time(plan, batch)
            else:
                lines, times = plan.receipts(plan.shuffled(batch)).collect(), _Times(self._opened().watermarks, {})
        receipts = [TaskReceipt.from_json(line[0]) for line in lines]
        seconds["job"] = time.perf_counter() - started
        self._check(receipts, tick.epoch)
        self._refuse_if_full(batch.sparkSession, receipts, tick)
        record = self._record(receipts, tick, times)
        self._locality.learn([receipt.executor for receipt in receipts if receipt.stage == self._main_stage])
        seconds |= stage_seconds(receipts)
        return record

    @property
    def is_timed(self) -> bool:
        """Return whether a stage may have rows to emit when time passes."""
        return bool(self._times.timed)

    def next_due(self) -> tuple[int, int] | None:
        """Return the last epoch, and the processing time at which a stage must answer though no row arrives; None for never."""
        # The rows of the last epoch are folded only by the next one: where rows may wait in it, that one is due now.
        last = None if self.checkpoint is None else self.checkpoint.last
        if last is None:
            return None
        times = [due.processing_time_us for due in last.dues.values() if due.processing_time_us is not None]
        parking = {one.name for one in self.query.planned_stages if one.stage.parks}
        for key, history in last.histories.items():
            if key.partition("/")[0] in parking and history.logs and history.logs[-1].last_epoch == last.epoch:
                times.append(0)
        idle = self._times.next_idle(last.watermarks, last.processing_time_us)
        times += [] if idle is None else [idle]
        return (last.epoch, min(times)) if times else None

    def _answered_in_time(self, plan: EpochPlan, batch: DataFrame) -> tuple[list[Any], _Times]:
        """Answer an epoch whose stages need its largest event times first; kept rows are read twice, sources once."""
        before = self._opened().watermarks
        layouts, has_targets = plan.fed_layouts, len(self._tagged.fed) > 1
        bounded = self._times.within_bounds(batch, layouts, has_targets=has_targets, before=before)
        shuffled = plan.shuffled(bounded).persist()
        try:
            aggregates = self._times.maxima(layouts, has_targets=has_targets, before=before)
            (maxima,) = shuffled.agg(*(one.alias(f"m{at}") for at, one in enumerate(aggregates))).collect()
            after, late = self._times.after(before, list(maxima), plan.tick.processing_time_us)
            ticks = self._times.ticks(plan.tick.epoch, plan.tick.processing_time_us, before, after)
            return replace(plan, ticks=ticks).receipts(shuffled).collect(), _Times(after, late)
        finally:
            shuffled.unpersist()

    def _replay(self, session: SparkSession, record: CommitRecord, seconds: dict[str, float]) -> CommitRecord:
        """Answer a committed epoch from its logged input, with one Spark job."""
        started = time.perf_counter()
        plan = self._plan(Tick(record.epoch, record.processing_time_us), self._opened().buckets_of(record.epoch))
        title = f"{self._title(record.epoch)}, again"
        with job_settings(session, self._wanted), described_jobs(session, title):
            lines = plan.replayed_receipts(session, record).collect()
        receipts = [TaskReceipt.from_json(line[0]) for line in lines]
        forget(self.dead_letters, [part for receipt in receipts for part in receipt.quarantined])  # they are published
        self._raise_first(receipts)
        seconds["job"] = time.perf_counter() - started
        return replace(record, parts=tuple(part for receipt in receipts for part in receipt.parts))

    def _plan(self, tick: Tick, buckets: int) -> EpochPlan:
        checkpoint, planned_stages = self._opened(), self.query.planned_stages
        return EpochPlan(
            fused_stages=self.query.fused_stages,
            tagged=self._tagged,
            checkpoint=checkpoint,
            tick=tick,
            buckets=buckets,
            options=self.operator_options,
            parts={view: self.output.parts(view) for view in self.relations},
            dead_letters=dead_letters_of(planned_stages, self.dead_letters, checkpoint.query_id),
            buffer=self.buffer,
            locality=self._locality,
            timed=self._times.timed,
        )

    def _title(self, epoch: int) -> str:
        return epoch_title(self.name, epoch, [one.stage.kind for one in self.query.planned_stages])

    def _processing_time_us(self) -> int:
        """Return the wall-clock time in microseconds; it never goes back."""
        last = self._opened().last
        now = time.time_ns() // 1000
        return now if last is None or last.processing_time_us is None else max(now, last.processing_time_us)

    def _check(self, receipts: Sequence[TaskReceipt], epoch: int) -> None:
        """Raise the error of a task; compare rows read with rows applied and quarantined."""
        self._raise_first(receipts)
        check_rows(self.query.planned_stages, self._places, receipts, self.buckets, epoch)

    def _refuse_if_full(self, session: SparkSession, receipts: Sequence[TaskReceipt], tick: Tick) -> None:
        """Raise where the epoch would bring an append-only join to its limit."""
        checkpoint = self._opened()
        held = self.buffer.held(checkpoint.buffered, receipts)
        if self.buffer.is_full(held):
            with job_settings(session, self._wanted):
                raise self.buffer.error(session, checkpoint, tick, self.operator_options, held, receipts)

    def _raise_first(self, receipts: Sequence[TaskReceipt]) -> None:
        """Raise the error of a task; of several, the one nearest to the sources."""
        for receipt in sorted(receipts, key=lambda receipt: (stage_order(receipt.stage), receipt.key)):
            error = error_of_receipt(receipt)
            if error is not None:
                raise error

    def _record(self, receipts: Sequence[TaskReceipt], tick: Tick, times: _Times) -> CommitRecord:
        checkpoint = self._opened()
        last = checkpoint.last
        known = {} if last is None else last.dues
        dues = {key: due for key, due in known.items() if int(key.rpartition("/")[2]) < self.buckets}
        histories = self._histories(receipts, checkpoint.before(tick.epoch))
        self._statistics |= {receipt.key: receipt.statistics for receipt in receipts if receipt.statistics}
        held = self.buffer.held(checkpoint.buffered, receipts)
        record = CommitRecord(
            query_id=checkpoint.query_id,
            epoch=tick.epoch,
            processing_time_us=tick.processing_time_us,
            histories=histories,
            parts=tuple(part for receipt in receipts for part in receipt.parts),
            quarantined=tuple(part for receipt in receipts for part in receipt.quarantined),
            buffered=held,
            watermarks=times.watermarks,
            dues=dues_after(dues, receipts),
        )
        counts = epoch_counts(record, receipts, self._places, self._statistics, main_stage=self._main_stage, last=last)
        budget = self.options.hot_budget or self.options.table_budget
        counts |= {} if budget is None else {"cold_store": budget.cold_store}
        if self._times.is_needed:
            counts |= self._times.progress(times.watermarks, times.late_rows, tick.processing_time_us, last)
        return replace(record, progress={**counts, "buffered": self.buffer.counts(held)})

    def _histories(self, receipts: Sequence[TaskReceipt], before: Mapping[str, BucketHistory]) -> dict[str, BucketHistory]:
        """Return the histories of the state after an epoch; stages that share a table have one history."""
        states = {one.name: one.state_name for one in self.query.planned_stages}
        places = {one.name: one.number for one in self.query.planned_stages}
        in_order = sorted(receipts, key=lambda receipt: places.get(receipt.stage, -1))
        return histories_after(before, in_order, states)


@dataclass(frozen=True)
class _Times:
    """The event times of an epoch: the watermarks after it, and the late rows of every stream."""

    watermarks: Mapping[str, int]
    late_rows: Mapping[str, int]
