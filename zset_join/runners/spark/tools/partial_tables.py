"""The table that partial upserts and truncates mean, by Spark SQL alone: what `verify` compares the latest rows with.

The law: a truncate takes away what is before it in the order; of the changes of a key behind it the newest counts, and a column
that it omits has the value that the last one before it, back to the last delete, did send.

Changes are put in the order of their epoch, in it of their sequence, in that of their arrival. One that arrived after a newer
one of its key was applied is stale, and counts for nothing.

Cost: three windows over the logged changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.relation import Relation
from zset_join.runners.spark.rows.names import column_named
from zset_join.shapes.latest import TRUNCATE

__all__ = ["filled_table"]

_ARRIVAL = ("__epoch", "__position")


def filled_table(changes: DataFrame, relation: Relation, control: str, columns: Sequence[str]) -> DataFrame:
    """Return the live rows of a table, with `__weight`."""
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
