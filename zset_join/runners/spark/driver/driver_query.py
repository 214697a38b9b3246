"""A query of Spark's as the driver runs it: one plan over sources that Spark collects.

The law: the plan is the one that a pipeline in process has, with one bucket. It does not depend on Spark and can be pickled;
the streams beside it stay where the query is written.

The rows of all sources are collected as one table, which is taken apart again:

    columns    flag (which source, where there are several), weight, raw (of rows that cannot be read), slots

Rows are those of the tables, as Spark has read them; or records, of which `record_decoder` reads the rows. They keep the order
in which Spark returns them: one source after the other, each in the order of its partitions. Of every source, rows collected =
rows of its delta + rows that could not be read; of records, their lines are.

Memory: the rows of an epoch, once as Arrow has them and again for columns that Spark has in another type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.changelog import format_named
from zset_join.core.options import KeepState
from zset_join.core.row_conversion import take_rows
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.tree import Views
from zset_join.query.reading import Reading
from zset_join.query.rows import PlannedQuery
from zset_join.runners.spark.driver.record_decoder import RecordDecoder, SourceRows
from zset_join.runners.spark.planning.lowering import LoweredTree
from zset_join.runners.spark.planning.placed_query import PlacedQuery, placed_query
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.layout import SlotLayout, as_type, make_layout
from zset_join.runners.spark.rows.names import quoted, select_text
from zset_join.runners.spark.rows.row_reading import RAW, REJECT, WEIGHT
from zset_join.runners.spark.rows.schemas import spark_type
from zset_join.zset import ZSet, single_batch

__all__ = ["CollectedLayout", "DriverQuery", "WrittenQuery", "collected_layout", "collected_query", "united_rows"]

_RAW = "__raw_told"


@dataclass(frozen=True)
class CollectedLayout:
    """How the rows of the sources are in the collected table; it can be pickled."""

    names: tuple[str, ...]
    slots: SlotLayout
    decoders: tuple[RecordDecoder | None, ...]

    def parted(self, table: pa.Table) -> dict[str, SourceRows]:
        """Return the rows of each source that has some."""
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
        decoder = self.decoders[flag]
        if decoder is not None:
            return decoder.rows(self._delta(batch, flag).rows)
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


def collected_layout(streams: Mapping[str, SourceStream], *, baselines: bool = False) -> CollectedLayout:
    read = [None if baselines else stream.records_read for stream in streams.values()]
    has_raw = any(stream.may_reject and not records for stream, records in zip(streams.values(), read, strict=True))
    layout = make_layout(*(_schema(stream, baselines=baselines) for stream in streams.values()), has_raw=has_raw)
    return CollectedLayout(tuple(streams), layout, tuple(None if one is None else RecordDecoder(one) for one in read))


def _schema(stream: SourceStream, *, baselines: bool) -> pa.Schema:
    return stream.schema if baselines else stream.collected_schema


def united_rows(layout: CollectedLayout, rows: Mapping[str, DataFrame]) -> DataFrame:
    parts = [_of_stream(layout, flag, rows[name]) for flag, name in enumerate(layout.names) if name in rows]
    united = parts[0]
    for part in parts[1:]:
        united = united.unionAll(part)
    return united


def _of_stream(layout: CollectedLayout, flag: int, rows: DataFrame) -> DataFrame:
    slots = layout.slots
    schema = slots.schemas[flag]
    plain = {at.name: F.col(quoted(at.name)).cast(spark_type(at.type)) for at in schema if at.metadata}
    if plain:
        rows = rows.withColumns(plain)
    by_slot = {slot: quoted(at.name) for slot, at in zip(slots.slots[flag], schema, strict=True)}
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


@dataclass(frozen=True, kw_only=True)
class DriverQuery:
    """A query as the driver runs it."""

    plan: QueryPlan
    streams: Mapping[str, SourceStream] = field(repr=False)
    has_several: bool = False

    @property
    def session(self) -> SparkSession:
        return next(iter(self.streams.values())).session

    @property
    def layout(self) -> CollectedLayout:
        return collected_layout(self.streams)

    @property
    def baseline_layout(self) -> CollectedLayout:
        """Return how the rows of their baselines are collected."""
        return collected_layout(self.streams, baselines=True)

    def in_order(self, names: Sequence[str]) -> DriverQuery:
        """Return it with the streams of some names first, in their order; others follow as they are."""
        known = [name for name in names if name in self.streams]
        return replace(self, streams={name: self.streams[name] for name in dict.fromkeys([*known, *self.streams])})

    @property
    def planned(self) -> PlannedQuery:
        inputs = [{"name": one.name, "operation": list(one.operation)} for one in self.streams.values()]
        return collected_query(self.plan, inputs, has_several=self.has_several)


def collected_query(plan: QueryPlan, inputs: Sequence[Mapping[str, Any]], *, has_several: bool) -> PlannedQuery:
    """Return the query of a pipeline whose rows Spark collects."""
    given = format_named("weight")
    readings = {
        source.name: Reading(source=source, given=source.relation.schema, changelog_format=given) for source in plan.sources
    }
    return PlannedQuery(plan=plan, readings=readings, has_several=has_several, inputs=tuple(inputs))


class WrittenQuery:
    """A query as it was written: the form of it that the driver runs, and the one that executors run."""

    def __init__(self, name: str, tree: LoweredTree) -> None:
        self.name = name
        self._tree = tree
        self._plans: dict[KeepState, QueryPlan] = {}
        self._placed: dict[KeepState, PlacedQuery] = {}

    @property
    def session(self) -> SparkSession:
        return next(iter(self._tree.streams.values())).session

    def on_driver(self, keep_state: KeepState) -> DriverQuery:
        plan = self._planned(keep_state)
        used = {source.name: self._tree.streams[source.name] for source in plan.sources}
        return DriverQuery(plan=plan, streams=used, has_several=isinstance(self._tree.root, Views))

    def placed(self, keep_state: KeepState = "all") -> PlacedQuery:
        """Return the query on executors, with its stages in their places."""
        if keep_state not in self._placed:
            self._placed[keep_state] = placed_query(self._planned(keep_state), self._tree.streams)
        return self._placed[keep_state]

    def _planned(self, keep_state: KeepState) -> QueryPlan:
        if keep_state not in self._plans:
            self._plans[keep_state] = self._tree.planned(name=self.name, keep_state=keep_state)
        return self._plans[keep_state]
