"""The Spark job of an epoch: the plan whose rows are the receipts of all its tasks.

    batch -> first shuffle -> route -> join -> ... -> receipts
                           └---------> join-1 -> ... -> receipts

A stage answers in the partition of its bucket, fused stages in one task. Where the rows of several tasks go into
one shuffle, or their receipts into one result, their partitions are numbered one task after the other, and each gets which
partition is its bucket 0. Rows of streams that are for a stage behind another one stay in Spark until they are separated from
the first shuffle, which is made once and read once per stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.bucket import StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.log import LogEntry
from zset_join.checkpoint.record import CommitRecord
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.runners.spark.planning.buffer_limit import QueryBuffer
from zset_join.runners.spark.planning.normalise import TaggedStreams, stage_bucket
from zset_join.runners.spark.planning.placed_query import FusedStages
from zset_join.runners.spark.planning.stages import PlannedStage
from zset_join.runners.spark.rows.layout import TARGET, SlotLayout, make_layout
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.runners.spark.worker.deliveries import Delivery, ToOutput, ToSameTask, ToStage
from zset_join.runners.spark.worker.locality import Locality
from zset_join.runners.spark.worker.parts import PartWriter
from zset_join.runners.spark.worker.quarantine import DeadLetters
from zset_join.runners.spark.worker.tasks import BucketTask, ReplayTask, StageTask
from zset_join.stages import StageInput, StageOptions

__all__ = ["EpochPlan", "dead_letters_of"]

_BEFORE_ALL_ROWS = 1 << 62


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    fused_stages: Sequence[FusedStages]
    tagged: TaggedStreams
    checkpoint: Checkpoint
    tick: Tick
    buckets: int
    options: StageOptions
    parts: PartWriter
    dead_letters: DeadLetters
    buffer: QueryBuffer
    locality: Locality
    ticks: Mapping[int, Tick] = field(default_factory=dict)
    timed: frozenset[int] = frozenset()

    def shuffled(self, batch: DataFrame) -> DataFrame:
        """Return the rows of an epoch, each in the bucket of the stage that it reaches first."""
        order = F.monotonically_increasing_id()
        rows = batch.select("*", order.alias("order"))
        if self.tick.epoch == 0 and self.tagged.baseline is not None:
            rows = rows.unionAll(self.tagged.baseline.select("*", (order - F.lit(_BEFORE_ALL_ROWS)).alias("order")))
        return rows.repartitionById(self.buckets, F.col("bucket"))

    def receipts(self, shuffled: DataFrame) -> DataFrame:
        sent: dict[FusedStages | None, list[tuple[int, DataFrame]]] = {}
        for one in self.fused_stages:
            given = self._rows(one, shuffled, sent.pop(one, []))
            target = one.last.target
            to_receiver = sent.setdefault(None if target is None else self._fused_with(target), [])
            answered = self._answered(one, given, self.buckets * len(to_receiver))
            to_receiver.append((-1 if target is None else target, answered))
        return _whole([answered for _, answered in sent[None]])

    def replayed_receipts(self, session: SparkSession, record: CommitRecord) -> DataFrame:
        """Return the plan that answers a committed epoch again, from the logged input of the stages nearest to the output."""
        answered: list[DataFrame] = []
        for planned in self.planned_stages:
            if planned.target is not None:
                continue
            context = self._opened(planned, self.tick)
            context = replace(context, snapshot_buckets=frozenset(), merge_buckets=frozenset())
            rows = session.range(0, self.buckets, 1, self.buckets)
            first = self.buckets * len(answered)
            layout = self._layouts(self._fused_with(planned.number))[planned.number]
            task = self._task(planned, context, layout, first, self._delivery(planned))
            again = ReplayTask(task=task, logs=_logs_of(record, planned.state_name))
            answered.append(rows.mapInArrow(again, spark_schema(task.delivery.schema)))
        return _whole(answered)

    def _rows(self, one: FusedStages, shuffled: DataFrame, sent: Sequence[tuple[int, DataFrame]]) -> DataFrame:
        if not sent:
            return self.locality.pin(self.tagged.rows_of(shuffled, one.fed))
        layouts = self._layouts(one)
        frames = [rows.select("*", F.lit(number).alias(TARGET), self._bucket(number, layouts)) for number, rows in sent]
        if one.fed:  # behind what other tasks send, so that those have their partitions
            rows = self.tagged.rows_of(shuffled, one.fed)
            frames.append(rows if TARGET in rows.columns else rows.withColumn(TARGET, F.lit(one.fed[0])))
        together = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)
        return self.locality.pin(together.repartitionById(self.buckets, F.col("bucket")))

    def _bucket(self, number: int, layouts: Mapping[int, SlotLayout]) -> Column:
        """Return the bucket of rows in slots that a stage is given; receipts go to bucket 0."""
        return stage_bucket(layouts[number], self._numbered[number].stage.inputs, self.buckets)

    def _sent_to(self, one: FusedStages) -> list[int]:
        """Return the fused stages that receive rows from other tasks."""
        inside = {planned.number for planned in one.members}
        elsewhere = {planned.target for planned in self.planned_stages if planned.number not in inside}
        return [planned.number for planned in one.members if planned.streams or planned.number in elsewhere]

    def _layouts(self, one: FusedStages) -> dict[int, SlotLayout]:
        """Return how rows travel to the stages of fused stages; where they travel together, a slot has one type for all."""
        sent_to = self._sent_to(one)
        layouts: dict[int, SlotLayout] = {}
        types: Sequence[pa.DataType] = self.tagged.types if one.fed else ()
        for planned in one.members:
            number = planned.number
            schemas = [given.fed.schema for given in planned.stage.inputs]
            has_raw = self.tagged.has_raw and bool(planned.streams)
            layouts[number] = make_layout(*schemas, has_raw=has_raw, types=types if number in sent_to else ())
            types = layouts[number].types if number in sent_to else types
        return layouts

    @cached_property
    def planned_stages(self) -> list[PlannedStage]:
        return sorted((planned for one in self.fused_stages for planned in one.members), key=lambda planned: planned.number)

    @cached_property
    def _numbered(self) -> dict[int, PlannedStage]:
        return {planned.number: planned for planned in self.planned_stages}

    def _fused_with(self, number: int) -> FusedStages:
        return next(one for one in self.fused_stages if any(member.number == number for member in one.members))

    @property
    def fed_layouts(self) -> dict[int, SlotLayout]:
        """Return how rows of streams travel, by the number of the stage that they reach first."""
        return {number: layout for one in self.fused_stages if one.fed for number, layout in self._layouts(one).items()}

    def _due(self, planned: PlannedStage) -> frozenset[int]:
        """Return the buckets of a stage that may have rows to emit though no row arrives."""
        # Those whose time has come, as returned when they were opened last; and those that had rows in the last epoch, or
        # were moved since, which are folded only now: their due time is not known yet.
        if planned.number not in self.timed:
            return frozenset()
        tick, last = self.ticks.get(planned.number, self.tick), self.tick.epoch - 1
        dues = {} if self.checkpoint.last is None else self.checkpoint.last.dues
        due_buckets = set()
        for key, history in self.checkpoint.before(self.tick.epoch).items():
            stage, _, bucket = key.partition("/")
            if stage != planned.state_name:
                continue
            newest = history.logs[-1].last_epoch if history.logs else -1
            newest = newest if history.snapshot is None else max(newest, history.snapshot.through_epoch)
            due = dues.get(f"{planned.name}/{bucket}")
            has_come = due is not None and due.is_due(
                watermark_us=tick.watermark_us, processing_time_us=tick.processing_time_us
            )
            if newest == last or has_come:
                due_buckets.add(int(bucket))
        return frozenset(due_buckets)

    def _opened(self, planned: PlannedStage, tick: Tick) -> StageContext:
        readers = 1 if planned.shared is None else len(planned.shared.readers)
        return replace(self.checkpoint.stage(planned.state_name, tick), readers=readers)

    def _context(self, planned: PlannedStage) -> StageContext:
        context = self._opened(planned, self.ticks.get(planned.number, self.tick))
        context = replace(context, due_buckets=self._due(planned))
        if planned.shared is not None and planned.shared.place:  # the first of those that share a state cares for it
            context = replace(context, snapshot_buckets=frozenset(), merge_buckets=frozenset())
        if planned.name != self.buffer.stage:
            return context
        return replace(context, count_buckets=self.buffer.uncounted(self.checkpoint.histories, self.checkpoint.buffered))

    def _answered(self, one: FusedStages, rows: DataFrame, first_partition: int) -> DataFrame:
        """Return the output of the function of fused stages."""
        layouts = self._layouts(one)
        tasks = {
            planned.number: self._task(
                planned,
                self._context(planned),
                layouts[planned.number],
                first_partition,
                self._delivery(planned) if planned is one.last else self._passed_on(planned),
            )
            for planned in one.members
        }
        function = BucketTask(tasks=tasks, sent_to=self._sent_to(one))
        return rows.mapInArrow(function, spark_schema(tasks[one.last.number].delivery.schema))

    def _task(
        self, planned: PlannedStage, context: StageContext, layout: SlotLayout, first_partition: int, delivery: Delivery
    ) -> StageTask:
        return StageTask(
            context=context,
            stage=planned.stage,
            options=self.options,
            layout=layout,
            dead_letters=self.dead_letters,
            delivery=delivery,
            first_partition=first_partition,
            buckets=self.buckets,
            name=planned.name,
            steps=planned.steps,
            shared=planned.shared,
            is_tidied=_is_tidied(planned, delivery),
        )

    def _delivery(self, planned: PlannedStage) -> Delivery:
        """Return where the rows of the last stage of a task go."""
        if planned.target is None:
            return ToOutput(parts=self.parts, files=self.checkpoint.files, tick=self.tick, rows=planned.after.schema)
        layout = self._layouts(self._fused_with(planned.target))[planned.target]
        return ToStage(layout=layout, side=planned.side, given=self._input_behind(planned), chunk_rows=self.options.chunk_rows)

    def _passed_on(self, planned: PlannedStage) -> ToSameTask:
        """Return where the rows of another stage of fused stages go."""
        if planned.target is None:
            raise TypeError("the rows of a fused stage go to another stage")
        return ToSameTask(target=planned.target, side=planned.side, given=self._input_behind(planned))

    def _input_behind(self, planned: PlannedStage) -> StageInput:
        """Return the input of the stage that is given the rows of a planned stage."""
        return self._numbered[-1 if planned.target is None else planned.target].stage.inputs[planned.side]


def _is_tidied(planned: PlannedStage, delivery: Delivery) -> bool:
    """Return whether equal rows of an answer are made one: in an output, and behind steps before a shuffle."""
    if isinstance(delivery, ToOutput):
        return not planned.emits_distinct_rows
    return bool(planned.steps) and isinstance(delivery, ToStage) and not delivery.reduces


def dead_letters_of(planned_stages: Sequence[PlannedStage], directory: str, query_id: str) -> DeadLetters:
    """Return the writer of the rejected rows of all stages of a query into one table."""
    inputs: dict[str, Relation] = {}
    for one in planned_stages:
        for given in one.stage.inputs:
            if given.reduce is None and not one.stage.forwards:
                inputs.setdefault(given.relation.name, given.relation)  # a stream, before the stage that fills it
    return DeadLetters(
        directory=directory,
        query_id=query_id,
        names=tuple(inputs),
        schemas=tuple(relation.schema for relation in inputs.values()),
    )


def _whole(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames)


def _logs_of(record: CommitRecord, stage: str) -> Mapping[int, LogEntry]:
    """Return, per bucket with rows, the log file of an epoch."""
    logs: dict[int, LogEntry] = {}
    for key, history in record.histories.items():
        of, _, bucket = key.partition("/")
        if of == stage and history.logs and history.logs[-1].first_epoch == record.epoch:
            logs[int(bucket)] = history.logs[-1]
    return logs
