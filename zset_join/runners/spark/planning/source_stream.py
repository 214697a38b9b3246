"""A stream that a query reads, as plain data: its rows as they are sent to buckets, and what they mean.

The fluent API makes it (`changes`, `appends`); everything below reads it: planning, the epochs, and the tools over a query.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.changelog.formats import IMAGE
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.plan.row_steps import RowStep
from zset_join.plan.table_index import TableIndex
from zset_join.runners.spark.rows.record_streams import reject_partial
from zset_join.runners.spark.rows.row_reading import REJECT
from zset_join.runners.spark.rows.undecoded_records import RecordsRead, UndecodedRecords
from zset_join.runners.spark.rows.user_functions import UserFunction

__all__ = ["SourceStream"]


@dataclass(frozen=True, kw_only=True)
class SourceStream:
    """A streaming DataFrame whose rows change a table."""

    name: str
    mode: ChangelogMode
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    hidden: tuple[str, ...]
    dataframe: DataFrame = field(repr=False)
    prepared: DataFrame = field(repr=False)
    schema: pa.Schema = field(repr=False)
    may_reject: bool = False
    operation: tuple[str, ...] = ()  # what a row does and what orders its changes, as Spark writes the expressions
    functions: tuple[UserFunction, ...] = field(default=(), repr=False)
    baseline: DataFrame | None = field(default=None, repr=False)
    event_time: str | None = None
    watermark_delay: int | None = None  # in microseconds, or in the unit of an integer event time
    max_watermark_jump: int | None = None  # in the unit of the delay; None: any distance
    control: str | None = None
    indexes: tuple[TableIndex, ...] = field(default=(), repr=False)
    made_of: tuple[SourceStream, tuple[RowStep, ...]] | None = field(default=None, repr=False)
    undecoded: UndecodedRecords | None = field(default=None, repr=False)

    @property
    def records_read(self) -> RecordsRead | None:
        """Return how the driver reads collected records; None if Spark decodes them."""
        return None if self._own_records is None else self._own_records.read

    @property
    def collected(self) -> DataFrame:
        """Return the rows as the driver collects them: records it reads itself, or rows that Spark has read."""
        return self.prepared if self._own_records is None else self._own_records.rows

    @property
    def collected_schema(self) -> pa.Schema:
        """Return the columns of `collected`, without those beside the rows."""
        return self.schema if self._own_records is None else self._own_records.schema

    @property
    def _own_records(self) -> UndecodedRecords | None:
        """Return the records of the stream; None where something was done to the rows that were read of them."""
        records = self.undecoded
        return records if records is not None and records.prepared is self.prepared else None

    @property
    def described(self) -> dict[str, Any]:
        described: dict[str, Any] = {"name": self.name, "operation": list(self.operation)}
        return {**described, **({"baseline": True} if self.baseline is not None else {})}

    @property
    def row_source(self) -> object:
        return self.prepared

    @property
    def origin(self) -> tuple[SourceStream, tuple[RowStep, ...]]:
        return (self, ()) if self.made_of is None else self.made_of

    @property
    def identity(self) -> Hashable:
        rows = (id(self.prepared), None if self.baseline is None else id(self.baseline))
        times = (self.event_time, self.watermark_delay, self.max_watermark_jump)
        return (*rows, *times, self.mode, self.keys, self.sequence_by, self.hidden)

    @property
    def session(self) -> SparkSession:
        return self.dataframe.sparkSession

    def explained(self) -> str:
        facts: list[str] = [self.mode]
        if self.keys:
            facts.append(f"keys=[{', '.join(self.keys)}]")
        if self.sequence_by:
            facts.append(f"sequence_by=[{', '.join(self.sequence_by)}]")
        beginning = " from a baseline" if self.baseline is not None else ""
        return f'Input "{self.name}" {" ".join(facts)} columns=[{", ".join(self.columns)}]{beginning}'

    def relation(self, join_key: Sequence[str]) -> Relation:
        return Relation(
            name=self.name,
            schema=self.schema,
            join_key=tuple(join_key),
            primary_key=self.keys,
            sequence_by=self.sequence_by,
            mode=self.mode,
            event_time=self.event_time,
            watermark_delay=self.watermark_delay,
        )

    def with_rows(self, change: Callable[[DataFrame], DataFrame]) -> Self:
        """Return the stream after something was done to its rows, those of its baseline included."""
        baseline = None if self.baseline is None else change(self.baseline)
        return replace(self, prepared=change(self.prepared), baseline=baseline, made_of=None)

    def of_whole_rows(self) -> Self:
        """Return the stream where every change is a version: partial ones and truncates are bad input, old images none."""
        if IMAGE in self.hidden:
            return self.with_rows(lambda rows: rows.where(F.col(IMAGE) != 0))
        if self.control is None:
            return self
        reject = reject_partial(F.col(REJECT), F.col(self.control))
        return replace(
            self,
            prepared=self.prepared.withColumn(REJECT, reject).drop(self.control),
            baseline=None if self.baseline is None else self.baseline.drop(self.control),
            schema=pa.schema([field for field in self.schema if field.name != self.control]),
            hidden=tuple(name for name in self.hidden if name != self.control),
            control=None,
            made_of=None,
        )
