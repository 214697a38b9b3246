"""Compile the kernels a query needs once, in the driver, before its workers start.

A compiled kernel is kept in a cache that all processes read. Without this, every worker would compile the same kernels at
the same time on a new machine, which takes minutes; with it they load them.

Cost: a second when the cache is filled.
"""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.checkpoint.bucket import DurableOperator
from zset_join.plan import JoinNode, RouteNode
from zset_join.relation import Relation
from zset_join.spark.operators import OperatorOptions, join_builder, route_builder
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["warm_up"]


def warm_up(node: JoinNode) -> None:
    """Run every operator of a join over one made-up row per input: in, kept in a snapshot and back, then out again."""
    options = OperatorOptions()
    builders = [route_builder(side, options) for side in node.sides if isinstance(side, RouteNode)]
    with tempfile.TemporaryDirectory(prefix="zset_join-") as directory:
        for number, build in enumerate([*builders, join_builder(node, options)]):
            place = Path(directory) / str(number)
            place.mkdir()
            operator = build(str(place))
            try:
                _exercise(operator)
            finally:
                operator.close()


def _exercise(operator: DurableOperator) -> None:
    for epoch, weight in enumerate((1, -1)):
        deltas = [_one_row(relation, weight) for relation in operator.inputs]
        for _ in operator.answer(Tick(epoch, 0), deltas):
            pass
        operator.absorb(Tick(epoch, 0), deltas)
        operator.restore(operator.snapshot())


def _one_row(relation: Relation, weight: int) -> ZSet:
    if weight < 0 and relation.mode == "append":
        return ZSet.empty(relation.schema)
    row = {field.name: _plain_value(field.type) for field in relation.schema}
    return ZSet.of(pa.Table.from_pylist([row], schema=relation.schema), [weight])


def _plain_value(kind: pa.DataType) -> Any:
    """Return some value of a type."""
    if pt.is_struct(kind):
        return {kind.field(at).name: _plain_value(kind.field(at).type) for at in range(kind.num_fields)}
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_map(kind):
        return []
    if pt.is_string(kind) or pt.is_large_string(kind):
        return "text that is longer than twelve bytes"
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return b"bytes that are more than twelve"
    if pt.is_decimal(kind):
        return Decimal(0)
    if pt.is_boolean(kind):
        return False
    return None if pt.is_null(kind) else 0
