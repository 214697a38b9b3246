"""From a query as it was written to its plan: an ordered tuple of small passes, done once per query.

`do_less`: leave out stages and steps that change nothing, and the columns of external tables that the query does not read.

The law of all three: the same rows. Of a lookup the key columns and those of ON stay. A lookup join whose rows go two ways, or
past anything else than conditions to the first selection, is left as it is.

`prepare_inputs`: give stages and views the inputs that they can work with.

An upsert names the key of a row and does not contain the old row. A join keeps a table by primary key itself; an aggregate,
a union, a selection without the key, and the view do not. Before these goes a stage `latest`, once per source.

A stage compares columns. `on=lower(a.name) == b.name` gives the rows of `a` one column more, which no answer shows.

A row of weight -1 that is not there is bad input. A join or a group finds it; a view of filters, projections and unions would
show -1 copies, so the rows of an input in changelog mode are counted there. Known limit: columns without equality, such as
maps, cannot be counted; such an input is passed on as it comes.

In several buckets a stage finds the old row of a key only if it lies where the new one goes. Upserts are bucketed by what the
stage compares; where that is not part of their primary key, a table by primary key goes before it (`insert_routes`). On
executors the output and a union with answers of stages take what tasks of stages emit, so sources are passed on by a stage
there (`pass_on_sources`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import get_args

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.frames import own_frames
from zset_join.core.options import KeepState
from zset_join.expressions.rows import named, plain_column
from zset_join.plan.passes.prune_columns import prune_columns
from zset_join.plan.passes.share_nodes import share_equal, share_tables, share_versions, store_once
from zset_join.plan.passes.sum_pairs import sum_pairs
from zset_join.plan.query_plan import Feed, PlanSource, PlanView, QueryPlan, StageNode
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import (
    Apply,
    Forward,
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
    visible,
    with_columns,
)
from zset_join.shapes.aggregate import check_grouping
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.latest import LatestRequest
from zset_join.stages.request import StageRequest
from zset_join.stages.unchanged import RouteRequest, UnchangedRequest

__all__ = [
    "choose_fast_paths",
    "count_rows",
    "derive_keys",
    "fuse_steps",
    "insert_routes",
    "normalise_upserts",
    "number_stages",
    "pass_on_sources",
    "passes",
    "plan_query",
    "push_columns",
    "reduce_first",
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


def pass_on_sources(root: Root) -> Root:
    """Return a tree whose output and mixed unions are fed by stages alone, and whose output has no hidden column."""

    def change(node: Node) -> Node:
        if isinstance(node, Merge) and len({_is_of_source(part) for part in node.parts}) > 1:
            return Merge(tuple(_passed_on(part) for part in node.parts))
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


def insert_routes(root: Root, *, buckets: int | None) -> Root:
    """Return a tree whose stages are given every change in the bucket of the row it replaces."""
    if buckets == 1:
        return root

    def change(node: Node) -> Node:
        if not isinstance(node, Operate) or isinstance(node, Forward):
            return node
        inputs = list(node.inputs)
        for place, (child, wanted) in enumerate(zip(node.inputs, node.stage.inputs, strict=True)):
            relation = child.relation
            if relation.mode == "upsert" and not set(wanted.key) <= set(relation.primary_key):
                inputs[place] = Forward(RouteRequest(wanted.key), (child,))
        return node if inputs == list(node.inputs) else replace(node, inputs=tuple(inputs))

    return rebuilt(root, change)


def reduce_first(root: Root) -> Root:
    """Return a tree whose groups over answers of stages are fed sums where that is the same."""

    def change(node: Node) -> Node:
        if isinstance(node, Operate) and isinstance(node.request, AggregateRequest) and is_derived(node.inputs[0]):
            return replace(node, request=replace(node.request, reduces=True))
        return node

    return rebuilt(root, change)


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


def passes(
    *, buckets: int | None = 1, is_spread: bool = False, keep_state: KeepState = "all"
) -> tuple[Callable[[Root], Root], ...]:
    """Return the passes over a tree, in order, before its stages are numbered."""
    summing, pruning = ((sum_pairs,), (prune_columns,)) if keep_state == "needed" else ((), ())
    spread = (pass_on_sources, reduce_first) if is_spread else ()
    return (
        *summing,
        share_versions,
        normalise_upserts,
        store_once,
        count_rows,
        derive_keys,
        partial(insert_routes, buckets=buckets),
        choose_fast_paths,
        fuse_steps,
        share_equal,
        *pruning,
        push_columns,
        *spread,
    )


def plan_query(
    root: Root,
    *,
    name: str = "view",
    buckets: int | None = 1,
    is_spread: bool = False,
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
        for run in passes(buckets=buckets, is_spread=is_spread, keep_state=keep_state):
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
