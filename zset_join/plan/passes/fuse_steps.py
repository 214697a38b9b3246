"""Do less between stages: omit selections that change nothing, and make one of two where the second only picks columns."""

from __future__ import annotations

from zset_join.expressions.rows import plain_column
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import Apply, Node, Root, rebuilt

__all__ = ["fuse_steps"]


def fuse_steps(root: Root) -> Root:
    """Return a tree with fewer row steps."""

    def change(node: Node) -> Node:
        if not isinstance(node, Apply) or not isinstance(node.step, SelectStep):
            return node
        if _changes_nothing(node, node.step):
            return node.child
        before = node.child
        if isinstance(before, Apply) and isinstance(before.step, SelectStep) and before.takes_upserts:
            picked = [(name, plain_column(expression)) for name, expression in node.step.columns]
            computed = dict(before.step.columns)
            if all(column is not None for _, column in picked) and not before.hides:
                columns = tuple((name, computed[column]) for name, column in picked if column is not None)
                return Apply(before.child, SelectStep(columns), node.hides)
        return node

    return rebuilt(root, change)


def _changes_nothing(node: Apply, step: SelectStep) -> bool:
    names = [name for name, _ in step.columns]
    is_plain = all(plain_column(expression) == name for name, expression in step.columns)
    return is_plain and names == node.child.relation.schema.names and not node.hides and node.takes_upserts
