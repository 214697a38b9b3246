"""Store the common parts of several views once: equal sources, steps and stages are one node, with one state and one log.

Views that are written one by one name the same join again and again. Two nodes are equal where what they do is written alike
and they are over the same nodes, from the sources up; what relations are called does not count, for it is only in messages. A
stage is shared below different projections and conditions, and a view that reads another view reads its stages.

What cannot be compared is never equal: a step only Spark can do, and a stage that makes lookups through another object.

A query of one view is left as it was written, since the checkpoints that there are have its stages one by one.
"""

from __future__ import annotations

from collections.abc import Hashable

from zset_join.plan.row_steps import OpaqueStep
from zset_join.plan.tree import Apply, Merge, Node, Operate, Read, Root, Views, rebuilt
from zset_join.plan.unnamed import text_of
from zset_join.stages.effect import EffectStage
from zset_join.stages.written import write_relation

__all__ = ["share_equal"]


def share_equal(root: Root) -> Root:
    """Return a tree of several views in which equal nodes are one."""
    if not isinstance(root, Views):
        return root
    known: dict[Hashable, Node] = {}
    return rebuilt(root, lambda node: known.setdefault(_identity(node), node))


def _identity(node: Node) -> Hashable:
    """Return an identity of nodes whose children are shared already."""
    children = tuple(map(id, node.children))
    match node:
        case Read(source):
            return "read", text_of(source.to_json(), names=True), source.max_watermark_jump
        case Apply():
            is_opaque = isinstance(node.step, OpaqueStep)
            return "apply", id(node) if is_opaque else text_of(node.step.to_json()), node.hides, children
        case Merge():
            return "merge", children
        case Operate():
            stage = node.stage
            external = id(getattr(stage, "source", stage)) if isinstance(stage, EffectStage) else None
            output = text_of(write_relation(stage.output))
            return type(node), text_of(stage.to_json()), output, node.hidden, external, node.own, node.since, children
