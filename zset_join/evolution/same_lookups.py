"""Lookups of a plan that was read from a checkpoint, made through the sources of the program that changes it.

A plan on the disk describes the source of a lookup, and does not hold it; a stage with lookups is the same in two plans where
it makes them through the same object (`plan.fingerprints`). A source of the same description is the one that the query has
used, as at any start of its program.

The law: where several sources have one description, a stage takes the source of the stage that does the same to the same rows.
Several such stages go by their order, and only where both plans have as many: with one more or less, nothing shows which is
which, and a stage whose rows were looked up elsewhere would be taken for the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zset_join.plan.query_plan import QueryPlan, StageNode
from zset_join.stages.effect import has_effect
from zset_join.stages.written import text_of

__all__ = ["with_lookups_of"]


def with_lookups_of(written: QueryPlan, program: QueryPlan) -> QueryPlan:
    """Return a plan with the sources of another one, where its lookups use sources of the same description."""
    there = _lookups(program)
    if not there:
        return written
    before, after, found = _texts(written), _texts(program), dict[int, Any]()
    for described, nodes in _lookups(written).items():
        found |= _paired(nodes, there.get(described, []), before, after)
    through = (_through(node, found[node.number]) if node.number in found else node for node in written.nodes)
    return replace(written, nodes=tuple(through))


def _lookups(plan: QueryPlan) -> dict[str, list[StageNode]]:
    """Return the stages with lookups, by the description of their source."""
    found: dict[str, list[StageNode]] = {}
    for node in plan.nodes:
        if has_effect(node.stage):
            found.setdefault(text_of(_source(node).to_json(), names=True), []).append(node)
    return found


def _paired(
    here: Sequence[StageNode], there: Sequence[StageNode], before: Sequence[str], after: Sequence[str]
) -> dict[int, Any]:
    """Return the sources for stages whose sources have one description, by their numbers."""
    mine, its = _by_text(here, before), _by_text(there, after)
    is_only_one = len({id(_source(node)) for node in there}) == 1
    pairs = [(nodes, its[text]) for text, nodes in mine.items() if text in its]
    pairs.append((_others(mine, its), _others(its, mine)))
    found = dict[int, Any]()
    for nodes, same in pairs:
        if len(nodes) == len(same):
            found |= {node.number: _source(one) for node, one in zip(nodes, same, strict=True)}
    if is_only_one:
        found |= {nodes[0].number: _source(there[0]) for nodes in mine.values() if len(nodes) == 1}
    return found


def _by_text(nodes: Sequence[StageNode], texts: Sequence[str]) -> dict[str, list[StageNode]]:
    found: dict[str, list[StageNode]] = {}
    for node in nodes:
        found.setdefault(texts[node.number], []).append(node)
    return found


def _others(nodes: Mapping[str, Sequence[StageNode]], known: Mapping[str, Sequence[StageNode]]) -> list[StageNode]:
    """Return the stages that have no like in the other plan, as where columns of their rows change."""
    return [node for text, some in nodes.items() if text not in known for node in some]


def _texts(plan: QueryPlan) -> list[str]:
    """Return by number what each stage does to the rows of sources, whatever it looks up through."""
    texts = list[str]()
    for node in plan.nodes:
        feeds = [
            [
                [one.origin if isinstance(one.origin, str) else texts[one.origin], [step.to_json() for step in one.steps]]
                for one in feeds
            ]
            for feeds in node.feeds
        ]
        texts.append(text_of([node.stage.lasting, feeds]))
    return texts


def _source(node: StageNode) -> Any:
    stage: Any = node.stage
    return stage.source


def _through(node: StageNode, source: Any) -> StageNode:
    stage: Any = node.stage
    return replace(node, stage=replace(stage, source=source))
