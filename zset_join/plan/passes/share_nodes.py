"""What is needed several times is one node: tables of keyed sources, current versions, and the common parts of several views.

    latest(where a > 1 (t)), latest(where a > 2 (t))      ->  where a > 1 (latest(t)), where a > 2 (latest(t))

`store_once`. The law: every reader is given the same changes. What all readers begin with stays below the table, a condition
part by part, so the table holds no row that no reader needs. A join keeps its side by its own key and is fed upserts; it is no
reader of the table, though in memory both may hold the same rows once (`zset_join.state.rows.side`).

`share_equal`. Nodes are equal where what they do is written alike and they are over the same nodes; names of relations are only
in messages and do not count. What cannot be compared is never equal: a step only Spark can do, lookups through another object.
A query of one view is left as it was written: its checkpoints have its stages one by one.

`share_tables`: which joins look up in one copy of a table: index-based lookup.

    orders.temporal_join(rates, on="currency", ...)  and  refunds.temporal_join(rates, on="currency", ...)

A table that joins by event time, or by processing time, look up in is kept once per bucket key, whatever number of them there
is. The law: sharing is invisible but for memory and time; every join answers in every epoch as it would alone.

Two joins share where what they keep of the right side is the same, row for row and at every moment: the same rows, found by
the same columns in the same types, and, for versions, freed at the same watermark. Else the second one keeps a copy, and
`explain()` gives the reason. A join between the two does not matter: in a chain, all are answered before the epoch is folded
in. Nor do other names of the columns: a table under two aliases of a SQL statement is one table.

Inside Spark the same pass runs over the plan of the query, where a stream that has a second name is one source.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import takewhile
from typing import Any

from zset_join.expressions import Expression
from zset_join.expressions.rows import conjuncts, plain_column
from zset_join.expressions.tree import Call
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan, SharedIndex, StageNode
from zset_join.plan.row_steps import SelectStep, WhereStep, relation_after
from zset_join.plan.tree import Apply, Merge, Node, Operate, Read, Root, Views, each_node, rebuilt
from zset_join.stages.effect import EffectStage
from zset_join.stages.latest import LatestRequest
from zset_join.stages.shared_table import MOST_READERS
from zset_join.stages.written import own_text, text_of

__all__ = ["prepared_alike", "share_equal", "share_tables", "share_versions", "source_of", "store_once", "without_renaming"]


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


_PREPARING = frozenset({"current_versions", "latest", "route"})
"""Stages of one input whose answer follows from it alone; inside Spark every join has its own."""


def share_tables(plan: QueryPlan, same: Mapping[str, str] | None = None) -> QueryPlan:
    """Return a plan whose joins share what they can."""
    given, plan = plan, plan if not same else _under_one_name(plan, same)
    groups: list[_Readers] = []
    copies: list[tuple[int, str]] = []
    for node in plan.nodes:
        kept = _Kept.of(plan, node)
        if kept is None:
            continue
        beside = [group for group in groups if group.kept.rows == kept.rows]
        reasons = [(group, group.why_not(kept)) for group in beside]
        fitting = next((group for group, why in reasons if why is None), None)
        if fitting is None:
            groups.append(_Readers(kept, [node.number]))
            copies += [(node.number, f"{why}, unlike stage {group.numbers[0]}") for group, why in reasons[:1]]
        else:
            fitting.take(kept, node.number)
    shared = [group.index() for group in groups if len(group.numbers) > 1]
    return replace(given, shared=tuple(shared), copies=tuple(copies))


def _under_one_name(plan: QueryPlan, same: Mapping[str, str]) -> QueryPlan:
    """Return a plan in which a source that is another one is read under the name of that."""

    def read(feeds: Sequence[Feed]) -> tuple[Feed, ...]:
        return tuple(replace(one, origin=same.get(str(one.origin), one.origin)) for one in feeds)

    nodes = tuple(replace(node, feeds=tuple(map(read, node.feeds))) for node in plan.nodes)
    return replace(plan, nodes=nodes, views=tuple(replace(view, feeds=read(view.feeds)) for view in plan.views))


def prepared_alike(plan: QueryPlan) -> tuple[tuple[int, ...], ...]:
    """Return the stages that prepare the same rows for joins that share a table, by their numbers."""
    alike = []
    for index in plan.shared:
        before = [list(_preparing(plan, plan.nodes[number].feeds[1])) for number in index.readers]
        alike += [tuple(dict.fromkeys(numbers)) for numbers in zip(*before, strict=True)]
    return tuple(numbers for numbers in alike if len(numbers) > 1)


def _preparing(plan: QueryPlan, feeds: Sequence[Feed]) -> Iterator[int]:
    """Yield the stages that prepare rows, those nearest to the sources first."""
    for feed in feeds:
        if isinstance(feed.origin, int) and plan.nodes[feed.origin].stage.kind in _PREPARING:
            for before in plan.nodes[feed.origin].feeds:
                yield from _preparing(plan, before)
            yield feed.origin


def source_of(plan: QueryPlan, feeds: Sequence[Feed]) -> str | None:
    """Return the source of all rows of an input, perhaps through stages that only prepare them; None: a stage makes them."""
    if len(feeds) != 1 or isinstance(feeds[0].origin, str):
        return str(feeds[0].origin) if len(feeds) == 1 else None
    node = plan.nodes[feeds[0].origin]
    return source_of(plan, node.feeds[0]) if node.stage.kind in _PREPARING else None


@dataclass(frozen=True)
class _Kept:
    """State that a join keeps for its right side."""

    rows: str  # where they come from
    table: str
    index: str | None
    columns: tuple[str, ...]
    names: tuple[str, ...]  # of the columns, here
    is_using: bool
    facts: dict[str, Any] = field(default_factory=dict)  # what else must be the same, with the message where it is not

    @classmethod
    def of(cls, plan: QueryPlan, node: StageNode) -> _Kept | None:
        """Return the use of a table by a stage; None if it reads no table that may be shared."""
        if node.stage.table_use({}) is None:
            return None
        stage, right = node.stage, node.stage.inputs[1]
        fed, origins = without_renaming(plan, node.feeds[1])
        use = stage.table_use(origins)
        if use is None:
            return None
        key = tuple(origins.get(name, name) for name in right.key)
        facts: dict[str, Any] = {
            "it keeps latest rows, or versions": stage.kind,
            "it began at another epoch": node.since,
            "it has other options of its own": None if node.own is None else node.own.to_json(),
            "it finds rows by other columns": key,
            "it compares keys in other types": [str(kind) for kind in right.key_types],
            "it compares keys with <=> where the other does not, or the reverse": right.null_safe,
            "it identifies its rows by other columns": [origins.get(name, name) for name in right.relation.primary_key],
        }
        if use.by_event_time:
            facts["it waits for the watermarks of other sources"] = sorted(plan.timed_sources(node.number))
        else:
            facts["it has current versions of its own"] = _text(plan, fed)
        return cls(
            rows=_text(plan, _versions_of(plan, fed)),
            table=right.relation.name,
            index=use.index,
            columns=key,
            names=tuple(right.relation.schema.names),
            is_using=use.is_using,
            facts={**facts, **use.facts},
        )


def _text(plan: QueryPlan, feeds: Sequence[Feed]) -> str:
    return json.dumps([_written(plan, feed) for feed in feeds], sort_keys=True)


def _written(plan: QueryPlan, feed: Feed) -> Any:
    """Return where rows come from; stages that only prepare the rows of one input are the same where their input is."""
    steps = [step.to_json() for step in feed.steps]
    if isinstance(feed.origin, int):
        node = plan.nodes[feed.origin]
        if node.stage.kind in _PREPARING:
            stage = node.stage.to_json()
            stage["source"] = {**stage["source"], "name": ""}  # it is called otherwise for every join
            return [stage, [[_written(plan, one) for one in feeds] for feeds in node.feeds], steps]
    return [feed.origin, steps]


def without_renaming(plan: QueryPlan, feeds: Sequence[Feed]) -> tuple[Sequence[Feed], Mapping[str, str]]:
    """Return feeds without what only gives all columns other names, and what every column is called before that."""
    if len(feeds) != 1:
        return feeds, {}
    (feed,) = feeds
    steps, origins = list(feed.steps), {name: name for name in plan.relation_after(feed).schema.names}
    while steps and (columns := steps[-1].columns) is not None:
        before = relation_after(plan.relation_of(feed.origin), tuple(steps[:-1])).schema.names
        if [plain_column(expression) for _, expression in columns] != before:
            break
        below = {name: original for (name, _), original in zip(columns, before, strict=True)}
        origins = {name: below[original] for name, original in origins.items()}
        steps.pop()
    return [replace(feed, steps=tuple(steps))], origins


def _versions_of(plan: QueryPlan, feeds: Sequence[Feed]) -> Sequence[Feed]:
    """Return the rows from which rows are derived: of current versions the versions."""
    origin = feeds[0].origin if len(feeds) == 1 and not feeds[0].steps else None
    current = [node for node in plan.nodes if node.number == origin and node.stage.picks_current]
    return current[0].feeds[0] if current else feeds


@dataclass
class _Readers:
    """Joins that share a table, so far."""

    kept: _Kept
    numbers: list[int]

    def why_not(self, kept: _Kept) -> str | None:
        """Return why another join cannot look up in this table; None where it can."""
        for why, value in self.kept.facts.items():
            if kept.facts.get(why) != value:
                return why
        if kept.is_using and kept.names != self.kept.names:
            return "it puts the columns of its key once, and calls them otherwise"
        if self.kept.index is not None and kept.index is not None and kept.index != self.kept.index:
            return f"it looks up in index {kept.index}"
        return f"a table serves {MOST_READERS} joins" if len(self.numbers) == MOST_READERS else None

    def take(self, kept: _Kept, number: int) -> None:
        self.numbers.append(number)
        if self.kept.index is None and kept.index is not None:
            self.kept = replace(self.kept, index=kept.index)

    def index(self) -> SharedIndex:
        """Return the index; one that was not declared is called by its table and columns."""
        columns: Sequence[str] = self.kept.columns
        name = self.kept.index or f"{self.kept.table}_by_{'_'.join(columns)}"
        return SharedIndex(name, tuple(columns), tuple(self.numbers))
