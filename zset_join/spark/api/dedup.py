"""Deduplication as a stage, from arguments as users give them."""

from __future__ import annotations

from collections.abc import Sequence

from zset_join.operators.deduplicate import Keep
from zset_join.relation import Relation
from zset_join.stages import DeduplicateStage

__all__ = ["dedup_stage"]


def dedup_stage(
    source: Relation, keys: Sequence[str] | str, order_by: Sequence[str] | str, keep: Keep, n: int
) -> DeduplicateStage:
    """Describe the first rows of every key.

    Raises:
        PlanError: a column that is not there, or cannot be ordered or compared; or the rows are upserts.
    """
    return DeduplicateStage(source=source, keys=_names(keys), order_by=_names(order_by), keep=keep, n=n)


def _names(given: Sequence[str] | str) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
