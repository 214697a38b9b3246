"""The Spark job of an epoch: the plan whose rows are the notes of all its tasks.

    batch -> first shuffle -> [route] -> join -> ... -> notes
                           └> [route] ----------> join-1 -> ... -> notes

A stage answers in the partition of its bucket, fused stages in one task (`fusing`). Where the rows of several tasks go into
one shuffle, or their notes into one result, their partitions are numbered one task after the other, and each is told which
partition is its bucket 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.bucket import StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.log import LogEntry
from zset_join.checkpoint.record import CommitRecord
from zset_join.plan import JoinNode, RouteNode
from zset_join.spark.bucket_task import BucketTask
from zset_join.spark.buffer_limit import QueryBuffer
from zset_join.spark.deliveries import Delivery, ToAggregate, ToExpressions, ToJoin, ToOutput, ToSameTask
from zset_join.spark.fusing import Pass
from zset_join.spark.handover import Handover
from zset_join.spark.layout import TARGET, WEIGHT, SlotLayout, make_layout, travelling_schema
from zset_join.spark.locality import Locality
from zset_join.spark.normalise import TaggedStreams, join_bucket, key_bucket
from zset_join.spark.operators import AggregateNode, OperatorOptions
from zset_join.spark.parts import PartWriter
from zset_join.spark.quarantine import DeadLetters
from zset_join.spark.schemas import arrow_schema, spark_schema
from zset_join.spark.stage_names import route_stage
from zset_join.spark.stages import Segment
from zset_join.spark.tasks import AnswerAgainTask, JoinTask, RouteTask
from zset_join.spark.view_tasks import GLOBAL_BUCKET, AggregateTask, ClosingTask
from zset_join.tick import Tick

__all__ = ["EpochPlan", "dead_letters_of", "group_bucket"]

_BEFORE_ALL_ROWS = 1 << 62


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """Build the job of one epoch.

    Args:
        passes: the stages of the query, those that are fused together.
        tagged: its streams.
        checkpoint: what is committed.
        tick: the epoch.
        buckets: N.
        options: options of the operators.
        parts: writes the parts of the output.
        dead_letters: writes the rows that are put aside.
        buffer: what an append-only join holds.
        local_state_dir: `localStateDir`.
        locality: binds rows that were sent to their buckets to the executors that have the state.
    """

    passes: Sequence[Pass]
    tagged: TaggedStreams
    checkpoint: Checkpoint
    tick: Tick
    buckets: int
    options: OperatorOptions
    parts: PartWriter
    dead_letters: DeadLetters
    buffer: QueryBuffer
    local_state_dir: str | None
    locality: Locality

    def notes(self, batch: DataFrame) -> DataFrame:
        """Return the plan of an epoch.

        Args:
            batch: the rows of the streams.
        """
        order = F.monotonically_increasing_id()
        rows = batch.select("*", order.alias("order"))
        if self.tick.epoch == 0 and self.tagged.baseline is not None:
            rows = rows.unionAll(self.tagged.baseline.select("*", (order - F.lit(_BEFORE_ALL_ROWS)).alias("order")))
        shuffled = rows.repartitionById(self.buckets, F.col("bucket"))
        sent: dict[Pass | None, list[tuple[int, DataFrame]]] = {}
        for one in self.passes:
            given = self._rows(one, shuffled, sent.pop(one, []))
            target = self._segment_of(one.last.target_stage)
            receiver = None if target is None else self._pass_of(target)
            to_receiver = sent.setdefault(receiver, [])
            first = self.buckets * (len(to_receiver) + (0 if receiver is None else len(self._routed(receiver))))
            made = self._passed(one, given, first)
            to_receiver.append((-1 if target is None else target.number, made))
        return _whole([made for _, made in sent[None]])

    def notes_again(self, session: SparkSession, record: CommitRecord) -> DataFrame:
        """Return the plan that answers a committed epoch again, from the logged input of the stages nearest to the output.

        Args:
            session: runs it.
            record: what is committed.
        """
        made: list[DataFrame] = []
        for segment in self.segments:
            if segment.target_stage is not None:
                continue
            context = replace(self._context(segment), snapshot_buckets=frozenset(), merge_buckets=frozenset())
            rows = session.range(0, self.buckets, 1, self.buckets)
            first = self.buckets * len(made)
            layout = self._layouts(self._pass_of(segment))[segment.number]
            task = self._task(segment, context, layout, first, self._delivery(segment))
            again = AnswerAgainTask(task=task, logs=_logs_of(record, segment.source_stage))
            made.append(self._closed(segment, rows.mapInArrow(again, spark_schema(task.delivery.schema)), first))
        return _whole(made)

    def _rows(self, one: Pass, shuffled: DataFrame, views: Sequence[tuple[int, DataFrame]]) -> DataFrame:
        """Return what reaches a pass, in its buckets.

        Args:
            one: the pass.
            shuffled: the rows of all streams.
            views: what earlier passes send, and the numbers of the stages that it is for.
        """
        routed = self._routed(one)
        straight = [number for number in one.joins if number in self.tagged.fed and number not in routed]
        if not routed and not views:
            return self.locality.pin(self.tagged.rows_of(shuffled, straight))
        layouts = self._layouts(one)
        sent = []
        for at, number in enumerate(routed):
            rows = self.locality.pin(self.tagged.rows_of(shuffled, [number]))
            schema = spark_schema(travelling_schema(layouts[number]))
            sent.append((number, rows.mapInArrow(self._route_task(number, layouts[number], self.buckets * at), schema)))
        sent += views  # behind the routes: so the tasks of both know their partitions
        frames = [rows.select("*", F.lit(number).alias(TARGET), self._bucket(number, layouts)) for number, rows in sent]
        if straight:
            rows = self.tagged.rows_of(shuffled, straight)
            frames.append(rows if TARGET in rows.columns else rows.withColumn(TARGET, F.lit(straight[0])))
        together = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)
        return self.locality.pin(together.repartitionById(self.buckets, F.col("bucket")))

    def _bucket(self, number: int, layouts: Mapping[int, SlotLayout]) -> Column:
        """Return the bucket of rows in slots that a stage is given; notes go to bucket 0."""
        source = self._numbered[number].source
        if isinstance(source, JoinNode):
            return join_bucket(layouts[number], source, self.buckets)
        return group_bucket(layouts[number], source.group_by, self.buckets)

    def _routed(self, one: Pass) -> list[int]:
        """Return the joins of a pass whose streams go through a route stage first."""
        return [number for number in one.joins if number in self.tagged.fed and self.tagged.joins[number].is_routed]

    def _sent_to(self, one: Pass) -> list[int]:
        """Return the stages of a pass that rows come to from outside."""
        inside = {segment.number for segment in one.members}
        outside = {segment.target_stage for segment in self.segments if segment.number not in inside}
        return [
            segment.number for segment in one.members if segment.number in self.tagged.fed or segment.source_stage in outside
        ]

    def _layouts(self, one: Pass) -> dict[int, SlotLayout]:
        """Return how rows travel to the stages of a pass; where they travel together, a slot has one type for all."""
        sent_to = self._sent_to(one)
        made: dict[int, SlotLayout] = {}
        types: Sequence[pa.DataType] = self.tagged.types if any(number in self.tagged.fed for number in one.joins) else ()
        for segment in one.members:
            source, number = segment.source, segment.number
            before = types if number in sent_to else ()
            if isinstance(source, JoinNode):
                left, right = source.left.relation.schema, source.right.relation.schema
                made[number] = make_layout(left, right, has_raw=self.tagged.joins[number].layout.has_raw, types=before)
            else:
                made[number] = make_layout(source.travelling.schema, pa.schema([]), has_raw=False, types=before)
            types = made[number].types if number in sent_to else types
        return made

    @cached_property
    def segments(self) -> list[Segment]:
        """Return the segments of the query, in the order of an epoch."""
        return sorted((segment for one in self.passes for segment in one.members), key=lambda segment: segment.number)

    @cached_property
    def _numbered(self) -> dict[int, Segment]:
        return {segment.number: segment for segment in self.segments}

    def _segment_of(self, stage: str | None) -> Segment | None:
        return next((one for one in self.segments if one.source_stage == stage), None)

    def _pass_of(self, segment: Segment) -> Pass:
        return next(one for one in self.passes if segment in one.members)

    def _context(self, segment: Segment) -> StageContext:
        context = self.checkpoint.stage(segment.source_stage, self.tick)
        if segment.source_stage != self.buffer.stage:
            return context
        return replace(context, count_buckets=self.buffer.uncounted(self.checkpoint.histories, self.checkpoint.buffered))

    def _passed(self, one: Pass, rows: DataFrame, first_partition: int) -> DataFrame:
        """Return what leaves the last function of a pass.

        Args:
            one: the pass.
            rows: what reaches it.
            first_partition: of its tasks.
        """
        layouts, sent_to = self._layouts(one), self._sent_to(one)
        begun: ClosingTask | None = None
        for function in one.functions:
            last = function[-1]
            tasks = {
                segment.number: self._task(
                    segment,
                    self._context(segment),
                    layouts[segment.number],
                    first_partition,
                    self._delivery(segment) if segment is last else self._handed_on(segment),
                )
                for segment in function
            }
            schema = spark_schema(tasks[last.number].delivery.schema)
            rows = rows.mapInArrow(BucketTask(tasks=tasks, sent_to=sent_to, begun=begun), schema)
            if last is one.last:
                break
            begun = self._closing(last, self._handed_on(last), first_partition)
            rows = _expressed(last, rows)
            sent_to = [number for number in sent_to if number not in tasks]
        return self._closed(one.last, rows, first_partition)

    def _closed(self, segment: Segment, rows: DataFrame, first_partition: int) -> DataFrame:
        """Return what leaves a pass for what its last stage has answered."""
        if not segment.steps:
            return rows
        delivery = self._delivery_outside(segment)
        closing = self._closing(segment, delivery, first_partition)
        return _expressed(segment, rows).mapInArrow(closing, spark_schema(delivery.schema))

    def _closing(self, segment: Segment, delivery: Delivery, first_partition: int) -> ClosingTask:
        """Return what ends the expressions behind a stage."""
        return ClosingTask(
            stage=segment.last_stage,
            rows=segment.after.schema,
            chunk_rows=self.options.chunk_rows,
            handover=self._handover(segment),
            delivery=delivery,
            first_partition=first_partition,
        )

    def _handover(self, segment: Segment) -> Handover:
        return Handover(
            local_state_dir=self.local_state_dir,
            query_id=self.checkpoint.query_id,
            name=f"{self.checkpoint.opened_at_ns}-{segment.number}",
        )

    def _task(
        self, segment: Segment, context: StageContext, layout: SlotLayout, first_partition: int, delivery: Delivery
    ) -> JoinTask | AggregateTask:
        """Return what answers the stage of a segment."""
        if isinstance(segment.source, AggregateNode):
            return AggregateTask(
                context=context,
                node=segment.source,
                layout=layout,
                options=self.options,
                delivery=delivery,
                first_partition=first_partition,
            )
        return JoinTask(
            context=context,
            output=segment.before.schema,
            delivery=delivery,
            **self._of_join(segment.number, segment.source, layout, first_partition),
        )

    def _route_task(self, number: int, layout: SlotLayout, first_partition: int) -> RouteTask:
        """Return what routes the streams of a join."""
        node = self._joins[number]
        left, right = (
            self.checkpoint.stage(route_stage(side, number), self.tick) if isinstance(source, RouteNode) else None
            for side, source in enumerate(node.sides)
        )
        return RouteTask(contexts=(left, right), number=number, **self._of_join(number, node, layout, first_partition))

    @property
    def _joins(self) -> dict[int, JoinNode]:
        return {one.number: one.source for one in self.segments if isinstance(one.source, JoinNode)}

    def _of_join(self, number: int, node: JoinNode, layout: SlotLayout, first_partition: int) -> dict[str, Any]:
        """Return what all tasks of a join are told."""
        first = 2 * list(self._joins).index(number)
        return {
            "tick": self.tick,
            "node": node,
            "options": self.options,
            "layout": layout,
            "first_partition": first_partition,
            "dead_letters": self.dead_letters,
            "dead_letter_sides": (first, first + 1),
        }

    def _delivery(self, segment: Segment) -> Delivery:
        """Return where the rows of the last stage of a function go."""
        if not segment.steps:
            return self._delivery_outside(segment)
        shown = arrow_schema(spark_schema(segment.before.schema), relation=segment.before.name)
        with_weight = pa.schema([*shown, pa.field(WEIGHT, pa.int64())])
        return ToExpressions(schema=with_weight, handover=self._handover(segment))

    def _delivery_outside(self, segment: Segment) -> Delivery:
        """Return where the rows go that leave a pass."""
        target = self._segment_of(segment.target_stage)
        if target is None:
            return ToOutput(parts=self.parts, files=self.checkpoint.files, tick=self.tick, rows=segment.after.schema)
        layout = self._layouts(self._pass_of(target))[target.number]
        if isinstance(target.source, AggregateNode):
            return ToAggregate(node=target.source, layout=layout)
        return ToJoin(layout=layout, side=segment.side, chunk_rows=self.options.chunk_rows)

    def _handed_on(self, segment: Segment) -> ToSameTask:
        """Return where the rows of another stage of a pass go."""
        target = self._segment_of(segment.target_stage)
        if target is None:
            raise TypeError("the rows of a fused stage go to another stage")
        if isinstance(target.source, AggregateNode):
            node = target.source
            return ToSameTask(target=target.number, side=0, rows=node.travelling.schema, reduced_for=node)
        return ToSameTask(target=target.number, side=segment.side, rows=target.source.sides[segment.side].relation.schema)


def _expressed(segment: Segment, rows: DataFrame) -> DataFrame:
    """Return rows after the expressions behind a stage."""
    for step in segment.steps:
        rows = step.apply(rows)
    return rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))  # mapInArrow takes a dot in a name for a field


def dead_letters_of(segments: Sequence[Segment], directory: str, query_id: str) -> DeadLetters:
    """Return what writes the rejected rows of all joins of a query into one table.

    Args:
        segments: of the query.
        directory: `deadLetterPath`.
        query_id: the query.
    """
    inputs = [side.relation for one in segments if isinstance(one.source, JoinNode) for side in one.source.sides]
    return DeadLetters(
        directory=directory,
        query_id=query_id,
        names=tuple(relation.name for relation in inputs),
        schemas=tuple(relation.schema for relation in inputs),
    )


def _whole(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all, in their order."""
    return reduce(DataFrame.unionAll, frames)


def _logs_of(record: CommitRecord, stage: str) -> Mapping[int, LogEntry]:
    """Return, per bucket with rows, the log file of an epoch."""
    logs: dict[int, LogEntry] = {}
    for key, history in record.histories.items():
        of, _, bucket = key.partition("/")
        if of == stage and history.logs and history.logs[-1].first_epoch == record.epoch:
            logs[int(bucket)] = history.logs[-1]
    return logs


def group_bucket(layout: SlotLayout, group_by: Sequence[str], buckets: int) -> Column:
    """Return the bucket of the group of rows in slots; that of all rows stays where it is, notes go to bucket 0.

    Args:
        layout: how the rows use the slots.
        group_by: the key columns among them.
        buckets: N.
    """
    return key_bucket(layout, group_by, buckets) if group_by else F.lit(GLOBAL_BUCKET).cast("int").alias("bucket")
