"""Joins by time over whole tables, by Spark alone: what `verify` compares their answers with.

Every left row meets at most one right row, the nearest in time of those with its key; the left weight passes, and copies of a
right row count once. Of a temporal join in `on_watermark` mode only the rows that the watermark has released are expected.

Where the log of a temporal join is whole, its history says what had come when an answer became final: versions that came later
are not expected in it, upserts are versions, and arrival orders those of one time.

Limits: without a history right rows of one time and one place in the order are told apart by their arrival, which a table does
not know; and a table of upserts does not hold its versions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.errors import OptionError
from zset_join.spark.epoch.event_times import as_number
from zset_join.spark.rows.condition import to_column
from zset_join.spark.rows.layout import WEIGHT
from zset_join.spark.rows.names import column_named
from zset_join.spark.rows.schemas import field_type
from zset_join.spark.tools.timed_history import TimedHistory
from zset_join.stages import AsOfJoinStage, ExpiringStage, TemporalJoinStage
from zset_join.state.time.event_time import is_measured
from zset_join.state.time.version_join_shape import VersionJoinShape

__all__ = ["alive", "as_of_joined", "joined_by_epoch", "temporally_joined"]

_LEFT_WEIGHT, _KNOWN, _GONE = "__left_weight", "__known", "__gone"
_NEVER = 2**62
"""An epoch, or a time, behind all others."""


def temporally_joined(stage: TemporalJoinStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:
    """Return each released left row with the version that was valid at its time, where nothing came late.

    Raises:
        OptionError: the answer depends on when rows came, or the table of the versions does not hold them.
    """
    why = None
    if stage.options.emit == "once":
        why = 'with emit="once" the answer depends on what had come when a row came'
    elif stage.right.mode == "upsert":
        why = f'the versions of "{stage.right.name}" are upserts by key, and its table holds only the newest of each'
    if why is not None:
        raise OptionError(
            f"verify() cannot check this temporal join: {why}, and its log does not reach back to its first epoch, or tables "
            "were given. Compare with a batch query of your own, or keep the whole log with the option retainInputLog.",
            code="VERIFY_STAGE",
            kind=stage.kind,
        )
    left, right = tables
    times = stage.shape.times.columns
    if stage.options.emit == "on_watermark":
        time = as_number(column_named(times[0]), stage.left.schema.field(times[0]).type)
        left = left.limit(0) if watermark is None else left.where(time <= F.lit(watermark))
    return _nearest(stage.shape, left, right)


def joined_by_epoch(history: TimedHistory) -> DataFrame:
    """Return each left row with the version that was valid at its time, of those that had come when its answer was final.

    It was final in the epoch in which the row was released (`on_watermark`), fell behind `keep_probe_for` (`eager`), or came
    (`once`). Rows that were put aside as late are in no log.
    """
    stage = history.stage
    shape, emit = stage.shape, stage.options.emit
    times = shape.times.columns
    time = as_number(column_named(times[0]), stage.left.schema.field(times[0]).type)
    left = history.left.where(F.col(WEIGHT) > 0)
    if emit == "once":
        left = left.withColumn(_KNOWN, F.col("__epoch"))
    else:
        passed = time + F.lit(stage.options.keep_probe_for if emit == "eager" else 0)
        left = _with_first_epoch(left, passed, history.marks)
        final = F.greatest(_KNOWN, "__epoch")
        left = left.withColumn(_KNOWN, F.when(F.col(_KNOWN).isNotNull(), final))
        is_final = F.col(_KNOWN).isNotNull()
        left = left.where(is_final) if emit == "on_watermark" else left.fillna(_NEVER, [_KNOWN])
    right = history.right
    if stage.right.mode == "changelog":
        names = [column_named(name) for name in stage.right.schema.names]
        right = right.groupBy(*names).agg(F.sum(WEIGHT).alias(WEIGHT))
        right = right.where(F.col(WEIGHT) > 0).withColumns({"__epoch": F.lit(0), "__position": F.lit(0)})
    return _nearest(shape, left, right, by_epoch=True)


def _with_first_epoch(rows: DataFrame, passed: Column, marks: Sequence[tuple[int, int]]) -> DataFrame:
    """Return rows with the first epoch after which the watermark had reached a time; NULL where it has not."""
    steps = [(low, high, epoch) for (_, low), (epoch, high) in itertools.pairwise([(-1, -_NEVER), *marks])]
    session = rows.sparkSession
    table = session.createDataFrame(steps, f"__low long, __high long, {_KNOWN} long")
    timed = rows.withColumn("__passed", passed)
    held = (F.col("__passed") > F.col("__low")) & (F.col("__passed") <= F.col("__high"))
    return timed.join(F.broadcast(table), held, "left").drop("__passed", "__low", "__high")


def alive(stage: ExpiringStage, tables: Sequence[DataFrame], watermark: int | None) -> list[DataFrame]:
    """Return the rows of each input that have not ended, where these follow from their event times.

    Raises:
        OptionError: they do not.
    """
    living = []
    for source, ttl, table in zip(stage.sources, stage.ttls, tables, strict=True):
        if ttl is not None and (ttl.forgets or ttl.reads or ttl.by_key or not ttl.by_event_time):
            raise OptionError(
                f'verify() cannot say which rows of "{source.name}" are alive: that follows from the rows alone only with '
                'state_ttl=StateTtl(..., by="event", of="row") that is refreshed by writes and retracts. Compare with a batch '
                "query of your own.",
                code="VERIFY_STAGE",
                kind=stage.kind,
            )
        if ttl is not None and watermark is not None:
            time = as_number(column_named(str(source.event_time)), source.schema.field(str(source.event_time)).type)
            table = table.where(time.isNull() | (time + F.lit(ttl.after) > F.lit(watermark)))
        living.append(table)
    return living


def as_of_joined(stage: AsOfJoinStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:  # noqa: ARG001 - it waits for none
    """Return each left row with the nearest right row in time."""
    left, right = tables
    return _nearest(stage.shape, left, right)


def _nearest(shape: VersionJoinShape, left: DataFrame, right: DataFrame, *, by_epoch: bool = False) -> DataFrame:
    """Return each left row with the right row that is chosen for it.

    Args:
        shape: which rows meet.
        left: rows with weights.
        right: rows with weights.
        by_epoch: left rows know the epoch `_KNOWN` in which their answer was final, right ones when they came, and one of
            weight -1 is a DELETE.
    """
    of_left, left_columns = _renamed(left, shape.left.schema, "l", [_KNOWN] if by_epoch else [])
    of_right, right_columns = _renamed(right, shape.right.schema, "r", ["__epoch", "__position"] if by_epoch else [])
    left_names = [*(f"l{at}" for at in range(len(left_columns))), *([_KNOWN] if by_epoch else [])]
    rows = of_left.groupBy(*left_names).agg(F.sum(WEIGHT).alias(_LEFT_WEIGHT)).where(F.col(_LEFT_WEIGHT) != 0)
    versions = of_right.withColumnRenamed(WEIGHT, _GONE) if by_epoch else of_right.where(F.col(WEIGHT) > 0).drop(WEIGHT)
    columns = {**{("left", name): one for name, one in left_columns.items()}}
    columns |= {("right", name): one for name, one in right_columns.items()}
    left_time, right_time = shape.times.columns
    ours, theirs = columns["left", left_time], columns["right", right_time]
    if is_measured(shape.times.kind):
        ours = as_number(ours, shape.left.schema.field(left_time).type)
        theirs = as_number(theirs, shape.right.schema.field(right_time).type)
    condition = reduce(lambda one, other: one & other, [columns["left", a] == columns["right", b] for a, b in shape.key])
    if by_epoch:
        condition &= F.col("__epoch") <= F.col(_KNOWN)
    near, far = (ours, theirs) if shape.is_mirrored else (theirs, ours)
    condition &= (near < far) if shape.is_strict else (near <= far)
    if shape.reach is not None:
        condition &= F.abs(ours - theirs) <= F.lit(shape.reach)
    order = [theirs.asc_nulls_last() if shape.is_mirrored else theirs.desc_nulls_last()]
    order += [
        columns["right", name].asc_nulls_first() if shape.tie_descending else columns["right", name].desc_nulls_last()
        for name in shape.tie_by
    ]
    order += [F.col("__epoch").desc(), F.col("__position").desc()] if by_epoch else []
    window = Window.partitionBy(*left_names).orderBy(*order)
    best = rows.join(versions, condition, "left").withColumn("__rank", F.row_number().over(window)).where("__rank = 1")
    matches = theirs.isNotNull() & (F.col(_GONE) > 0) if by_epoch else theirs.isNotNull()
    matches = F.coalesce(matches, F.lit(False))
    if shape.delete_column is not None:
        matches &= ~F.coalesce(columns["right", shape.delete_column], F.lit(False))
    if shape.residual is not None:
        matches &= F.coalesce(to_column(shape.residual, columns), F.lit(False))
    if shape.how == "inner":
        best = best.where(matches)
    shown = []
    for field, (side, name) in zip(shape.schema, shape.sources, strict=True):
        value: Column = columns[side, name] if side == "left" else F.when(matches, columns[side, name])
        shown.append(value.cast(field_type(field)).alias(field.name))
    return best.select(*shown, F.col(_LEFT_WEIGHT).alias(WEIGHT))


def _renamed(rows: DataFrame, schema: pa.Schema, letter: str, more: Sequence[str]) -> tuple[DataFrame, Mapping[str, Column]]:
    """Return a table with numbered columns and some more, and each by its name; what the table does not have is NULL."""
    columns = [
        (column_named(field.name) if field.name in rows.columns else F.lit(None).cast(field_type(field))).alias(f"{letter}{at}")
        for at, field in enumerate(schema)
        if not pt.is_map(field.type)
    ]
    names = {field.name: F.col(f"{letter}{at}") for at, field in enumerate(schema) if not pt.is_map(field.type)}
    return rows.select(*columns, *more, F.col(WEIGHT)), names
