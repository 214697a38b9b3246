"""The Spark job of an epoch: the plan whose rows are the notes of all its tasks.

    batch -> first shuffle -> [route] -> join -> ... -> notes
                           └> [route] ----------> join-1 -> ... -> notes

A stage answers in the partition of its bucket. Where the rows of several stages go into one shuffle, or their notes into one
result, their tasks are numbered one stage after the other, and each is told which partition is its bucket 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.bucket import StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.log import LogEntry
from zset_join.checkpoint.record import CommitRecord
from zset_join.plan import JoinNode, RouteNode
from zset_join.spark.buffer_limit import QueryBuffer
from zset_join.spark.deliveries import Delivery, ToAggregate, ToExpressions, ToJoin, ToOutput
from zset_join.spark.handover import Handover
from zset_join.spark.layout import WEIGHT, SlotLayout, make_layout, travelling_schema
from zset_join.spark.locality import Locality
from zset_join.spark.normalise import TaggedStreams, key_bucket
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
        segments: of the query.
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

    segments: Sequence[Segment]
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
        sent: dict[str | None, list[DataFrame]] = {}
        for segment in self.segments:
            given = sent.pop(segment.source_stage, [])
            if isinstance(segment.source, JoinNode):
                rows = self._join_rows(segment.number, shuffled, given)
            else:
                bucket = group_bucket(_layout_of(segment.source), segment.source.group_by, self.buckets)
                rows = self._in_buckets(_whole(given), bucket)
            made = self._delivered(segment, rows, partial(self._task, segment, self._context(segment)))
            sent.setdefault(segment.target_stage, []).append(made)
        return _whole(sent[None])

    def notes_again(self, session: SparkSession, record: CommitRecord) -> DataFrame:
        """Return the plan that answers a committed epoch again, from the logged input of the stages nearest to the output.

        Args:
            session: runs it.
            record: what is committed.
        """
        made = []
        for segment in self.segments:
            if segment.target_stage is not None:
                continue
            context = replace(self._context(segment), snapshot_buckets=frozenset(), merge_buckets=frozenset())
            rows = session.range(0, self.buckets, 1, self.buckets)
            again = partial(self._task_again, segment, context, _logs_of(record, segment.source_stage))
            made.append(self._delivered(segment, rows, again))
        return _whole(made)

    def _join_rows(self, number: int, shuffled: DataFrame, views: Sequence[DataFrame]) -> DataFrame:
        """Return what reaches a join, in its buckets.

        Args:
            number: of the join.
            shuffled: the rows of all streams.
            views: what earlier stages send to it.
        """
        tagged = self.tagged.joins[number]
        if number not in self.tagged.fed:
            return self._in_buckets(_whole(views), tagged.bucket)
        rows = self.locality.pin(self.tagged.rows_of(shuffled, number))
        if tagged.is_routed:
            rows = rows.mapInArrow(self._route_task(number), spark_schema(travelling_schema(tagged.layout)))
            return self._in_buckets(_whole([rows, *views]), tagged.bucket)  # in the order of `_first_partition`
        if not views:
            return rows
        together = _whole(views).select("*", tagged.bucket).unionByName(rows, allowMissingColumns=True)
        return self.locality.pin(together.repartitionById(self.buckets, F.col("bucket")))

    def _in_buckets(self, rows: DataFrame, bucket: Column) -> DataFrame:
        """Return rows and notes in the buckets they belong to."""
        return self.locality.pin(rows.select("*", bucket).repartitionById(self.buckets, F.col("bucket")))

    def _segment_of(self, stage: str | None) -> Segment | None:
        return next((one for one in self.segments if one.source_stage == stage), None)

    def _first_partition(self, segment: Segment) -> int:
        """Return the partition of bucket 0 of a stage: before it come the route and the earlier stages of the same target."""
        target = self._segment_of(segment.target_stage)
        routed = target is not None and target.number in self.tagged.joins and self.tagged.joins[target.number].is_routed
        before = [one for one in self.segments if one.target_stage == segment.target_stage and one.number < segment.number]
        return self.buckets * (len(before) + routed)

    def _context(self, segment: Segment) -> StageContext:
        context = self.checkpoint.stage(segment.source_stage, self.tick)
        if segment.source_stage != self.buffer.stage:
            return context
        return replace(context, count_buckets=self.buffer.uncounted(self.checkpoint.histories, self.checkpoint.buffered))

    def _task(self, segment: Segment, context: StageContext, delivery: Delivery) -> JoinTask | AggregateTask:
        """Return what answers the stage of a segment."""
        first_partition = self._first_partition(segment)
        if isinstance(segment.source, AggregateNode):
            return AggregateTask(
                context=context,
                node=segment.source,
                layout=_layout_of(segment.source),
                options=self.options,
                delivery=delivery,
                first_partition=first_partition,
            )
        return JoinTask(
            context=context,
            output=segment.before.schema,
            delivery=delivery,
            first_partition=first_partition,
            **self._of_join(segment.number, segment.source),
        )

    def _task_again(
        self, segment: Segment, context: StageContext, logs: Mapping[int, LogEntry], delivery: Delivery
    ) -> AnswerAgainTask:
        return AnswerAgainTask(task=self._task(segment, context, delivery), logs=logs)

    def _route_task(self, number: int) -> RouteTask:
        """Return what routes the streams of a join."""
        node = self._joins[number]
        left, right = (
            self.checkpoint.stage(route_stage(side, number), self.tick) if isinstance(source, RouteNode) else None
            for side, source in enumerate(node.sides)
        )
        return RouteTask(contexts=(left, right), number=number, **self._of_join(number, node))

    @property
    def _joins(self) -> dict[int, JoinNode]:
        return {one.number: one.source for one in self.segments if isinstance(one.source, JoinNode)}

    def _of_join(self, number: int, node: JoinNode) -> dict[str, Any]:
        """Return what all tasks of a join are told."""
        first = 2 * list(self._joins).index(number)
        return {
            "tick": self.tick,
            "node": node,
            "options": self.options,
            "layout": self.tagged.joins[number].layout,
            "dead_letters": self.dead_letters,
            "dead_letter_sides": (first, first + 1),
        }

    def _delivery(self, segment: Segment) -> Delivery:
        target = self._segment_of(segment.target_stage)
        if target is None:
            return ToOutput(parts=self.parts, files=self.checkpoint.files, tick=self.tick, rows=segment.after.schema)
        if isinstance(target.source, AggregateNode):
            return ToAggregate(node=target.source, layout=_layout_of(target.source))
        return ToJoin(layout=self.tagged.joins[target.number].layout, side=segment.side, chunk_rows=self.options.chunk_rows)

    def _delivered(self, segment: Segment, rows: DataFrame, task_for: Callable[[Delivery], Any]) -> DataFrame:
        """Return what leaves the last function of a segment."""
        delivery = self._delivery(segment)
        if not segment.steps:
            return rows.mapInArrow(task_for(delivery), spark_schema(delivery.schema))
        handover = Handover(
            local_state_dir=self.local_state_dir,
            query_id=self.checkpoint.query_id,
            name=f"{self.checkpoint.opened_at_ns}-{segment.number}",
        )
        shown = arrow_schema(spark_schema(segment.before.schema), relation=segment.before.name)
        with_weight = pa.schema([*shown, pa.field(WEIGHT, pa.int64())])
        made = rows.mapInArrow(task_for(ToExpressions(schema=with_weight, handover=handover)), spark_schema(with_weight))
        for step in segment.steps:
            made = step.apply(made)
        closing = ClosingTask(
            stage=segment.last_stage,
            rows=segment.after.schema,
            chunk_rows=self.options.chunk_rows,
            handover=handover,
            delivery=delivery,
            first_partition=self._first_partition(segment),
        )
        numbered = made.toDF(*(f"c{at}" for at in range(len(made.columns))))  # mapInArrow takes a dot in a name for a field
        return numbered.mapInArrow(closing, spark_schema(delivery.schema))


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


def _layout_of(node: AggregateNode) -> SlotLayout:
    """Return how the input of an aggregate travels: as the one side of two."""
    return make_layout(node.travelling.schema, pa.schema([]), has_raw=False)


def group_bucket(layout: SlotLayout, group_by: Sequence[str], buckets: int) -> Column:
    """Return the bucket of the group of rows in slots; that of all rows stays where it is, notes go to bucket 0.

    Args:
        layout: how the rows use the slots.
        group_by: the key columns among them.
        buckets: N.
    """
    return key_bucket(layout, group_by, buckets) if group_by else F.lit(GLOBAL_BUCKET).cast("int").alias("bucket")
