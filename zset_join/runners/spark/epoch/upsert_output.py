"""A user's function that is given one net change per key: the row that is present after the epoch, or the one that has gone.

What `MERGE INTO`, a key-value store or a compacted topic wants: all columns of the join and `_deleted`, one line per key.

The law: applied to a table that holds the join before the epoch, the lines leave the join after it. A key whose row moved
between buckets within the epoch is one line all the same: the pieces of all tasks are put together by key.

Ties and edge cases: keys are equal when Spark's `groupBy`returns true (NULL = NULL, NaN = NaN, 0.0 = -0.0).

Limits: two live rows for one key are noticed when they come in one epoch. A key that the inputs imply never has two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.changelog import UpsertFormat, encoded_schema
from zset_join.core.errors import PlanError, SinkError
from zset_join.core.relation import Relation
from zset_join.runners.spark.epoch.outputs import FunctionOutput
from zset_join.runners.spark.rows.names import quoted
from zset_join.runners.spark.rows.schemas import refuse_collations

__all__ = ["UpsertOutput"]

_ROW, _CLAIMS = "row", "claims"


class UpsertOutput(FunctionOutput):
    """Call a function with one net change per key.

    The function is called at least once per epoch, every time with the same rows.
    """

    def __init__(self, function: Callable[..., Any], key: Sequence[str] | None) -> None:
        super().__init__(function, "weight")
        self._wanted_key = None if key is None else tuple(key)

    def describe(self) -> str:
        return super().describe().replace("(weight)", "(upsert)")

    def open(self, relation: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        super().open(relation, query_id, may_lack_columns=may_lack_columns)
        encoded_schema(relation.schema, UpsertFormat())
        self._key = relation.primary_key if self._wanted_key is None else self._wanted_key
        if not self._key:
            raise PlanError(
                f'form="upsert" needs a key, and the inputs of "{relation.name}" imply none; pass key=[...], the columns that '
                "identify a row of the output.",
                code="MISSING_PRIMARY_KEY",
            )
        missing = [name for name in self._key if name not in relation.schema.names]
        refuse_collations(relation.schema, {*self._key} - {*missing}, relation=relation.name, use='a key of form="upsert"')
        if missing:
            raise PlanError(
                f"key={list(self._key)} names {missing}, which is not among the columns {relation.schema.names}.",
                code="UNKNOWN_COLUMN",
                missing=missing,
            )

    def give(self, rows: DataFrame, epoch: int, digest: str | None) -> None:
        delta = rows
        names = [name for name in delta.columns if name != "_weight"]
        is_there = F.col("_weight") > 0
        net = delta.groupBy(*(quoted(name) for name in self._key)).agg(
            F.sum(F.when(is_there, F.col("_weight")).otherwise(F.lit(0))).alias(_CLAIMS),
            F.max_by(F.struct(*map(quoted, names)), is_there.cast("int")).alias(_ROW),
        )
        net = net.select(_ROW, _CLAIMS)
        self._refuse_doubled(net, epoch)
        row = [F.col(_ROW).getField(name).alias(name) for name in names]
        super().give(net.select(*row, (F.col(_CLAIMS) == 0).alias(UpsertFormat().column)), epoch, digest)

    def _refuse_doubled(self, net: DataFrame, epoch: int) -> None:
        doubled = net.where(F.col(_CLAIMS) > 1).limit(1).collect()
        if doubled:
            key = {name: doubled[0][_ROW][name] for name in self._key}
            raise SinkError(
                f"after epoch {epoch} more than one live row claims the key {key}, of which an upsert can keep only one. Add "
                "columns to key= until it identifies a row, or take a form with retractions.",
                code="KEY_CLAIMED_TWICE",
                key=tuple(key.values()),
                columns=list(self._key),
                epoch=epoch,
            )
