"""Leave out, where rows enter, the columns of a source that the query never reads.

    SELECT o.id, c.name FROM orders o JOIN customers c ON ...      `orders.note` and `customers.address` reach no state

The law: every view emits the same deltas. Needed columns are followed from the views down to the sources. What no stage, no
condition and no selection above a source reads is dropped by one selection directly behind the source, for all its readers, so
that tables and stages that are shared without the pass are shared with it.

Kept always: the primary key, the columns that order changes, the event time, hidden columns. A stage that does not return
what it needs (`Stage.needs`) needs all columns; so does one whose answer follows from when a row changed last, of
rows that change: a change of a column that nothing reads would not arrive. Parts of a union are narrowed to the same columns. A
source in changelog mode keeps its columns, as does a union of it: a `-1` is compared with the row that it retracts, column by
column, and must match no other.

What is dropped is in no state: an evolution that reads such a column later has to read the source again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from zset_join.expressions.rows import named
from zset_join.plan.row_steps import SelectStep, columns_before
from zset_join.plan.tree import Apply, Merge, Node, Operate, Read, Root, Views, is_derived

__all__ = ["prune_columns"]


def prune_columns(root: Root) -> Root:
    """Return a tree whose sources emit only what is read."""
    parts = root.parts if isinstance(root, Views) else (root,)
    needed = _needed(parts)
    done: dict[int, Node] = {}

    def narrowed(node: Node) -> Node:
        if id(node) not in done:
            done[id(node)] = _narrowed(node, tuple(map(narrowed, node.children)), needed[id(node)])
        return done[id(node)]

    changed = tuple(map(narrowed, parts))
    return replace(root, parts=changed) if isinstance(root, Views) else changed[0]


def _needed(parts: Iterable[Node]) -> Mapping[int, set[str]]:
    """Return, by the `id` of every node, the columns of its answer that are read above it."""
    # A source of which every reader selects its columns needs no selection of its own: all of its columns count as read.
    needed: dict[int, set[str]] = {}
    order: list[Node] = []
    bare: set[int] = set()  # nodes whose rows reach a stage, a union or a view with the columns they have

    def visit(node: Node) -> None:
        if id(node) not in needed:
            needed[id(node)] = set()
            for child in node.children:
                visit(child)
            order.append(node)

    for part in parts:
        visit(part)
        needed[id(part)].update(part.relation.schema.names)
        bare.add(id(part))
    for node in reversed(order):  # every reader of a node comes before it
        needed[id(node)] |= _kept_always(node)
        for child, read in zip(node.children, _read_of_children(node, needed[id(node)]), strict=True):
            needed[id(child)] |= set(child.relation.schema.names) if read is None else read
            if not isinstance(node, Apply) or (node.step.needs is None and id(node) in bare):
                bare.add(id(child))
    for node in order:
        if isinstance(node, Read) and id(node) not in bare:
            needed[id(node)].update(node.relation.schema.names)
    return needed


def _kept_always(node: Node) -> set[str]:
    """Return the columns of an answer that identify a change's row and its time."""
    relation = node.relation
    time = () if relation.event_time is None else (relation.event_time,)
    return {*relation.primary_key, *relation.sequence_by, *time, *node.hidden}


def _read_of_children(node: Node, needed: set[str]) -> tuple[frozenset[str] | set[str] | None, ...]:
    """Return, per child, the columns of it that are read so that these columns of a node's answer come about; None: all."""
    match node:
        case Apply(step=step):
            return (columns_before(step, needed),)
        case Operate():
            return node.stage.needs(needed)
        case Merge(parts):
            is_checked = any(part.relation.mode == "changelog" and not is_derived(part) for part in parts)
            return (None if is_checked else needed & {*node.relation.schema.names},) * len(parts)
        case _:
            return ()


def _narrowed(node: Node, children: tuple[Node, ...], needed: set[str]) -> Node:
    """Return a node over narrower children, itself as narrow as it can be."""
    match node:
        case Read():
            return _narrow_source(node, needed)
        case Apply(step=SelectStep() as step):
            return replace(node, child=children[0], step=step.narrowed(needed))
        case Apply():
            return replace(node, child=children[0])
        case Operate():
            return replace(node, inputs=children)
        case _:
            return Merge(_alike(node.relation.schema.names, children, needed))


def _alike(names: Sequence[str], parts: tuple[Node, ...], needed: set[str]) -> tuple[Node, ...]:
    """Return the parts of a union with the same columns: those that are read, or all where a part shows all."""
    if all(part.relation.schema.names == names for part in parts):
        return parts
    kept = [name for name in names if name in needed] or names[:1]
    step = SelectStep(tuple((name, named(name)) for name in kept))
    return tuple(part if part.relation.schema.names == kept else Apply(part, step) for part in parts)


def _narrow_source(node: Read, needed: set[str]) -> Node:
    """Return a source behind a selection of what is read of it; itself where that is all."""
    kept = _kept_of_source(node, needed)
    return node if kept is None else Apply(node, SelectStep(tuple((name, named(name)) for name in kept)))


def _kept_of_source(node: Read, needed: set[str]) -> list[str] | None:
    """Return the columns of a source that are kept; None where it is left as it is."""
    names = node.relation.schema.names
    kept = [name for name in names if name in needed] or [names[0]]
    return None if len(kept) == len(names) or node.relation.mode == "changelog" else kept
