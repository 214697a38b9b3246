"""The function that answers one epoch of one bucket, for one stage or several fused ones.

    rows and receipts that were sent here -> stage -> stage -> ... -> what the last delivery makes of it, and all receipts

Fused stages run one after the other in one worker. Each brings its own state to the point before the epoch, answers, logs its
input and releases the state before the next one begins; its answer is passed on in memory. Where Spark evaluates expressions
between two of them, a task has one function before the expressions and one behind them, and the rows that have arrived for the
stages of the second waits in a `TaskBuffer`.

The law: every stage is given what it would be given if the rows had been shuffled, and leaves the same log and receipt.
A stage that refuses its input passes on what it had answered by then; the driver goes by the first refusal.

Memory: the rows for all stages of the bucket, and the answer of one stage to the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from zset_join.core.errors import ZsetJoinError
from zset_join.runners.spark.rows.layout import TARGET, Arrivals, as_type, collect_arrivals
from zset_join.runners.spark.worker.deliveries import Delivery, ToExpressions, ToSameTask
from zset_join.runners.spark.worker.gc_tuning import Spared
from zset_join.runners.spark.worker.locality import executor_name
from zset_join.runners.spark.worker.parts import merged, tidied
from zset_join.runners.spark.worker.receipts import TaskReceipt
from zset_join.runners.spark.worker.task_buffer import TaskBuffer
from zset_join.runners.spark.worker.tasks import StageTask, refuse_in_receipt, task_bucket
from zset_join.zset import ZSet

__all__ = ["BucketTask", "ClosingTask"]

_ROWS_PER_STRETCH = 64


# Behind expressions, rows that were different may be equal, so what was an update may be nothing. The answer of a bucket is
# consolidated before it is written or sent on; one of more than `MOST_TIDY_ROWS` rows is passed on as it is, retractions first.
@dataclass(frozen=True, kw_only=True)
class ClosingTask:
    """Deliver the rows after Spark's expressions over an answer; callable, for `mapInArrow`."""

    stage: str
    rows: pa.Schema
    chunk_rows: int
    task_buffer: TaskBuffer
    delivery: Delivery
    first_partition: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the delivery's output for the rows, and of this task's receipt behind those of the tasks before."""
        receipt = TaskReceipt(stage=self.stage, bucket=task_bucket(self.first_partition), executor=executor_name())
        yield from self.run(batches, receipt)
        yield from self.delivery.finish([*self.task_buffer.take(), receipt.to_json()])

    def run(self, batches: Iterable[pa.RecordBatch], receipt: TaskReceipt) -> Iterator[pa.RecordBatch]:
        """Yield the delivery's output for the rows, and take all of them: what is passed on is present then."""
        started = time.perf_counter()
        came = self._pieces(batches, receipt)
        try:
            rows = came if self.delivery.reduces else tidied(came, self.rows, self.chunk_rows)
            yield from self.delivery.deliver(merged(rows, self.chunk_rows), receipt)
        except ZsetJoinError as error:
            refuse_in_receipt(receipt, error)
        for _ in came:  # the function that leaves something has ended when its last row is taken
            pass
        receipt.seconds["answer"] = time.perf_counter() - started

    def _pieces(self, batches: Iterable[pa.RecordBatch], receipt: TaskReceipt) -> Iterator[ZSet]:
        for batch in batches:
            if batch.num_rows:
                receipt.rows_in[0] += batch.num_rows
                columns = [as_type(batch.column(at), field.type) for at, field in enumerate(self.rows)]
                weights = np.asarray(batch.column(len(columns)), dtype=np.int64)
                yield ZSet(pa.RecordBatch.from_arrays(columns, schema=self.rows), weights)


@dataclass(frozen=True, kw_only=True)
class BucketTask:
    """Answer one epoch of one bucket; callable, for `mapInArrow`."""

    tasks: Mapping[int, StageTask]  # in the order of an epoch; all but the last deliver `ToSameTask`
    sent_to: Sequence[int]
    begun: ClosingTask | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the last delivery's output for the answer, then the receipts of the tasks before and of these stages."""
        *_, last = self.tasks.values()
        bucket = task_bucket(last.first_partition)
        lines: list[str] = []
        expressed: list[pa.RecordBatch] = []
        if self.begun is not None:
            receipt = TaskReceipt(stage=self.begun.stage, bucket=bucket, executor=executor_name())
            expressed = list(self.begun.run(batches, receipt))
            batches = self.begun.task_buffer.take_rows() if self.sent_to else ()
            lines = [*self.begun.task_buffer.take(), receipt.to_json()]
        started = time.perf_counter()
        arrivals = self._arrivals(batches, last)
        received = time.perf_counter() - started
        lines = [*(line for one in arrivals.values() for line in one.receipts), *lines]
        if self.begun is not None:
            _forward(self.begun.delivery, expressed, arrivals)
        for number, task in self.tasks.items():
            receipt = TaskReceipt(stage=task.name, bucket=bucket, executor=executor_name())
            receipt.seconds["receive"], received = received, 0.0
            answer = task.run(arrivals.pop(number), receipt)
            if task is last:
                yield from answer
            else:
                _forward(task.delivery, answer, arrivals)
            lines.append(receipt.to_json())
        yield from last.delivery.finish(lines)
        Spared.loaded()

    def _arrivals(self, batches: Iterable[pa.RecordBatch], last: StageTask) -> dict[int, Arrivals]:
        """Return the rows for every stage; those for stages behind the expressions wait for them."""
        pieces: dict[int, list[pa.RecordBatch]] = {number: [] for number in self.tasks}
        later: list[pa.RecordBatch] = []
        for batch in batches:
            if len(self.sent_to) == 1:
                pieces[self.sent_to[0]].append(batch)
                continue
            for number, piece in _by_target(batch):
                pieces.get(number, later).append(piece)
        if isinstance(last.delivery, ToExpressions) and any(number not in self.tasks for number in self.sent_to):
            last.delivery.task_buffer.leave_rows(later)
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


def _forward(delivery: Delivery, answer: Iterable[pa.RecordBatch], arrivals: Mapping[int, Arrivals]) -> None:
    """Add the answer of a stage to the rows for the next one."""
    if not isinstance(delivery, ToSameTask):
        raise TypeError("the rows of a fused stage go to another stage of its task")
    came = arrivals[delivery.target].deltas
    pieces = [came[delivery.side], *map(delivery.unpacked, answer)]
    came[delivery.side] = ZSet.concat([piece for piece in pieces if len(piece)], schema=delivery.rows)
