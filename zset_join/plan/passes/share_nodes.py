"""What is needed several times is one node: tables of keyed sources, current versions, and the common parts of several views.

    latest(where a > 1 (t)), latest(where a > 2 (t))      ->  where a > 1 (latest(t)), where a > 2 (latest(t))

`store_once`. The law: every reader is given the same changes. What all readers begin with stays below the table, a condition
part by part, so the table holds no row that no reader needs. A join keeps its side by its own key and is fed upserts; it is no
reader of the table, though in memory both may hold the same rows once (`zset_join.state.rows.side`).

`share_equal`. Nodes are equal where what they do is written alike and they are over the same nodes; names of relations are only
in messages and do not count. What cannot be compared is never equal: a step only Spark can do, lookups through another object.
A query of one view is left as it was written: its checkpoints have its stages one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile

from zset_join.expressions import Expression
from zset_join.expressions.rows import conjuncts
from zset_join.expressions.tree import Call
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.row_steps import SelectStep, WhereStep
from zset_join.plan.tree import Apply, Merge, Node, Operate, Read, Root, Views, each_node, rebuilt
from zset_join.stages.effect import EffectStage
from zset_join.stages.latest import LatestRequest
from zset_join.stages.written import own_text, text_of

__all__ = ["share_equal", "share_versions", "store_once"]


@dataclass(frozen=True)
class _Reader:
    """The steps between a source and its table, the first one first."""

    read: Read
    steps: tuple[Apply, ...]

    @property
    def parts(self) -> list[tuple[int, Apply | Expression]]:
        """Return selections and the parts of conditions in order, each with the number of its step."""
        return [
            (at, part)
            for at, apply in enumerate(self.steps)
            for part in (conjuncts(apply.step.condition) if isinstance(apply.step, WhereStep) else (apply,))
        ]

    def behind(self, count: int) -> tuple[Apply, ...]:
        """Return the steps that are not wholly among so many parts."""
        left = [at for at, _ in self.parts[count:]]
        return self.steps[left[0] :] if left else ()


def store_once(root: Root) -> Root:
    """Return a tree in which the readers of a source in upsert mode read one table."""
    readers: dict[PlanSource, list[_Reader]] = {}
    for node in each_node(root):
        if (found := _reader(node)) is not None:
            readers.setdefault(found.read.source, []).append(found)
    common = {source: _common(found) for source, found in readers.items()}
    tables = {source: Operate(LatestRequest(), (_below(found[0], common[source]),)) for source, found in readers.items()}

    def change(node: Node) -> Node:
        if (found := _reader(node)) is None:
            return node
        source = found.read.source
        rows: Node = tables[source]
        return reduce(_over, found.behind(common[source]), rows)

    return rebuilt(root, change)


def _reader(node: Node | Root) -> _Reader | None:
    """Return what a table of a source is fed; None for other nodes."""
    if not isinstance(node, Operate) or not isinstance(node.request, LatestRequest) or node.request.merges_changes:
        return None
    below, steps = node.inputs[0], list[Apply]()
    while isinstance(below, Apply):
        steps.insert(0, below)
        below = below.child
    return _Reader(below, tuple(steps)) if isinstance(below, Read) else None


def _common(readers: Sequence[_Reader]) -> int:
    """Return with how many parts of steps all readers begin."""
    parts = zip(*([part for _, part in reader.parts] for reader in readers), strict=False)
    return sum(1 for _ in takewhile(lambda same: all(_is_same(same[0], other) for other in same[1:]), parts))


def _is_same(one: Apply | Expression, other: Apply | Expression) -> bool:
    if isinstance(one, Apply) or isinstance(other, Apply):
        return isinstance(one, Apply) and isinstance(other, Apply) and (one.step, one.hides) == (other.step, other.hides)
    return one.same_as(other)


def _below(reader: _Reader, count: int) -> Node:
    """Return the rows of a table that has so many parts of the steps of a reader below it."""
    behind = len(reader.behind(count))
    steps = reader.steps[: len(reader.steps) - behind]
    below: Node = steps[-1] if steps else reader.read
    begun = [part for at, part in reader.parts[:count] if at == len(steps) and isinstance(part, Expression)]
    return Apply(below, WhereStep(reduce(_and, begun))) if begun else below


def _and(one: Expression, other: Expression) -> Expression:
    return Call("and", (one, other))


def _over(table: Node, apply: Apply) -> Node:
    """Return a step over a table, in which no column orders changes any more."""
    step = apply.step
    if isinstance(step, SelectStep):
        step = SelectStep(tuple(one for one in step.columns if one[0] not in apply.hidden))
    return replace(apply, child=table, step=step, hides=())


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
            return "apply", own_text(node.step), node.hides, children
        case Merge():
            return "merge", children
        case Operate():
            stage = node.stage
            external = id(getattr(stage, "source", stage)) if isinstance(stage, EffectStage) else None
            return type(node), own_text(stage), own_text(stage, "output"), node.hidden, external, node.own, node.since, children


def share_versions(root: Root) -> Root:
    """Return a tree in which equal current versions are one node."""
    known: dict[Hashable, Node] = {}

    def change(node: Node) -> Node:
        if not isinstance(node, Operate) or node.request.picks_current is None:
            return node
        return known.setdefault((node.request, _rows_of(node.inputs[0])), node)

    return rebuilt(root, change)


def _rows_of(node: Node) -> Hashable:
    """Return an identity of rows: a node, and the steps behind it by value."""
    steps: list[Hashable] = []
    while isinstance(node, Apply):
        steps.append((node.step, node.hides))
        node = node.child
    return id(node), tuple(steps)
