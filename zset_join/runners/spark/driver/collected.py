"""The rows of all sources of a query as one DataFrame that is collected whole, and the Arrow table taken apart again.

    columns    flag (which source, where there are several), weight, raw (of rows that cannot be read), slots

A slot is a column that all sources may use: columns of equal type share one, see `zset_join.runners.spark.rows.layout`. Rows
keep the order in which Spark returns them: one source after the other, each in the order of its partitions.

The law: of every source, rows collected = rows of its delta + rows that could not be read.

Memory: the rows of an epoch, once as Arrow has them and once more for columns that Spark has in another type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.row_conversion import take_rows
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.layout import SlotLayout, as_type, make_layout
from zset_join.runners.spark.rows.names import quoted
from zset_join.runners.spark.rows.row_reading import RAW, REJECT, WEIGHT
from zset_join.runners.spark.rows.schemas import spark_type
from zset_join.runners.spark.rows.text_select import select_text
from zset_join.zset import ZSet, single_batch

__all__ = ["CollectedLayout", "SourceRows", "collected_layout", "united_rows"]

_RAW = "__raw_told"


@dataclass(frozen=True)
class SourceRows:
    """Hold what one source had in an epoch.

    Args:
        delta: the rows that could be read.
        rejected: the others.
        raw: per rejected row its code, or "code:text" where there was a text.
    """

    delta: ZSet
    rejected: ZSet
    raw: Sequence[str]


@dataclass(frozen=True)
class CollectedLayout:
    """How the rows of the sources lie in the collected table; it can be pickled.

    Args:
        names: of the sources, by their flags.
        slots: how they use the slots.
    """

    names: tuple[str, ...]
    slots: SlotLayout

    def parted(self, table: pa.Table) -> dict[str, SourceRows]:
        """Return the rows of each source that has some.

        Args:
            table: as Spark collected it.
        """
        if not table.num_rows:
            return {}
        batch = single_batch(table)
        if len(self.names) == 1:
            return {self.names[0]: self._of_source(batch, 0)}
        flags = np.asarray(batch.column("flag"))
        changes = np.flatnonzero(np.diff(flags)) + 1
        begins, ends = [0, *changes.tolist()], [*changes.tolist(), len(flags)]
        pieces: dict[int, list[tuple[int, int]]] = {}
        for begin, end in zip(begins, ends, strict=True):
            pieces.setdefault(int(flags[begin]), []).append((begin, end))
        return {
            self.names[flag]: self._of_source(_rows_at(batch, flags, flag, stretches), flag)
            for flag, stretches in sorted(pieces.items())
        }

    def _of_source(self, batch: pa.RecordBatch, flag: int) -> SourceRows:
        if not self.slots.has_raw or batch.column("raw").null_count == batch.num_rows:
            schema = self.slots.schemas[flag]
            return SourceRows(self._delta(batch, flag), ZSet.empty(schema), ())
        raw = batch.column("raw")
        is_bad = np.asarray(pc.is_valid(raw))
        bad = take_rows(batch, np.flatnonzero(is_bad))
        good = take_rows(batch, np.flatnonzero(~is_bad))
        return SourceRows(self._delta(good, flag), self._delta(bad, flag), bad.column("raw").to_pylist())

    def _delta(self, batch: pa.RecordBatch, flag: int) -> ZSet:
        schema, names = self.slots.schemas[flag], self.slots.names
        columns = [
            as_type(batch.column(names[slot]), kind) for slot, kind in zip(self.slots.slots[flag], schema.types, strict=True)
        ]
        weights: npt.NDArray[np.int64] = np.asarray(batch.column("weight"), dtype=np.int64)
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), weights)


def collected_layout(streams: Mapping[str, SourceStream]) -> CollectedLayout:
    """Return how the rows of streams lie in the collected table.

    Args:
        streams: by the names of the sources.
    """
    has_raw = any(stream.may_reject for stream in streams.values())
    layout = make_layout(*(stream.schema for stream in streams.values()), has_raw=has_raw)
    return CollectedLayout(tuple(streams), layout)


def united_rows(layout: CollectedLayout, streams: Mapping[str, SourceStream], rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return rows of sources as they are collected.

    Args:
        layout: of all streams.
        streams: by the names of the sources.
        rows: of some of these sources, with the columns of `SourceStream.prepared`.
    """
    parts = [_of_stream(layout, flag, streams[name], rows[name]) for flag, name in enumerate(layout.names) if name in rows]
    united = parts[0]
    for part in parts[1:]:
        united = united.unionAll(part)
    return united


def _of_stream(layout: CollectedLayout, flag: int, stream: SourceStream, rows: DataFrame) -> DataFrame:
    slots = layout.slots
    plain = {at.name: F.col(quoted(at.name)).cast(spark_type(at.type)) for at in stream.schema if at.metadata}
    if plain:
        rows = rows.withColumns(plain)
    by_slot = {slot: quoted(at.name) for slot, at in zip(slots.slots[flag], stream.schema, strict=True)}
    nulls = {f"__null{at}": F.lit(None).cast(spark_type(kind)) for at, kind in enumerate(slots.types) if at not in by_slot}
    undecoded = F.when(F.col(REJECT).isNotNull(), F.concat_ws(":", F.col(REJECT), F.col(RAW)))
    several = {"__flag": F.lit(flag).cast("short")} if len(layout.names) > 1 else {}
    added = {**several, **({_RAW: undecoded} if slots.has_raw else {}), **nulls}
    if added:
        rows = rows.withColumns(added)
    shown = ["__flag AS flag"] if several else []
    shown += [f"{WEIGHT} AS weight", *([f"{_RAW} AS raw"] if slots.has_raw else [])]
    return select_text(rows, [*shown, *(f"{by_slot.get(at, f'__null{at}')} AS {name}" for at, name in enumerate(slots.names))])


def _rows_at(
    batch: pa.RecordBatch, flags: npt.NDArray[np.int64], flag: int, stretches: Sequence[tuple[int, int]]
) -> pa.RecordBatch:
    """Return the rows of one source; where they lie together, without a copy."""
    if len(stretches) == 1:
        begin, end = stretches[0]
        return batch.slice(begin, end - begin)
    return take_rows(batch, np.flatnonzero(flags == flag))
