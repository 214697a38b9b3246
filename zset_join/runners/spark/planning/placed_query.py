"""A query of Spark's: its plan, what the names in it represent, and its stages in their places on the executors.

The runner, `verify`, sampling, `explain_row` and the checkpoint read it; none of them depends on how the query was written. It
is placed once: stages, their names, what is fused and what the checkpoint remembers are computed when they are first requested,
and kept. An epoch plans nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from zset_join.core.options import QueryOptions
from zset_join.core.relation import Relation
from zset_join.plan.columns_kept import unread_of_sources
from zset_join.plan.passes.fuse_stages import Fusing, fuse_stages, fused_together
from zset_join.plan.passes.share_nodes import prepared_alike
from zset_join.plan.query_plan import Feed, QueryPlan
from zset_join.plan.spreading import SpreadPlan, spread
from zset_join.runners.spark.frames.facts import is_connect, parallelism
from zset_join.runners.spark.planning.buffer_limit import explained_limit
from zset_join.runners.spark.planning.explaining import explained_query
from zset_join.runners.spark.planning.normalise import hashed_name
from zset_join.runners.spark.planning.other_mode import StatePair
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.planning.stages import (
    PlannedStage,
    ends_of,
    explained_state,
    forwards_rows,
    named,
    placed_stages,
    places_in_order,
    senders_of,
    stage_name,
    unique_input_names,
)
from zset_join.runners.spark.rows.baseline import resolve_baselines
from zset_join.runners.spark.rows.schemas import refuse_collations
from zset_join.runners.spark.rows.user_functions import UserFunction, explained_functions, with_functions
from zset_join.runners.spark.worker.shared_place import SharedPlace
from zset_join.stages import Stage
from zset_join.stages.effect import unchangeable
from zset_join.stages.shared_table import SharedTableStage
from zset_join.stages.written import read_schema

__all__ = [
    "FusedStages",
    "PlacedQuery",
    "described_query",
    "names_of_streams",
    "placed_query",
    "refuse_compared_collations",
]


def described_query(
    query: PlacedQuery,
    stored: Mapping[str, Any] | None,
    *,
    is_loaded: bool,
    udf_version: str | None,
    limits: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    """Return the description by which a checkpoint recognises a query."""
    given = {**query.description(), **(limits or {})}
    description = resolve_baselines(given, stored, is_loaded=is_loaded)
    return with_functions(description, stored, query.functions, udf_version)


def names_of_streams(stored: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the streams that a checkpoint remembers, in the order in which Spark reads them."""
    return () if stored is None else tuple(one["name"] for one in stored.get("inputs", ()) if "name" in one)


@dataclass(frozen=True, kw_only=True)
class PlacedQuery:
    """A plan in its place on executors."""

    spread: SpreadPlan
    sources: Mapping[str, SourceStream] = field(repr=False)
    order: tuple[str, ...] = ()  # of streams, in which Spark reads them; empty: that of the stages

    def in_order(self, names: Sequence[str]) -> PlacedQuery:
        """Return it with its streams in an order, by which Spark's own files number them; as it is where others are named."""
        there = [stream.name for stream in self.streams]
        return self if [*names] == there or sorted(names) != sorted(there) else replace(self, order=(*names,))

    @property
    def plan(self) -> QueryPlan:
        return self.spread.plan

    @property
    def session(self) -> SparkSession:
        return next(iter(self.sources.values())).session

    @cached_property
    def is_served(self) -> bool:
        """Return whether a client of Spark Connect wrote it, also where it was sent to and has no session."""
        return is_connect(self.session)

    @property
    def name(self) -> str:
        """Return the name of the view, or of all views, for messages."""
        return " and ".join(view.name for view in self.plan.views)

    @property
    def outputs(self) -> Mapping[str, Relation]:
        """Return the rows of the views."""
        return {view.name: self.plan.output_of(view.name) for view in self.plan.views}

    @property
    def output(self) -> Relation:
        """Return the rows of the only view."""
        return self.plan.output

    def of_view(self, name: str) -> PlacedQuery:
        """Return the query with one of its views, for questions about it: its stages are the same."""
        one_view = replace(self.plan, views=(self.plan.view(name),))
        return replace(self, spread=replace(self.spread, plan=one_view))

    @cached_property
    def streams(self) -> tuple[SourceStream, ...]:
        """Return the streams as the stages are fed them, in the order in which Spark reads them."""
        found = [stream for one in self.planned_stages for _, stream in sorted(one.streams.items())]
        found = [found[at] for at in places_in_order([stream.name for stream in found], self.order)]
        return tuple(stream for stream in found if isinstance(stream, SourceStream))

    @cached_property
    def sides(self) -> tuple[tuple[str, bool], ...]:
        """Return the inputs of the last stage that has several, or that streams feed: by name, and whether each is a stream."""
        ((end, _), *_) = ends_of(self.planned_stages)
        while not end.streams and len(end.stage.inputs) == 1:
            ((end, _), *_) = senders_of(self.planned_stages, end.number, 0)
        found = []
        for side, given in enumerate(end.stage.inputs):
            before = [one for one, _ in senders_of(self.planned_stages, end.number, side)]
            through = [one for one in before if forwards_rows(one.stage) and one.streams]
            stream = end.streams.get(side) or (through[0].streams[0] if len(before) == len(through) == 1 else None)
            found.append((given.relation.name if stream is None else stream.name, stream is not None))
        return tuple(found)

    @cached_property
    def functions(self) -> tuple[UserFunction, ...]:
        """Return the user's own functions in the streams."""
        return tuple(dict.fromkeys(one for stream in self.streams for one in stream.functions))

    @cached_property
    def planned_stages(self) -> tuple[PlannedStage, ...]:
        stages = list(named(placed_stages(self.plan, self.sources)))
        for one in stages:
            refuse_compared_collations(one.stage)
        return _with_shared_places(self.plan, stages)

    @cached_property
    def fusings(self) -> tuple[Fusing, ...]:
        """Return, for every input of a stage that earlier stages make, whether it is fused."""
        return fusings_of(self.plan)

    @cached_property
    def fused_stages(self) -> tuple[FusedStages, ...]:
        """Return the groups of stages that run in one task, as an epoch runs them."""
        return fused_stages_of(self.plan, self.planned_stages, self.fusings)

    def state_pairs(self, plan: QueryPlan) -> tuple[StatePair, ...]:
        """Return which states are those of the plan that was spread, under the names that it has there."""
        pairs = []
        for state in plan.states:
            readers = [self.planned_stages[self.spread.numbers[number]] for number in state.readers]
            routed = {
                reader.state_input(side): self.planned_stages[self.spread.routes[number, side]].state_name
                for number, reader in zip(state.readers, readers, strict=True)
                for side in range(len(reader.stage.inputs))
                if (number, side) in self.spread.routes
            }
            tables = state.stage.state_tables.items()
            routes = {name: routed[table.of_input] for name, table in tables if table.of_input in routed}
            names = tuple(reader.name for reader in readers)
            pairs.append(StatePair(executors=readers[0].state_name, driver=state.name, readers=names, routes=routes))
        return tuple(pairs)

    def description(self) -> dict[str, Any]:
        """Return the description of the query in a checkpoint, JSON-ready; a query with another description is rejected."""
        streams = {(one.number, side): stream for one in self.planned_stages for side, stream in one.streams.items()}
        views = self.plan.views

        def fed(number: int, side: int, feeds: tuple[Feed, ...]) -> Any:
            if (number, side) in streams:
                return {"stream": self.streams.index(streams[number, side])}
            return _described_feeds(feeds)

        described: dict[str, Any] = {
            "inputs": [stream.described for stream in self.streams],
            "stages": {
                self.planned_stages[node.number].name: {
                    "is": _with_shown_columns(unchangeable(node.stage)),
                    "fed": [fed(node.number, side, feeds) for side, feeds in enumerate(node.feeds)],
                }
                for node in self.plan.nodes
            },
            "outputs": {view.name: _described_feeds(view.feeds) for view in views}
            if len(views) > 1
            else _described_feeds(views[0].feeds),
        }
        shared = {one.shared.name: one.shared for one in self.planned_stages if one.shared is not None}
        states = {
            name: {"columns": [] if one.index is None else list(one.index.columns), "readers": list(one.readers)}
            for name, one in sorted(shared.items())
        }
        return {**described, "shared": states} if states else described

    def to_json(self) -> dict[str, Any]:
        """Return a description that can build the operators of the view without its program, and its plan; JSON-ready."""
        return {
            "stages": [
                {"name": one.state_name, "stage": one.state_stage.to_json()}
                for one in self.planned_stages
                if one.shared is None or one.shared.place == 0
            ],
            "plan": self.plan.to_json(),
        }

    def explained_indexes(self) -> list[str]:
        """Return which index every join uses that looks up in a table, and why it keeps a copy of its own."""
        names = {one.number: one.name for one in self.planned_stages}
        reasons = dict(self.plan.copies)
        lines = []
        for one in self.planned_stages:
            index = None if one.shared is None else one.shared.index
            declared = getattr(one.stage, "index", None)
            if index is not None:
                others = ", ".join(names[number] for number in index.readers if number != one.number)
                columns = ", ".join(index.columns)
                lines.append(f"{one.name} looks up in index {index.name} ({columns}): one copy, shared with {others}")
            elif declared is not None:
                lines.append(f"{one.name} looks up in index {declared} ({', '.join(one.stage.inputs[1].key)})")
            if one.number in reasons:
                lines.append(f"{one.name} keeps a second copy of its right side: {reasons[one.number]}")
        return lines

    def query_explanation(self, output: str | None, options: QueryOptions) -> str:
        """Return the text that `explain` of a query prints."""
        lines = [] if output is None else [f"Output to {output}"]
        lines += explained_state(self.planned_stages, options, workers=parallelism(self.session))
        lines += explained_limit(self.planned_stages, options.buffer_limit)
        lines += explained_functions(self.functions, options.udf_version)
        lines += self.explained_indexes()
        if self.plan.keep_state == "needed":
            unread = unread_of_sources(self.plan).items()
            lines += [f'not kept of "{name}", since nothing reads them: {", ".join(columns)}' for name, columns in unread]
        return "\n".join([*lines, self.explanation(buckets=options.buckets)])

    def explanation(self, *, buckets: int | None = None) -> str:
        """Return the stages as a tree of lines, each with what it must remember."""
        return "\n".join(explained_query(self.planned_stages, self.fusings, buckets=buckets, views=[*self.outputs]))


def placed_query(plan: QueryPlan, sources: Mapping[str, SourceStream]) -> PlacedQuery:
    found = spread(plan)
    return PlacedQuery(spread=replace(found, plan=unique_input_names(found.plan)), sources=sources)


def _with_shared_places(plan: QueryPlan, stages: list[PlannedStage]) -> tuple[PlannedStage, ...]:
    """Return which stages look up in one copy of a table, and which prepare its rows together."""
    for state in plan.states:
        if isinstance(state.stage, SharedTableStage):
            name = stage_name(state.stage.kind, stages[state.number].label)
            index = next(one for one in plan.shared if one.readers == state.readers)
            for place, number in enumerate(state.readers):
                shared = SharedPlace(name=name, stage=state.stage, place=place, readers=state.readers, index=index)
                stages[number] = replace(stages[number], shared=shared)
    for readers in prepared_alike(plan):
        first = stages[readers[0]]
        for place, number in enumerate(readers):
            shared = SharedPlace(name=first.name, stage=first.stage, place=place, readers=readers)
            stages[number] = replace(stages[number], shared=shared)
    return tuple(stages)


def _described_feeds(feeds: Sequence[Feed]) -> list[dict[str, Any]]:
    return [feed.to_json() for feed in feeds]


def _with_shown_columns(described: Any) -> Any:
    """Return a stage with its columns as text, for the message that lists differences."""
    if isinstance(described, list | tuple):
        return [_with_shown_columns(one) for one in described]
    if not isinstance(described, dict):
        return described
    return {
        key: _shown_columns(inner) if key == "columns" and isinstance(inner, str) else _with_shown_columns(inner)
        for key, inner in described.items()
    }


def _shown_columns(written: str) -> list[str]:
    return [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in read_schema(written)]


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedStages:
    """Stages that run in one task of a bucket."""

    members: tuple[PlannedStage, ...]  # in the order of an epoch; the rows of the last one leave the task

    @property
    def last(self) -> PlannedStage:
        return self.members[-1]

    @property
    def fed(self) -> tuple[int, ...]:
        """Return the numbers of its stages that streams feed."""
        return tuple(one.number for one in self.members if one.streams)


def fusings_of(plan: QueryPlan) -> tuple[Fusing, ...]:
    return fuse_stages(plan, hashed=hashed_name)  # keys as Spark hashes them


def fused_stages_of(
    plan: QueryPlan, planned_stages: Sequence[PlannedStage], fusings: Sequence[Fusing]
) -> tuple[FusedStages, ...]:
    """Return the stages of a query, those together that are fused, in the order of an epoch."""
    groups = fused_together(plan, fusings)
    return tuple(FusedStages(members=tuple(planned_stages[number] for number in numbers)) for numbers in groups)


# What Spark would compare under a collation, the engine does not take: it compares strings by their bytes. Checked are keys,
# conditions, and the arguments of aggregates but counts, which only test whether a value is present.
def refuse_compared_collations(stage: Stage) -> None:
    """Refuse a stage that compares or orders strings under a collation."""
    for one in stage.comparisons:
        schema = one.relation.schema
        columns = [column for column in one.columns if column in schema.names]
        refuse_collations(schema, columns, relation=one.relation.name, use=one.use)
