"""The plan of a query: its sources, its stages in the order of an epoch, and what feeds what.

    sources  ->  feeds with row steps  ->  stages  ->  feeds with row steps  ->  views

The law: both runners run the same plan, and all tools (`explain`, `verify`, rescaling, state as SQL) read it. It is frozen,
is independent of Spark, and is written as JSON with a format version; one of another format is refused. A plan of one view is
written as it was before plans had several.

A *feed* is one origin, a source or a stage, with the row steps behind it. Several feeds of one input are a union. A stage reads
only sources and stages before it.

Whether a feed passes on every row once: the change of a view need not be consolidated then.

The law: where this returns True, what the feed passes on is consolidated, whatever came. It is proven from
keys: an answer whose rows differ (`Stage.answers_distinct_rows`), and steps of which no two rows make one. A condition leaves
rows out and makes none alike. A selection makes two rows alike only where it drops what distinguishes them; so every column of
the answer must be passed through, or one that always has its value (`OutputKey.aliases`, where neither is NULL for padding).

That a selection keeps a key is not enough: of an update of what it drops, the row that goes and the one that arrives are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.options import KeepState
from zset_join.core.relation import Relation
from zset_join.core.shown_values import counted, html_text
from zset_join.plan.columns_kept import explained_pairs, explained_unread, unread_of_sources
from zset_join.plan.picture import plan_svg
from zset_join.plan.row_steps import RowStep, name_after, read_row_step, relation_after
from zset_join.stages.effect import OwnOptions
from zset_join.stages.shared_table import SharedTableStage
from zset_join.stages.stage import Stage, StageOptions, read_stage
from zset_join.stages.written import read_fields, read_relation, write_fields, write_relation
from zset_join.zset import ZSet

__all__ = [
    "PLAN_FORMAT",
    "Feed",
    "PlanSource",
    "PlanView",
    "QueryPlan",
    "SharedIndex",
    "StageNode",
    "StateNode",
    "emits_distinct_rows",
    "one_view",
]

PLAN_FORMAT = 4
"""A plan of another format is not read."""


@dataclass(frozen=True, kw_only=True)
class PlanSource:
    """Describe where changes enter the plan."""

    relation: Relation
    hidden: tuple[str, ...] = ()  # columns that only order its changes
    has_baseline: bool = False  # loaded in epoch 0
    max_watermark_jump: int | None = None  # in the unit of the delay; not written down, as another run may have another one

    @property
    def name(self) -> str:
        return self.relation.name

    @property
    def visible(self) -> tuple[str, ...]:
        """Return the columns that are part of the table."""
        return tuple(name for name in self.relation.schema.names if name not in self.hidden)

    def to_json(self) -> dict[str, Any]:
        return {"relation": write_relation(self.relation), "hidden": list(self.hidden), "has_baseline": self.has_baseline}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> PlanSource:
        return cls(
            relation=read_relation(written["relation"]),
            hidden=tuple(written["hidden"]),
            has_baseline=written["has_baseline"],
        )


@dataclass(frozen=True)
class Feed:
    """Hold where rows come from."""

    origin: str | int  # the name of a source, or the number of a stage
    steps: tuple[RowStep, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"origin": self.origin, "steps": [step.to_json() for step in self.steps]}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Feed:
        return cls(written["origin"], tuple(map(read_row_step, written["steps"])))


@dataclass(frozen=True)
class StageNode:
    number: int  # the order of an epoch
    stage: Stage
    feeds: tuple[tuple[Feed, ...], ...]  # per input
    own: OwnOptions | None = None
    since: int = 0  # the epoch at which it came, where its answer depends on that

    @property
    def name(self) -> str:
        """Return the name of its state, its notes and its lines in commit records."""
        return f"{self.stage.kind}-{self.number}"


@dataclass(frozen=True)
class PlanView:
    name: str
    feeds: tuple[Feed, ...]  # several are a union


@dataclass(frozen=True)
class SharedIndex:
    """Name the joins that look up in one copy of a table; see `zset_join.plan.passes.share_nodes`."""

    name: str
    columns: tuple[str, ...]  # of the table, by which its rows are found
    readers: tuple[int, ...]  # numbers of the joins


@dataclass(frozen=True)
class StateNode:
    """Unit with one state, one log and one snapshot: a stage, or a table with the joins that look up in it."""

    number: int  # of the stage, or of the first of the joins
    name: str  # of its files, and of its lines in commit records
    stage: Stage
    readers: tuple[int, ...]
    own: OwnOptions | None = None

    def options(self, given: StageOptions) -> StageOptions:
        return given if self.own is None else self.own.over(given)

    @property
    def is_shared(self) -> bool:
        """Return whether several joins read it."""
        return len(self.readers) > 1

    def fed(self, by_stage: Mapping[int, Sequence[ZSet]]) -> list[ZSet]:
        """Return the deltas of its operator, given those of the stages that ran, one or more."""
        if not self.is_shared:
            return list(by_stage[self.number])
        table = next(by_stage[number][1] for number in self.readers if number in by_stage)
        lefts = [
            by_stage[number][0] if number in by_stage else ZSet.empty(wanted.relation.schema)
            for number, wanted in zip(self.readers, self.stage.inputs[1:], strict=True)
        ]
        return [table.with_schema(self.stage.inputs[0].relation.schema), *lefts]


@dataclass(frozen=True, repr=False)
class QueryPlan:
    """Describe a query.

    Args:
        sources: where changes enter the plan.
        nodes: the stages, in the order of an epoch.
        views: the answers, one or more.
        shared: the tables that several joins look up in.
        copies: why a join keeps a copy of its own of a table that another one keeps too, by its number.
        state_names: what states are called that have been in a plan before this one, by their numbers; the others are called by
            their kind and number.
        keep_state: which columns it was planned to keep, and another query in its place keeps; "needed" though it reads all.

    Raises:
        OptionError: sources, or views, of one name.
        PlanError: a feed from what does not come before.
    """

    sources: tuple[PlanSource, ...]
    nodes: tuple[StageNode, ...]
    views: tuple[PlanView, ...]
    shared: tuple[SharedIndex, ...] = ()
    copies: tuple[tuple[int, str], ...] = ()
    state_names: tuple[tuple[int, str], ...] = ()
    keep_state: KeepState = "all"

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        for what, called in (("sources", names), ("views", [view.name for view in self.views])):
            if len(set(called)) < len(called):
                taken = sorted({name for name in called if called.count(name) > 1})
                raise OptionError(
                    f"several {what} are called {taken}; give each its own name.",
                    code="SAME_NAME",
                    names=called,
                )
        for place, node in enumerate(self.nodes):
            if node.number != place or len(node.feeds) != len(node.stage.inputs):
                raise PlanError(
                    f"stage {node.name} of {len(node.stage.inputs)} inputs is at place {place} with {len(node.feeds)} fed.",
                    code="PLAN_ORDER",
                )
            self._check_feeds([feed for feeds in node.feeds for feed in feeds], place, names)
        for view in self.views:
            self._check_feeds(view.feeds, len(self.nodes), names)

    @staticmethod
    def _check_feeds(feeds: Any, place: int, names: list[str]) -> None:
        for feed in feeds:
            if feed.origin not in names and not (isinstance(feed.origin, int) and 0 <= feed.origin < place):
                raise PlanError(
                    f"a feed comes from {feed.origin!r}, which is neither a source ({names}) nor a stage before it.",
                    code="PLAN_ORDER",
                    origin=feed.origin,
                )

    def view(self, name: str | None = None) -> PlanView:
        """Return a view by its name; None: the only one.

        Raises:
            OptionError: `VIEW_NAME`: there is none of that name, or there are several and none is named.
        """
        for view in self.views:
            if view.name == name or (name is None and len(self.views) == 1):
                return view
        wrong = "has several views, and none was named" if name is None else f"has no view {name!r}"
        raise OptionError(
            f"the plan {wrong}; its views are {[view.name for view in self.views]}. Name one of them.",
            code="VIEW_NAME",
            name=name,
            names=[view.name for view in self.views],
        )

    @property
    def outputs(self) -> tuple[Feed, ...]:
        """Return the output of the only view.

        Raises:
            OptionError: `VIEW_NAME`: there are several.
        """
        return self.view().feeds

    @property
    def name(self) -> str:
        """Return the name of the only view.

        Raises:
            OptionError: `VIEW_NAME`: there are several.
        """
        return self.view().name

    @property
    def output(self) -> Relation:
        """Return the rows of the only view.

        Raises:
            OptionError: `VIEW_NAME`: there are several.
        """
        return self.output_of(self.view().name)

    def output_of(self, name: str) -> Relation:
        """Return the rows of a view; of a union, a column may be NULL that may be so in one of its parts.

        Raises:
            OptionError: `VIEW_NAME`: there is none of that name.
        """
        view = self.view(name)
        return self._rows_of_views[view.name]

    @cached_property
    def _rows_of_views(self) -> Mapping[str, Relation]:
        return {view.name: self._rows_of(view) for view in self.views}

    def _rows_of(self, view: PlanView) -> Relation:
        first, *others = map(self.relation_after, view.feeds)
        if not others:
            return first
        relations = [first, *others]
        fields = [
            field.with_nullable(any(one.schema.field(at).nullable for one in relations))
            for at, field in enumerate(first.schema)
        ]
        return Relation(
            name="_and_".join(dict.fromkeys(one.name for one in relations)),
            schema=pa.schema(fields),
            mode="append" if {one.mode for one in relations} == {"append"} else "changelog",
        )

    @cached_property
    def states(self) -> tuple[StateNode, ...]:
        """Return the states, by the number of their first stage."""
        shared = {index.readers[0]: index for index in self.shared}
        taken = {number for index in self.shared for number in index.readers[1:]}
        names = dict(self.state_names)
        states = []
        for node in self.nodes:
            index = shared.get(node.number)
            if index is not None:
                stage: Stage = SharedTableStage(readers=tuple(self.nodes[number].stage for number in index.readers))
                name = names.get(node.number, f"{stage.kind}-{node.number}")
                states.append(StateNode(node.number, name, stage, index.readers, node.own))
            elif node.number not in taken:
                states.append(StateNode(node.number, names.get(node.number, node.name), node.stage, (node.number,), node.own))
        return tuple(states)

    @cached_property
    def state_of(self) -> Mapping[int, StateNode]:
        """Return where a stage keeps its state, by its number."""
        return {number: state for state in self.states for number in state.readers}

    def source(self, name: str) -> PlanSource:
        """Return a source by its name.

        Raises:
            PlanError: there is none of that name.
        """
        for source in self.sources:
            if source.name == name:
                return source
        raise PlanError(
            f'the plan has no source "{name}"; its sources are {[source.name for source in self.sources]}.',
            code="UNKNOWN_SOURCE",
            name=name,
        )

    def relation_of(self, origin: str | int) -> Relation:
        """Return the rows of a source or a stage."""
        return self.source(origin).relation if isinstance(origin, str) else self.nodes[origin].stage.output

    def relation_after(self, feed: Feed) -> Relation:
        """Return the rows that a feed passes on."""
        return relation_after(self.relation_of(feed.origin), feed.steps)

    def feeds(self) -> Iterator[Feed]:
        """Yield all feeds, those of the views last."""
        for node in self.nodes:
            for feeds in node.feeds:
                yield from feeds
        for view in self.views:
            yield from view.feeds

    def timed_sources(self, number: int) -> tuple[str, ...]:
        """Return the sources whose watermarks a stage waits for: those whose event time reaches one of its inputs."""
        return tuple(self._timed_sources[number])

    @cached_property
    def _timed_sources(self) -> list[dict[str, None]]:
        reached: list[dict[str, None]] = []
        for node in self.nodes:
            names: dict[str, None] = {}
            for feeds in node.feeds:
                for feed in feeds:
                    if self.relation_after(feed).watermark_delay is None:
                        continue
                    names |= {feed.origin: None} if isinstance(feed.origin, str) else reached[feed.origin]
            reached.append(names)
        return reached

    def views_of(self, number: int) -> tuple[str, ...]:
        """Return the views that a stage serves, in the order of the plan."""
        return tuple(view.name for view in self.views if number in self.stages_of(view.name))

    def stages_of(self, name: str) -> tuple[int, ...]:
        """Return the stages that a view is made of, by their numbers, in the order of an epoch."""
        return self._stages_of_views[name]

    @cached_property
    def _stages_of_views(self) -> Mapping[str, tuple[int, ...]]:
        return {view.name: tuple(sorted(self._below(view.feeds))) for view in self.views}

    def _below(self, feeds: Sequence[Feed]) -> set[int]:
        found: set[int] = set()
        waiting = [feed.origin for feed in feeds if isinstance(feed.origin, int)]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                fed = [feed for feeds in self.nodes[number].feeds for feed in feeds]
                waiting += [feed.origin for feed in fed if isinstance(feed.origin, int)]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return everything about the plan, JSON-ready."""
        return {
            "format": PLAN_FORMAT,
            "views": [{"name": view.name, "outputs": [feed.to_json() for feed in view.feeds]} for view in self.views],
            "sources": [source.to_json() for source in self.sources],
            "nodes": [
                {
                    "stage": node.stage.to_json(),
                    "feeds": [[feed.to_json() for feed in feeds] for feeds in node.feeds],
                    **({} if node.own is None else {"own": node.own.to_json()}),
                    **({"since": node.since} if node.since else {}),
                }
                for node in self.nodes
            ],
            "shared": [write_fields(index) for index in self.shared],
            "copies": [list(one) for one in self.copies],
            "state_names": [list(one) for one in self.state_names],
            "keep_state": self.keep_state,
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> QueryPlan:
        """Build from the result of `to_json`.

        Raises:
            PlanError: it is of another format, or holds something newer than this version.
        """
        if written.get("format") != PLAN_FORMAT:
            raise PlanError(
                f"the plan is of format {written.get('format')!r}, and this version reads format {PLAN_FORMAT} only. Plan the "
                "query again; where a checkpoint has it, remove the checkpoint and start the query again.",
                code="PLAN_FORMAT",
                format=written.get("format"),
                expected=PLAN_FORMAT,
            )
        nodes = [
            StageNode(
                number,
                read_stage(node["stage"]),
                tuple(tuple(map(Feed.from_json, feeds)) for feeds in node["feeds"]),
                OwnOptions.from_json(node["own"]) if "own" in node else None,
                node.get("since", 0),
            )
            for number, node in enumerate(written["nodes"])
        ]
        return cls(
            sources=tuple(map(PlanSource.from_json, written["sources"])),
            nodes=tuple(nodes),
            views=tuple(PlanView(view["name"], tuple(map(Feed.from_json, view["outputs"]))) for view in written["views"]),
            shared=tuple(read_fields(SharedIndex, index) for index in written["shared"]),
            copies=tuple((int(number), why) for number, why in written["copies"]),
            state_names=tuple((int(number), name) for number, name in written["state_names"]),
            keep_state=written["keep_state"],
        )

    def explain(self, *, buckets: int | None = None) -> str:
        """Return the plan as text: stages in the order of an epoch, each with what it reads and must remember.

        Args:
            buckets: how many parts the state has; None when not yet known.
        """
        lines = []
        is_all = self.keep_state == "all"
        unread, not_kept = (explained_unread(self), {}) if is_all else ({}, unread_of_sources(self))
        for view in self.views:
            lines.append(f'View "{view.name}": {", ".join(self.output_of(view.name).schema.names)}')
            lines += [f"  {line}" for feed in view.feeds for line in self._explained(feed)]
        for node in reversed(self.nodes):
            title, *facts = node.stage.explain(buckets)
            lines.append(f"Stage {node.number}: {title}")
            lines += [f"  {fact.strip()}" for fact in facts]
            lines += [f"  began at epoch {node.since}; earlier rows count as arriving then"] if node.since else []
            lines += [] if node.own is None else [f"  {node.own.explained(node.stage)}"]
            lines += [f"  {line}" for line in (*self._explained_index(node), *explained_pairs(self, node))]
            lines += [f"  {unread[node.number]}"] if node.number in unread else []
            if len(self.views) > 1:
                served = [f'"{name}"' for name in self.views_of(node.number)]
                lines.append(f"  serves {'view' if len(served) == 1 else 'views'} {', '.join(served)}")
            lines += [f"  {line}" for feeds in node.feeds for feed in feeds for line in self._explained(feed)]
        for source in self.sources:
            lines.append(_explained_source(source))
            if source.name in not_kept:
                lines.append(f"  not kept, since nothing reads them: {', '.join(not_kept[source.name])}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return a summary in one line; `explain` prints everything."""
        views, sources = (", ".join(one.name for one in named) for named in (self.views, self.sources))
        return f"QueryPlan(views: {views}; {counted(len(self.nodes), 'stage')}; sources: {sources})"

    def _repr_html_(self) -> str:
        """Return a picture of it for a notebook, and `explain` folded below it."""
        parts = self.explain().split("\n")
        text = "".join(f"<div>{'&emsp;' * (len(one) - len(one.lstrip()))}{html_text(one.strip())}</div>" for one in parts)
        return f"{plan_svg(self)}<details><summary>state of each stage</summary>{text}</details>"

    def _explained_index(self, node: StageNode) -> list[str]:
        """Return which index a join uses, and why its copy is its own."""
        for index in self.shared:
            if node.number in index.readers:
                others = ", ".join(f"stage {number}" for number in index.readers if number != node.number)
                return [f"looks up in index {index.name} ({', '.join(index.columns)}): one copy, shared with {others}"]
        named = getattr(node.stage, "index", None)
        used = [] if named is None else [f"looks up in index {named} ({', '.join(node.stage.inputs[1].key)})"]
        return used + [f"keeps a second copy of its right side: {why}" for number, why in self.copies if number == node.number]

    def _explained(self, feed: Feed) -> list[str]:
        origin = f'"{feed.origin}"' if isinstance(feed.origin, str) else f"stage {feed.origin}"
        steps = [step.describe() for step in feed.steps]
        return [f"reads {origin}" + (f": {'; '.join(steps)}" if steps else "")]


def one_view(plan: QueryPlan, name: str | None = None) -> QueryPlan:
    view = plan.view(name)
    if len(plan.views) == 1:
        return plan
    stages = plan.stages_of(view.name)
    numbers = {number: at for at, number in enumerate(stages)}

    def renumbered(feeds: Iterable[Feed]) -> tuple[Feed, ...]:
        return tuple(feed if isinstance(feed.origin, str) else replace(feed, origin=numbers[feed.origin]) for feed in feeds)

    nodes = tuple(
        replace(plan.nodes[number], number=at, feeds=tuple(map(renumbered, plan.nodes[number].feeds)))
        for number, at in numbers.items()
    )
    read = {feed.origin for node in nodes for feeds in node.feeds for feed in feeds} | {feed.origin for feed in view.feeds}
    shared = (replace(index, readers=tuple(numbers[one] for one in index.readers if one in numbers)) for index in plan.shared)
    return QueryPlan(
        sources=tuple(source for source in plan.sources if source.name in read),
        nodes=nodes,
        views=(replace(view, feeds=renumbered(view.feeds)),),
        shared=tuple(index for index in shared if len(index.readers) > 1),
        copies=tuple((numbers[number], why) for number, why in plan.copies if number in numbers),
        keep_state=plan.keep_state,
    )


def _explained_source(source: PlanSource) -> str:
    relation = source.relation
    facts: list[str] = [relation.mode]
    if relation.primary_key:
        facts.append(f"keys=[{', '.join(relation.primary_key)}]")
    if relation.sequence_by:
        facts.append(f"sequence_by=[{', '.join(relation.sequence_by)}]")
    if relation.event_time is not None:
        delay = "" if relation.watermark_delay is None else f" with a watermark {relation.watermark_delay} behind"
        jump = source.max_watermark_jump
        bound = "" if jump is None else f", rows at most {jump} ahead of it"
        facts.append(f"event time {relation.event_time}{delay}{bound}")
    beginning = " from a baseline" if source.has_baseline else ""
    return f'Source "{source.name}" {" ".join(facts)} columns=[{", ".join(source.visible)}]{beginning}'


def emits_distinct_rows(stage: Stage, steps: Sequence[RowStep]) -> bool:
    """Return whether no row can be twice in what steps make of an answer of a stage."""
    if not stage.answers_distinct_rows:
        return False
    kept = {name for name in stage.output.schema.names if name_after(steps, name) is not None}
    return all(name in kept or kept & _same_as(stage, name) for name in stage.output.schema.names)


def _same_as(stage: Stage, name: str) -> set[str]:
    """Return the other columns of an answer that have the value of a column in every row, in the same type."""
    known = stage.output_key
    padded = {column for group in known.padded for column in group}
    if name in padded:
        return set()
    schema = stage.output.schema
    first = next((one for one, other in known.aliases if name in (one, other)), name)
    alike = {first, *(other for one, other in known.aliases if one == first)}
    return {other for other in alike - padded - {name} if schema.field(other).type == schema.field(name).type}
