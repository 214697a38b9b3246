"""What stands behind a join: steps over its changes, and the stages they become in one Spark job.

    join -> [where, select ...] -> aggregate -> [where, select ...] -> output

The steps are cut into *segments*: some row steps, and then an aggregate, or, in the last one, the output. Everything
between two shuffles is one Spark task. Without row steps a stage's own Python function delivers its answer: it writes the
parts, or brings the rows down to what the aggregate needs. With row steps the function yields its rows, Spark evaluates the
expressions, and a second function (`ClosingTask`) delivers.

The law: the notes of all stages of an epoch arrive in its one job, and what a stage sent is what the next one was given.

Cost: nothing for a join without steps; a second Python function per bucket for a segment with row steps; a shuffle per
aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.bucket import StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.errors import StateError
from zset_join.relation import Relation
from zset_join.spark.deliveries import Delivery, ToAggregate, ToExpressions, ToOutput
from zset_join.spark.handover import Handover
from zset_join.spark.layout import WEIGHT, SlotLayout, make_layout
from zset_join.spark.normalise import key_bucket
from zset_join.spark.notes import TaskNote
from zset_join.spark.operators import AggregateNode, OperatorOptions
from zset_join.spark.parts import PartWriter
from zset_join.spark.progress import JOIN_STAGE
from zset_join.spark.row_steps import RowStep
from zset_join.spark.schemas import arrow_schema, spark_schema
from zset_join.spark.view_tasks import GLOBAL_BUCKET, AggregateTask, ClosingTask
from zset_join.tick import Tick

__all__ = [
    "AggregateStep",
    "EpochPlan",
    "Segment",
    "Step",
    "aggregate_stage",
    "aggregates_of",
    "check_stages",
    "group_bucket",
    "segments_of",
    "stage_order",
]

_AGGREGATE, _ROWS = "aggregate-", "rows-"
_KEEP_VALUES = ("min", "max", "count_distinct", "collect_list", "collect_set", "min_by", "max_by")


@dataclass(frozen=True, kw_only=True, eq=False)
class AggregateStep:
    """An aggregate behind a join, or behind other steps; DISTINCT is one that computes nothing.

    Args:
        node: what it computes.
    """

    node: AggregateNode

    @property
    def relation(self) -> Relation:
        """Return the rows after it."""
        return self.node.output

    @property
    def title(self) -> str:
        """Return what `explain` calls it."""
        if not self.node.calls:
            return f"Distinct {', '.join(self.node.group_by)}"
        calls = ", ".join(map(repr, self.node.calls))
        return (
            f"Aggregate by {', '.join(self.node.group_by)}: {calls}" if self.node.group_by else f"Aggregate all rows: {calls}"
        )

    def memory(self, buckets: int | None) -> list[str]:
        """Return what it must remember, and what is shuffled to it, as lines for `explain`."""
        single = [call.name for call in self.node.calls if call.kind in _KEEP_VALUES]
        remembers = "per group its key and sums" if self.node.group_by else "one row of sums"
        remembers = remembers if self.node.calls else "every distinct row with its copies"
        if single:
            remembers += f", and every distinct value with its copies for {', '.join(single)}"
        columns = ", ".join(self.node.travelling.schema.names)
        sent = "one line of sums per group and task" if self.node.is_partial else f"the changed rows, cut down to {columns}"
        where = f"in {buckets or 'one per core'} buckets by group" if self.node.group_by else "in one bucket"
        return [f"remembers: {remembers}; {where}", f"shuffles: {sent}"]

    @property
    def description(self) -> tuple[str, ...]:
        """Return what a checkpoint remembers of it."""
        return (self.title, *(f"{field.name}: {field.type}" for field in self.relation.schema))


Step = RowStep | AggregateStep


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """What happens to the answer of one stage.

    Args:
        number: 0 behind the join.
        before: the answer.
        steps: what Spark does to its rows.
        aggregate: what comes then; None for the output.
    """

    number: int
    before: Relation
    steps: tuple[RowStep, ...] = ()
    aggregate: AggregateStep | None = None

    @property
    def after(self) -> Relation:
        """Return the rows that leave it."""
        return self.steps[-1].relation if self.steps else self.before

    @property
    def source_stage(self) -> str:
        """Return the stage whose answer it is."""
        return aggregate_stage(self.number) if self.number else JOIN_STAGE

    @property
    def target_stage(self) -> str | None:
        """Return the stage that is given its rows; None for the output."""
        return None if self.aggregate is None else aggregate_stage(self.number + 1)

    @property
    def last_stage(self) -> str:
        """Return what the notes of its last function are called."""
        return f"{_ROWS}{self.number}" if self.steps else self.source_stage


def segments_of(joined: Relation, steps: Sequence[Step]) -> tuple[Segment, ...]:
    """Cut the steps behind a join at its aggregates.

    Args:
        joined: the answer of the join.
        steps: what stands behind it.
    """
    made: list[Segment] = []
    before, rows = joined, list[RowStep]()
    for step in steps:
        if isinstance(step, RowStep):
            rows.append(step)
            continue
        made.append(Segment(number=len(made), before=before, steps=tuple(rows), aggregate=step))
        before, rows = step.relation, []
    return (*made, Segment(number=len(made), before=before, steps=tuple(rows)))


def stage_order(stage: str) -> int:
    """Return how far from the sources a stage is, as its notes name it.

    >>> sorted(["rows-1", "join", "aggregate-1", "route-left", "rows-0"], key=stage_order)
    ['route-left', 'join', 'rows-0', 'aggregate-1', 'rows-1']
    """
    if stage == JOIN_STAGE:
        return 1
    for begin, first in ((_AGGREGATE, 1), (_ROWS, 2)):
        if stage.startswith(begin):
            return first + 2 * int(stage.removeprefix(begin))
    return 0


def check_stages(segments: Sequence[Segment], notes: Sequence[TaskNote], buckets: int, epoch: int) -> None:
    """Count the rows that stages send each other, and their notes.

    Raises:
        StateError: some are missing.
    """
    for segment in segments:
        sent = sum(note.emitted[0] for note in notes if note.stage == segment.last_stage)
        ended = [note.bucket for note in notes if note.stage == segment.last_stage]
        given = [note for note in notes if note.stage == segment.target_stage]
        came = sum(note.rows_in[0] for note in given)
        told = sorted(note.bucket for note in given)
        everywhere = list(range(buckets))
        is_whole = segment.aggregate is None or (sent == came and told == everywhere)
        if not is_whole or sorted(ended) != everywhere:
            raise StateError(
                f"epoch {epoch}: {segment.last_stage} sent {sent} rows from buckets {sorted(ended)}, {segment.target_stage} "
                f"was given {came} in buckets {told}; rows were lost on the way, nothing was committed. Restart the query; "
                "if it happens again, report it with the plan that explain() prints.",
                code="ROWS_LOST",
                epoch=epoch,
            )


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """Build what stands behind a stage in one epoch.

    Args:
        segments: of the view.
        checkpoint: what is committed.
        tick: the epoch.
        buckets: N.
        options: options of the operators.
        parts: writes the parts of the output.
        local_state_dir: `localStateDir`.
        pin: binds rows that were sent to their buckets to the executors that have the state.
    """

    segments: Sequence[Segment]
    checkpoint: Checkpoint
    tick: Tick
    buckets: int
    options: OperatorOptions
    parts: PartWriter
    local_state_dir: str | None
    pin: Callable[[DataFrame], DataFrame]

    def notes_behind(self, rows: DataFrame, task_for: Callable[[Delivery], Any], *, first: int = 0) -> DataFrame:
        """Return the plan whose rows are the notes of all tasks.

        Args:
            rows: what the first function is given.
            task_for: makes that function for where its answer goes.
            first: number of the segment whose answer it makes.
        """
        for segment in self.segments[first:]:
            delivery = self._delivery(segment)
            rows = self._delivered(segment, rows, task_for, delivery)
            if isinstance(delivery, ToAggregate):
                rows = rows.select("*", group_bucket(delivery.layout, delivery.node.group_by, self.buckets))
                rows = self.pin(rows.repartitionById(self.buckets, F.col("bucket")))
                task_for = self._aggregate_maker(segment.number + 1)
        return rows

    def aggregate_task(self, number: int, delivery: Delivery, context: StageContext) -> AggregateTask:
        """Return what answers an aggregate.

        Args:
            number: of the segment behind it.
            delivery: where the answer goes.
            context: the epoch and what is committed.
        """
        step = self.segments[number - 1].aggregate
        if step is None:
            raise TypeError(f"there is no aggregate before segment {number}")
        return AggregateTask(
            context=context, node=step.node, layout=_layout_of(step.node), options=self.options, delivery=delivery
        )

    def _aggregate_maker(self, number: int) -> Callable[[Delivery], AggregateTask]:
        context = self.checkpoint.stage(self.segments[number].source_stage, self.tick)
        return lambda delivery: self.aggregate_task(number, delivery, context)

    def _delivery(self, segment: Segment) -> Delivery:
        if segment.aggregate is not None:
            return ToAggregate(node=segment.aggregate.node, layout=_layout_of(segment.aggregate.node))
        return ToOutput(parts=self.parts, files=self.checkpoint.files, tick=self.tick, rows=segment.after.schema)

    def _delivered(
        self, segment: Segment, rows: DataFrame, task_for: Callable[[Delivery], Any], delivery: Delivery
    ) -> DataFrame:
        """Return what leaves the last function of a segment."""
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
        )
        numbered = made.toDF(*(f"c{at}" for at in range(len(made.columns))))  # mapInArrow takes a dot in a name for a field
        return numbered.mapInArrow(closing, spark_schema(delivery.schema))


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


def aggregate_stage(number: int) -> str:
    """Return the stage of an aggregate; the first one behind the join has number 1."""
    return f"{_AGGREGATE}{number}"


def aggregates_of(steps: Sequence[Step]) -> Iterator[AggregateNode]:
    """Yield the aggregates among some steps, in order."""
    for step in steps:
        if isinstance(step, AggregateStep):
            yield step.node
