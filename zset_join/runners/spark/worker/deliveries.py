"""How a stage's answer leaves its bucket: parts for the output, or rows for another stage.

A delivery takes the answer chunk by chunk and returns what leaves the Python function for it; at last it takes the receipts.
Parts leave nothing but receipts behind; rows for another stage travel with the receipts through the shuffle, brought down first
where that stage requests it. Rows for a stage that is fused with this one stay in the task.

Memory: rows are brought down `REDUCED_ROWS` at a time, or as many as have 256 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.core.epochs import Tick
from zset_join.runners.spark.rows.layout import SlotLayout, as_type, pack_receipts, pack_rows, travelling_schema
from zset_join.runners.spark.worker.parts import PartWriter, merged
from zset_join.runners.spark.worker.quarantine import LETTERS
from zset_join.runners.spark.worker.receipts import TaskReceipt
from zset_join.stages import StageInput
from zset_join.stages.stage import Reduction
from zset_join.zset import ZSet

__all__ = ["Delivery", "ToOutput", "ToSameTask", "ToStage"]

RECEIPTS = pa.schema({"receipt": pa.string()})
"""What leaves the last function of an epoch."""

REDUCED_ROWS = 1 << 20


class Delivery(Protocol):
    """Receiver of the answer of one stage in one bucket; sent to the worker."""

    @property
    def schema(self) -> pa.Schema:
        """Return the columns that leave the Python function."""

    @property
    def reduces(self) -> bool:
        """Return whether rows are brought down, which also makes one of equal ones."""

    def deliver(self, chunks: Iterator[ZSet], receipt: TaskReceipt, place: int) -> Iterator[pa.RecordBatch]:
        """Take the answer, retractions first, and yield what leaves the function for it; `place`: of this use of the answer."""

    def finish(self, lines: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Take the receipts of this task and of those before it."""


@dataclass(frozen=True, kw_only=True)
class ToOutput:
    """Write the answer as a part, and yield the receipts."""

    parts: PartWriter
    files: CheckpointFiles
    tick: Tick
    rows: pa.Schema

    reduces = False

    @property
    def schema(self) -> pa.Schema:
        return RECEIPTS

    def deliver(
        self,
        chunks: Iterator[ZSet],
        receipt: TaskReceipt,
        place: int,  # noqa: ARG002 - for other deliveries
    ) -> Iterator[pa.RecordBatch]:
        written = self.parts.write(self.files, receipt.bucket, self.tick, self.rows, chunks)
        receipt.parts = [*receipt.parts, *(part for part in written if part.form != LETTERS)]
        receipt.quarantined = [*receipt.quarantined, *(part for part in written if part.form == LETTERS)]
        yield from ()

    def finish(self, lines: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"receipt": list(lines)}, schema=RECEIPTS)


@dataclass(frozen=True, kw_only=True)
class ToStage:
    """Yield the rows for one input of another stage, brought down to what it needs of them."""

    layout: SlotLayout
    side: int
    given: StageInput
    chunk_rows: int
    target: int | None = None  # the stage, where rows for several leave the task

    @property
    def schema(self) -> pa.Schema:
        return travelling_schema(self.layout, has_target=self.target is not None)

    @property
    def reduces(self) -> bool:
        return self.given.reduce is not None

    def deliver(self, chunks: Iterator[ZSet], receipt: TaskReceipt, place: int) -> Iterator[pa.RecordBatch]:
        for rows in _reduced(chunks, self.given.reduce) if self.given.reduce is not None else merged(chunks, self.chunk_rows):
            if len(rows):
                sender, sent = receipt.bucket, receipt.emitted[place]
                yield pack_rows(rows, self.layout, side=self.side, sender=sender, sent=sent, target=self.target)
                receipt.emitted[place] += len(rows)

    def finish(self, lines: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield pack_receipts(lines, self.layout, target=self.target)


@dataclass(frozen=True, kw_only=True)
class ToSameTask:
    """Pass the rows to the next stage of the same task."""

    target: int
    side: int
    given: StageInput

    came: list[ZSet] = field(default_factory=list)
    schema = RECEIPTS

    @property
    def rows(self) -> pa.Schema:
        """Return the columns of that input."""
        return self.given.fed.schema

    @property
    def reduces(self) -> bool:
        return self.given.reduce is not None

    def deliver(self, chunks: Iterator[ZSet], receipt: TaskReceipt, place: int) -> Iterator[pa.RecordBatch]:
        for rows in chunks if self.given.reduce is None else _reduced(chunks, self.given.reduce):
            columns = [as_type(column, kind) for column, kind in zip(rows.rows.columns, self.rows.types, strict=True)]
            self.came.append(ZSet(pa.RecordBatch.from_arrays(columns, schema=self.rows), rows.weights))
            receipt.emitted[place] += len(rows)
        yield from ()

    def finish(self, lines: Sequence[str]) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - for other deliveries
        yield from ()


def _reduced(chunks: Iterator[ZSet], reduction: Reduction) -> Iterator[ZSet]:
    """Bring rows down to what the next stage needs of them."""
    for rows in merged(chunks, REDUCED_ROWS):
        reduced = reduction.reduce(rows)
        if len(reduced):
            yield reduced
