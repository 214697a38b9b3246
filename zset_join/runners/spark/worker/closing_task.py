"""The function that runs in Spark's Python workers behind expressions: it delivers the rows they made of an answer.

It keeps the law of `tasks`: files are written that nobody lists yet, and only receipts make them count.

Rows that were different may be equal now, so what was an update may be nothing: the answer of a bucket is consolidated before
it is written or sent on. An answer of more than `MOST_TIDY_ROWS` rows is passed on as it is, retractions first; its sum is the
same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zset_join.core.errors import ZsetJoinError
from zset_join.runners.spark.rows.layout import as_type
from zset_join.runners.spark.worker.deliveries import Delivery
from zset_join.runners.spark.worker.locality import executor_name
from zset_join.runners.spark.worker.parts import merged, tidied
from zset_join.runners.spark.worker.receipts import TaskReceipt
from zset_join.runners.spark.worker.task_buffer import TaskBuffer
from zset_join.runners.spark.worker.tasks import refuse_in_receipt, task_bucket
from zset_join.zset import ZSet

__all__ = ["ClosingTask"]


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
