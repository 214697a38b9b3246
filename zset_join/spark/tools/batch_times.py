"""Joins by time over whole tables, by Spark alone: what `verify` compares their answers with.

Every left row meets at most one right row, the nearest in time of those with its key; the left weight passes, and copies of a
right row count once. Of a temporal join in `on_watermark` mode only the rows that the watermark has released are expected.

Where the log of a join is whole, its history says what had come, and was not taken back, when an answer became final: upserts
are versions, what comes or goes later changes nothing, and arrival, that of the copies that are left, orders rows of one time.
A retraction takes the oldest copy.

Limits: without a history it is taken that nothing was late, a table of upserts does not hold its versions, and which of several
right rows of one time and one place in the order came last is not known; the `*_tied` functions return the rows among which
that decides.
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
from zset_join.relation import Relation
from zset_join.shapes.event_time import is_measured
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.spark.epoch.event_times import as_number
from zset_join.spark.rows.condition import to_column
from zset_join.spark.rows.layout import WEIGHT
from zset_join.spark.rows.names import column_named
from zset_join.spark.rows.schemas import field_type
from zset_join.spark.tools.timed_history import TimedHistory
from zset_join.stages import AsOfJoinStage, ExpiringStage, TemporalJoinStage

__all__ = [
    "GONE",
    "alive",
    "as_of_joined",
    "as_of_tied",
    "copies",
    "joined_by_arrival",
    "joined_by_epoch",
    "temporally_joined",
    "temporally_tied",
]

GONE = "__gone"
_LEFT_WEIGHT, _KNOWN, _DELETED = "__left_weight", "__known", "__deleted"
_NEVER = 2**62
"""An epoch, or a time, behind all others."""


def temporally_joined(stage: TemporalJoinStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:
    """Return each released left row with the version that was valid at its time, where nothing came late.

    Raises:
        OptionError: the answer depends on when rows came, or the table of the versions does not hold them.
    """
    return _nearest(stage.shape, *_released(stage, tables, watermark))


def temporally_tied(stage: TemporalJoinStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:
    """Return the answers among which the arrival of versions decides, each once.

    Raises:
        OptionError: as `temporally_joined`.
    """
    return _nearest(stage.shape, *_released(stage, tables, watermark), is_tied=True)


def _released(stage: TemporalJoinStage, tables: Sequence[DataFrame], watermark: int | None) -> tuple[DataFrame, DataFrame]:
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
    if stage.options.emit == "on_watermark":
        left = left.limit(0) if watermark is None else left.where(_left_time(stage) <= F.lit(watermark))
    return left, right


def _left_time(stage: TemporalJoinStage) -> Column:
    name = stage.shape.times.columns[0]
    return as_number(column_named(name), stage.left.schema.field(name).type)


def joined_by_epoch(history: TimedHistory) -> DataFrame:
    """Return each left row with the version that was valid at its time, of those that were there when its answer was final.

    It was final in the epoch in which the row was released (`on_watermark`), fell behind `keep_probe_for` (`eager`), or came
    (`once`). Rows that were put aside as late are in no log; those that were dropped are.
    """
    stage = history.stage
    if not isinstance(stage, TemporalJoinStage):
        raise TypeError(f"a temporal join has epochs in which its answers are final, {stage.kind} has none")
    changes, versions = history.changes
    emit, time = stage.options.emit, _left_time(stage)
    if stage.shape.late == "drop":
        changes = _without_late(changes, time, history.marks)
    left = copies(changes, stage.left).where(F.col(GONE).isNull())
    if emit == "once":
        left = left.withColumn(_KNOWN, F.col("__epoch"))
    else:
        passed = time + F.lit(stage.shape.times.as_watermark(stage.shape.keep_probe_for) if emit == "eager" else 0)
        left = _with_first_epoch(left, passed, history.marks)
        final = F.greatest(_KNOWN, "__epoch")
        left = left.withColumn(_KNOWN, F.when(F.col(_KNOWN).isNotNull(), final))
        is_final = F.col(_KNOWN).isNotNull()
        left = left.where(is_final) if emit == "on_watermark" else left.fillna(_NEVER, [_KNOWN])
    if stage.right.mode == "upsert":
        right = versions.withColumns({GONE: _no_epoch(), _DELETED: F.col(WEIGHT) < 0})
    else:
        right = copies(versions, stage.right).withColumn(_DELETED, F.lit(False))
    return _nearest(stage.shape, left, right)


def copies(changes: DataFrame, relation: Relation) -> DataFrame:
    """Return the copies of rows that came, with the epoch in which each was taken back in `__gone`, or NULL.

    Args:
        changes: with `__weight`, `__epoch` and `__position`.
        relation: whose, in append or changelog mode.

    Returns: the columns of the relation, `__weight`, `__epoch` and `__position` of the arrival, and `__gone`. In append mode
        copies that came in one change stay one row with their weight; else each copy is a row.

    Cost: in changelog mode a row per copy, sorted twice.
    """
    if relation.mode == "append":
        return changes.where(F.col(WEIGHT) > 0).withColumn(GONE, _no_epoch())
    columns = [column_named(name) for name in relation.schema.names]
    each = F.explode(F.sequence(F.lit(1).cast("long"), F.abs(F.col(WEIGHT))))
    lines = changes.where(F.col(WEIGHT) != 0).select(
        *columns, (F.col(WEIGHT) > 0).alias("__comes"), "__epoch", "__position", each.alias("__copy")
    )
    arrival = Window.partitionBy(*columns, "__comes").orderBy("__epoch", "__position")
    numbered = lines.withColumn("__copy", F.row_number().over(arrival))
    came = F.when(F.col("__comes"), F.struct("__epoch", "__position"))
    paired = numbered.groupBy(*columns, "__copy").agg(
        F.max(came).alias("__came"), F.max(F.when(~F.col("__comes"), F.col("__epoch"))).alias(GONE)
    )
    there = paired.where(F.col("__came").isNotNull())
    return there.select(*columns, F.lit(1).cast("long").alias(WEIGHT), "__came.__epoch", "__came.__position", GONE)


def _without_late(changes: DataFrame, time: Column, marks: Sequence[tuple[int, int]]) -> DataFrame:
    """Leave out the insertions of rows whose time the watermark had passed before their epoch."""
    ends = [*(epoch for epoch, _ in marks[1:]), _NEVER]
    steps = [(epoch, end, mark) for (epoch, mark), end in zip(marks, ends, strict=False)]
    table = changes.sparkSession.createDataFrame(steps, "__first long, __last long, __mark long")
    held = (F.col("__epoch") > F.col("__first")) & (F.col("__epoch") <= F.col("__last"))
    marked = changes.join(F.broadcast(table), held, "left")
    is_late = F.coalesce(time <= F.col("__mark"), F.lit(False)) & (F.col(WEIGHT) > 0)
    return marked.where(~is_late).drop("__first", "__last", "__mark")


def _no_epoch() -> Column:
    return F.lit(None).cast("long")


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
    return _nearest(stage.shape, *tables)


def as_of_tied(stage: AsOfJoinStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:  # noqa: ARG001 - it waits for none
    """Return the answers among which the arrival of right rows decides, each once."""
    return _nearest(stage.shape, *tables, is_tied=True)


def joined_by_arrival(history: TimedHistory) -> DataFrame:
    """Return each left row with the nearest right row in time, the one that came last where several are as near."""
    stage = history.stage
    if not isinstance(stage, AsOfJoinStage):
        raise TypeError(f"an as-of join chooses the nearest row, {stage.kind} does not")
    left, right = (
        copies(changes, relation).where(F.col(GONE).isNull())
        for changes, relation in zip(history.changes, (stage.left, stage.right), strict=True)
    )
    return _nearest(stage.shape, left, right)


def _nearest(shape: VersionJoinShape, left: DataFrame, right: DataFrame, *, is_tied: bool = False) -> DataFrame:
    """Return each left row with the right row that is chosen for it.

    Args:
        shape: which rows meet.
        left: rows with weights, and with the epoch `__known` in which their answers were final where that matters.
        right: rows with weights. Where it is known: when they came (`__epoch`, `__position`), in which epoch they were taken
            back (`__gone`), and whether they are DELETEs (`__deleted`).
        is_tied: return instead the different answers of left rows for which several right rows come first, each once.
    """
    left = left if _KNOWN in left.columns else left.withColumn(_KNOWN, F.lit(_NEVER))
    beside = {"__epoch": F.lit(0), "__position": F.lit(0), GONE: _no_epoch(), _DELETED: F.lit(False)}
    right = right.withColumns({name: value for name, value in beside.items() if name not in right.columns})
    of_left, left_columns = _renamed(left, shape.left.schema, "l", [_KNOWN])
    of_right, right_columns = _renamed(right, shape.right.schema, "r", list(beside))
    left_names = [*(f"l{at}" for at in range(len(left_columns))), _KNOWN]
    rows = of_left.groupBy(*left_names).agg(F.sum(WEIGHT).alias(_LEFT_WEIGHT)).where(F.col(_LEFT_WEIGHT) != 0)
    versions = of_right.where((F.col(WEIGHT) > 0) | F.col(_DELETED)).drop(WEIGHT)
    columns = {**{("left", name): one for name, one in left_columns.items()}}
    columns |= {("right", name): one for name, one in right_columns.items()}
    left_time, right_time = shape.times.columns
    ours, theirs = columns["left", left_time], columns["right", right_time]
    if is_measured(shape.times.kind):
        ours = as_number(ours, shape.left.schema.field(left_time).type)
        theirs = as_number(theirs, shape.right.schema.field(right_time).type)
    condition = reduce(lambda one, other: one & other, [columns["left", a] == columns["right", b] for a, b in shape.key])
    condition &= F.col("__epoch") <= F.col(_KNOWN)
    condition &= F.col(GONE).isNull() | (F.col(GONE) > F.col(_KNOWN))
    near, far = (ours, theirs) if shape.is_mirrored else (theirs, ours)
    condition &= (near < far) if shape.is_strict else (near <= far)
    if shape.reach is not None:
        condition &= F.abs(ours - theirs) <= F.lit(shape.reach)
    order = [theirs.asc_nulls_last() if shape.is_mirrored else theirs.desc_nulls_last()]
    order += [
        columns["right", name].asc_nulls_first() if shape.tie_descending else columns["right", name].desc_nulls_last()
        for name in shape.tie_by
    ]
    arrival = [F.col("__epoch").desc(), F.col("__position").desc()]
    window = Window.partitionBy(*left_names).orderBy(*order, *([] if is_tied else arrival))
    place = (F.rank() if is_tied else F.row_number()).over(window)
    best = rows.join(versions, condition, "left").withColumn("__rank", place).where("__rank = 1")
    matches = theirs.isNotNull() & ~F.coalesce(F.col(_DELETED), F.lit(False))
    if shape.delete_column is not None:
        matches &= ~F.coalesce(columns["right", shape.delete_column], F.lit(False))
    if shape.residual is not None:
        matches &= F.coalesce(to_column(shape.residual, columns), F.lit(False))
    shown = []
    for at, (field, (side, name)) in enumerate(zip(shape.schema, shape.sources, strict=True)):
        value: Column = columns[side, name] if side == "left" else F.when(matches, columns[side, name])
        shown.append(value.cast(field_type(field)).alias(f"s{at}"))
    answers = best.select(*left_names, *shown, matches.alias("__matches"), _LEFT_WEIGHT)
    if is_tied:
        among = F.count(F.lit(1)).over(Window.partitionBy(*left_names))
        answers = answers.distinct().withColumn("__among", among).where("__among > 1")
    if shape.how == "inner":
        answers = answers.where("__matches")
    named = [F.col(f"s{at}").alias(name) for at, name in enumerate(shape.schema.names)]
    if is_tied:
        return answers.select(*named).distinct().withColumn(WEIGHT, F.lit(1).cast("long"))
    return answers.select(*named, F.col(_LEFT_WEIGHT).alias(WEIGHT))


def _renamed(rows: DataFrame, schema: pa.Schema, letter: str, more: Sequence[str]) -> tuple[DataFrame, Mapping[str, Column]]:
    """Return a table with numbered columns and some more, and each by its name; what the table does not have is NULL."""
    columns = [
        (column_named(field.name) if field.name in rows.columns else F.lit(None).cast(field_type(field))).alias(f"{letter}{at}")
        for at, field in enumerate(schema)
        if not pt.is_map(field.type)
    ]
    names = {field.name: F.col(f"{letter}{at}") for at, field in enumerate(schema) if not pt.is_map(field.type)}
    return rows.select(*columns, *more, F.col(WEIGHT)), names
