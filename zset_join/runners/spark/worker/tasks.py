"""A task of one bucket in one epoch: restore the previous state, answer, log the input; of one stage, or of several fused ones.

    rows and receipts that were sent here -> stage -> stage -> ... -> what the last delivery makes of it, and all receipts

The law: a task reads committed state and writes files nobody lists yet; only its receipt makes them count. It may run twice,
at the same time or later, and both attempts report the same answer. Every fused stage is given what it would be given if the
rows had been shuffled, and leaves the same log and receipt. One that refuses its input passes on what it had answered by then;
the driver goes by the first refusal.

A bucket is opened when rows have come, when the state is to be cared for (a snapshot, a merged log), and when it is *due*: it
waits for a time that has come, or begins alone. Of a due bucket the log has the epoch, with or without rows, so that a replay
and the task that folds it later see that it was queried.

An error that a user can act on does not fail the Spark task: it travels in the receipt, and the driver raises it as it is. A
failed task would be retried for nothing, and would take its worker with it. Only an attempt that came too late fails: nobody
waits for its receipt.

Memory: the rows for all stages of the bucket, and the answer of one stage to the next, or to several uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.record import LogEntry, read_log
from zset_join.core.epochs import Tick
from zset_join.core.errors import ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.plan.row_steps import RowStep
from zset_join.runners.common.rejected import LATE, Rejected, count_late_changes
from zset_join.runners.common.stage_bucket import StageBucket, log_input, report, report_due, sifted
from zset_join.runners.local.feeding import transforms_of
from zset_join.runners.spark.rows.layout import TARGET, Arrivals, SlotLayout, collect_arrivals
from zset_join.runners.spark.worker.deliveries import Delivery, ToSameTask, ToStage
from zset_join.runners.spark.worker.gc_tuning import Spared
from zset_join.runners.spark.worker.locality import executor_name
from zset_join.runners.spark.worker.parts import merged, tidied
from zset_join.runners.spark.worker.quarantine import DeadLetters, refusal, undecodable_reasons
from zset_join.runners.spark.worker.receipts import TaskReceipt
from zset_join.runners.spark.worker.shared_place import SharedPlace
from zset_join.stages import Stage, StageOptions
from zset_join.stages.effect import EffectPlace, Effects, has_effect
from zset_join.state.join.append_buffer import BufferedEpoch
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator, corrections_of, is_timed

__all__ = ["TOO_LATE", "AppendBuffer", "BucketTask", "ReplayTask", "Sending", "StageTask", "refuse_in_receipt", "task_bucket"]

TOO_LATE = "STALE_ATTEMPT"
_ROWS_PER_STRETCH = 64

# The fetch steps of lookups, by query: a Python worker keeps their connections and caches between epochs. Every process has its
# share of `max_connections`; its buckets, of which it runs one at a time, use the same ones.
_opened: dict[str, tuple[int, Effects]] = {}


@runtime_checkable
class AppendBuffer(Protocol):
    """An operator that may only ever buffer rows, and counts the bytes of them."""

    def buffered(self, tick: Tick, deltas: Sequence[ZSet]) -> BufferedEpoch | None:
        """Return its bytes after an epoch; None if its inputs change."""

    def largest_key(self, tick: Tick, deltas: Sequence[ZSet]) -> tuple[tuple[Any, ...], int, int] | None:
        """Return the key that holds the most bytes, its rows and its bytes."""


@runtime_checkable
class FansOut(Protocol):
    """An operator that can name the key of most rows of its last answer."""

    def largest_fan_out(self) -> tuple[int, tuple[Any, ...]] | None:
        """Return how many, and the key."""


@dataclass(frozen=True, kw_only=True)
class Sending:
    """One use of the answer of a stage: the steps behind it, and who receives what they make of it."""

    delivery: Delivery
    steps: tuple[RowStep, ...] = ()
    is_tidied: bool = False  # rows may be several times behind the steps, and are to be there once

    def stepped(self, chunks: Iterable[ZSet], before: Relation) -> Iterator[ZSet]:
        transforms = transforms_of(self.steps, before)
        for chunk in chunks:
            for transform in transforms:
                if len(chunk):
                    chunk = transform(chunk)
            if len(chunk):
                yield chunk


@dataclass(frozen=True, kw_only=True)
class StageTask:
    """Answer one epoch of one bucket of a stage; sent to the worker, where a `BucketTask` runs it."""

    context: StageContext
    stage: Stage
    options: StageOptions
    layout: SlotLayout
    dead_letters: DeadLetters
    sendings: tuple[Sending, ...]
    first_partition: int = 0
    buckets: int = 1
    name: str
    shared: SharedPlace | None = None

    @property
    def leaving(self) -> Delivery:
        """Return the delivery that takes the receipts: the first that sends rows to other tasks, or the first."""
        deliveries = [one.delivery for one in self.sendings]
        return next((one for one in deliveries if isinstance(one, ToStage)), deliveries[0])

    def receipt(self, bucket: int) -> TaskReceipt:
        return TaskReceipt(stage=self.name, bucket=bucket, executor=executor_name(), emitted=[0] * len(self.sendings))

    def run(self, arrivals: Arrivals, receipt: TaskReceipt) -> Iterator[pa.RecordBatch]:
        """Yield the delivery's output for the answer to these rows; the receipt holds the rest."""
        begins = self.bucket.begins(receipt.bucket, is_first=receipt.bucket not in self.context.histories)
        may_be_due = begins or receipt.bucket in self.context.due_buckets
        try:
            if len(arrivals) or may_be_due or self.context.is_work_due(receipt.bucket):
                with BucketState(self.context, receipt.bucket, self.build) as state:
                    operator = self.read_by(state)
                    is_due = begins or report_due(operator, self.context.tick, receipt)
                    inputs = self._accept(arrivals, receipt, operator)
                    inputs = self._with_what_is_outside(inputs, receipt, operator)
                    yield from self.answer(state, inputs, receipt)
                    logged = inputs if self.shared is None else self.shared.deltas(inputs)
                    is_logged = self.shared is None or self.shared.logs
                    log_input(state, logged, receipt, is_due=is_due and is_logged)
                    report(state, receipt)
                    receipt.statistics["resident_bytes"] = state.operator.resident_bytes()
        except ZsetJoinError as error:
            refuse_in_receipt(receipt, error)

    @cached_property
    def bucket(self) -> StageBucket:
        """Return the steps of its epoch, as every runner has them."""
        return StageBucket.of(self.stage)

    @property
    def build(self) -> Callable[[str], DurableOperator]:
        return partial((self.stage if self.shared is None else self.shared.stage).build, self.options)

    def read_by(self, state: BucketState) -> DurableOperator:
        return state.operator if self.shared is None else self.shared.read_by(state.operator)

    def answer(self, state: BucketState, inputs: Sequence[ZSet], receipt: TaskReceipt) -> Iterator[pa.RecordBatch]:
        started = time.perf_counter()
        operator, tick = self.read_by(state), self.context.tick
        if isinstance(operator, AppendBuffer):
            buffered = operator.buffered(tick, inputs)
            receipt.buffered = None if buffered is None else {"held": buffered.after}
        answered, rows = self.bucket.answer(operator, tick, inputs), self.options.chunk_rows
        held: Iterable[ZSet] = answered if len(self.sendings) == 1 else list(answered)
        for place, sending in enumerate(self.sendings):
            chunks = sending.stepped(held, self.stage.output)
            chunks = tidied(chunks, rows) if sending.is_tidied else chunks
            yield from sending.delivery.deliver(merged(chunks, rows), receipt, place)
        receipt.fan_out = self._fan_out(operator)
        receipt.corrections = corrections_of(operator)
        receipt.seconds["answer"] = time.perf_counter() - started

    def _accept(self, arrivals: Arrivals, receipt: TaskReceipt, operator: DurableOperator) -> list[ZSet]:
        """Part the rows that can be applied from those that cannot, and put the latter aside."""
        rejected = [Rejected() for _ in self.stage.inputs]
        for side, given in enumerate(self.stage.inputs):
            rejected[side].add(arrivals.rejected[side], *undecodable_reasons(arrivals.raw[side]))
            receipt.rows_in[side] = len(arrivals.deltas[side]) + len(rejected[side])
            if len(rejected[side]) and self.options.on_bad_input == "error":
                raise refusal(given.relation.name, given.relation.primary_key, rejected[side], self.context.tick)
        inputs = list(arrivals.deltas)
        if all(given.reduce is None for given in self.stage.inputs):
            if self.options.on_bad_input == "quarantine":
                inputs = sifted(operator, self.context.tick, inputs, rejected, codes="")
            elif is_timed(operator):
                inputs = sifted(operator, self.context.tick, inputs, rejected, codes=LATE)
        for side, delta in enumerate(inputs):
            receipt.applied[side] = len(delta)
            receipt.retractions_in[side] = int(np.count_nonzero(delta.weights < 0))
            receipt.quarantined_rows[side] = len(rejected[side])
            late = count_late_changes(self.stage.inputs[side].relation, rejected[side].codes)
            receipt.late_changes |= {self.stage.inputs[side].relation.name: late} if late else {}
        by_name = {given.relation.name: refused for given, refused in zip(self.stage.inputs, rejected, strict=True)}
        receipt.quarantined = self.dead_letters.write(self.context.tick, receipt.bucket, by_name)
        return inputs

    def _with_what_is_outside(self, inputs: list[ZSet], receipt: TaskReceipt, operator: DurableOperator) -> list[ZSet]:
        # What is received is in the checkpoint's journal before it is used: a retried task, or a twin, sends no query again.
        if not has_effect(self.stage):
            return inputs
        place = EffectPlace(
            options=self.options,
            name=self.context.stage,
            bucket=receipt.bucket,
            buckets=self.buckets,
            folder=self.context.files.folder,
        )
        effect = _kept_effects(self.context).opened(self.stage, place)
        effect.forget(self.context.tick.epoch - 1)  # committed, with what was fetched in their logs
        completed = effect.completed(operator, self.context.tick, inputs)
        receipt.statistics.update(effect.counts())
        return completed

    def _fan_out(self, operator: DurableOperator) -> dict[str, Any] | None:
        """Return the key that made the most pairs of the answer; a value that JSON has no type for is reported as text."""
        fan_out = operator.largest_fan_out() if isinstance(operator, FansOut) else None
        if fan_out is None:
            return None
        plain = [value if isinstance(value, bool | int | float | str | None) else str(value) for value in fan_out[1]]
        return {"pairs": fan_out[0], "key": dict(zip(self.stage.inputs[0].key, plain, strict=True))}


@dataclass(frozen=True, kw_only=True)
class BucketTask:
    """Answer one epoch of one bucket; callable, for `mapInArrow`."""

    tasks: Mapping[int, StageTask]  # in the order of an epoch; all but the last have one delivery, `ToSameTask`
    sent_to: Sequence[int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the last delivery's output for the answer, then the receipts of the tasks before and of these stages."""
        *_, last = self.tasks.values()
        bucket = task_bucket(last.first_partition)
        started = time.perf_counter()
        arrivals = self._arrivals(batches)
        received = time.perf_counter() - started
        lines = [line for one in arrivals.values() for line in one.receipts]
        for number, task in self.tasks.items():
            receipt = task.receipt(bucket)
            receipt.seconds["receive"], received = received, 0.0
            yield from task.run(arrivals.pop(number), receipt)
            if task is not last:
                _forward(task.leaving, arrivals)
            lines.append(receipt.to_json())
        yield from last.leaving.finish(lines)
        Spared.loaded()

    def _arrivals(self, batches: Iterable[pa.RecordBatch]) -> dict[int, Arrivals]:
        """Return the rows for every stage."""
        pieces: dict[int, list[pa.RecordBatch]] = {number: [] for number in self.tasks}
        for batch in batches:
            if len(self.sent_to) == 1:
                pieces[self.sent_to[0]].append(batch)
                continue
            for number, piece in _by_target(batch):
                pieces[number].append(piece)
        return {number: collect_arrivals(pieces[number], task.layout) for number, task in self.tasks.items()}


def _by_target(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a batch where the stage changes that its rows are for; sort it first when that would give many small pieces."""
    targets = np.asarray(batch.column(TARGET))
    cuts = np.flatnonzero(np.diff(targets)) + 1
    if len(cuts) > batch.num_rows // _ROWS_PER_STRETCH + 8:
        sorting = np.argsort(targets, kind="stable")
        batch, targets = batch.take(pa.array(sorting)), targets[sorting]
        cuts = np.flatnonzero(np.diff(targets)) + 1
    for begin, end in pairwise([0, *cuts.tolist(), len(targets)]):
        if end > begin:
            yield int(targets[begin]), batch.slice(begin, end - begin)


def _forward(delivery: Delivery, arrivals: Mapping[int, Arrivals]) -> None:
    """Add the answer of a stage to the rows for the next one."""
    if not isinstance(delivery, ToSameTask):
        raise TypeError("the rows of a fused stage go to another stage of its task")
    given = arrivals[delivery.target].deltas
    pieces = [given[delivery.side], *delivery.came]
    given[delivery.side] = ZSet.concat([piece for piece in pieces if len(piece)], schema=delivery.rows)
    delivery.came.clear()


@dataclass(frozen=True, kw_only=True)
class ReplayTask:
    """Answer a committed epoch again whose answer was lost; callable, for `mapInArrow`.

    The input comes from the log, so it is the one that was committed, whatever the sources would return now.
    """

    task: StageTask
    logs: Mapping[int, LogEntry]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the delivery's output for the answer and of this task's receipt."""
        for _ in batches:
            pass
        context = self.task.context
        bucket, shared = task_bucket(self.task.first_partition), self.task.shared
        receipt = self.task.receipt(bucket)
        log = self.logs.get(receipt.bucket)
        if log is not None:
            with BucketState(context, receipt.bucket, self.task.build) as state:
                schemas = [relation.schema for relation in state.operator.inputs]
                for logged in read_log(context.files, log, schemas=schemas):
                    then = replace(self.task, context=replace(context, tick=logged.tick))  # its watermarks are in the log
                    deltas = logged.deltas if shared is None else shared.deltas_of(logged.deltas)
                    yield from then.answer(state, deltas, receipt)
                receipt.seconds.update(state.seconds)
        yield from self.task.leaving.finish([receipt.to_json()])


def task_bucket(first_partition: int = 0) -> int:
    """Return the bucket of this task: `repartitionById` sends a row to the partition of that number."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this function runs inside a Spark task")
    return context.partitionId() - first_partition


def refuse_in_receipt(receipt: TaskReceipt, error: ZsetJoinError) -> None:
    """Report an error in the receipt of a task; one that came too late has nobody to read it."""
    if error.code == TOO_LATE:
        raise error
    receipt.refuse(error)


def _kept_effects(context: StageContext) -> Effects:
    # Those of an earlier start of the query are closed.
    opened_at_ns, effects = _opened.get(context.query_id, (context.opened_at_ns, Effects()))
    if opened_at_ns != context.opened_at_ns:
        effects.close()
    _opened[context.query_id] = context.opened_at_ns, effects
    return effects
