"""Deduplication as a stage, from arguments as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zset_join.relation import Relation
from zset_join.shapes.deduplicate import Keep
from zset_join.stages import DeduplicateStage, Stage, expiring_stage, state_ttls

__all__ = ["dedup_stage"]


def dedup_stage(
    source: Relation, keys: Sequence[str] | str, order_by: Sequence[str] | str, keep: Keep, n: int, *, state_ttl: Any = None
) -> Stage:
    """Describe the first rows of every key, each key remembered for as long as `state_ttl` says.

    Raises:
        PlanError: a column that is not there, or cannot be ordered or compared; or the rows are upserts.
    """
    mode = source.mode if state_ttl is None or source.mode == "upsert" else "changelog"
    taken = replace(source, mode=mode)
    stage = DeduplicateStage(source=taken, keys=_names(keys), order_by=_names(order_by), keep=keep, n=n)
    return expiring_stage(stage, [source], state_ttls(state_ttl, 1))


def _names(given: Sequence[str] | str) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
