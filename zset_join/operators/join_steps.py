"""Parts of a join outside its kernels: what its type emits for rows alone, the rest of ON, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.core.epochs import Tick
from zset_join.core.errors import PlanError, WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_key
from zset_join.expressions import Expression, evaluate, references
from zset_join.kernels.join import pairs as p
from zset_join.state.join.joined_rows import from_c_library
from zset_join.state.rows.side import SideState

__all__ = ["ONE_SIDED", "columns_compared", "key_of", "residual_filter", "weight_overflow"]

ONE_SIDED = {
    "inner": (0, 0),
    "left": (p.SHOWN_UNMATCHED, 0),
    "right": (0, p.SHOWN_UNMATCHED),
    "full": (p.SHOWN_UNMATCHED, p.SHOWN_UNMATCHED),
    "left_semi": (p.SHOWN_MATCHED, 0),
    "left_anti": (p.SHOWN_UNMATCHED, 0),
}
"""What a join type shows of the rows of either side alone, 0 for nothing."""


def columns_compared(
    inputs: Sequence[Relation], residual: Expression | None, hidden: Sequence[Collection[str]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return per input the columns in which an upsert must differ from the live row to be a change."""
    # They are those that are shown, that decide which rows match, or that a residual predicate reads.
    read = (frozenset(), frozenset()) if residual is None else references(residual)
    compared = []
    for relation, names, needed in zip(inputs, hidden, read, strict=True):
        unknown = set(names) - set(relation.schema.names)
        if unknown:
            raise PlanError(
                f'hidden={sorted(names)} names {sorted(unknown)}, which "{relation.name}" does not have; its columns are '
                f"{relation.schema.names}.",
                code="UNKNOWN_COLUMN",
                relation=relation.name,
                missing=sorted(unknown),
            )
        kept = {*relation.join_key, *needed}
        compared.append(tuple(name for name in relation.schema.names if name in kept or name not in names))
    return compared[0], compared[1]


def key_of(side: SideState, ref: int) -> tuple[Any, ...]:
    """Return the join key of the row whose record address is `ref`."""
    refs = np.array([ref], np.int64)
    plan = side.layout.gather_plan(side.relation.field_indices(side.relation.join_key))
    key = plan.gather(int(refs.ctypes.data), 1, side.arena.heap_address)
    return shown_key(key, 0)


def residual_filter(residual: Expression | None, sides: Sequence[SideState]) -> Callable[[Any, Any], npt.NDArray[np.bool_]]:
    """Return the predicate over pairs of left and right refs; NULL does not pass, and without a predicate all do."""

    def passes(left_refs: Any, right_refs: Any) -> npt.NDArray[np.bool_]:
        if residual is None:
            return np.ones(len(left_refs), np.bool_)
        columns = []
        for side, names, refs in zip(sides, references(residual), (left_refs, right_refs), strict=True):
            ordered = sorted(names)
            plan = side.layout.gather_plan(side.relation.field_indices(ordered))
            gathered = plan.gather(int(refs.ctypes.data), len(refs), side.arena.heap_address, from_c_library)
            columns.append(dict(zip(ordered, gathered, strict=True)))
        return evaluate(residual, columns[0], columns[1], len(left_refs))

    return passes


def weight_overflow(inputs: Sequence[Relation], tick: Tick) -> WeightOverflowError:
    """Return the error of an output row whose weight no int64 holds."""
    left, right = (relation.name for relation in inputs)
    return WeightOverflowError(
        f'the join of "{left}" and "{right}", epoch {tick.epoch}: the product of two weights does not fit an int64; '
        "nothing was applied. Retract duplicate rows on one side; a weight is the number of copies of a row.",
        code="WEIGHT_OVERFLOW",
        epoch=tick.epoch,
    )
