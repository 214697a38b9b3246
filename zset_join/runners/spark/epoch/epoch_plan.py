"""The Spark job of an epoch: the plan whose rows are the receipts of all its tasks.

    batch -> first shuffle -> route -> join -> ... -> receipts
                           └---------> join-1 -> ... -> receipts

A stage answers in the partition of its bucket, fused stages in one task. Where the rows of several tasks go into
one shuffle, or their receipts into one result, their partitions are numbered one task after the other, and each gets which
partition is its bucket 0. Rows of streams that are for a stage behind another one stay in Spark until they are separated from
the first shuffle, which is made once and read once per stage. So is the shuffle behind a task whose rows several others read;
the receipts go with the rows for the first of them.
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
from zset_join.checkpoint.record import CommitRecord, LogEntry
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.runners.spark.planning.buffer_limit import QueryBuffer
from zset_join.runners.spark.planning.normalise import TaggedStreams, rows_for, stage_bucket
from zset_join.runners.spark.planning.placed_query import FusedStages
from zset_join.runners.spark.planning.stages import PlannedStage, ends_of
from zset_join.runners.spark.rows.layout import TARGET, SlotLayout, make_layout
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.runners.spark.worker.deliveries import ToOutput, ToSameTask, ToStage
from zset_join.runners.spark.worker.locality import Locality
from zset_join.runners.spark.worker.parts import PartWriter
from zset_join.runners.spark.worker.quarantine import DeadLetters
from zset_join.runners.spark.worker.tasks import BucketTask, ReplayTask, Sending, StageTask
from zset_join.stages import StageOptions

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
    parts: Mapping[str, PartWriter]
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
        ended: list[DataFrame] = []
        sent: dict[FusedStages, list[_Sent]] = {one: [] for one in self.fused_stages}
        for one in self.fused_stages:
            given = self._rows(one, shuffled, sent[one])
            receivers = self._receivers(one)
            if len(receivers) > 1:
                rows = self._spread(one, self._answered(one, given, 0))
                for receiver in receivers:
                    numbers = [planned.number for planned in receiver.members]
                    sent[receiver].append(_Sent(rows_for(rows, numbers), is_spread=True))
                continue
            together = [rows.frame for rows in sent[receivers[0]]] if receivers else ended
            answered = self._answered(one, given, self.buckets * len(together))
            if receivers:
                sent[receivers[0]].append(_Sent(self._with_buckets(one, answered)))
            else:
                ended.append(answered)
        return _whole(ended)

    def _receivers(self, one: FusedStages) -> list[FusedStages]:
        """Return the fused stages that receive rows of others; that of the first use by a stage is the first."""
        targets = [use.target for use in one.last.uses if use.target is not None]
        return list(dict.fromkeys(map(self._fused_with, targets)))

    def _with_buckets(self, one: FusedStages, answered: DataFrame) -> DataFrame:
        """Return the rows that leave fused stages, with the stage and the bucket that each is for."""
        targets = list(dict.fromkeys(use.target for use in one.last.uses if use.target is not None))
        if len(targets) == 1:
            return answered.select("*", F.lit(targets[0]).alias(TARGET), self._bucket(targets[0]))
        first, *others = [(F.col(TARGET) == number, self._bucket(number)) for number in targets]
        bucket = F.when(*first)
        for is_for, of_target in others:
            bucket = bucket.when(is_for, of_target)
        return answered.select("*", bucket.cast("int").alias("bucket"))

    def _spread(self, one: FusedStages, answered: DataFrame) -> DataFrame:
        return self._with_buckets(one, answered).repartitionById(self.buckets, F.col("bucket"))

    def replayed_receipts(self, session: SparkSession, record: CommitRecord) -> DataFrame:
        """Return the plan that answers a committed epoch again, from the logged input of the stages nearest to the output."""
        answered: list[DataFrame] = []
        for planned in dict.fromkeys(planned for planned, _ in ends_of(self.planned_stages)):
            context = self._opened(planned, self.tick)
            context = replace(context, snapshot_buckets=frozenset(), merge_buckets=frozenset())
            rows = session.range(0, self.buckets, 1, self.buckets)
            first = self.buckets * len(answered)
            sendings = [self._sending(planned, at) for at, use in enumerate(planned.uses) if use.target is None]
            task = self._task(planned, context, first, sendings)
            again = ReplayTask(task=task, logs=_logs_of(record, planned.state_name))
            answered.append(rows.mapInArrow(again, spark_schema(task.leaving.schema)))
        return _whole(answered)

    def _rows(self, one: FusedStages, shuffled: DataFrame, sent: Sequence[_Sent]) -> DataFrame:
        if not sent:
            return self.locality.pin(self.tagged.rows_of(shuffled, one.fed))
        frames = [rows.frame for rows in sent]
        if len(sent) == 1 and sent[0].is_spread and not one.fed:
            return self.locality.pin(frames[0])
        if one.fed:  # behind what other tasks send, so that those have their partitions
            rows = self.tagged.rows_of(shuffled, one.fed)
            frames.append(rows if TARGET in rows.columns else rows.withColumn(TARGET, F.lit(one.fed[0])))
        together = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)
        return self.locality.pin(together.repartitionById(self.buckets, F.col("bucket")))

    def _bucket(self, number: int) -> Column:
        """Return the bucket of rows in slots that a stage is given; receipts go to bucket 0."""
        return stage_bucket(self._layouts[number], self._numbered[number].stage.inputs, self.buckets)

    def _sent_to(self, one: FusedStages) -> list[int]:
        """Return the fused stages that receive rows from other tasks."""
        inside = {planned.number for planned in one.members}
        elsewhere = {use.target for planned in self.planned_stages if planned.number not in inside for use in planned.uses}
        return [planned.number for planned in one.members if planned.streams or planned.number in elsewhere]

    @cached_property
    def _layouts(self) -> dict[int, SlotLayout]:
        """Return how rows travel to the stages; where they travel together, a slot has one type for all."""
        layouts: dict[int, SlotLayout] = {}
        for together in self._together():
            types: Sequence[pa.DataType] = self.tagged.types if any(one.fed for one in together) else ()
            for one in together:
                sent_to = self._sent_to(one)
                for planned in one.members:
                    number = planned.number
                    schemas = [given.fed.schema for given in planned.stage.inputs]
                    has_raw = self.tagged.has_raw and bool(planned.streams)
                    layouts[number] = make_layout(*schemas, has_raw=has_raw, types=types if number in sent_to else ())
                    types = layouts[number].types if number in sent_to else types
        return layouts

    def _together(self) -> list[list[FusedStages]]:
        """Return the fused stages, those together whose rows leave one task."""
        groups = {one: [one] for one in self.fused_stages}
        for one in self.fused_stages:
            first, *others = self._receivers(one) or [one]
            for other in others:
                if groups[other] is not groups[first]:
                    groups[first] += groups[other]
                    groups |= dict.fromkeys(groups[other], groups[first])
        return list({id(group): group for group in groups.values()}.values())

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
        fed = (planned.number for one in self.fused_stages if one.fed for planned in one.members)
        return {number: self._layouts[number] for number in fed}

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
        tasks = {}
        for planned in one.members:
            is_last = planned is one.last
            sendings = [self._sending(planned, at, is_last=is_last) for at in range(len(planned.uses))]
            tasks[planned.number] = self._task(planned, self._context(planned), first_partition, sendings)
        function = BucketTask(tasks=tasks, sent_to=self._sent_to(one))
        return rows.mapInArrow(function, spark_schema(tasks[one.last.number].leaving.schema))

    def _task(
        self, planned: PlannedStage, context: StageContext, first_partition: int, sendings: Sequence[Sending]
    ) -> StageTask:
        return StageTask(
            context=context,
            stage=planned.stage,
            options=self.options,
            layout=self._layouts[planned.number],
            dead_letters=self.dead_letters,
            sendings=tuple(sendings),
            first_partition=first_partition,
            buckets=self.buckets,
            name=planned.name,
            shared=planned.shared,
        )

    def _sending(self, planned: PlannedStage, at: int, *, is_last: bool = True) -> Sending:
        """Return where the rows of a stage go by one use of them; equal rows are made one that would be so in an output."""
        use = planned.uses[at]
        if use.target is None:
            rows = planned.rows[at].schema
            output = ToOutput(parts=self.parts[use.view], files=self.checkpoint.files, tick=self.tick, rows=rows)
            return Sending(delivery=output, steps=use.steps, is_tidied=not planned.emits_distinct_rows[at])
        given = self._numbered[use.target].stage.inputs[use.side]
        if not is_last:
            return Sending(delivery=ToSameTask(target=use.target, side=use.side, given=given), steps=use.steps)
        targets = {other.target for other in planned.uses if other.target is not None}
        types = max((self._layouts[target].types for target in targets), key=len)
        delivery = ToStage(
            layout=replace(self._layouts[use.target], types=types),
            side=use.side,
            given=given,
            chunk_rows=self.options.chunk_rows,
            target=use.target if len(targets) > 1 else None,
        )
        return Sending(delivery=delivery, steps=use.steps, is_tidied=bool(use.steps) and not delivery.reduces)


@dataclass(frozen=True)
class _Sent:
    """Rows on their way to fused stages."""

    frame: DataFrame
    is_spread: bool = False  # each is in the partition of its bucket already


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
