"""Joins by time over whole tables, by Spark alone: what `verify` compares their answers with.

Every left row meets at most one right row, the nearest in time of those with its key; the left weight passes, and copies of a
right row count once. Of a temporal join in `on_watermark` mode only the rows that the watermark has released are expected.

Limits: right rows of one time and one place in the order are told apart by their arrival, which a table does not know; and a
table of upserts does not hold its versions.
"""

from __future__ import annotations

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
from zset_join.stages import AsOfJoinStage, ExpiringStage, TemporalJoinStage
from zset_join.state.time.version_join_shape import VersionJoinShape

__all__ = ["alive", "as_of_joined", "temporally_joined"]

_LEFT_WEIGHT = "__left_weight"


def temporally_joined(stage: TemporalJoinStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:
    """Return each released left row with the version that was valid at its time.

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
            f"verify() cannot check this temporal join: {why}. Compare with a batch query of your own.",
            code="VERIFY_STAGE",
            kind=stage.kind,
        )
    left, right = tables
    times = stage.shape.times.columns
    if stage.options.emit == "on_watermark":
        time = as_number(column_named(times[0]), stage.left.schema.field(times[0]).type)
        left = left.limit(0) if watermark is None else left.where(time <= F.lit(watermark))
    return _nearest(stage.shape, left, right)


def alive(stage: ExpiringStage, tables: Sequence[DataFrame], watermark: int | None) -> list[DataFrame]:
    """Return the rows of each input that have not ended, where these follow from their event times.

    Raises:
        OptionError: they do not.
    """
    found = []
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
        found.append(table)
    return found


def as_of_joined(stage: AsOfJoinStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:  # noqa: ARG001 - it waits for none
    """Return each left row with the nearest right row in time."""
    left, right = tables
    return _nearest(stage.shape, left, right)


def _nearest(shape: VersionJoinShape, left: DataFrame, right: DataFrame) -> DataFrame:
    """Return each left row with the right row that is chosen for it."""
    of_left, left_columns = _renamed(left, shape.left.schema, "l")
    of_right, right_columns = _renamed(right, shape.right.schema, "r")
    left_names = [f"l{at}" for at in range(len(left_columns))]
    rows = of_left.groupBy(*left_names).agg(F.sum(WEIGHT).alias(_LEFT_WEIGHT)).where(F.col(_LEFT_WEIGHT) != 0)
    versions = of_right.where(F.col(WEIGHT) > 0).drop(WEIGHT)
    columns = {**{("left", name): one for name, one in left_columns.items()}}
    columns |= {("right", name): one for name, one in right_columns.items()}
    left_time, right_time = shape.times.columns
    ours = as_number(columns["left", left_time], shape.left.schema.field(left_time).type)
    theirs = as_number(columns["right", right_time], shape.right.schema.field(right_time).type)
    condition = reduce(lambda one, other: one & other, [columns["left", a] == columns["right", b] for a, b in shape.key])
    near, far = (ours, theirs) if shape.is_mirrored else (theirs, ours)
    condition &= (near < far) if shape.is_strict else (near <= far)
    if shape.reach is not None:
        condition &= F.abs(ours - theirs) <= F.lit(shape.reach)
    order = [theirs.asc_nulls_last() if shape.is_mirrored else theirs.desc_nulls_last()]
    order += [
        columns["right", name].asc_nulls_first() if shape.tie_descending else columns["right", name].desc_nulls_last()
        for name in shape.tie_by
    ]
    window = Window.partitionBy(*left_names).orderBy(*order)
    best = rows.join(versions, condition, "left").withColumn("__rank", F.row_number().over(window)).where("__rank = 1")
    matches = theirs.isNotNull()
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


def _renamed(rows: DataFrame, schema: pa.Schema, letter: str) -> tuple[DataFrame, Mapping[str, Column]]:
    """Return a table with numbered columns, and each by its name; what the table does not have is NULL."""
    made = [
        (column_named(field.name) if field.name in rows.columns else F.lit(None).cast(field_type(field))).alias(f"{letter}{at}")
        for at, field in enumerate(schema)
        if not pt.is_map(field.type)
    ]
    names = {field.name: F.col(f"{letter}{at}") for at, field in enumerate(schema) if not pt.is_map(field.type)}
    return rows.select(*made, F.col(WEIGHT)), names
