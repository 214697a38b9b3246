"""The functions that run in Spark's Python workers behind a join: an aggregate, and what ends a row of expressions.

They keep the law of `tasks`: committed state is read, files are written that nobody lists yet, and only notes make them count.

`ClosingTask` takes the rows that Spark's expressions made of an answer. Rows that were different may be equal now, so what
was an update may be nothing: the answer of a bucket is consolidated before it is written or sent to a join. An answer of more
than `MOST_TIDY_ROWS` rows goes on as it comes, retractions first; its sum is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.errors import ZsetJoinError
from zset_join.protocol import DurableOperator
from zset_join.spark.deliveries import Delivery, ToAggregate, ToSameTask
from zset_join.spark.handover import Handover
from zset_join.spark.layout import Arrivals, SlotLayout, as_type
from zset_join.spark.locality import executor_name
from zset_join.spark.notes import TaskNote
from zset_join.spark.operators import AggregateNode, OperatorOptions, aggregate_builder
from zset_join.spark.parts import MOST_MERGED_BYTES, merged
from zset_join.spark.tasks import finish, refuse_in_note, task_bucket
from zset_join.zset import ZSet

__all__ = ["GLOBAL_BUCKET", "MOST_TIDY_ROWS", "AggregateTask", "ClosingTask"]

GLOBAL_BUCKET = 0
"""The bucket of an aggregate without GROUP BY; no other one ever has its row."""

MOST_TIDY_ROWS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class AggregateTask:
    """Answer one epoch of one bucket of an aggregate; run by a `BucketTask`.

    Args:
        context: the epoch and what is committed.
        node: the aggregate.
        layout: how its input travels.
        options: options of the operators.
        delivery: where the answer goes.
        first_partition: partition of bucket 0.
    """

    context: StageContext
    node: AggregateNode
    layout: SlotLayout
    options: OperatorOptions
    delivery: Delivery
    first_partition: int = 0

    def run(self, arrivals: Arrivals, note: TaskNote) -> Iterator[pa.RecordBatch]:
        """Yield what the delivery makes of the answer to what has come; the rest is told in the note."""
        delta = arrivals.deltas[0]
        note.rows_in[0] = note.applied[0] = len(delta)
        try:
            if len(delta) or self._is_due(note.bucket) or self.context.has_chores(note.bucket):
                delta = delta if len(delta) else self._no_rows(note.bucket)
                with BucketState(self.context, note.bucket, self.build) as state:
                    yield from self.answer(state, [delta], note)
                    finish(state, [delta], note)
        except ZsetJoinError as error:
            refuse_in_note(note, error)

    @property
    def build(self) -> Callable[[str], DurableOperator]:
        """Return what makes the aggregate over a directory."""
        return aggregate_builder(self.node, self.options)

    def answer(self, state: BucketState, inputs: Sequence[ZSet], note: TaskNote) -> Iterator[pa.RecordBatch]:
        """Deliver the answer of the bucket to its input."""
        started = time.perf_counter()
        chunks = merged(state.operator.answer(self.context.tick, inputs), self.options.chunk_rows)
        yield from self.delivery.deliver(chunks, note)
        note.seconds["answer"] = time.perf_counter() - started

    def _is_due(self, bucket: int) -> bool:
        """Say whether the row of a global aggregate has yet to be emitted."""
        return not self.node.group_by and bucket == GLOBAL_BUCKET and bucket not in self.context.histories

    def _no_rows(self, bucket: int) -> ZSet:
        """Return a delta that changes nothing; for the first row of a global aggregate, one that can be logged."""
        schema = self.node.travelling.schema
        if not self._is_due(bucket):
            return ZSet.empty(schema)
        words = [0 if self.node.is_partial and pa.types.is_integer(field.type) else None for field in schema]
        columns = [pa.array([word], field.type) for word, field in zip(words, schema, strict=True)]
        weights = np.full(1, 1 if self.node.is_partial else 0)
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), weights)


@dataclass(frozen=True, kw_only=True)
class ClosingTask:
    """Deliver the rows that Spark's expressions made of an answer; callable, for `mapInArrow`.

    Args:
        stage: what its note calls it.
        rows: schema of the rows, without the weight that comes behind them.
        chunk_rows: most rows in a piece of the answer.
        handover: where the notes of the function before the expressions are.
        delivery: where the answer goes.
        first_partition: partition of bucket 0.
    """

    stage: str
    rows: pa.Schema
    chunk_rows: int
    handover: Handover
    delivery: Delivery
    first_partition: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the delivery makes of the rows, and of this task's note behind those of the tasks before."""
        note = TaskNote(stage=self.stage, bucket=task_bucket(self.first_partition), executor=executor_name())
        yield from self.run(batches, note)
        yield from self.delivery.finish([*self.handover.take(), note.to_json()])

    def run(self, batches: Iterable[pa.RecordBatch], note: TaskNote) -> Iterator[pa.RecordBatch]:
        """Yield what the delivery makes of the rows, and take all of them: what is handed over is there then."""
        started = time.perf_counter()
        came = self._pieces(batches, note)
        try:
            is_reduced = isinstance(self.delivery, ToAggregate) or (
                isinstance(self.delivery, ToSameTask) and self.delivery.reduced_for is not None
            )
            yield from self.delivery.deliver(merged(came if is_reduced else self._tidy(came), self.chunk_rows), note)
        except ZsetJoinError as error:
            refuse_in_note(note, error)
        for _ in came:  # the function that leaves something has ended when its last row is taken
            pass
        note.seconds["answer"] = time.perf_counter() - started

    def _pieces(self, batches: Iterable[pa.RecordBatch], note: TaskNote) -> Iterator[ZSet]:
        for batch in batches:
            if batch.num_rows:
                note.rows_in[0] += batch.num_rows
                columns = [as_type(batch.column(at), field.type) for at, field in enumerate(self.rows)]
                weights = np.asarray(batch.column(len(columns)), dtype=np.int64)
                yield ZSet(pa.RecordBatch.from_arrays(columns, schema=self.rows), weights)

    def _tidy(self, pieces: Iterator[ZSet]) -> Iterator[ZSet]:
        """Yield every distinct row once, retractions first; an answer too large to be held, as it comes."""
        held: list[ZSet] = []
        count = size = 0
        for piece in pieces:
            held.append(piece)
            count += len(piece)
            size += piece.rows.nbytes
            if count > MOST_TIDY_ROWS or size > MOST_MERGED_BYTES:
                yield from held
                yield from pieces
                return
        yield from ZSet.concat(held, schema=self.rows).tidy_chunks(self.chunk_rows)
