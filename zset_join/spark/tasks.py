"""The functions that run in Spark's Python workers for a join: route and join, each for one bucket of one epoch.

The law: a task reads committed state and writes files nobody lists yet; only its note makes them count. It may run twice,
at the same time or later, and both attempts report the same answer.

An error that a user can act on does not fail the Spark task: it travels in the note, and the driver raises it as it is. A
failed task would be retried for nothing, and would take its worker with it. Only an attempt that came too late fails: nobody
waits for its note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.log import LogEntry, read_log
from zset_join.errors import ZsetJoinError
from zset_join.operators.join import HashJoin
from zset_join.plan import JoinNode, RouteNode
from zset_join.protocol import DurableOperator
from zset_join.relation import Relation
from zset_join.spark.buffer_limit import note_of_buffer
from zset_join.spark.deliveries import Delivery
from zset_join.spark.layout import Arrivals, SlotLayout, collect_arrivals, pack_notes, pack_rows
from zset_join.spark.locality import executor_name
from zset_join.spark.notes import TaskNote
from zset_join.spark.operators import OperatorOptions, join_builder, project, route_builder
from zset_join.spark.parts import merged
from zset_join.spark.quarantine import DeadLetters, Rejected, refusal, undecodable_reasons
from zset_join.spark.stage_names import pass_stage
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = [
    "TOO_LATE",
    "AnswerAgainTask",
    "JoinTask",
    "RouteTask",
    "StageTask",
    "finish",
    "refuse_in_note",
    "task_bucket",
]

TOO_LATE = "STALE_ATTEMPT"


class StageTask(Protocol):
    """What can answer an epoch of one bucket of a stage, given its input; it travels to the worker."""

    @property
    def context(self) -> StageContext:
        """Return the epoch and what is committed."""
        ...

    @property
    def delivery(self) -> Delivery:
        """Return where the answer goes."""
        ...

    @property
    def layout(self) -> SlotLayout:
        """Return how its input travels."""
        ...

    @property
    def first_partition(self) -> int:
        """Return the partition of bucket 0."""
        ...

    @property
    def build(self) -> Callable[[str], DurableOperator]:
        """Return what makes the operator over a directory."""
        ...

    def answer(self, state: BucketState, inputs: Sequence[ZSet], note: TaskNote) -> Iterator[pa.RecordBatch]:
        """Deliver the answer to the inputs; yield what leaves the stage for it."""
        ...

    def run(self, arrivals: Arrivals, note: TaskNote) -> Iterator[pa.RecordBatch]:
        """Bring the bucket to the state before the epoch, deliver the answer to what has come, and log it."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What both tasks know.

    Args:
        tick: the epoch.
        node: the join.
        options: options of the operators.
        layout: how rows travel.
        dead_letters: where bad rows go.
        dead_letter_sides: which inputs of the query both sides are.
        first_partition: partition of bucket 0.
    """

    tick: Tick
    node: JoinNode
    options: OperatorOptions
    layout: SlotLayout
    dead_letters: DeadLetters
    dead_letter_sides: tuple[int, int] = (0, 1)
    first_partition: int = 0

    @property
    def relations(self) -> tuple[Relation, Relation]:
        """Return the relations of both sides."""
        return self.node.left.relation, self.node.right.relation

    def accept(self, arrivals: Arrivals, note: TaskNote, sides: Sequence[int], operator: DurableOperator | None) -> list[ZSet]:
        """Part the rows that can be applied from those that cannot, and put the latter aside.

        Args:
            arrivals: what the task was given.
            note: where to count.
            sides: the sides to look at; the operator has one input for each.
            operator: what says which rows break the contract; None looks only at what was rejected before the shuffle.

        Raises:
            BadInputError: there are such rows and the policy is `error`.
        """
        rejected = (Rejected(), Rejected())
        for side in sides:
            rejected[side].add(arrivals.rejected[side], *undecodable_reasons(arrivals.raw[side]))
            note.rows_in[side] = len(arrivals.deltas[side]) + len(rejected[side])
            if len(rejected[side]) and self.options.on_bad_input == "error":
                relation = self.relations[side]
                raise refusal(relation.name, relation.primary_key, rejected[side], self.tick)
        inputs = [arrivals.deltas[side] for side in sides]
        if operator is not None and self.options.on_bad_input == "quarantine":
            inputs = self._sift(operator, inputs, [rejected[side] for side in sides])
        for side, delta in zip(sides, inputs, strict=True):
            note.applied[side] = len(delta)
            note.retractions_in[side] = int(np.count_nonzero(delta.weights < 0))
            note.quarantined_rows[side] = len(rejected[side])
        by_input = dict(zip(self.dead_letter_sides, rejected, strict=True))
        note.quarantined = self.dead_letters.write(self.tick, note.bucket, by_input)
        return inputs

    def _sift(self, operator: DurableOperator, inputs: list[ZSet], rejected: Sequence[Rejected]) -> list[ZSet]:
        """Take out the rows the operator would refuse, until it refuses none."""
        names = [relation.name for relation in operator.inputs]
        while (found := operator.rejections(self.tick, inputs)).num_rows:
            which = found.column("input").to_pylist()
            positions = found.column("row").to_numpy()
            codes, reasons = found.column("code").to_pylist(), found.column("reason").to_pylist()
            for number, name in enumerate(names):
                lines = [line for line, told in enumerate(which) if told == name]
                if not lines:
                    continue
                bad = positions[lines]
                kept = np.ones(len(inputs[number]), bool)
                kept[bad] = False
                rejected[number].add(
                    _taken(inputs[number], bad), [codes[line] for line in lines], [reasons[line] for line in lines]
                )
                inputs[number] = _taken(inputs[number], np.flatnonzero(kept))
        return inputs


@dataclass(frozen=True, kw_only=True)
class JoinTask(_Task):
    """Answer one epoch of one bucket of the join; run by a `BucketTask`.

    Args:
        context: the epoch and what is committed.
        output: schema of the answer.
        delivery: where the answer goes.
    """

    context: StageContext
    output: pa.Schema
    delivery: Delivery

    def run(self, arrivals: Arrivals, note: TaskNote) -> Iterator[pa.RecordBatch]:
        """Yield what the delivery makes of the answer to what has come; the rest is told in the note."""
        try:
            if len(arrivals) or self.context.has_chores(note.bucket):
                with BucketState(self.context, note.bucket, self.build) as state:
                    inputs = self.accept(arrivals, note, (0, 1), state.operator)
                    yield from self.answer(state, inputs, note)
                    finish(state, inputs, note)
        except ZsetJoinError as error:
            refuse_in_note(note, error)

    @property
    def build(self) -> Callable[[str], DurableOperator]:
        """Return what makes the join over a directory."""
        return join_builder(self.node, self.options)

    def answer(self, state: BucketState, inputs: Sequence[ZSet], note: TaskNote) -> Iterator[pa.RecordBatch]:
        """Deliver the answer of the bucket to its inputs."""
        started = time.perf_counter()
        if isinstance(state.operator, HashJoin):
            note.buffered = note_of_buffer(state.operator.buffered(self.tick, inputs))
        answer = state.operator.answer(self.tick, inputs)
        chunks = merged((project(chunk, self.output) for chunk in answer), self.options.chunk_rows)
        yield from self.delivery.deliver(chunks, note)
        note.fan_out = self._fan_out(state.operator)
        note.seconds["answer"] = time.perf_counter() - started

    def _fan_out(self, operator: DurableOperator) -> dict[str, Any] | None:
        """Return the key that made the most pairs of the answer; a value that JSON does not know is told as text."""
        found = operator.largest_fan_out() if isinstance(operator, HashJoin) else None
        if found is None:
            return None
        names = self.node.left.relation.join_key
        plain = [value if isinstance(value, bool | int | float | str | None) else str(value) for value in found[1]]
        return {"pairs": found[0], "key": dict(zip(names, plain, strict=True))}


@dataclass(frozen=True, kw_only=True)
class AnswerAgainTask:
    """Answer a committed epoch again whose answer was lost; callable, for `mapInArrow`.

    The input comes from the log, so it is the one that was committed, whatever the sources would say now.

    Args:
        task: the task of the epoch.
        logs: per bucket with rows, the log file of the epoch.
    """

    task: StageTask
    logs: Mapping[int, LogEntry]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the delivery makes of the answer and of this task's note."""
        for _ in batches:
            pass
        context = self.task.context
        note = TaskNote(stage=context.stage, bucket=task_bucket(self.task.first_partition), executor=executor_name())
        log = self.logs.get(note.bucket)
        if log is not None:
            with BucketState(context, note.bucket, self.task.build) as state:
                schemas = [relation.schema for relation in state.operator.inputs]
                for logged in read_log(context.files, log, schemas=schemas):
                    yield from self.task.answer(state, logged.deltas, note)
                note.seconds.update(state.seconds)
        yield from self.task.delivery.finish([note.to_json()])


@dataclass(frozen=True, kw_only=True)
class RouteTask(_Task):
    """Send each change on to the bucket of its join key; callable, for `mapInArrow`.

    Args:
        contexts: per side, the context of its route stage; None for a side that passes through.
        number: of the join.
    """

    contexts: tuple[StageContext | None, StageContext | None]
    number: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows to join, and the notes of this task."""
        bucket = task_bucket(self.first_partition)
        started = time.perf_counter()
        arrivals = collect_arrivals(batches, self.layout)
        received = time.perf_counter() - started
        lines = []
        sent = 0
        for side, context in enumerate(self.contexts):
            stage = pass_stage(side, self.number) if context is None else context.stage
            note = TaskNote(stage=stage, bucket=bucket, executor=executor_name(), seconds={"receive": received})
            try:
                for rows in self._changes(context, arrivals, note, side):
                    yield pack_rows(rows, self.layout, side=side, sender=bucket, sent=sent)
                    sent += len(rows)
                    note.emitted[side] += len(rows)
            except ZsetJoinError as error:
                refuse_in_note(note, error)
            lines.append(note.to_json())
        yield pack_notes(lines, self.layout)

    def _changes(self, context: StageContext | None, arrivals: Arrivals, note: TaskNote, side: int) -> Iterator[ZSet]:
        if context is None:
            yield from self.accept(arrivals, note, (side,), None)
            return
        if not arrivals.count(side) and not context.has_chores(note.bucket):
            return
        node = self.node.sides[side]
        if not isinstance(node, RouteNode):
            raise TypeError(f"side {side} of the join has a route stage and no route")
        with BucketState(context, note.bucket, route_builder(node, self.options)) as state:
            inputs = self.accept(arrivals, note, (side,), state.operator)
            started = time.perf_counter()
            yield from state.operator.answer(self.tick, inputs)
            note.seconds["answer"] = time.perf_counter() - started
            finish(state, inputs, note)


def task_bucket(first_partition: int = 0) -> int:
    """Return the bucket of this task: `repartitionById` sends a row to the partition of that number.

    Args:
        first_partition: partition of bucket 0; not 0 where the rows of several stages go into one shuffle.
    """
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this function runs inside a Spark task")
    return context.partitionId() - first_partition


def refuse_in_note(note: TaskNote, error: ZsetJoinError) -> None:
    """Report an error in the note of a task; one that came too late has nobody to read it.

    Raises:
        ZsetJoinError: the error itself, of an attempt that came too late.
    """
    if error.code == TOO_LATE:
        raise error
    note.refuse(error)


def finish(state: BucketState, inputs: Sequence[ZSet], note: TaskNote) -> None:
    """Log the input, and report what the bucket is like."""
    started = time.perf_counter()
    note.log = state.log(inputs)
    note.seconds.update(state.seconds, log=time.perf_counter() - started)
    note.snapshot, note.merged = state.snapshot, state.merged
    note.is_warm, note.was_rebuilt = state.is_warm, state.was_rebuilt
    note.statistics = {**state.operator.statistics(), "resident_bytes": state.operator.resident_bytes()}


def _taken(delta: ZSet, positions: Any) -> ZSet:
    return ZSet(delta.rows.take(pa.array(positions)), delta.weights[positions])
