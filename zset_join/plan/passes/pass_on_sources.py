"""Give every answer a stage: a source's rows are passed on by one, where only a stage can answer.

On executors the output, and a union of which other parts are answers of stages, take what tasks of stages emit. A step that
only Spark can do comes after a stage as well.
"""

from __future__ import annotations

from zset_join.expressions.rows import named
from zset_join.plan.row_steps import OpaqueStep, SelectStep
from zset_join.plan.tree import Apply, Merge, Node, Operate, Read, Root, each_root, rebuilt, visible
from zset_join.stages.unchanged import UnchangedRequest

__all__ = ["pass_on_sources"]


def pass_on_sources(root: Root) -> Root:
    """Return a tree whose output and mixed unions are fed by stages alone, and whose output has no hidden column."""

    def change(node: Node) -> Node:
        if isinstance(node, Merge) and len({_is_of_source(part) for part in node.parts}) > 1:
            return Merge(tuple(_passed_on(part) for part in node.parts))
        if isinstance(node, Apply) and isinstance(node.step, OpaqueStep) and _is_of_source(node.child):
            return Apply(_passed_on(node.child), node.step, node.hides)
        return node

    return each_root(rebuilt(root, change), _shown)


def _shown(root: Node) -> Node:
    """Return the rows of a view behind a stage, without hidden columns."""
    changed = _passed_on(root)
    if not changed.hidden:
        return changed
    return Apply(changed, SelectStep(tuple((name, named(name)) for name in visible(changed))))


def _passed_on(node: Node) -> Node:
    return Operate(UnchangedRequest(), (node,)) if _is_of_source(node) else node


def _is_of_source(node: Node) -> bool:
    """Return whether rows come from sources without a stage; a union of such rows is one stream."""
    match node:
        case Read():
            return True
        case Apply(child):
            return _is_of_source(child)
        case Merge(parts):
            return all(map(_is_of_source, parts))
        case Operate():
            return False
