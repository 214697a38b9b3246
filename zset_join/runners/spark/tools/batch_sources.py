"""Sources of a query as the tables of its batch query, and that query as views of the session.

Best first: all changes of a stream in their order, from a log that is whole; the rows that a snapshot has and the changes
since; rows alone, where a table was given, where changes leave columns out (`filled_table`), or where the snapshot is that of
the stage behind a route.

The law: a text means what the engine computes, so it is read in UTC and with Spark's checked arithmetic, whatever the session's
settings are.

Cost: one analysis by Spark per part; one pass over the snapshots and logs of each first stage; one more over the logs of a
temporal join for its watermarks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import LATE_CHANGES_TOTAL, BucketHistory, read_log
from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan
from zset_join.runners.local.watermarks import stage_watermark
from zset_join.runners.spark.frames.facts import analysed, is_connect
from zset_join.runners.spark.planning.job_settings import job_settings
from zset_join.runners.spark.planning.stages import Placed, PlannedStage, visible_columns_of
from zset_join.runners.spark.rows.names import column_named
from zset_join.runners.spark.rows.schemas import field_type, spark_schema
from zset_join.runners.spark.tools.logged_stages import changes_of_input, has_snapshot, stage_histories
from zset_join.shapes.deduplicate import TRUNCATE
from zset_join.stages import TemporalJoinStage
from zset_join.tools.batch import (
    EPOCHS,
    SPARK,
    BatchTimes,
    BatchView,
    Part,
    SourceForm,
    batch_parts,
    live_name,
    marks_name,
    source_name,
)

__all__ = [
    "BatchSource",
    "BatchTables",
    "ViewTables",
    "aligned",
    "filled_table",
    "given_source",
    "numbered",
    "own_source",
    "plan_of_places",
    "sources_of",
    "table_prefix",
]

_OF_TEXTS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",
}


def table_prefix() -> str:
    """Return the prefix of the names of the views of one query."""
    return f"zset_join_{uuid.uuid4().hex}_"


def numbered(rows: DataFrame, *more: str) -> DataFrame:
    """Return rows with their columns called c0, c1, ..., the last ones by given names."""
    return rows.toDF(*(f"c{at}" for at in range(len(rows.columns) - len(more))), *more)


def aligned(rows: DataFrame, schema: pa.Schema, *more: Column) -> DataFrame:
    """Return the columns of a relation, numbered, and more behind them; one that the rows do not have is NULL."""
    there = set(rows.columns)
    columns = [
        (column_named(field.name) if field.name in there else F.lit(None).cast(field_type(field))).alias(f"c{at}")
        for at, field in enumerate(schema)
    ]
    return rows.select(*columns, *more)


class BatchTables:
    """The views of a batch query while it is read; `close` drops them."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop the views; what was made of them stays, but over Spark Connect."""
        while self._names:
            self._session.catalog.dropTempView(self._names.pop())

    def add(self, name: str, rows: DataFrame) -> None:
        self._names.append(name)
        rows.createOrReplaceTempView(name)

    def view(self, query: BatchView) -> DataFrame:
        """Return the rows of the view, its columns numbered; the tables it reads are present."""
        for part in query.parts:
            self.add(part.name, self._made(part))
        return self._session.table(query.answer)

    def tied(self, query: BatchView) -> DataFrame | None:
        """Return the rows among which arrival decides, after `view`; None where none can be."""
        if query.tied is None:
            return None
        for part in query.tied_parts:
            self.add(part.name, self._made(part))
        return self._session.table(query.tied)

    def _made(self, part: Part) -> DataFrame:
        with job_settings(self._session, _OF_TEXTS):
            rows = self._session.sql(part.query)
            if not is_connect(self._session):
                return rows
            self._names.append(f"{table_prefix()}rows")
            return analysed(rows, self._names[-1])


_TICKS = pa.schema([(name, pa.int64()) for name in ("e", "t", "before", "mark")])
_MARKS = pa.schema([(name, pa.int64()) for name in ("e", "before", "mark")])
_EPOCHS = pa.schema([(name, pa.int64()) for name in ("e", "t")])
_PLACES_PER_EPOCH = 1 << 34


@dataclass(frozen=True, kw_only=True)
class BatchSource:
    form: SourceForm
    table: DataFrame = field(repr=False)
    basis: str


def plan_of_places(plan: QueryPlan) -> QueryPlan:
    """Return a plan in which every input of a stage that sources feed has a source of its own, whose rows are those logged."""
    sources: list[PlanSource] = []
    nodes = []
    taken: set[str] = set()
    for node in plan.nodes:
        feeds = []
        for given, fed in zip(node.stage.inputs, node.feeds, strict=True):
            stages = tuple(feed for feed in fed if not isinstance(feed.origin, str))
            if len(stages) < len(fed):
                name, number = given.relation.name, 2
                while name in taken:
                    name, number = f"{given.relation.name}_{number}", number + 1
                taken.add(name)
                sources.append(PlanSource(relation=replace(given.relation, name=name)))
                stages = (Feed(name), *stages)
            feeds.append(stages)
        nodes.append(replace(node, feeds=tuple(feeds)))
    return replace(plan, sources=tuple(sources), nodes=tuple(nodes))


def sources_of(plan: QueryPlan, planned_stages: Sequence[PlannedStage]) -> Iterator[tuple[str, PlannedStage, int]]:
    """Yield the sources of a plan of places (`plan_of_places`), each with the stage and the input whose log it is."""
    for one in planned_stages:
        for side in one.streams:
            (name,) = [feed.origin for feed in plan.nodes[one.number].feeds[side] if isinstance(feed.origin, str)]
            yield name, one, side


def given_source(rows: DataFrame, schema: pa.Schema) -> BatchSource:
    """Return a source of which the rows are given, with `__weight`; columns that they do not have are NULL."""
    return BatchSource(form="rows", table=aligned(rows, schema, F.col("__weight").alias("w")), basis="given")


def own_source(
    session: SparkSession,
    checkpoint: Checkpoint,
    planned_stages: Sequence[PlannedStage],
    first: PlannedStage,
    side: int,
) -> BatchSource:
    """Return a source from what the checkpoint holds: the rows of an input, as they were logged."""
    stream, schema = first.streams[side], first.stage.inputs[side].relation.schema
    planned, is_forwarded = first, False
    while has_snapshot(checkpoint, planned) and planned.stage.forwards and (use := planned.reader) and not use.steps:
        planned, side, is_forwarded = planned_stages[use.target or 0], use.side, True
    is_folded = has_snapshot(checkpoint, planned)
    position = planned.state_input(side)
    tables = [name for name, key in planned.state_stage.state_tables.items() if key.of_input == position and key.is_whole]
    if is_folded and not tables:
        raise OptionError(
            f'verify(): the input of "{stream.name}" is partly in a snapshot of {planned.name}, which does not keep all its '
            f'rows. Pass tables={{"{stream.name}": DataFrame}}, or keep the whole log with the option retainInputLog.',
            code="VERIFY_TABLE",
            name=stream.name,
        )
    changes = changes_of_input(session, checkpoint, planned, side, table=tables[0] if tables else None)
    basis = "snapshot and log" if is_folded else "log"
    relation, control = planned.stage.inputs[side].relation, planned.stage.inputs[side].everywhere
    weight = F.col("__weight").alias("w")
    if control is not None:
        rows = filled_table(changes, relation, control, visible_columns_of(stream))
        return BatchSource(form="rows", table=aligned(rows, schema, weight), basis=basis)
    if is_forwarded and relation.mode == "upsert":
        # The stage before has settled which change counts; its sequence does not order what it retracted.
        newest = Window.partitionBy(*map(column_named, relation.primary_key)).orderBy(
            F.col("__epoch").desc(), F.col("__weight").desc()
        )
        rows = changes.withColumn("__rank", F.row_number().over(newest)).where("__rank = 1 and __weight > 0")
        return BatchSource(form="rows", table=aligned(rows, schema, weight), basis=basis)
    # Keys do not change their bucket within a log, so places of several buckets only have to differ.
    buckets = F.lit(len(checkpoint.histories) + 1)
    place = F.col("__epoch") * F.lit(_PLACES_PER_EPOCH) + F.col("__position") * buckets + F.col("__bucket")
    table = aligned(changes, schema, weight, F.col("__epoch").alias("e"), place.alias("n"))
    return BatchSource(form="changes" if is_folded or is_forwarded else "all changes", table=table, basis=basis)


class ViewTables:
    """Run the batch query of a view over the known rows of its sources."""

    def __init__(
        self,
        joined: Placed,
        plan: QueryPlan,
        tables: BatchTables,
        sources: Mapping[str, BatchSource],
        *,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._session, self._tables, self._sources, self._checkpoint = joined.session, tables, sources, checkpoint
        self._planned, self._prefix = joined.planned_stages, table_prefix()
        marked = [one.number for one in self._planned if self._has_marks(one, plan)]
        self.query: BatchView = batch_parts(
            plan,
            [self._times(one) for one in self._planned],
            SPARK,
            prefix=self._prefix,
            forms={name: one.form for name, one in sources.items()},
            marked=marked,
            has_all_epochs=False,
        )
        for number, source in enumerate(plan.sources):
            one = sources[source.name]
            tables.add((live_name if one.form == "rows" else source_name)(number, self._prefix), one.table)
        self._add_times(marked)
        self.rows = tables.view(self.query)

    def tied(self) -> DataFrame | None:
        """Return the rows of the view among which arrival decides; None where none can be."""
        return self._tables.tied(self.query)

    def _times(self, planned: PlannedStage) -> BatchTimes:
        last = None if self._checkpoint is None else self._checkpoint.last
        if last is None:
            return BatchTimes()
        mark = last.watermarks.get(stage_watermark(planned.name))
        late = frozenset(last.progress.get(LATE_CHANGES_TOTAL, ()))
        return BatchTimes(watermark_us=mark, processing_time_us=last.processing_time_us, late_inputs=late)

    def _has_marks(self, planned: PlannedStage, plan: QueryPlan) -> bool:
        """Return whether the watermarks of a stage matter, and its log has them all."""
        if self._checkpoint is None or not isinstance(planned.stage, TemporalJoinStage):
            return False
        origins = [feed.origin for feeds in plan.nodes[planned.number].feeds for feed in feeds]
        forms = [self._sources[origin].form if isinstance(origin, str) else None for origin in origins]
        return set(forms) == {"all changes"}

    def _add_times(self, marked: Sequence[int]) -> None:
        """Give the watermarks of stages, and the processing times of epochs where the query reads them."""
        for number in marked:
            marks = _marks(self._ticks([self._planned[number]]))
            self._tables.add(marks_name(number, self._prefix), _table(self._session, marks, _MARKS))
        epochs = self._prefix + EPOCHS
        if any(epochs in part.query for part in (*self.query.parts, *self.query.tied_parts)):
            times = {e: t for e, t, _, _ in self._ticks(self._planned)}
            self._tables.add(epochs, _table(self._session, sorted(times.items()), _EPOCHS))

    def _ticks(self, planned_stages: Sequence[PlannedStage]) -> set[tuple[int | None, ...]]:
        found: set[tuple[int | None, ...]] = set()
        if self._checkpoint is None:
            return found
        for one in planned_stages:
            histories = tuple(stage_histories(self._checkpoint, one.state_name))
            if histories:
                read = _ReadTicks(
                    self._checkpoint.files, histories, tuple(given.fed.schema for given in one.state_stage.inputs)
                )
                numbers = self._session.range(0, len(histories), 1, len(histories))
                found |= {tuple(row) for row in numbers.mapInArrow(read, spark_schema(_TICKS)).distinct().collect()}
        return found


@dataclass(frozen=True)
class _ReadTicks:
    """Read the times of the epochs of buckets in a task."""

    files: CheckpointFiles
    histories: tuple[BucketHistory, ...]
    schemas: tuple[pa.Schema, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                logs = self.histories[number].logs
                ticks = [one.tick for log in logs for one in read_log(self.files, log, schemas=self.schemas)]
                columns = [
                    [one.epoch for one in ticks],
                    [one.processing_time_us for one in ticks],
                    [one.watermark_before_us for one in ticks],
                    [one.watermark_us for one in ticks],
                ]
                yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=_TICKS)


def _marks(ticks: set[tuple[int | None, ...]]) -> list[tuple[int | None, ...]]:
    """Return the watermarks before and behind epochs; of an epoch of which nothing is logged, that before the next one."""
    marks = {e: (before, mark) for e, _, before, mark in ticks}
    between = [(e - 1, None, before) for e, (before, _) in marks.items() if e is not None and e - 1 not in marks]
    return [*((e, *times) for e, times in marks.items()), *between]


def _table(session: SparkSession, lines: Sequence[Sequence[int | None]], schema: pa.Schema) -> DataFrame:
    return session.createDataFrame([tuple(line) for line in lines], spark_schema(schema))


_ARRIVAL = ("__epoch", "__position")


def filled_table(changes: DataFrame, relation: Relation, control: str, columns: Sequence[str]) -> DataFrame:
    """Return the live rows of a table that gets partial upserts and truncates, with `__weight`; by Spark SQL alone."""
    # A truncate takes away what is before it in the order; of the changes of a key behind it the newest counts, and a column
    # that it omits has the value that the last one before it, back to the last delete, did send. Changes are in the order of
    # their epoch, their sequence, their arrival; one that arrived after a newer one of its key is stale, and does not count.
    left_out = F.coalesce(column_named(control), F.lit(0))
    arrival = [F.col(name) for name in _ARRIVAL]
    sequence = F.struct(*map(column_named, relation.sequence_by)) if relation.sequence_by else F.lit(0)
    changes = changes.withColumns({"__left_out": left_out, "__at": sequence, "__order": F.struct(sequence, *arrival)})
    is_truncate = F.col("__left_out") == TRUNCATE
    truncates = changes.where(is_truncate).groupBy("__bucket").agg(F.max("__order").alias("__emptied"))
    rows = changes.where(~is_truncate).join(F.broadcast(truncates), "__bucket", "left")
    rows = rows.where(F.col("__emptied").isNull() | (F.col("__order") > F.col("__emptied")))
    keys = [column_named(name) for name in relation.primary_key]
    in_order = Window.partitionBy(*keys).orderBy("__epoch", "__at", "__position")
    rows = rows.withColumn("__newest", F.max("__at").over(in_order)).where(F.col("__at") == F.col("__newest"))
    deletes = F.sum(F.when(F.col("__weight") < 0, 1).otherwise(0)).over(in_order)
    rows = rows.withColumn("__life", deletes)
    of_life = Window.partitionBy(*keys, "__life").orderBy("__epoch", "__at", "__position")
    places = {name: at for at, name in enumerate(relation.schema.names)}
    filled = {f"__filled{number}": _last_sent(name, places[name]).over(of_life) for number, name in enumerate(columns)}
    newest = Window.partitionBy(*keys).orderBy(*(F.col(name).desc() for name in ("__epoch", "__at", "__position")))
    rows = rows.withColumns({**filled, "__rank": F.row_number().over(newest)})
    rows = rows.where("__rank = 1 AND __weight > 0")
    values = [F.col(f"__filled{number}")["sent"].alias(name) for number, name in enumerate(columns)]
    return rows.select(*values, F.col("__weight"))


def _last_sent(name: str, place: int) -> Column:
    """Return the last value that a change did send, NULL among them, for a window."""
    is_sent = F.shiftright(F.col("__left_out"), place).bitwiseAND(F.lit(1)) == 0
    is_sent &= F.col("__weight") > 0
    return F.last(F.when(is_sent, F.struct(column_named(name).alias("sent"))), ignorenulls=True)
