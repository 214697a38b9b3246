"""Whether rows are versions, and of what (semantics 11 and 15).

A relation with a primary key and an event time is *versioned*; any other is *latest-only*. A dedup that shows the newest row of
each key by event time is versioned, and planned away where its versions are wanted: its input rows are the versions, late ones
too, which the dedup itself would not emit. Filters and projections on the way keep the time of the change; a version
that a filter rejects is a DELETE at its own time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

from zset_join.core.relation import Relation
from zset_join.expressions.functions import coalesce
from zset_join.expressions.rows import named, plain_column
from zset_join.expressions.tree import Expression, lit
from zset_join.plan.row_steps import SelectStep, keeps_upserts
from zset_join.plan.tree import Apply, Node, Operate
from zset_join.stages.current_versions import CurrentVersionsRequest

__all__ = ["Versioning", "current_versions", "every_change", "of_relation", "versioning_of"]

_DELETED = "__deleted"


@dataclass(frozen=True, eq=False)
class Versioning:
    """Describe the rows of a node as versions."""

    is_versioned: bool
    why: str
    node: Node  # of the versions; the rows themselves where they are latest-only
    key: tuple[str, ...] = ()
    delete_column: str | None = None  # hidden
    indexes: tuple[str, ...] = ()

    @property
    def looks_up(self) -> str | None:
        """Return the declared index that the join which makes these rows looks up in; None for none."""
        return getattr(self.node.stage, "index", None) if isinstance(self.node, Operate) else None

    def __str__(self) -> str:
        lines = [f"{'versioned' if self.is_versioned else 'latest-only'}: {self.why}"]
        lines += [f"index {index}" for index in self.indexes]
        lines += [] if self.looks_up is None else [f"looks up in index {self.looks_up}"]
        return "\n".join(lines)


def versioning_of(node: Node) -> Versioning:
    """Return whether the rows of a node are versions, and how to get at these."""
    if isinstance(node, Operate):
        known = node.request.versions_below(node.inputs[0].relation, node.relation)
        if known is not None:
            return Versioning(known.is_versioned, known.why, node.inputs[0] if known.is_versioned else node, known.key)
    if isinstance(node, Apply) and (node.step.condition is not None or node.step.columns is not None):
        below = versioning_of(node.child)
        return _behind(node, below) if below.is_versioned else Versioning(False, below.why, node)
    is_versioned, why = of_relation(node.relation)
    return Versioning(is_versioned, why, node, node.relation.primary_key if is_versioned else ())


def current_versions(node: Node) -> Node:
    """Return the table of a join by processing time: of versions those that hold now, of latest rows these themselves."""
    # What only gives the columns other names stays behind, so that joins with a table under several names share it.
    if _renames(node) and versioning_of(node).is_versioned:
        held = current_versions(node.child)
        return replace(node, child=held) if held.relation.schema.names == node.child.relation.schema.names else _held_now(node)
    return _held_now(node)


def every_change(node: Node) -> Node:
    """Return the rows of records before the stage that keeps the newest row of each key; other rows as they are."""
    if isinstance(node, Operate) and node.request.merges_changes:
        return node.inputs[0] if node.relation.event_time is not None else node
    if isinstance(node, Apply):
        child = every_change(node.child)
        return node if child is node.child else _over_upserts(child, node)
    return node


def _over_upserts(child: Node, node: Apply) -> Apply:
    """Return a step over rows that are upserts now: what orders changes goes along, hidden."""
    step, order = node.step, child.relation.sequence_by
    if step.columns is None:
        return Apply(child, step, node.hides)
    taken = {name for name, _ in step.columns}
    order = tuple(name for name in order if name not in step.kept and name not in taken)
    longer = SelectStep((*step.columns, *((name, named(name)) for name in order)))
    if not order or not keeps_upserts(child.relation, longer):
        return Apply(child, step, node.hides)
    return Apply(child, longer, (*node.hides, *(name for name in order if name not in child.hidden)))


def _renames(node: Node) -> TypeGuard[Apply]:
    """Return whether a node is all columns of another one under other names."""
    if not isinstance(node, Apply) or node.step.columns is None or node.hides:
        return False
    names: list[str] = node.child.relation.schema.names
    return [plain_column(expression) for _, expression in node.step.columns] == names


def _held_now(node: Node) -> Node:
    versioning = versioning_of(node)
    if not versioning.is_versioned:
        return node
    return Operate(CurrentVersionsRequest(versioning.key, versioning.delete_column), (versioning.node,))


def of_relation(relation: Relation) -> tuple[bool, str]:
    """Return whether rows are versions by what they are alone, and why.

    >>> import pyarrow as pa
    >>> of_relation(Relation(name="rates", schema=pa.schema({"currency": pa.string()})))
    (False, '"rates" has no primary key and no event time')
    """
    missing = [
        what for what, there in (("primary key", relation.primary_key), ("event time", relation.event_time)) if not there
    ]
    if missing:
        return False, f'"{relation.name}" has no {" and no ".join(missing)}'
    kinds = {
        "append": "every row is a version",
        "upsert": "every change is a version, a delete too",
        "changelog": "every row is a version until it is retracted",
    }
    return True, f"{kinds[relation.mode]} of {', '.join(relation.primary_key)}, from {relation.event_time} on"


def _behind(node: Apply, below: Versioning) -> Versioning:
    step, child = node.step, below.node
    if step.condition is not None:
        if child.relation.mode == "upsert":
            return Versioning(True, below.why, Apply(child, step), below.key)
        gone: Expression = ~coalesce(step.condition, lit(False))
        if below.delete_column is not None:
            gone = gone | named(below.delete_column)
        names = [name for name in child.relation.schema.names if name != _DELETED]
        marked = SelectStep((*((name, named(name)) for name in names), (_DELETED, gone)))
        why = f"{below.why}; one that the filter rejects is a DELETE"
        return Versioning(True, why, Apply(child, marked, (_DELETED,)), below.key, _DELETED)
    if step.columns is None:
        raise AssertionError("row steps of a versioned relation filter or select")
    columns = step.columns if below.delete_column is None else (*step.columns, (_DELETED, named(_DELETED)))
    hides = node.hides if below.delete_column is None else (*node.hides, _DELETED)
    moved = Apply(child, SelectStep(columns), hides)
    shown = step.kept
    lost = [name for name in (*below.key, str(child.relation.event_time)) if name not in shown]
    if lost:
        return Versioning(False, f"the selection leaves out {', '.join(lost)}", node)
    return Versioning(True, below.why, moved, tuple(shown[name] for name in below.key), below.delete_column)
