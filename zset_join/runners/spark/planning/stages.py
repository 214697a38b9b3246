"""The stages of a query, and the steps over rows between them.

    stream -> route -> join -> [where, select ...] -> aggregate -> [where, select ...] -> join -> output

A *planned stage* is a stage and the uses of its rows: each is the row steps behind it, and where the rows go then: to an input
of a later stage, or to a view. They are numbered in the order of an epoch: before a stage comes what its first input is made
of, then what its second one is. A union is no stage: several stages feed one input, or a view.

Everything between two shuffles is one Python function in one Spark task: it answers, does the steps, and delivers: it writes
the parts, or sends rows to the next stage, brought down to what that needs.

The laws: a placed stage is a stage of the plan, by its number, and so are its feeds; what the plan does to rows before the
first stage is done by Spark to the stream of the source. The receipts of all stages of an epoch arrive in its one job, and what
a stage sent is what the next one was given. A plan is placed once per query; an epoch plans nothing.

Cost: a shuffle per stage whose rows are not in their bucket already.

Names of stages, in receipts, commit records and directories; numbered in the order of an epoch, from 0, routes omitted:

| name | is |
|---|---|
| `join`, `join-2` | a join; the first stage is without a number |
| `route-left`, `route-right-2` | the route before an input of the stage of that number |
| `aggregate-1`, `deduplicate-0` | another stage, called by its kind |
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.core.errors import OptionError, PlanError, StateError
from zset_join.core.options import HotBudget, QueryOptions
from zset_join.core.relation import Relation
from zset_join.plan.query_plan import Feed, QueryPlan, StageNode, emits_distinct_rows
from zset_join.plan.row_steps import RowStep, relation_after
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.planning.stream_steps import as_input, stepped, united
from zset_join.runners.spark.worker.receipts import TaskReceipt
from zset_join.runners.spark.worker.shared_place import SharedPlace
from zset_join.stages import Stage
from zset_join.state.cold.hot_rows import WHOLE_BUDGET_BYTES

__all__ = [
    "Placed",
    "PlannedStage",
    "Stream",
    "StreamPlace",
    "Use",
    "check_rows",
    "ends_of",
    "explained_state",
    "forwards_rows",
    "hybrid_stages",
    "named",
    "placed_stages",
    "places_in_order",
    "places_of",
    "senders_of",
    "stage_name",
    "stage_order",
    "unique_input_names",
    "visible_columns_of",
]

JOIN_STAGE = "join"
_SIDES = ("left", "right")


def stage_name(kind: str, number: int, *, side: int = 0) -> str:
    """Return the name of a stage.

    >>> stage_name("join", 0), stage_name("join", 2), stage_name("route", 0, side=1), stage_name("aggregate", 1)
    ('join', 'join-2', 'route-right', 'aggregate-1')
    """
    if kind == "route":
        before = f"route-{_SIDES[side] if side < len(_SIDES) else side}"
        return f"{before}-{number}" if number else before
    return kind if kind == JOIN_STAGE and not number else f"{kind}-{number}"


def stage_order(stage: str) -> int:
    """Return how far from the sources a stage is, as its receipts name it.

    >>> sorted(["join-2", "join", "aggregate-1", "route-left", "route-right-2"], key=stage_order)
    ['route-left', 'join', 'aggregate-1', 'route-right-2', 'join-2']
    """
    kind, _, number = stage.rpartition("-")
    if not number.isdigit():
        kind, number = stage, "0"
    return 2 * int(number) + (kind.partition("-")[0] != "route")


_FORWARDING = frozenset({"latest", "route", "unchanged"})


class Placed(Protocol):
    """A query whose stages are placed."""

    @property
    def output(self) -> Relation: ...

    @property
    def planned_stages(self) -> tuple[PlannedStage, ...]:
        """Return the stages in the order of an epoch."""

    @property
    def plan(self) -> QueryPlan:
        """Return the plan that does not depend on Spark; its stages have the numbers of the placed ones."""

    @property
    def session(self) -> SparkSession: ...


def ends_of(planned_stages: Sequence[PlannedStage], view: str | None = None) -> list[tuple[PlannedStage, Use]]:
    """Return the stages whose rows are a view, any or one of a name, each with that use of them."""
    uses = [(one, use) for one in planned_stages for use in one.uses if use.target is None]
    return [(one, use) for one, use in uses if view in (None, use.view)]


def senders_of(planned_stages: Sequence[PlannedStage], target: int, side: int) -> list[tuple[PlannedStage, Use]]:
    """Return the stages whose rows are for an input of a stage, each with that use of them."""
    return [(one, use) for one in planned_stages for use in one.uses if (use.target, use.side) == (target, side)]


def forwards_rows(stage: Stage) -> bool:
    """Return whether the answer of a stage is the table of its input, which is the only one."""
    return stage.kind in _FORWARDING


def visible_columns_of(stream: Stream) -> list[str]:
    return [name for name in stream.schema.names if name not in stream.hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """Name the place where a stream enters a query."""

    name: str
    stage: str
    side: int
    behind: tuple[tuple[str, int], ...] = ()

    def first_receipts(self, receipts: Sequence[TaskReceipt]) -> list[TaskReceipt]:
        """Return the receipts of the stage that its rows reach first."""
        return [receipt for receipt in receipts if receipt.stage == self.stage]

    def put_aside(self, receipts: Sequence[TaskReceipt]) -> int:
        """Return how many of its rows were set aside, in whatever stage."""
        places = ((self.stage, self.side), *self.behind)
        return sum(receipt.quarantined_rows[side] for receipt in receipts for stage, side in places if receipt.stage == stage)


def places_in_order(names: Sequence[str], order: Sequence[str]) -> list[int]:
    """Return the places of streams in an order; those that it does not name, or not as often, follow as they are.

    >>> places_in_order(["a", "b", "a", "c"], ["b", "a", "d"])
    [1, 0, 2, 3]
    """
    left = list(range(len(names)))
    found = []
    for wanted in order:
        at = next((at for at in left if names[at] == wanted), None)
        if at is not None:
            left.remove(at)
            found.append(at)
    return [*found, *left]


class HasStage(Protocol):
    """A stage in its place, wherever it runs."""

    @property
    def stage(self) -> Stage: ...


class Stream(Protocol):
    """Source input of a stage: the rows of a streaming DataFrame, ready to be sent to their buckets."""

    @property
    def name(self) -> str: ...

    @property
    def prepared(self) -> DataFrame:
        """Return its columns, then weight, reject code and raw value of each row."""

    @property
    def baseline(self) -> DataFrame | None:
        """Return the rows to start from, with the same columns."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def may_reject(self) -> bool:
        """Return whether rows may be undecodable, or too far ahead of the watermark."""

    @property
    def max_watermark_jump(self) -> int | None:
        """Return how far ahead of its watermark a row may be, in the unit of the delay; None: any distance."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return those of its columns that are not part of the table."""

    @property
    def origin(self) -> tuple[Stream, tuple[RowStep, ...]]:
        """Return the stream that it was made of, and what was done to its rows since."""

    @property
    def identity(self) -> Hashable:
        """Return its identity among streams, independent of names."""

    def relation(self, join_key: Sequence[str]) -> Relation:
        """Return the description the engine works with."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of the rows of a stage."""

    steps: tuple[RowStep, ...] = ()
    target: int | None = None  # the number of a stage; None: a view
    side: int = 0
    view: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedStage:
    """One stage of a query, and the uses of its answer."""

    number: int
    stage: Stage
    uses: tuple[Use, ...] = ()
    streams: Mapping[int, Stream] = field(default_factory=dict)
    name: str = ""
    label: int = 0
    shared: SharedPlace | None = None

    @property
    def state_name(self) -> str:
        """Return the name of its histories and directories."""
        return self.name if self.shared is None else self.shared.name

    @property
    def state_stage(self) -> Stage:
        """Return the stage that owns its state."""
        return self.stage if self.shared is None else self.shared.stage

    def state_input(self, side: int) -> int:
        return side if self.shared is None else self.shared.input_of(side)

    @cached_property
    def rows(self) -> tuple[Relation, ...]:
        """Return the rows that leave it, by use."""
        return tuple(relation_after(self.stage.output, use.steps) for use in self.uses)

    @cached_property
    def emits_distinct_rows(self) -> tuple[bool, ...]:
        """Return, by use, whether no row can be twice in what the steps make of an answer."""
        return tuple(emits_distinct_rows(self.stage, use.steps) for use in self.uses)

    @property
    def reader(self) -> Use | None:
        """Return the first use by another stage."""
        return next((use for use in self.uses if use.target is not None), None)


def named(planned_stages: Sequence[PlannedStage]) -> tuple[PlannedStage, ...]:
    """Give the planned stages of a whole query their names. A route is called after the first input that it leads to."""
    labels: dict[int, int] = {}
    for one in planned_stages:
        labels[one.number] = sum(not other.stage.forwards for other in planned_stages[: one.number])
    stages = []
    for one in planned_stages:
        use = one.reader if one.stage.forwards else None
        label, side = (labels[one.number], 0) if use is None else (labels[use.target or 0], use.side)
        stages.append(replace(one, label=label, name=stage_name(one.stage.kind, label, side=side)))
    return tuple(stages)


def places_of(planned_stages: Sequence[PlannedStage]) -> list[StreamPlace]:
    """Return where streams enter a query, and where else rows of them may be set aside."""
    by_number = {one.number: one for one in planned_stages}
    places: dict[tuple[int, int, int], StreamPlace] = {}  # by the input that they are for in the end, as the query was written
    for one in planned_stages:
        for side, stream in one.streams.items():
            readers = [(use.target, use.side) for use in one.uses if one.stage.forwards and use.target is not None]
            behind = tuple(dict.fromkeys((by_number[target].name, of_target) for target, of_target in readers))
            place = StreamPlace(name=stream.name, stage=one.name, side=side, behind=behind)
            places[*(readers or [(one.number, side)])[0], one.number] = place
    return [place for _, place in sorted(places.items())]


def check_rows(
    planned_stages: Sequence[PlannedStage],
    places: Sequence[StreamPlace],
    receipts: Sequence[TaskReceipt],
    buckets: int,
    epoch: int,
) -> None:
    """Count the rows that arrived, that stages sent each other, and their receipts."""
    everywhere = list(range(buckets))
    for place in places:
        first = place.first_receipts(receipts)
        came = sum(receipt.rows_in[place.side] for receipt in first)
        applied = sum(receipt.applied[place.side] for receipt in first)
        aside = sum(receipt.quarantined_rows[place.side] for receipt in first)
        if came != applied + aside:
            raise _lost(epoch, f'"{place.name}": rows in {came}, applied {applied}, quarantined {aside}')
    for planned in planned_stages:
        ran = sorted(receipt.bucket for receipt in receipts if receipt.stage == planned.name)
        if ran != everywhere:
            raise _lost(epoch, f"{planned.name} ran in buckets {ran}")
    for receiver in planned_stages:
        for side in range(len(receiver.stage.inputs)):
            ways = {
                (one.name, at)
                for one in planned_stages
                for at, use in enumerate(one.uses)
                if (use.target, use.side) == (receiver.number, side)
            }
            senders = sorted({name for name, _ in ways})
            sent = sum(receipt.emitted[at] for receipt in receipts for name, at in ways if receipt.stage == name)
            given = sum(receipt.rows_in[side] for receipt in receipts if receipt.stage == receiver.name)
            if senders and sent != given:
                raise _lost(epoch, f"{' and '.join(senders)} sent {sent} rows, {receiver.name} was given {given}")


def _lost(epoch: int, what: str) -> StateError:
    return StateError(
        f"epoch {epoch}: {what}; rows were lost on the way, nothing was committed. Restart the query; if it happens again, "
        "report it with the plan that explain() prints.",
        code="ROWS_LOST",
        epoch=epoch,
    )


def hybrid_stages(planned_stages: Sequence[HasStage], options: QueryOptions) -> int:
    """Return how many stages share the budget of hybrid state."""
    kinds = _kinds(planned_stages)
    if options.table_budget is not None and not kinds["groups"]:
        raise OptionError(
            'default_hash_table="hybrid" is about the groups of groupBy(...) and distinct(), and this view has none (the one '
            'row of an agg() over everything cannot be on disk). Leave it out; rows of joins have default_hash_join="hybrid".',
            code="OPTION_VALUE",
            option="default_hash_table",
            value="hybrid",
        )
    return sum(number for kind, number in kinds.items() if _budget_of(kind, options) is not None)


def explained_state(planned_stages: Sequence[PlannedStage], options: QueryOptions, *, workers: int) -> list[str]:
    """Return the line of `explain` for the place of the state."""
    stages = hybrid_stages(planned_stages, options)
    budget = options.hot_budget or options.table_budget
    kinds = {kind: _budget_of(kind, options) is not None for kind, number in _kinds(planned_stages).items() if number}
    if budget is None or not any(kinds.values()):
        return ["State: all in memory"]
    *others, last = [kind for kind, is_hybrid in kinds.items() if is_hybrid]
    hybrid = f"{', '.join(others)} and {last}" if others else last
    lines = [f"State: of {hybrid} at most {budget.describe()} in memory, the rest on local disk"]
    lines += [f"  of {name} all in memory" for name, is_hybrid in kinds.items() if not is_hybrid]
    if options.buckets is not None and stages * options.buckets > 1:
        one = "each bucket" if stages == 1 else f"each bucket of {stages} stages"
        lines.append(f"  {one}: {budget.share(stages * options.buckets).describe()}")
    share = budget if options.buckets is None else budget.share(stages * options.buckets)
    lines.append(f"  {share.describe_cold_store()}")
    workers = min(workers, options.buckets or workers)
    if budget.max_hot_bytes is not None and budget.max_hot_bytes < WHOLE_BUDGET_BYTES * workers:
        lines.append(
            f"  what an epoch needs beside its rows, some 50 MB in each of up to {workers} Python workers, comes on top: with "
            f"max_hot_bytes={WHOLE_BUDGET_BYTES * workers:,} or more it is taken from the budget"
        )
    return lines


def _kinds(planned_stages: Sequence[HasStage]) -> dict[str, int]:
    """Return how many stages have which kind of state that may be on disk."""
    kinds = {"joins": 0, "routes": 0, "groups": 0}
    for planned in planned_stages:
        if planned.stage.cold_state is not None:
            kinds[planned.stage.cold_state] += 1
    return kinds


def _budget_of(kind: str, options: QueryOptions) -> HotBudget | None:
    return options.table_budget if kind == "groups" else options.hot_budget


def placed_stages(plan: QueryPlan, streams: Mapping[str, SourceStream]) -> tuple[PlannedStage, ...]:
    """Return the stages of a plan in the order of an epoch, each with what feeds it and where its rows go."""
    stages = [PlannedStage(number=node.number, stage=node.stage) for node in plan.nodes]

    def sends(feeds: Sequence[Feed], **where: Any) -> None:
        for feed in feeds:
            if not isinstance(feed.origin, int):
                raise PlanError(f'rows of "{feed.origin}" reach no stage.', code="PLAN_ORDER", origin=feed.origin)
            sender = stages[feed.origin]
            stages[feed.origin] = replace(sender, uses=(*sender.uses, Use(steps=feed.steps, **where)))

    for node in plan.nodes:
        fed = {}
        for side, (feeds, given) in enumerate(zip(node.feeds, node.stage.inputs, strict=True)):
            if all(isinstance(feed.origin, str) for feed in feeds):
                rows = united([reduce(stepped, feed.steps, streams[str(feed.origin)]) for feed in feeds])
                fed[side] = as_input(rows, given.relation)
            else:
                sends(feeds, target=node.number, side=side)
        stages[node.number] = replace(stages[node.number], streams=fed)
    for view in plan.views:
        sends(view.feeds, view=view.name)
    return tuple(stages)


def unique_input_names(plan: QueryPlan) -> QueryPlan:
    """Return a plan in which every input of a stage has a name of its own; a route is called as what it leads to."""
    names = _Names()
    nodes: list[StageNode] = []
    for node in plan.nodes:
        filled = {place for place, feeds in enumerate(node.feeds) if _is_filled(nodes, feeds)}
        nodes.append(node if node.stage.forwards else replace(node, stage=names.apart(node.stage, filled)))
    for node in nodes:
        for feeds, given in zip(node.feeds, node.stage.inputs, strict=True):
            for feed in feeds:
                if isinstance(feed.origin, int) and nodes[feed.origin].stage.forwards:
                    nodes[feed.origin] = _called(nodes[feed.origin], given.relation.name)
    return replace(plan, nodes=tuple(nodes))


def _is_filled(nodes: Sequence[StageNode], feeds: Sequence[Feed]) -> bool:
    """Return whether rows are those of a stream, filled by the stage before: the same input, under the same name."""
    return len(feeds) == 1 and isinstance(feeds[0].origin, int) and nodes[feeds[0].origin].stage.kind == "latest"


def _called(node: StageNode, name: str) -> StageNode:
    return replace(node, stage=node.stage.with_input(0, name=name))


class _Names:
    """Give names, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def apart(self, stage: Stage, filled: Collection[int]) -> Stage:
        """Return a stage whose inputs have names that no other one has; those that are filled keep theirs."""
        for place, given in enumerate(stage.inputs):
            called = given.relation.name
            name = called if place in filled else self._free(called)
            stage = stage if name == called else stage.with_input(place, name=name)
        return stage

    def _free(self, name: str) -> str:
        wanted, number = name, 2
        while wanted in self._taken:
            wanted, number = f"{name}_{number}", number + 1
        self._taken.add(wanted)
        return wanted
