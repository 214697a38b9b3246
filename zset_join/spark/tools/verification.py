"""Compare what a query emitted with Spark's own batch join.

Expected: the two tables, joined by Spark, and what the view does with the join (`batch_view`). Actual: the sum of all
answers, read back from the output. Both are compared as Z-sets: every distinct row with its expected and its actual weight.
Behind an aggregate, floats that differ by less than a billionth of themselves count as equal: Spark adds them in the order
they come in.

Where the tables come from, best first:
- given: `verify(left_df, right_df)` takes the final tables as batch DataFrames. Nothing of ours is in them.
- log: every input change since the first epoch, as it was delivered; Spark SQL picks the newest change of each key.
  Available until the first snapshot, or for ever with the option `retainInputLog`.
- snapshot and log: the engine's own live rows with the changes since. This checks the join, not how changes were resolved.

Rows in quarantine are in none of the last two. Epochs wait while a verification runs.

Cost: a batch join of both tables, and one aggregation over its result and the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.changelog.formats import IMAGE
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.log import read_log
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.errors import OptionError, PlanError, StateError
from zset_join.relation import Relation
from zset_join.shown_values import shown_rows
from zset_join.spark.epoch.event_times import stage_watermark
from zset_join.spark.epoch.runner import EpochRunner
from zset_join.spark.planning.placed_query import PlacedQuery
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stages import PlannedStage
from zset_join.spark.rows.layout import WEIGHT
from zset_join.spark.rows.names import column_named
from zset_join.spark.rows.schemas import field_type, spark_schema, spark_type
from zset_join.spark.rows.text_select import sums_per_row
from zset_join.spark.tools.batch_times import joined_by_epoch
from zset_join.spark.tools.batch_view import batch_stage, batch_view
from zset_join.spark.tools.partial_tables import filled_table
from zset_join.spark.tools.sampling import Sample, sample_of
from zset_join.spark.tools.timed_history import TimedHistory, marks_of
from zset_join.stages import TemporalJoinStage
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT

__all__ = ["VerificationReport", "logged_changes", "stage_histories", "tables_view", "verify"]

_ROUNDING = 1e-9
_CHANGE_FIELDS = [
    pa.field("__weight", pa.int64()),
    pa.field("__epoch", pa.int64()),
    pa.field("__position", pa.int64()),
    pa.field("__bucket", pa.int64()),
]


@dataclass(frozen=True, kw_only=True)
class VerificationReport:
    """Say whether what was emitted equals the batch join.

    Args:
        equal: every row has the weight it should have.
        epoch: the last epoch that is in the output; None before the first.
        basis: per stream, where its table came from: "given", "log" or "snapshot and log".
        expected_rows: rows of the batch join, copies counted.
        actual_rows: rows of the output, copies counted.
        different_rows: distinct rows whose weights differ.
        differences: the first of them, as (row, expected weight, actual weight).
        sample: the share that was checked; None for all rows. The counts are those of the sample.
        sampled_by: the output columns by whose hash the sample was chosen.
        sampled_streams: the streams of which only the rows of the sample were joined; of the others all were.
        outputs: what was read: every output that can be; none where `actual_df` was given. Counts and differences are those of
            the first that differs, or of the first.
        differing: those of them that differ.
    """

    equal: bool
    epoch: int | None
    basis: Mapping[str, str]
    expected_rows: int
    actual_rows: int
    different_rows: int
    differences: Sequence[tuple[dict[str, Any], int, int]] = field(default_factory=tuple)
    sample: float | None = None
    sampled_by: tuple[str, ...] = ()
    sampled_streams: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()

    def __str__(self) -> str:
        verdict = "equal" if self.equal else f"{self.different_rows} rows differ"
        if self.sample is not None:
            verdict += f" in a sample of {self.sample} by {', '.join(self.sampled_by)}"
        if len(self.outputs) > 1:
            verdict += f" in {' and '.join(self.differing)}" if self.differing else f" in all {len(self.outputs)} outputs"
        basis = ", ".join(f"{name} from {source}" for name, source in self.basis.items())
        counts = f"{self.expected_rows} rows expected, {self.actual_rows} emitted, after epoch {self.epoch}"
        lines = [f"{verdict}: {counts} (tables: {basis})"]
        lines += [f"  expected {expected}, got {actual}: {row}" for row, expected, actual in self.differences]
        return "\n".join(lines)


def verify(
    joined: PlacedQuery,
    runner: EpochRunner,
    *,
    left_df: DataFrame | None = None,
    right_df: DataFrame | None = None,
    tables: Mapping[str, DataFrame] | None = None,
    actual_df: DataFrame | None = None,
    most_differences: int = 20,
    sample: float | None = None,
) -> VerificationReport:
    """Compare the output of a query with Spark's batch join.

    Args:
        joined: the join.
        runner: what runs its epochs.
        left_df: the final left table as a batch DataFrame; by name, columns in any order, others are ignored.
        right_df: the final right table.
        tables: name of a stream to its final table; for a chain of joins, whose sides are not all streams.
        actual_df: what was emitted, with a column `_weight`; for outputs that cannot be read back.
        most_differences: differing rows to put into the report.
        sample: a share of the view to check instead of all of it, see `zset_join.spark.tools.sampling`.

    Raises:
        OptionError: a DataFrame lacks columns, the output cannot be read back and `actual_df` is missing, rows are evicted
            and the tables are not given, or the view cannot be sampled.
        StateError: the checkpoint cannot be read.
    """
    chosen = None if sample is None else sample_of(joined, sample)
    session = joined.session
    checkpoint = runner.checkpoint
    if checkpoint is None:
        raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
    given = _given_tables(joined, left_df, right_df, tables)
    names = [stream.name for stream in joined.streams]
    if runner.buffer.evicts and set(given) != set(names):
        raise OptionError(
            'verify() compares with the join of everything that came in, and join_buffer_policy="evict_oldest" drops rows '
            "without a trace in the log. Pass the rows you expect to be kept as left_df= and right_df=.",
            code="VERIFY_EVICTED",
        )
    with runner.pause():
        inputs: dict[str, tuple[DataFrame, str]] = {}
        streams = {stream.name: stream for stream in joined.streams}
        for one in joined.planned_stages:
            for side, name in [(side, source.name) for side, source in one.streams.items()]:
                stream = streams[name]
                table, source = (
                    (_given_table(stream, given[name]), "given")
                    if name in given
                    else _own_table(session, checkpoint, joined.planned_stages, one, stream, side)
                )
                inputs[name] = table if chosen is None else chosen.of_input(table, name), source
        epoch = None if checkpoint.last is None else checkpoint.last.epoch
        of_streams = {name: table for name, (table, _) in inputs.items()}
        watermarks = {id(one.stage): checkpoint.watermarks.get(stage_watermark(one.name)) for one in joined.planned_stages}
        histories = {} if given else _timed_histories(session, checkpoint, joined, chosen)
        expected = tables_view(joined, of_streams, is_empty=epoch is None, watermarks=watermarks, histories=histories)
        expected = _numbered(joined, expected)
        basis = {name: source for name, (_, source) in inputs.items()}
        emitted = _emitted(session, runner, joined.output, actual_df)
        if chosen is not None:
            expected, emitted = chosen.of_output(expected), {name: chosen.of_output(one) for name, one in emitted.items()}
        report = _compare_all(joined, expected, emitted, epoch, basis, most_differences)
        if chosen is None:
            return report
        return replace(report, sample=chosen.share, sampled_by=chosen.columns, sampled_streams=tuple(chosen.by_input))


def _compare_all(
    joined: PlacedQuery,
    expected: DataFrame,
    emitted: Mapping[str, DataFrame],
    epoch: int | None,
    basis: Mapping[str, str],
    most_differences: int,
) -> VerificationReport:
    """Compare what each output holds with the batch query, which is made once; report on the first that differs."""
    if len(emitted) > 1:
        expected = expected.cache()
    try:
        reports = {name: _compare(joined, expected, one, epoch, basis, most_differences) for name, one in emitted.items()}
    finally:
        if len(emitted) > 1:
            expected.unpersist()
    differing = tuple(name for name, report in reports.items() if not report.equal)
    chosen = reports[differing[0]] if differing else next(iter(reports.values()))
    return replace(chosen, outputs=tuple(name for name in reports if name), differing=tuple(name for name in differing if name))


def _given_tables(
    joined: PlacedQuery, left_df: DataFrame | None, right_df: DataFrame | None, tables: Mapping[str, DataFrame] | None
) -> dict[str, DataFrame]:
    """Return the tables that were given, by the names of their streams."""
    given = dict(tables or {})
    for (name, is_stream), argument, table in zip(joined.sides, ("left_df", "right_df"), (left_df, right_df), strict=False):
        if table is None:
            continue
        if not is_stream:
            raise OptionError(
                f'{argument} is the table of a stream, and "{name}" is a view. Pass tables={{"name of a stream": '
                "DataFrame, ...}.",
                code="VERIFY_TABLE",
                name=name,
            )
        given[name] = table
    names = [stream.name for stream in joined.streams]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise OptionError(f"tables= names {unknown}; the streams are {names}.", code="VERIFY_TABLE", missing=unknown)
    return given


def _given_table(stream: SourceStream, given: DataFrame) -> DataFrame:
    missing = [name for name in stream.columns if name not in given.columns]
    if missing or given.isStreaming:
        what = f"lacks the columns {missing}" if missing else "streams"
        raise OptionError(
            f'the table given for "{stream.name}" {what}; expected a batch DataFrame with {list(stream.columns)}.',
            code="VERIFY_TABLE",
            name=stream.name,
            missing=missing,
        )
    return given.select(*(column_named(name).cast(_kind(stream, name)).alias(name) for name in stream.columns)).withColumn(
        "__weight", F.lit(1).cast("long")
    )


def _kind(stream: SourceStream, name: str) -> Any:
    return field_type(stream.schema.field(name))


def _own_table(
    session: SparkSession,
    checkpoint: Checkpoint,
    planned_stages: Sequence[PlannedStage],
    first: PlannedStage,
    stream: SourceStream,
    side: int,
) -> tuple[DataFrame, str]:
    """Return the table of a stream from what the checkpoint holds.

    Raises:
        OptionError: the log does not reach back to the start, and no snapshot has all its rows.
    """
    planned, is_forwarded = first, False
    while _has_snapshot(checkpoint, planned) and planned.stage.forwards and planned.target is not None:
        planned, side, is_forwarded = planned_stages[planned.target], planned.side, True
    relation = planned.stage.inputs[side].relation
    has_snapshot = _has_snapshot(checkpoint, planned)
    position = planned.state_input(side)
    tables = [name for name, key in planned.state_stage.state_tables.items() if key.of_input == position and key.is_whole]
    if has_snapshot and not tables:
        raise OptionError(
            f'verify(): what came for "{stream.name}" is partly in a snapshot of {planned.name}, which does not keep all its '
            f'rows. Pass tables={{"{stream.name}": DataFrame}}, or keep the whole log with the option retainInputLog.',
            code="VERIFY_TABLE",
            name=stream.name,
        )
    changes = _changes_of(session, checkpoint, planned, side, table=tables[0] if tables else None)
    columns = list(stream.columns)
    control = planned.stage.inputs[side].everywhere
    if control is not None:
        table = filled_table(changes, relation, control, columns)
    elif relation.mode == "upsert":
        newest = [column_named(name).desc() for name in relation.sequence_by if name != IMAGE]
        newest += [F.col("__weight").desc()] if IMAGE in relation.sequence_by else []  # of a commit, what comes stays
        newest += [F.col("__epoch").desc()]
        newest += [] if relation.sequence_by else [F.col("__position").desc(), F.col("__weight").desc()]
        newest += [F.col("__position").desc()] if relation.sequence_by else []
        if is_forwarded:
            newest = [F.col("__epoch").desc(), F.col("__weight").desc()]
        window = Window.partitionBy(*(column_named(name) for name in relation.primary_key)).orderBy(*newest)
        ranked = changes.withColumn("__rank", F.row_number().over(window))
        table = ranked.where("__rank = 1 and __weight > 0").select(*map(column_named, columns), F.col("__weight"))
    else:
        table = sums_per_row(changes, columns, ["__weight"]).where("__weight <> 0")
    return table, "snapshot and log" if has_snapshot else "log"


def _changes_of(
    session: SparkSession, checkpoint: Checkpoint, planned: PlannedStage, side: int, *, table: str | None
) -> DataFrame:
    """Return what came to an input of a stage, under the names that it has for it."""
    histories = stage_histories(checkpoint, planned.state_name)
    schemas = [given.fed.schema for given in planned.state_stage.inputs]
    changes = logged_changes(session, checkpoint, histories, schemas, planned.state_input(side), table=table)
    names = planned.stage.inputs[side].fed.schema.names
    return changes.toDF(*names, *changes.columns[len(names) :])


def _has_snapshot(checkpoint: Checkpoint, planned: PlannedStage) -> bool:
    return any(history.snapshot is not None for history in stage_histories(checkpoint, planned.state_name))


def stage_histories(checkpoint: Checkpoint, stage: str) -> list[BucketHistory]:
    """Return what the state of each bucket of a stage is made of, after the last epoch."""
    return [history for key, history in sorted(checkpoint.histories.items()) if key.partition("/")[0] == stage]


def logged_changes(
    session: SparkSession,
    checkpoint: Checkpoint,
    histories: Sequence[BucketHistory],
    schemas: Sequence[pa.Schema],
    position: int,
    *,
    table: str | None,
) -> DataFrame:
    """Return snapshot rows and logged changes of one input as a DataFrame, read by the workers.

    Args:
        session: reads them.
        checkpoint: of the query.
        histories: of the buckets of a stage.
        schemas: of the inputs of the stage, as they are logged.
        position: which input.
        table: the table of a snapshot that holds its rows; None where there are no snapshots.
    """
    schema = pa.schema([*schemas[position], *_CHANGE_FIELDS])
    if not histories:
        return session.createDataFrame([], spark_schema(schema))
    read = _ReadChanges(checkpoint.files, tuple(histories), tuple(schemas), position, table)
    return session.range(0, len(histories), 1, len(histories)).mapInArrow(read, spark_schema(schema))


@dataclass(frozen=True)
class _ReadChanges:
    """Read one bucket's snapshot and log in a task."""

    files: CheckpointFiles
    histories: tuple[BucketHistory, ...]
    schemas: tuple[pa.Schema, ...]
    position: int
    table: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        if context is None:
            raise PlanError("this function runs inside a Spark task", code="NOT_A_TASK")
        for number in numbers:
            yield from self._bucket(self.histories[number], number)

    def _bucket(self, history: BucketHistory, number: int) -> Iterator[pa.RecordBatch]:
        if history.snapshot is not None and self.table is not None:
            table = read_snapshot(self.files, history.snapshot)[self.table]
            weights = table.column(SNAPSHOT_WEIGHT).to_numpy()
            for field in self.schemas[self.position]:
                if field.name not in table.column_names:  # a control column: rows of a snapshot are whole
                    table = table.append_column(field.name, pa.nulls(table.num_rows, field.type))
            rows = table.select(self.schemas[self.position].names).filter(pa.array(weights > 0))
            for batch in rows.cast(self.schemas[self.position]).combine_chunks().to_batches():
                # Another bucket's log may still hold the delete of a row that moved here before this snapshot was taken.
                yield self._with_order(batch, weights[weights > 0], history.snapshot.through_epoch, number)
        for log in history.logs:
            for logged in read_log(self.files, log, schemas=self.schemas):
                delta = logged.deltas[self.position]
                if len(delta):
                    yield self._with_order(delta.rows, delta.weights, logged.tick.epoch, number)

    def _with_order(self, rows: pa.RecordBatch, weights: Any, epoch: int, bucket: int) -> pa.RecordBatch:
        count = rows.num_rows
        added = [weights, np.full(count, epoch), np.arange(count), np.full(count, bucket)]
        schema = pa.schema([*self.schemas[self.position], *_CHANGE_FIELDS])
        return pa.RecordBatch.from_arrays([*rows.columns, *map(pa.array, added)], schema=schema)


def _emitted(session: SparkSession, runner: EpochRunner, output: Relation, actual_df: DataFrame | None) -> dict[str, DataFrame]:
    """Return what was emitted, per output that can be read; what was given has no name."""
    emitted = runner.contents(session) if actual_df is None else {"": actual_df}
    if not emitted:
        raise OptionError(
            "what a foreachBatch function did with the rows cannot be read back; pass verify(actual_df=...) with the "
            "emitted changes and their column _weight.",
            code="VERIFY_OUTPUT",
        )
    return {name: _actual(rows, output) for name, rows in emitted.items()}


def _actual(emitted: DataFrame, output: Relation) -> DataFrame:
    """Return what was emitted, with the columns of the output numbered and the weight last."""
    missing = [name for name in output.schema.names if name not in emitted.columns]
    if missing:
        raise OptionError(f"actual_df lacks the columns {missing}.", code="VERIFY_TABLE", missing=missing)
    weight = F.col("_weight").cast("long") if "_weight" in emitted.columns else F.lit(1).cast("long")
    named = [column_named(at.name).cast(spark_type(at.type)).alias(f"c{n}") for n, at in enumerate(output.schema)]
    return emitted.select(*named, weight.alias("actual"))


def _timed_histories(
    session: SparkSession, checkpoint: Checkpoint, joined: PlacedQuery, chosen: Sample | None
) -> dict[int, TimedHistory]:
    """Return, by `id` of a temporal join of streams whose log is whole, everything that came to it."""
    by_stage = {}
    for planned in joined.planned_stages:
        stage = planned.stage
        if not isinstance(stage, TemporalJoinStage):  # no other stage has a batch query that knows what had come when
            continue
        if stage.left.mode != "append" or set(planned.streams) != {0, 1} or _has_snapshot(checkpoint, planned):
            continue
        histories = stage_histories(checkpoint, planned.state_name)
        schemas = [given.fed.schema for given in planned.state_stage.inputs]
        sides = [_changes_of(session, checkpoint, planned, side, table=None) for side in (0, 1)]
        if chosen is not None:
            sides = [chosen.of_input(changes, planned.streams[side].name) for side, changes in enumerate(sides)]
        marks = marks_of(session, checkpoint.files, histories, schemas)
        by_stage[id(stage)] = TimedHistory(stage=stage, left=sides[0], right=sides[1], marks=marks)
    return by_stage


def tables_view(
    view: PlacedQuery,
    tables: Mapping[str, DataFrame],
    *,
    is_empty: bool,
    watermarks: Mapping[int, int | None] | None = None,
    histories: Mapping[int, TimedHistory] | None = None,
) -> DataFrame:
    """Return a view of tables with weights, by Spark; the row of a global aggregate comes with the first epoch.

    Args:
        view: the view.
        tables: name of a stream to its table.
        is_empty: no epoch is committed yet.
        watermarks: `id` of a stage to how far event time has come for it.
        histories: `id` of a temporal join to everything that came to it.
    """
    known, timed = watermarks or {}, histories or {}
    sent: dict[tuple[int | None, int], list[DataFrame]] = {}
    for one in view.planned_stages:
        stage = one.stage
        if (history := timed.get(id(stage))) is not None:
            rows = joined_by_epoch(history)
        else:
            inputs = [
                tables[one.streams[side].name] if side in one.streams else reduce(DataFrame.unionAll, sent[one.number, side])
                for side in range(len(stage.inputs))
            ]
            rows = batch_stage(stage, inputs, watermark=known.get(id(stage)))
        sent.setdefault((one.target, one.side if one.target is not None else 0), []).append(batch_view(rows, one.steps))
    answer = reduce(DataFrame.unionAll, sent[None, 0])
    return answer.limit(0) if is_empty else answer


def _numbered(joined: PlacedQuery, rows: DataFrame) -> DataFrame:
    """Return a view with its columns numbered; the weight is called `expected`."""
    named = [column_named(at.name).cast(spark_type(at.type)).alias(f"c{n}") for n, at in enumerate(joined.output.schema)]
    return rows.select(*named, F.col(WEIGHT).alias("expected"))


def _compare(
    joined: PlacedQuery,
    expected: DataFrame,
    actual: DataFrame,
    epoch: int | None,
    basis: Mapping[str, str],
    most_differences: int,
) -> VerificationReport:
    output = joined.output
    names = [f"c{number}" for number in range(len(output.schema))]
    nothing = F.lit(0).cast("long")
    both = expected.withColumn("actual", nothing).unionByName(actual.withColumn("expected", nothing))
    sums = sums_per_row(both, names, ["expected", "actual"]).cache()
    try:
        totals = sums.agg(
            F.coalesce(F.sum("expected"), nothing),
            F.coalesce(F.sum("actual"), nothing),
            F.count_if(F.col("expected") != F.col("actual")),
        ).collect()[0]
        different = int(totals[2])
        wrong = sums.where(F.col("expected") != F.col("actual"))
        if different and _has_rounded_columns(joined):
            wrong = _without_rounding(wrong, output)
            different = wrong.count()
        rows = _shown(wrong.limit(most_differences)) if different else []
    finally:
        sums.unpersist()
    differences = [
        (
            {at.name: row[f"c{number}"] for number, at in enumerate(output.schema)},
            int(row["expected"]),
            int(row["actual"]),
        )
        for row in rows
    ]
    return VerificationReport(
        equal=different == 0,
        epoch=epoch,
        basis=dict(basis),
        expected_rows=int(totals[0]),
        actual_rows=int(totals[1]),
        different_rows=different,
        differences=differences,
    )


def _shown(rows: DataFrame) -> list[dict[str, Any]]:
    """Return a few rows, with values that Python does not have as text."""
    try:
        return [row.asDict() for row in rows.collect()]
    except (OverflowError, ValueError):  # a date beyond the year 9999
        return shown_rows(rows.toArrow())


def _has_rounded_columns(joined: PlacedQuery) -> bool:
    """Say whether the view shows floats of an aggregate, in rows that a key tells apart."""
    has_floats = any(pa.types.is_floating(at.type) for at in joined.output.schema)
    last = [one.stage for one in joined.planned_stages if one.stage.kind == "aggregate"][-1:]
    return bool(last) and has_floats and (bool(joined.output.primary_key) or last[0].begins_alone)


def _without_rounding(wrong: DataFrame, output: Relation) -> DataFrame:
    """Leave out the pairs of an expected and an actual row of one key that are equal up to the rounding of floats."""
    condition = F.col("e.expected") > F.col("e.actual")
    condition &= F.col("a.expected") < F.col("a.actual")
    same_key = F.lit(True)
    for number, at in enumerate(output.schema):
        ours, theirs = F.col(f"a.c{number}"), F.col(f"e.c{number}")
        equal = theirs.eqNullSafe(ours)
        if at.name in output.primary_key:
            same_key &= F.col(f"w.c{number}").eqNullSafe(F.col(f"p.c{number}"))
        elif pa.types.is_floating(at.type):
            equal |= F.abs(theirs - ours) <= _ROUNDING * F.greatest(F.abs(theirs), F.abs(ours))
        condition &= equal
    pairs = wrong.alias("e").join(wrong.alias("a"), condition).select("e.*")
    return wrong.alias("w").join(pairs.alias("p"), same_key, "left_anti")
