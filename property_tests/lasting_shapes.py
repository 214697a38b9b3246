"""Operators with `state_ttl` under the laws that all operators obey: their rows live longer than any history.

The law behind: rows that have not ended are no concern of anybody's. So the oracle is that of the operator inside, and what it
is excused from follows from one thing alone: what retracts a row that does not exist cannot be distinguished from what retracts
one that has ended, and is counted and not refused. Rows that end are under the laws of `property_tests.test_state_ttl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from property_tests.aggregate_shapes import AggregateSpec
from property_tests.shapes import JoinSpec
from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.expiring import Expiring, ExpiringInput, TimeToLive
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.stages import AggregateStage, JoinStage, Stage
from zset_join.zset.protocol import DurableOperator, Operator

__all__ = ["build_lasting_aggregate", "build_lasting_join", "lasting_live_rows"]

_LONG_US = 10**13
"""A hundred days: longer than any history, and over when a law looks years later at what is left."""


def build_lasting_join(
    spec: JoinSpec,
    *,
    residuals: Mapping[str, Expression],
    on_bad_input: str = "error",
    directory: str | None = None,
) -> Expiring:
    """Build the product's join of a spec, of rows that end some day; `residuals` are conditions by their names."""
    left, right = (replace(relation, mode="changelog") for relation in spec.inputs)
    stage = JoinStage(left=left, right=right, how=spec.how, null_safe=spec.null_safe)
    inside = HashJoin(
        left,
        right,
        spec.how,
        null_safe=spec.null_safe,
        using=spec.using,
        residual=None if spec.residual is None else residuals[spec.residual.name],
        hidden=spec.hidden,
        options=OperatorOptions(
            on_bad_input=on_bad_input,
            chunk_rows=spec.knobs.chunk_rows,
            hash_bits=spec.knobs.hash_bits,
            hash_seed=spec.knobs.hash_seed,
            directory=directory,
        ),
    )
    return _lasting(stage, inside, spec.inputs, spec.knobs, on_bad_input, directory)


def build_lasting_aggregate(spec: AggregateSpec, *, on_bad_input: str = "error", directory: str | None = None) -> Expiring:
    """Build the product's aggregate of a spec, of rows that end some day, those of a group together."""
    relation = replace(spec.relation, mode="changelog")
    stage = AggregateStage(source=relation, group_by=spec.group_by, calls=tuple(spec.calls()))
    inside = Aggregate(
        relation,
        spec.group_by,
        spec.calls(),
        options=OperatorOptions(
            on_bad_input=on_bad_input,
            chunk_rows=spec.knobs.chunk_rows,
            hash_bits=spec.knobs.hash_bits,
            hash_seed=spec.knobs.hash_seed,
            directory=directory,
        ),
    )
    return _lasting(stage, inside, (spec.relation,), spec.knobs, on_bad_input, directory)


def _lasting(
    stage: Stage,
    inside: DurableOperator,
    sources: Sequence[Relation],
    knobs: Any,
    on_bad_input: str,
    directory: str | None,
) -> Expiring:
    reads = len(sources) > 1 and knobs.ticking
    by_key = knobs.compacting
    inputs = [
        ExpiringInput(
            relation=source,
            key=given.key,
            key_types=given.key_types,
            null_safe=given.null_is_value,
            ttl=TimeToLive(after=_LONG_US, by_key=bool(given.key) and by_key, reads=reads),
        )
        for source, given in zip(sources, stage.inputs, strict=True)
    ]
    return Expiring(
        inside, inputs, on_bad_input=on_bad_input, directory=directory, hash_bits=knobs.hash_bits, hash_seed=knobs.hash_seed
    )


def lasting_live_rows(operator: Operator) -> int:
    """Count the rows of the operator inside; those with their times are the same rows again."""
    tables = [table for name, table in operator.snapshot().items() if not name.startswith("ttl_")]
    return sum(weight != 0 for table in tables for weight in table.column("_zset_weight").to_pylist())
