"""What a grouping looks like from outside: its arguments, its output columns and their key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from zset_join.errors import PlanError
from zset_join.key_types import check_key_type, storage_type
from zset_join.relation import Relation
from zset_join.shapes.aggregate_calls import AggregateCall, result_field
from zset_join.shapes.kept_types import kept_as

__all__ = ["check_grouping", "grouped_relation"]


def grouped_relation(relation: Relation, group_by: Sequence[str], calls: Sequence[AggregateCall]) -> Relation:
    """Return the answer of an aggregate: the key columns, which identify a row, then a column per call.

    Raises:
        PlanError: columns or types that cannot be grouped or aggregated.
        KeyTypeError: a key column that has no equality.
    """
    keys = check_grouping(relation, group_by, calls)
    fields = [result_field(call, relation.schema, relation.name) for call in calls]
    return Relation(
        name=f"{relation.name}_by_{'_'.join(keys) or 'all'}",
        schema=pa.schema([*(relation.schema.field(name) for name in keys), *fields]),
        primary_key=keys,
        mode="changelog",
    )


def check_grouping(relation: Relation, group_by: Sequence[str], calls: Sequence[AggregateCall]) -> tuple[str, ...]:
    """Refuse arguments that make no aggregate; return the key columns.

    Raises:
        PlanError: an input in upsert mode, a key column that does not exist or has no equality, an output name given twice, or
            no output column at all.
    """
    if relation.mode == "upsert":
        raise PlanError(
            f'relation "{relation.name}" is in upsert mode; an aggregate needs full rows with weights. Join it, or normalise '
            "it to a changelog first.",
            code="AGGREGATE_OF_UPSERTS",
            relation=relation.name,
        )
    missing = [name for name in group_by if name not in relation.schema.names]
    if missing:
        raise PlanError(
            f"group_by={list(group_by)} names {missing}, which is not among the columns {relation.schema.names} of "
            f'"{relation.name}".',
            code="UNKNOWN_COLUMN",
            relation=relation.name,
            missing=missing,
        )
    for name in group_by:
        kind = relation.schema.field(name).type
        check_key_type(kind, relation=relation.name, column=name)
        kept_as(storage_type(kind), column=name)
    names = [*group_by, *(call.name for call in calls)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not names:
        what = f"would have more than one column named {twice}" if twice else "would have no column"
        raise PlanError(
            f'the aggregate over "{relation.name}" {what}; give each call a name of its own.',
            code="OUTPUT_NAMES",
            relation=relation.name,
            names=names,
        )
    return tuple(group_by)
