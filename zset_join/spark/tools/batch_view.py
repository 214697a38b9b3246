"""What stages and steps make of whole tables, by Spark alone: what `verify` compares with.

`BATCH_QUERY` has for every kind of stage a function of the stage, of a table per input (a DataFrame with the columns of the
input, and the weight of each row in `WEIGHT`), and of the watermark of the stage. A new kind is verified once it has one there.
A kind whose answer depends on arrival has two more: in `HISTORY_QUERY` the same of everything that came, and in `TIED_QUERY`,
for inputs of which only the tables are known, the rows of its answer among which arrival decides, each once.

Row steps are the very expressions of the view. An aggregate is Spark's own, of rows that are repeated as often as their
weight says. Where Spark leaves the answer open, ours is asked for: of several values with one order, `min_by` gives the
smallest and `max_by` the largest; lists and sets are sorted.

Known limits: only ties of the stages that feed the view itself are followed, through row steps and unions; what a tie below
another stage leads to is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.errors import OptionError
from zset_join.shapes.aggregate import AggregateCall
from zset_join.spark.planning.placed import Placed
from zset_join.spark.planning.row_steps import RowStep
from zset_join.spark.planning.stages import PlannedStage
from zset_join.spark.rows.condition import to_column
from zset_join.spark.rows.layout import WEIGHT
from zset_join.spark.rows.names import column_named
from zset_join.spark.rows.schemas import field_type
from zset_join.spark.tools.batch_first_rows import first_rows, first_rows_by_arrival, first_rows_tied
from zset_join.spark.tools.batch_times import (
    alive,
    as_of_joined,
    as_of_tied,
    joined_by_arrival,
    joined_by_epoch,
    temporally_joined,
    temporally_tied,
)
from zset_join.spark.tools.timed_history import TimedHistory
from zset_join.stages import AggregateStage, ExpiringStage, JoinStage, Stage

__all__ = ["BATCH_QUERY", "HISTORY_QUERY", "TIED_QUERY", "KnownInputs", "batch_stage", "batch_view"]

_HANDED_ON = ("latest", "route", "unchanged")
"""Kinds of stages whose answer is their input."""

_SPARK_JOINS = {"left_semi": "leftsemi", "left_anti": "leftanti"}

_OF_SPARK: Mapping[str, Callable[..., Column]] = {
    "avg": F.avg,
    "bit_and": F.bit_and,
    "bit_or": F.bit_or,
    "bit_xor": F.bit_xor,
    "collect_list": lambda value: F.sort_array(F.collect_list(value)),
    "collect_set": lambda value: F.sort_array(F.collect_set(value)),
    "count": F.count,
    "count_distinct": F.count_distinct,
    "max": F.max,
    "max_by": lambda value, order: F.max_by(value, _order(value, order)),
    "min": F.min,
    "min_by": lambda value, order: F.min_by(value, _order(value, order)),
    "stddev_pop": F.stddev_pop,
    "stddev_samp": F.stddev_samp,
    "sum": F.sum,
    "var_pop": F.var_pop,
    "var_samp": F.var_samp,
}


def batch_view(rows: DataFrame, steps: Sequence[RowStep]) -> DataFrame:
    """Return what steps make of a table.

    Args:
        rows: the rows, with their weights in `WEIGHT`.
        steps: behind a stage.
    """
    for step in steps:
        rows = step.apply(rows)
    return rows


def batch_stage(stage: Stage, tables: Sequence[DataFrame], *, watermark: int | None = None) -> DataFrame:
    """Return what a stage makes of tables.

    Args:
        stage: what is computed.
        tables: one per input, with the weight of each row in `WEIGHT`.
        watermark: how far event time has come for the stage; None: it has none.

    Raises:
        OptionError: there is no batch query for this kind of stage.
    """
    query = BATCH_QUERY.get(stage.kind)
    if query is None:
        raise OptionError(
            f"verify() knows no batch query for a stage of kind {stage.kind!r}; it knows {sorted(BATCH_QUERY)}.",
            code="VERIFY_STAGE",
            kind=stage.kind,
        )
    return query(stage, tables, watermark)


@dataclass(frozen=True, kw_only=True)
class KnownInputs:
    """Hold what is known of the inputs of a view.

    Args:
        tables: name of a stream to its table, with weights.
        watermarks: `id` of a stage to how far event time has come for it.
        histories: `id` of a stage to everything that came to it.
    """

    tables: Mapping[str, DataFrame]
    watermarks: Mapping[int, int | None] = field(default_factory=dict)
    histories: Mapping[int, TimedHistory] = field(default_factory=dict)

    def view(self, query: Placed) -> DataFrame:
        """Return the rows of a view with weights."""
        return self._sent(query)[None, 0]

    def tied(self, query: Placed) -> DataFrame | None:
        """Return the rows of a view, with a weight, among which the arrival of rows decides; None where none can be."""
        sent = self._sent(query)

        def behind(one: PlannedStage) -> DataFrame | None:
            if one.stage.kind in _HANDED_ON:
                tied = united(one.number)
            elif id(one.stage) in self.histories:
                tied = None
            else:
                tied = self._tied_of(one.stage, self._inputs(one, sent))
            return None if tied is None else batch_view(tied, one.steps)

        def united(target: int | None) -> DataFrame | None:
            several = [behind(one) for one in query.planned_stages if one.target == target]
            known = [one for one in several if one is not None]
            return reduce(DataFrame.unionAll, known) if known else None

        return united(None)

    def _tied_of(self, stage: Stage, inputs: Sequence[DataFrame]) -> DataFrame | None:
        query = TIED_QUERY.get(stage.kind)
        return None if query is None else query(stage, inputs, self.watermarks.get(id(stage)))

    def _sent(self, query: Placed) -> dict[tuple[int | None, int], DataFrame]:
        """Return what stages send, by the stage and the input that it is for; the view is for None."""
        sent: dict[tuple[int | None, int], DataFrame] = {}
        for one in query.planned_stages:
            history = self.histories.get(id(one.stage))
            if history is not None:
                rows = HISTORY_QUERY[one.stage.kind](history)
            else:
                rows = batch_stage(one.stage, self._inputs(one, sent), watermark=self.watermarks.get(id(one.stage)))
            rows = batch_view(rows, one.steps)
            place = one.target, 0 if one.target is None else one.side
            sent[place] = sent[place].unionAll(rows) if place in sent else rows
        return sent

    def _inputs(self, one: PlannedStage, sent: Mapping[tuple[int | None, int], DataFrame]) -> list[DataFrame]:
        return [
            self.tables[one.streams[side].name] if side in one.streams else sent[one.number, side]
            for side in range(len(one.stage.inputs))
        ]


def _copies(rows: DataFrame) -> DataFrame:
    """Return every row as often as its weight says, without it."""
    return rows.select("*", F.explode(F.sequence(F.lit(1).cast("long"), F.col(WEIGHT))).alias("__copy"))


def _aggregated(stage: AggregateStage, tables: Sequence[DataFrame], _: int | None) -> DataFrame:
    """Aggregate a table by Spark."""
    (rows,) = tables
    keys = [column_named(name) for name in stage.group_by]
    if not stage.calls:
        return rows.select(*keys).distinct().withColumn(WEIGHT, F.lit(1).cast("long"))
    groups = _copies(rows).groupBy(*keys).agg(*(_call(call).alias(call.name) for call in stage.calls))
    return groups.withColumn(WEIGHT, F.lit(1).cast("long"))


def _unchanged(_: Stage, tables: Sequence[DataFrame], __: int | None) -> DataFrame:
    """Return a table as it is: the stage only brings its rows elsewhere, or tells their old values."""
    return tables[0]


def _lasting(stage: ExpiringStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:
    """Return what the stage inside makes of the rows that are alive."""
    return batch_stage(stage.inside, alive(stage, tables, watermark), watermark=watermark)


def _lasting_tied(stage: ExpiringStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame | None:
    """Return the tied rows of the stage inside, over the rows that are alive."""
    tied = TIED_QUERY.get(stage.inside.kind)
    return None if tied is None else tied(stage.inside, alive(stage, tables, watermark), watermark)


def _joined(stage: JoinStage, tables: Sequence[DataFrame], _: int | None) -> DataFrame:
    """Join two tables with weights by Spark; weights multiply."""
    left, right = tables
    left_names, right_names = (
        [name for name in relation.schema.names if name not in hidden]
        for relation, hidden in zip(stage.relations, stage.hidden, strict=True)
    )
    # A computed key is compared and not shown.
    left_all, right_all = (
        [*names, *(name for name in dict.fromkeys(relation.join_key) if name not in names)]
        for relation, names in zip(stage.relations, (left_names, right_names), strict=True)
    )
    left = left.select(*(column_named(name).alias(f"l{at}") for at, name in enumerate(left_all)), F.col("__weight").alias("lw"))
    right = right.select(
        *(column_named(name).alias(f"r{at}") for at, name in enumerate(right_all)), F.col("__weight").alias("rw")
    )
    columns = {("left", name): F.col(f"l{at}") for at, name in enumerate(left_all)}
    columns |= {("right", name): F.col(f"r{at}") for at, name in enumerate(right_all)}
    condition = reduce(
        lambda found, term: found & term,
        [
            columns["left", a].eqNullSafe(columns["right", b]) if safe else columns["left", a] == columns["right", b]
            for (a, b), safe in zip(stage.key_pairs, stage.flags, strict=True)
        ],
    )
    if stage.residual is not None:
        condition = condition & to_column(stage.residual, columns)
    rows = left.join(right, condition, _SPARK_JOINS.get(stage.how, stage.how))
    one = F.lit(1).cast("long")
    if stage.how in _SPARK_JOINS:
        shown = [columns["left", name] for name in stage.output.schema.names]
        weight: Column = F.col("lw")
    else:
        shown = _output_columns(stage, left_names, right_names, columns)
        weight = F.coalesce(F.col("lw"), one) * F.coalesce(F.col("rw"), one)
    named = [column.cast(field_type(at)).alias(at.name) for column, at in zip(shown, stage.output.schema, strict=True)]
    return rows.select(*named, weight.alias(WEIGHT))


def _output_columns(
    stage: JoinStage, left_names: Sequence[str], right_names: Sequence[str], columns: Mapping[tuple[str, str], Column]
) -> list[Column]:
    """Return the columns of a join in Spark's order: USING keys first and once."""
    if not stage.using:
        return [columns["left", name] for name in left_names] + [columns["right", name] for name in right_names]
    keys = [name for name, _ in stage.key_pairs]
    shown = []
    for name in keys:
        left, right = columns["left", name], columns["right", name]
        shown.append(right if stage.how == "right" else F.coalesce(left, right) if stage.how == "full" else left)
    shown += [columns["left", name] for name in left_names if name not in keys]
    return shown + [columns["right", name] for name in right_names if name not in keys]


def _call(call: AggregateCall) -> Column:
    columns = [column_named(name) for name in call.columns] or [F.lit(1)]
    if call.where is not None:
        passes = to_column(call.where, _Named())
        columns = [F.when(passes, column) for column in columns]
    return _OF_SPARK[call.kind](*columns)


def _order(value: Column, order: Column) -> Column:
    """Return the order of a value, and among equals the value; NULL where the order is."""
    return F.when(order.isNotNull(), F.struct(order, value))


class _Named(dict[tuple[str, str], Any]):
    """Give the column of a name, whichever side it is asked for."""

    def __missing__(self, key: tuple[str, str]) -> Column:
        return column_named(key[1])


BATCH_QUERY: dict[str, Callable[[Any, Sequence[DataFrame], int | None], DataFrame]] = {
    "aggregate": _aggregated,
    "as_of_join": as_of_joined,
    "deduplicate": first_rows,
    "join": _joined,
    "latest": _unchanged,
    "route": _unchanged,
    "state_ttl": _lasting,
    "temporal_join": temporally_joined,
    "unchanged": _unchanged,
}
"""Kind of a stage to what Spark makes of a table per input, given the watermark of the stage."""

HISTORY_QUERY: dict[str, Callable[[TimedHistory], DataFrame]] = {
    "as_of_join": joined_by_arrival,
    "deduplicate": first_rows_by_arrival,
    "temporal_join": joined_by_epoch,
}
"""Kind of a stage to what Spark makes of everything that came to it."""

TIED_QUERY: dict[str, Callable[[Any, Sequence[DataFrame], int | None], DataFrame | None]] = {
    "as_of_join": as_of_tied,
    "deduplicate": first_rows_tied,
    "state_ttl": _lasting_tied,
    "temporal_join": temporally_tied,
}
"""Kind of a stage to the rows among which arrival decides, as `BATCH_QUERY` is given."""
