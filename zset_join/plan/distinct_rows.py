"""Whether a feed passes on every row once: the change of a view need not be consolidated then.

The law: where this returns True, what the feed passes on is consolidated, whatever came. It is proven from
keys: an answer whose rows differ (`Stage.answers_distinct_rows`), and steps of which no two rows make one. A condition leaves
rows out and makes none alike. A selection makes two rows alike only where it drops what distinguishes them; so every column of
the answer must be passed through, or one that always has its value (`OutputKey.aliases`, where neither is NULL for padding).

That a selection keeps a key is not enough: of an update of what it drops, the row that goes and the one that arrives are one.
"""

from __future__ import annotations

from collections.abc import Sequence

from zset_join.plan.row_steps import RowStep, name_after
from zset_join.stages.stage import Stage

__all__ = ["emits_distinct_rows"]


def emits_distinct_rows(stage: Stage, steps: Sequence[RowStep]) -> bool:
    """Return whether no row can be twice in what steps make of an answer of a stage."""
    if not stage.answers_distinct_rows:
        return False
    kept = {name for name in stage.output.schema.names if name_after(steps, name) is not None}
    return all(name in kept or kept & _same_as(stage, name) for name in stage.output.schema.names)


def _same_as(stage: Stage, name: str) -> set[str]:
    """Return the other columns of an answer that have the value of a column in every row, in the same type."""
    known = stage.output_key
    padded = {column for group in known.padded for column in group}
    if name in padded:
        return set()
    schema = stage.output.schema
    first = next((one for one, other in known.aliases if name in (one, other)), name)
    alike = {first, *(other for one, other in known.aliases if one == first)}
    return {other for other in alike - padded - {name} if schema.field(other).type == schema.field(name).type}
