"""A query as it was written, before it is planned: a frozen tree that passes turn into a `QueryPlan`.

    Read        a source
    Apply       a row step behind a node
    Merge       UNION ALL of nodes
    Operate     a stage that is not placed yet, over nodes
    Views       the roots of several views that are one plan

Every node has the relation of its rows, so what cannot work is refused where it is written. Nodes are compared by identity: a
node that is used twice is one part of the plan, and its stages run once.

Hidden columns order changes or carry computed keys; they travel with the rows and reach no stage's answer.

`in_zone` finds expressions by walking the values that a node is made of, so none of a new step or request is forgotten. One in
a tuple, as in a pair of keys, is over the row of the input that has its place; any other is over all inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, overload

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.core.frames import own_frames
from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.rows import columns_read, named
from zset_join.expressions.zones import expression_in_zone, is_utc
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.row_steps import RowStep, SelectStep, WhereStep, as_changelog, keeps_upserts
from zset_join.stages.effect import OwnOptions
from zset_join.stages.request import ComputedKeys, InputRows, StageRequest, shown_only
from zset_join.stages.stage import Stage

__all__ = [
    "Apply",
    "Merge",
    "Node",
    "Operate",
    "Read",
    "Root",
    "Views",
    "changelog_of",
    "depends_on_arrival",
    "drawn",
    "each_node",
    "each_root",
    "in_zone",
    "levels_of",
    "node_in_zone",
    "only_adds",
    "rebuilt",
    "sources_of",
    "started",
    "visible",
    "without_order",
]


@dataclass(frozen=True, eq=False)
class Read:
    source: PlanSource

    @property
    def children(self) -> tuple[Node, ...]:
        return ()

    @property
    def relation(self) -> Relation:
        return self.source.relation

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.source.hidden


@dataclass(frozen=True, eq=False)
class Apply:
    """Do something to every row."""

    child: Node
    step: RowStep
    hides: tuple[str, ...] = ()

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child,)

    @property
    def takes_upserts(self) -> bool:
        return self.child.relation.mode != "upsert" or keeps_upserts(self.child.relation, self.step)

    @cached_property
    def relation(self) -> Relation:
        return self.step.output(self.child.relation if self.takes_upserts else changelog_of(self.child))

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """Return the hidden columns that are left, and those that the step adds."""
        kept = {name: name for name in self.child.hidden} if self.takes_upserts else {}
        if isinstance(self.step, SelectStep):
            kept = {name: self.step.kept[name] for name in kept if name in self.step.kept}
        elif not isinstance(self.step, WhereStep):
            kept = {}
        return (*kept.values(), *self.hides)


@dataclass(frozen=True, eq=False)
class Merge:
    """Add the rows of nodes up."""

    parts: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.parts

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return nothing: what orders changes ends here."""
        return ()

    @cached_property
    def relation(self) -> Relation:
        relations = [changelog_of(part) for part in self.parts]
        first = relations[0]
        for relation in relations[1:]:
            if (relation.schema.names, relation.schema.types) != (first.schema.names, first.schema.types):
                raise PlanError(
                    f'the columns of "{relation.name}" are {_described(relation)}, those of "{first.name}" {_described(first)};'
                    " a union goes by position. Select or cast columns first.",
                    code="UNION_TYPES",
                    relation=relation.name,
                )
        fields = [
            field.with_nullable(any(one.schema.field(at).nullable for one in relations))
            for at, field in enumerate(first.schema)
        ]
        delays = [one.watermark_delay for one in relations if one.event_time == first.event_time]
        known = [delay for delay in delays if delay is not None]
        is_timed = len(known) == len(relations)
        return Relation(
            name="_and_".join(dict.fromkeys(one.name for one in relations)),
            schema=pa.schema(fields),
            mode="append" if {one.mode for one in relations} == {"append"} else "changelog",
            event_time=first.event_time if is_timed else None,
            watermark_delay=max(known) if is_timed else None,
        )


@dataclass(frozen=True, eq=False)
class Operate:
    request: StageRequest
    inputs: tuple[Node, ...]
    own: OwnOptions | None = None  # options in place of the pipeline's
    since: int = 0  # the epoch at which it came, where its answer depends on that

    @property
    def children(self) -> tuple[Node, ...]:
        return self.inputs

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return nothing: a stage does not show hidden columns."""
        return ()

    @property
    def computed_keys(self) -> ComputedKeys:
        return self.request.computed_keys or ((),) * len(self.inputs)

    @cached_property
    def stage(self) -> Stage:
        with own_frames():
            rows = [
                self._rows_of(place, node, keys)
                for place, (node, keys) in enumerate(zip(self.inputs, self.computed_keys, strict=True))
            ]
            return self.request.with_keys_computed().stage(rows)

    def _rows_of(self, place: int, node: Node, keys: tuple[tuple[str, Expression], ...]) -> InputRows:
        is_as_is = takes_as_is(self, place)
        relation, hides = (node.relation, node.hidden) if is_as_is else (changelog_of(node), ())
        if keys:
            relation = with_columns(relation, keys).output(relation)
            hides = (*hides, *(name for name, _ in keys))
        return InputRows(relation, hides, not is_as_is or is_derived(node), only_adds(node))

    @property
    def relation(self) -> Relation:
        return self.stage.output


Node = Read | Apply | Merge | Operate


@dataclass(frozen=True, eq=False)
class Views:
    """Keep several views as one plan."""

    names: tuple[str, ...]
    parts: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.parts


Root = Node | Views


def each_root(root: Root, change: Callable[[Node], Node]) -> Root:
    """Return a tree with the root of every view changed."""
    return replace(root, parts=tuple(map(change, root.parts))) if isinstance(root, Views) else change(root)


def started(root: Node, *, since: int = 0, own: OwnOptions | None = None, others: Mapping[int, Node]) -> Node:
    """Return a query as started at an epoch: stages whose answer depends on arrival differ from those of other epochs."""
    done = dict(others)

    def visit(node: Node) -> Node:
        if id(node) not in done:
            changed = _with_children(node, tuple(map(visit, node.children)))
            if isinstance(changed, Operate):
                came = 0 if changed.stage.follows_from_rows else since
                changed = replace(changed, own=own, since=came) if own is not None or came else changed
            done[id(node)] = changed
        return done[id(node)]

    return visit(root)


def depends_on_arrival(root: Node) -> bool:
    """Return whether an answer does not follow from the rows of its sources alone: it depends on when they came."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Operate) and not node.stage.follows_from_rows:
            return True
        waiting += [child for child in node.children if id(child) not in seen]
        seen.update(map(id, node.children))
    return False


def takes_as_is(node: Operate, place: int) -> bool:
    """Return whether an input of a stage is fed as it comes; upserts may have to become a changelog first."""
    return node.inputs[place].relation.mode != "upsert" or node.request.takes_upserts(place)


def only_adds(node: Node) -> bool:
    """Return whether no row of a node is ever retracted: rows of append-only sources, and of stages that keep that."""
    match node:
        case Read(source):
            return source.relation.mode == "append"
        case Operate(inputs=inputs):
            return node.stage.only_adds([only_adds(one) for one in inputs])
        case _:
            return all(map(only_adds, node.children))


def is_derived(node: Node) -> bool:
    """Return whether rows are the answer of a stage, at least in part; upserts name their rows by key all the same."""
    return node.relation.mode != "upsert" and (isinstance(node, Operate) or any(map(is_derived, node.children)))


def with_columns(relation: Relation, columns: tuple[tuple[str, Expression], ...]) -> SelectStep:
    """Return the step that adds columns behind those of a relation."""
    return SelectStep((*((name, named(name)) for name in relation.schema.names), *columns))


def visible(node: Node) -> tuple[str, ...]:
    """Return the columns that are part of the table."""
    return tuple(name for name in node.relation.schema.names if name not in node.hidden)


def changelog_of(node: Node) -> Relation:
    """Return the rows of a node without hidden columns, as a changelog where they are upserts."""
    return shown_only(as_changelog(node.relation), node.hidden)


def levels_of(node: Node) -> int:
    """Return how many nodes are behind each other; kept with the node, whose children have theirs."""
    kept = vars(node)
    if "levels" not in kept:
        kept["levels"] = 1 + max(map(levels_of, node.children), default=0)
    return int(kept["levels"])


def each_node(root: Root) -> Iterator[Root]:
    """Yield every node of a tree once."""
    seen: set[int] = set()
    waiting: list[Root] = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(node.children)


def sources_of(root: Root) -> tuple[PlanSource, ...]:
    return tuple({id(node.source): node.source for node in each_node(root) if isinstance(node, Read)}.values())


@overload
def rebuilt(root: Node, change: Callable[[Node], Node]) -> Node: ...


@overload
def rebuilt(root: Root, change: Callable[[Node], Node]) -> Root: ...


def rebuilt(root: Root, change: Callable[[Node], Node]) -> Root:
    """Return a tree with every node changed, leaves first; a node that is used twice is changed once."""
    done: dict[int, Node] = {}

    def visit(node: Node) -> Node:
        if id(node) not in done:
            children = tuple(visit(child) for child in node.children)
            done[id(node)] = change(_with_children(node, children))
        return done[id(node)]

    return each_root(root, visit)


def without_order(node: Apply) -> Apply:
    """Return a selection without the columns that its child does not have: what ordered the changes of a key, behind a table.

    >>> import pyarrow as pa
    >>> from zset_join.expressions.rows import named
    >>> given = Read(PlanSource(relation=Relation(name="t", schema=pa.schema({"id": pa.int64()}), mode="changelog")))
    >>> step = SelectStep((("id", named("id")), ("__sequence_0", named("__sequence_0"))))
    >>> without_order(Apply(given, step, ("__sequence_0",))).relation.schema.names
    ['id']
    """
    if not isinstance(node.step, SelectStep):
        return node
    there = {*node.child.relation.schema.names}
    kept = tuple((name, tree) for name, tree in node.step.columns if columns_read(tree) <= there)
    if len(kept) == len(node.step.columns):
        return node
    names = {name for name, _ in kept}
    return Apply(node.child, SelectStep(kept), tuple(name for name in node.hides if name in names))


def _with_children(node: Node, children: tuple[Node, ...]) -> Node:
    if all(one is another for one, another in zip(node.children, children, strict=True)):
        return node
    match node:
        case Apply():
            return replace(node, child=children[0])
        case Merge():
            return Merge(children)
        case Operate():
            return replace(node, inputs=children)
        case _:
            return node


def _described(relation: Relation) -> list[str]:
    return [f"{field.name}: {field.type}" for field in relation.schema]


def drawn(root: Root) -> str:
    """Return a tree as text, for messages of tests and for fixtures: every node once, what it reads below it."""
    lines: list[str] = []
    seen: dict[int, int] = {}

    def draw(node: Node, depth: int) -> None:
        indent = "  " * depth
        if id(node) in seen:
            lines.append(f"{indent}same as line {seen[id(node)]}")
            return
        if not isinstance(node, Read):
            seen[id(node)] = len(lines) + 1
        hidden = f" hides {', '.join(node.hidden)}" if node.hidden else ""
        match node:
            case Read(source):
                lines.append(f"{indent}{source.name}{hidden}")
            case Apply():
                lines.append(f"{indent}{node.step.describe()}{hidden}")
            case Merge():
                lines.append(f"{indent}Union")
            case Operate():
                lines.append(f"{indent}{node.stage.explain(1)[0]}{hidden}")
        for child in node.children:
            draw(child, depth + 1)

    if isinstance(root, Views):
        for name, part in zip(root.names, root.parts, strict=True):
            lines.append(f'View "{name}"')
            draw(part, 1)
    else:
        draw(root, 0)
    return "\n".join(lines)


_Change = Callable[[Expression, int | None], Expression]


@overload
def in_zone(root: Node, zone: str) -> Node: ...


@overload
def in_zone(root: Root, zone: str) -> Root: ...


def in_zone(root: Root, zone: str) -> Root:
    """Return a query whose expressions have the values of a time zone; itself where that is UTC."""
    return root if is_utc(zone) else rebuilt(root, lambda node: node_in_zone(node, zone))


def node_in_zone(node: Node, zone: str) -> Node:
    """Return a node whose expressions have the values of a time zone; see `in_zone`."""
    schemas = [one.relation.schema for one in node.children]
    if isinstance(node, Apply):
        step = _rewritten(node.step, lambda tree, _: expression_in_zone(tree, _sides(schemas * 2), zone))
        return node if step is node.step else replace(node, step=step)
    if not isinstance(node, Operate):
        return node
    outside = node.request.outside
    pair = schemas if outside is None else [*schemas, outside]

    def change(tree: Expression, side: int | None) -> Expression:
        return expression_in_zone(tree, _sides(pair if side is None else [pair[side]] * 2), zone)

    request = _rewritten(node.request, change)
    return node if request is node.request else replace(node, request=request)


def _sides(schemas: list[pa.Schema]) -> dict[str, pa.Schema]:
    return {"row": schemas[0], "left": schemas[0], "right": schemas[-1]}


def _rewritten(value: Any, change: _Change, side: int | None = None) -> Any:
    """Return a value with every expression in it replaced; itself where there is none."""
    if isinstance(value, Expression):
        return change(value, side)
    if isinstance(value, tuple) and type(value) is tuple:
        parts = tuple(_rewritten(one, change, place) for place, one in enumerate(value))
        return value if all(one is other for one, other in zip(parts, value, strict=True)) else parts
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts_of = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
    changed = {name: _rewritten(part, change) for name, part in parts_of.items()}
    changed = {name: part for name, part in changed.items() if part is not parts_of[name]}
    return replace(value, **changed) if changed else value
