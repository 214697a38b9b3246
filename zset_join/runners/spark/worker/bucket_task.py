"""The function that answers one epoch of one bucket, for one stage or several fused ones.

    rows and receipts that were sent here -> stage -> stage -> ... -> what the last delivery makes of it, and all receipts

Fused stages run one after the other in one worker. Each brings its own state to the point before the epoch, answers, logs its
input and releases the state before the next one begins; its answer is passed on in memory, behind the steps between them.

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

from zset_join.runners.spark.rows.layout import TARGET, Arrivals, collect_arrivals
from zset_join.runners.spark.worker.deliveries import Delivery, ToSameTask
from zset_join.runners.spark.worker.gc_tuning import Spared
from zset_join.runners.spark.worker.locality import executor_name
from zset_join.runners.spark.worker.receipts import TaskReceipt
from zset_join.runners.spark.worker.tasks import StageTask, task_bucket
from zset_join.zset import ZSet

__all__ = ["BucketTask"]

_ROWS_PER_STRETCH = 64


@dataclass(frozen=True, kw_only=True)
class BucketTask:
    """Answer one epoch of one bucket; callable, for `mapInArrow`."""

    tasks: Mapping[int, StageTask]  # in the order of an epoch; all but the last deliver `ToSameTask`
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
            receipt = TaskReceipt(stage=task.name, bucket=bucket, executor=executor_name())
            receipt.seconds["receive"], received = received, 0.0
            yield from task.run(arrivals.pop(number), receipt)
            if task is not last:
                _forward(task.delivery, arrivals)
            lines.append(receipt.to_json())
        yield from last.delivery.finish(lines)
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
