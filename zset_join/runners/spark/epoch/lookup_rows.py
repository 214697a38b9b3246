"""DataFrames that rows are looked up in: read before the job of an epoch into the checkpoint, in each or from time to time.

The law: the tasks of an epoch, whichever attempt, find the same rows; see `zset_join.lookup.sources.table_files`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from zset_join.core.epochs import Tick
from zset_join.core.errors import PlanError
from zset_join.lookup import DataFrameSource
from zset_join.runners.spark.rows.names import column_named
from zset_join.stages import LookupJoinStage, Stage
from zset_join.storage.folder import Folder

__all__ = ["keep_epoch_rows"]


class NamedStage(Protocol):
    """A stage of a query, wherever it runs."""

    @property
    def name(self) -> str: ...

    @property
    def stage(self) -> Stage: ...


def keep_epoch_rows(stages: Iterable[NamedStage], folder: Folder, tick: Tick) -> None:
    """Read the DataFrames of lookup stages for an epoch, unless their rows are present."""
    for planned in stages:
        stage = planned.stage
        # A DataFrame is read by the driver, outside the stages: this one source is its own affair.
        if not isinstance(stage, LookupJoinStage) or not isinstance(stage.source, DataFrameSource):
            continue
        source = stage.source
        place, now_us = (folder, planned.name, tick.epoch), tick.processing_time_us or 0
        if source.has(*place) or source.keep_earlier(*place, now_us=now_us):
            continue
        frame = source.dataframe() if callable(source.dataframe) else source.dataframe
        if frame is None or frame.isStreaming:
            raise PlanError(
                f'the lookup source "{source.name}" has no batch DataFrame to read. Give one, or a function that makes one: '
                "DataFrameSource(name=..., dataframe=...).",
                code="NOT_A_SOURCE",
            )
        wanted = stage.table.schema
        rows = frame.select(*map(column_named, wanted.names)).limit(source.max_rows + 1).toArrow()
        source.keep(*place, rows.cast(wanted), read_us=now_us)
