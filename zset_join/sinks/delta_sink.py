"""A Delta table as a sink: what the view and the changelog share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from zset_join.core.added_columns import with_added_nullable
from zset_join.core.epoch_chain import ChainLink
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.delta_log import DeltaLog
from zset_join.sinks.unfit_values import UnfitRows, unfit_values, within_microseconds

__all__ = ["DeltaSink"]


class DeltaSink:
    """Write every epoch to a Delta table, in one commit."""

    def __init__(self, log: DeltaLog) -> None:
        self.log = log
        self._output: Relation | None = None
        self._last_epoch: int | None = None
        self._lacks_columns = False

    def alter(self, output: Relation) -> None:
        before = self._opened()
        self._output = replace(output, schema=with_added_nullable(len(before.schema), output.schema))
        self._lacks_columns = True

    def last_epoch(self) -> int | None:
        self._opened()
        return self._last_epoch

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        self._opened()
        return self.log.has(epoch, link)

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return unfit_values(rows, within_microseconds)

    def close(self) -> None:
        self.log.close()
        self._output = None
        self._last_epoch = None

    def _attached(self, output: Relation) -> None:
        """Note that the table is open for these rows."""
        self._output = output
        self._lacks_columns = False
        self._last_epoch = self.log.last_epoch()

    def _opened(self) -> Relation:
        if self._output is None:
            raise SinkError(f"{self.log} is closed; call open first.", code="SINK_CLOSED", table=self.log.location)
        return self._output
