"""From a query as it was written to its plan: an ordered tuple of small passes, done once per query.

The law of every pass: the same rows. None depends on the place where the plan will run.

Stages and views are given the inputs that they can work with. An upsert names the key of a row and does not contain the old
row. A join keeps a table by primary key itself; an aggregate, a union, a selection without the key, and the view do not. Before
these goes a stage `latest`, once per source. A stage compares columns: `on=lower(a.name) == b.name` gives the rows of `a` one
column more, which no answer shows. A row of weight -1 that is not there is bad input. A join or a group finds it; a view of
filters, projections and unions would show -1 copies, so the rows of an input in changelog mode are counted there.

Left out are stages and steps that change nothing, and the columns of external tables that the query does not read. Of a lookup
the key columns and those of ON stay.

Known limits: columns without equality, such as maps, cannot be counted; such an input is passed on as it comes. A lookup join
whose rows go two ways, or past anything else than conditions to the first selection, is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import get_args

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.frames import own_frames
from zset_join.core.options import KeepState
from zset_join.expressions.rows import plain_column
from zset_join.plan.passes.prune_columns import prune_columns
from zset_join.plan.passes.share_nodes import share_equal, share_tables, share_versions, store_once
from zset_join.plan.passes.sum_pairs import sum_pairs
from zset_join.plan.query_plan import Feed, PlanSource, PlanView, QueryPlan, StageNode
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import (
    Apply,
    Merge,
    Node,
    Operate,
    Read,
    Root,
    Views,
    each_node,
    each_root,
    is_derived,
    rebuilt,
    takes_as_is,
    with_columns,
)
from zset_join.shapes.aggregate import check_grouping
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.latest import LatestRequest
from zset_join.stages.request import StageRequest
from zset_join.stages.unchanged import UnchangedRequest

__all__ = [
    "choose_fast_paths",
    "count_rows",
    "derive_keys",
    "fuse_steps",
    "normalise_upserts",
    "number_stages",
    "passes",
    "plan_query",
    "push_columns",
]


def normalise_upserts(root: Root) -> Root:
    """Return a tree whose every node can be fed as its children come."""
    latest: dict[int, tuple[Node, Operate]] = {}

    def normalised(node: Node) -> Node:
        if node.relation.mode != "upsert":
            return node
        if id(node) not in latest:
            latest[id(node)] = node, Operate(LatestRequest(), (node,))
        return latest[id(node)][1]

    def change(node: Node) -> Node:
        match node:
            case Apply() if not node.takes_upserts:
                return Apply(normalised(node.child), node.step, node.hides)
            case Merge():
                return Merge(tuple(map(normalised, node.parts)))
            case Operate():
                inputs = [child if takes_as_is(node, place) else normalised(child) for place, child in enumerate(node.inputs)]
                return replace(node, inputs=tuple(inputs))
            case _:
                return node

    return each_root(rebuilt(root, change), normalised)


def derive_keys(root: Root) -> Root:
    """Return a tree whose stages name columns only."""

    def change(node: Node) -> Node:
        if not isinstance(node, Operate) or not any(node.computed_keys):
            return node
        inputs = [
            Apply(child, with_columns(child.relation, keys), tuple(name for name, _ in keys)) if keys else child
            for child, keys in zip(node.inputs, node.computed_keys, strict=True)
        ]
        return replace(node, request=node.request.with_keys_computed(), inputs=tuple(inputs))

    return rebuilt(root, change)


def count_rows(root: Root) -> Root:
    """Return a tree whose views read inputs that can retract through a stage that counts their rows, once per input."""
    counted: dict[int, Node] = {}

    def change(node: Node) -> Node:
        match node:
            case Read() if _can_be_counted(node):
                return counted.setdefault(id(node.source), Operate(UnchangedRequest(counts=True), (node,)))
            case Apply():
                return replace(node, child=change(node.child))
            case Merge():
                return Merge(tuple(map(change, node.parts)))
            case _:
                return node

    return each_root(root, change)


def _can_be_counted(node: Read) -> bool:
    relation = node.relation
    if relation.mode != "changelog":
        return False
    try:
        check_grouping(relation, relation.schema.names, ())
    except PlanError:
        return False
    return True


def push_columns(root: Root) -> Root:
    """Return a tree whose lookup joins request what is read."""
    nodes = list(each_node(root))
    parents = Counter(id(child) for node in nodes for child in node.children)
    pruned: dict[int, StageRequest] = {}
    for node in nodes:
        read = node.step.needs if isinstance(node, Apply) else None
        if not isinstance(node, Apply) or read is None:
            continue
        below: Node = node.child
        while isinstance(below, Apply) and parents[id(below)] == 1:
            filtered = below.step.filters_by
            if filtered is None:
                break
            read, below = read | filtered, below.child
        if isinstance(below, Operate) and parents[id(below)] == 1:
            fewer = below.request.reading(below.stage, read)
            if fewer is not below.request:
                pruned[id(below.request)] = fewer

    def change(node: Node) -> Node:
        is_pruned = isinstance(node, Operate) and id(node.request) in pruned
        return replace(node, request=pruned[id(node.request)]) if is_pruned else node  # type: ignore[union-attr,arg-type]

    return rebuilt(root, change) if pruned else root


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


def choose_fast_paths(root: Root) -> Root:
    """Return a tree without stages that do nothing."""

    def change(node: Node) -> Node:
        if isinstance(node, Operate) and isinstance(node.request, AggregateRequest) and not node.request.calls:
            (child,) = node.inputs
            is_whole = tuple(child.relation.schema.names) == node.request.group_by
            if is_whole and child.relation.primary_key and is_derived(child):
                return child
        return node

    return rebuilt(root, change)


def passes(keep_state: KeepState = "all") -> tuple[Callable[[Root], Root], ...]:
    """Return the passes over a tree, in order, before its stages are numbered."""
    summing, pruning = ((sum_pairs,), (prune_columns,)) if keep_state == "needed" else ((), ())
    return (
        *summing,
        share_versions,
        normalise_upserts,
        store_once,
        count_rows,
        derive_keys,
        choose_fast_paths,
        fuse_steps,
        share_equal,
        *pruning,
        push_columns,
    )


def plan_query(
    root: Root,
    *,
    name: str = "view",
    same: Mapping[str, str] | None = None,
    keep_state: KeepState = "all",
) -> QueryPlan:
    if keep_state not in get_args(KeepState):
        raise OptionError(
            f'keep_state={keep_state!r} is not one of {list(get_args(KeepState))}; "needed" leaves out the columns of '
            'sources that nothing reads, "all" keeps them.',
            code="OPTION_VALUE",
            value=keep_state,
        )
    with own_frames():
        for run in passes(keep_state):
            root = run(root)
        return replace(share_tables(number_stages(root, name), same), keep_state=keep_state)


def number_stages(root: Root, name: str) -> QueryPlan:
    sources: dict[int, PlanSource] = {}
    nodes: list[StageNode] = []
    numbers: dict[int, int] = {}

    def feeds(node: Node) -> tuple[Feed, ...]:
        match node:
            case Read(source):
                sources[id(source)] = source
                return (Feed(source.name),)
            case Apply(child, step):
                return tuple(replace(feed, steps=(*feed.steps, step)) for feed in feeds(child))
            case Merge(parts):
                return tuple(feed for part in parts for feed in feeds(part))
            case Operate():
                return (Feed(placed(node)),)

    def placed(node: Operate) -> int:
        if id(node) not in numbers:
            fed = tuple(map(feeds, node.inputs))
            numbers[id(node)] = len(nodes)
            nodes.append(StageNode(len(nodes), node.stage, fed, node.own, node.since))
        return numbers[id(node)]

    named = zip(root.names, root.parts, strict=True) if isinstance(root, Views) else ((name, root),)
    views = tuple(PlanView(one, feeds(part)) for one, part in named)
    return QueryPlan(tuple(sources.values()), tuple(nodes), views)
