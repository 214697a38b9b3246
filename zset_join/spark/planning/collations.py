"""Columns that a stage compares or orders by: none of them may have a collation, whatever stage it is.

The law: what Spark would compare under a collation, the engine does not take; it compares strings by their bytes. Columns that
only pass by keep their collation (`zset_join.spark.rows.schemas`). Looked at are keys of every kind, conditions, and the
arguments of aggregates but counts, which only ask whether a value is there; what orders rows is never a string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from zset_join.expressions import references
from zset_join.spark.rows.schemas import refuse_collations
from zset_join.stages import (
    AggregateStage,
    AsOfJoinStage,
    ExpiringStage,
    JoinStage,
    LookupJoinStage,
    ProcessTimeJoinStage,
    Stage,
    TemporalJoinStage,
)

__all__ = ["refuse_compared_collations"]

_Use = tuple[str, pa.Schema, Iterable[str], str]
"""The name of a relation, its columns, those that are looked at, and what they are there."""


def refuse_compared_collations(stage: Stage) -> None:
    """Refuse a stage that compares or orders strings under a collation.

    Raises:
        PlanError: `COLLATION`; the message names the column, and the cures.
    """
    inside = stage.inside if isinstance(stage, ExpiringStage) else stage
    for name, schema, columns, use in (*_keys(inside), *_conditions(inside), *_others(inside)):
        refuse_collations(schema, [column for column in columns if column in schema.names], relation=name, use=use)


def _keys(stage: Stage) -> Iterator[_Use]:
    title = "a join" if isinstance(stage, _JOINS) else _TITLES.get(stage.kind, f"the {stage.kind}")
    for given in stage.inputs:
        one = given.relation
        columns = {*given.key, *one.join_key, *one.primary_key}
        yield one.name, one.schema, [column for column in one.schema.names if column in columns], f"a key of {title}"
    if isinstance(stage, LookupJoinStage):
        yield stage.table.name, stage.source.schema, stage.key, "a key of a join"


_JOINS = (JoinStage, TemporalJoinStage, AsOfJoinStage, ProcessTimeJoinStage, LookupJoinStage)
_TITLES = {"aggregate": "groupBy or distinct", "deduplicate": "dedup"}


def _conditions(stage: Stage) -> Iterator[_Use]:
    if isinstance(stage, TemporalJoinStage | AsOfJoinStage):
        residual = stage.options.residual
    elif isinstance(stage, JoinStage | ProcessTimeJoinStage | LookupJoinStage):
        residual = stage.residual
    else:
        return
    if residual is None:
        return
    left, right = references(residual)
    first = stage.inputs[0].relation
    other = stage.table if isinstance(stage, LookupJoinStage) else stage.inputs[1].relation
    yield first.name, first.schema, left, "part of a condition"
    yield other.name, other.schema, right, "part of a condition"


def _others(stage: Stage) -> Iterator[_Use]:
    if isinstance(stage, AggregateStage):
        for call in stage.calls:
            asked = () if call.kind == "count" else call.columns
            yield stage.source.name, stage.source.schema, asked, f"an argument of {call.kind}"
            if call.where is not None:
                yield stage.source.name, stage.source.schema, references(call.where)[0], f"part of the filter of {call.kind}"
