"""A sink as the epochs of a query reach it: the same in this process and on Spark's driver.

    before an epoch counts    rows the sink can never hold are refused, or set aside
    once it counts            the other rows are written, with the epoch's place in the chain

The law: see `zset_join.sinks.sink` and `zset_join.sinks.unfit_values`.

Cost: two looks at the answer of an epoch for a sink that has such rows, one for any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import ChainLink
from zset_join.runners.common.rejected import Rejected, taken, without
from zset_join.sinks.sink import Sink, SinkProgress, write_epoch
from zset_join.sinks.unfit_values import (
    FormedSink,
    SelectiveSink,
    UnfitRows,
    check_fits,
    check_weights,
    fitting,
    reasons_by_row,
    unfit_rows,
)
from zset_join.zset import ZSet

__all__ = ["SinkEpochs", "add_unfit", "unfit_flags"]


class SinkEpochs:
    """Give the epochs of a query to a sink, which its owner opens and closes."""

    def __init__(self, sink: Sink, *, quarantines: bool = False) -> None:
        self.sink = sink
        self.quarantines = quarantines

    @property
    def name(self) -> str:
        return repr(self.sink)

    def put_aside(self, epoch: int, chunks: Iterable[ZSet]) -> Rejected:
        """Return the rows of an answered epoch that the sink can never hold, each with its first reason."""
        rejected, kept = Rejected(), list[ZSet]()
        for chunk in chunks if isinstance(self.sink, SelectiveSink | FormedSink) else ():
            unfit = unfit_rows(self.sink, chunk.rows)
            if self.quarantines:
                add_unfit(rejected, chunk, unfit)
            else:
                check_fits(self.name, chunk, unfit, epoch=epoch)
            kept.append(without(chunk, np.flatnonzero(unfit_flags(chunk.rows, unfit))) if unfit else chunk)
        check_weights(self.sink, kept, epoch=epoch)
        return rejected

    def write(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> SinkProgress:
        """Write the rows of an epoch that the sink can hold."""
        return write_epoch(self.sink, epoch, self._fitting(epoch, chunks), link)

    def _fitting(self, epoch: int, chunks: Iterable[ZSet]) -> Iterator[ZSet]:
        for chunk in chunks:
            fit = fitting(self.sink, chunk, drops=self.quarantines, epoch=epoch)
            if len(fit):
                yield fit

    def unfit(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return which rows the sink can never hold; one that does not list such rows holds all."""
        return unfit_flags(rows, unfit_rows(self.sink, rows))


def unfit_flags(rows: pa.RecordBatch, unfit: Sequence[UnfitRows]) -> npt.NDArray[np.bool_]:
    """Return which rows are among those that do not fit, for whatever reason."""
    found = [one.rows for one in unfit]
    return np.logical_or.reduce(found) if found else np.zeros(rows.num_rows, np.bool_)


def add_unfit(rejected: Rejected, delta: ZSet, unfit: Sequence[UnfitRows]) -> None:
    """Put aside the rows of a delta that do not fit, each with its first reason."""
    if unfit:
        reasons = reasons_by_row(delta.rows, unfit)
        rejected.add(taken(delta, np.array(list(reasons), np.int64)), ["SINK_VALUE"] * len(reasons), list(reasons.values()))
