"""Compile the kernels a query needs once, in the driver, before its workers start.

A compiled kernel is kept in a cache that all processes read. Without this, every worker would compile the same kernels at
the same time on a new machine, which takes minutes; with it they load them.

Cost: a second when the cache is filled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.epochs import Tick
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.stages.effect import EffectStage
from zset_join.stages.stage import Stage, StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["warm_up"]


def warm_up(stages: Sequence[Stage], *, is_hybrid: bool = False, has_cold_groups: bool = False) -> None:
    """Run every operator of a query over one made-up row per input: in, kept in a snapshot and back, then out again."""
    nothing = HotBudget(max_hot_keys=0)
    options = StageOptions(hot_budget=nothing if is_hybrid else None, table_budget=nothing if has_cold_groups else None)
    with tempfile.TemporaryDirectory(prefix="zset_join-") as directory:
        for number, stage in enumerate(stages):
            _one_row(stage.inputs[0].relation, 1).consolidated()
            place = Path(directory) / str(number)
            place.mkdir()
            operator = stage.build(options, str(place))
            try:
                _exercise(operator, stage)
            finally:
                operator.close()


def _exercise(operator: DurableOperator, stage: Stage) -> None:
    for epoch, weight in enumerate((1, -1)):
        deltas = []
        for given in stage.inputs:
            row = _one_row(given.relation, weight)
            deltas.append(row if given.reduce is None else given.reduce.reduce(row))
        if isinstance(stage, EffectStage):
            deltas = stage.rehearsed(operator, Tick(epoch, 0), deltas)
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
