"""Rows that files which tasks write themselves can never hold: refused, or set aside, by the task that would write them.

The law: as of `zset_join.sinks.unfit_values`. What a task refuses is in no commit record; what it sets aside is listed in that
of the epoch, beside its parts.

Cost: one pass over the text columns of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import PartEntry
from zset_join.core.tick import Tick
from zset_join.runners.common.rejected import Rejected, without
from zset_join.runners.common.sink_epochs import add_unfit, unfit_flags
from zset_join.runners.spark.worker.parts import PartWriter
from zset_join.runners.spark.worker.quarantine import DeadLetters
from zset_join.sinks.unfit_values import check_fits, unfit_values, within_microseconds
from zset_join.zset import ZSet

__all__ = ["FittingParts", "file_unfit_flags"]


@dataclass(frozen=True, slots=True, repr=False)
class FittingParts:
    """Write the rows that an output can hold."""

    writer: PartWriter
    output: str
    letters: DeadLetters | None

    def __repr__(self) -> str:
        return repr(self.writer)

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        rejected = Rejected()
        parts = self.writer.write(files, bucket, tick, schema, self._fitting(chunks, rejected, tick.epoch))
        return parts if self.letters is None else [*parts, *self.letters.write(tick, bucket, {self.output: rejected})]

    def _fitting(self, chunks: Iterable[ZSet], rejected: Rejected, epoch: int) -> Iterator[ZSet]:
        for chunk in chunks:
            unfit = unfit_values(chunk.rows, within_microseconds)
            if not unfit:
                yield chunk
                continue
            if self.letters is None:
                check_fits(self.output, chunk, unfit, epoch=epoch)
            else:
                add_unfit(rejected, chunk, unfit)
            kept = without(chunk, np.flatnonzero(unfit_flags(chunk.rows, unfit)))
            if len(kept):
                yield kept


def file_unfit_flags(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return unfit_flags(rows, unfit_values(rows, within_microseconds))
