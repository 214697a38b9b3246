"""Lookups of a plan that was read from a checkpoint, made through the sources of the program that changes it.

A plan on the disk describes the source of a lookup, and does not hold it; a stage with lookups is the same in two plans where
it makes them through the same object (`plan.fingerprints`). A source of the same description is the one that the query has
used, as at any start of its program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.unnamed import text_of
from zset_join.stages.effect import has_effect

__all__ = ["with_lookups_of"]


def with_lookups_of(written: QueryPlan, program: QueryPlan) -> QueryPlan:
    """Return a plan with the sources of another one, where its lookups use sources of the same description.

    Args:
        written: read from a checkpoint.
        program: of the program that changes it.
    """
    there: dict[str, list[Any]] = {}
    for node in program.nodes:
        if has_effect(node.stage):
            stage: Any = node.stage
            there.setdefault(_described(stage.source), []).append(stage.source)
    if not there:
        return written
    nodes = []
    for node in written.nodes:
        known: Any = node.stage
        same = there.get(_described(known.source)) if has_effect(known) else None
        if not same:
            nodes.append(node)
            continue
        nodes.append(replace(node, stage=replace(known, source=same.pop(0) if len(same) > 1 else same[0])))
    return replace(written, nodes=tuple(nodes))


def _described(source: Any) -> str:
    return text_of(source.to_json(), names=True)
