"""Steps that only Spark can do, done to the rows of their source before the first stage.

    where(text or Column)     a column holds whether a row passes; rows without key and event time are omitted by Spark
    select, withColumn, ...   the columns are computed beside the key, what orders changes, and the event time

The law: the rows that the plan sees after the steps are those of the steps done behind the source. A step depends on the row
alone, so what is computed of the newest row of a key is the newest of what is computed: upserts stay upserts, with their key as
it was before the step, under names of its own where the step leaves it out.

A step behind a stage (a join, an aggregate) is one of the plan, where this library computes the same; see `translated`. So no
plan has a step of Spark's own, wherever it runs.

Records that may leave columns out are whole only behind the state, so a step over them is one behind a stage.

Limits: behind a filter over upserts, a step is given the rows that did not pass as well, with NULL in every column but the key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import OptionError, PlanError, ZsetJoinError
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.expressions import Expression
from zset_join.expressions.rows import columns_read, named, plain_column
from zset_join.expressions.zones import expression_in_zone, is_utc
from zset_join.plan.planner import plan_query
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.plan.row_steps import OpaqueStep, SelectStep, WhereStep
from zset_join.plan.row_steps import RowStep as PlanStep
from zset_join.plan.tree import (
    Apply,
    Merge,
    Node,
    Operate,
    Read,
    Root,
    each_root,
    in_zone,
    node_in_zone,
    without_order,
)
from zset_join.runners.spark.planning.job_settings import job_settings
from zset_join.runners.spark.planning.row_steps import ZONE, RowStep, Transform, row_step
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.planning.stream_steps import spark_step, step_text
from zset_join.runners.spark.rows.names import column_named, quoted
from zset_join.runners.spark.rows.row_reading import RAW, REJECT, WEIGHT
from zset_join.runners.spark.rows.schemas import arrow_schema, refuse_collations
from zset_join.stages.latest import LatestRequest

__all__ = ["BoundStep", "LoweredTree", "lowered", "lowered_query", "translated"]

_BESIDE = (WEIGHT, REJECT, RAW)


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundStep:
    """A step that only Spark can run."""

    call: str
    transform: Transform
    step: RowStep
    before: pa.Schema
    condition: str | Column | None = None

    def over(self, session: SparkSession, before: Relation) -> RowStep:
        """Return the step over rows that may have fewer columns than those it was written for."""
        if before.schema.equals(self.before):
            return self.step
        return row_step(session, before, self.call, self.transform, is_internal=True)


@dataclass
class LoweredTree:
    """A query over sources whose rows Spark prepares."""

    root: Root
    streams: Mapping[str, SourceStream]

    def planned(self, **options: Any) -> QueryPlan:
        """Return its plan, with the options of `plan_query`."""
        first: dict[Hashable, str] = {}
        same = {name: first.setdefault(stream.identity, name) for name, stream in self.streams.items()}
        plan = plan_query(self.root, same=same, **options)
        for feed in plan.feeds():
            relation = plan.relation_of(feed.origin)
            for step in feed.steps:
                _check_step(step, relation)
                relation = step.output(relation)
        return plan


@dataclass
class _Sources:
    """Give every source its stream, once."""

    given: Callable[[PlanSource], SourceStream]
    steps: Mapping[int, BoundStep]
    streams: dict[str, SourceStream] = field(default_factory=dict)
    _made: dict[int, Node] = field(default_factory=dict)

    def read(self, written: PlanSource) -> Node:
        """Return a source as it is collected; what orders the changes of its keys may not be in the query as it was written."""
        if id(written) not in self._made:
            stream = self.given(written)
            source = _plan_source(replace(stream, name=written.name))
            self.streams.setdefault(source.name, stream)
            read: Node = Read(written if source == written else source)
            if source.relation.mode == "upsert" and (stream.control is not None or (source.hidden and not written.hidden)):
                read = Operate(LatestRequest(control=stream.control), (read,))
            self._made[id(written)] = read
        return self._made[id(written)]

    def stepped(self, written: PlanSource, steps: Sequence[Apply]) -> Node:
        """Return the transformation of a source by steps that include one of Spark's."""
        stream = replace(self.given(written), name=written.name)
        rows = _SteppedRows(stream)
        for one in steps:
            rows.add(one.step, one.hides, self.steps)
        name = next(one for one in _names_of(stream.name) if one not in self.streams)
        collected = rows.stream(name)
        self.streams[name] = collected
        return rows.shown(Read(_plan_source(collected)))


class _SteppedRows:
    """Do one step after the other to the rows of a stream."""

    def __init__(self, stream: SourceStream) -> None:
        self._stream = stream
        relation = stream.relation(())
        visible = pa.schema([at for at in relation.schema if at.name not in stream.hidden])
        mode: ChangelogMode = "changelog" if stream.mode == "upsert" else stream.mode
        self._before = replace(relation, schema=visible, mode=mode, sequence_by=())
        self._rows = stream
        time = () if stream.event_time is None else (stream.event_time,)
        self._needed = tuple(dict.fromkeys([*stream.keys, *time]))
        self._kept = {name: name for name in (*self._needed, *stream.sequence_by)}
        self._flags: list[str] = []
        self._hides: list[str] = []
        self._functions = list(stream.functions)
        self._description = list(stream.operation)

    @property
    def _visible(self) -> list[str]:
        return list(self._before.schema.names)

    def add(self, step: PlanStep, hides: tuple[str, ...], bound: Mapping[int, BoundStep]) -> None:
        session, before = self._stream.session, self._before
        match step:
            case OpaqueStep():
                known = bound[id(step)]
                done, condition = known.over(session, before), known.condition
            case WhereStep():
                done, condition = spark_step(session, before, step), step_text(step.condition, before.schema)
            case SelectStep():
                done, condition = spark_step(session, before, step), None
        self._functions += done.functions
        self._description += done.description
        self._hides += hides
        if condition is None:
            self._select(done)
        else:
            with job_settings(session, {ZONE: done.zone}):
                self._keep(F.expr(condition) if isinstance(condition, str) else condition)

    def _keep(self, condition: Column) -> None:
        """Keep the rows that pass, or mark them where those that do not still mean something."""
        if self._stream.mode != "upsert" and self._stream.event_time is None:
            self._rows = self._rows.with_rows(lambda rows: rows.where(F.col(REJECT).isNotNull() | condition))
            return
        flag = f"__passes_{len(self._flags)}"
        self._rows = self._rows.with_rows(lambda rows: rows.withColumn(flag, F.coalesce(condition, F.lit(False))))
        self._flags.append(flag)

    def _select(self, step: RowStep) -> None:
        """Compute columns beside those that rows are distinguished and ordered by."""
        hideable = [name for name in self._visible if name not in self._kept.values()]
        computed = [{name: F.when(F.col(flag), F.col(quoted(name))) for name in hideable} for flag in self._flags]
        beside, places, visible = list(self._flags), {}, self._visible
        for original, now in self._kept.items():
            if now in visible and now in step.kept:
                places[original] = step.kept[now]
                continue
            places[original] = f"__kept_{original}" if now in visible else now
            if now in visible:
                computed.append({places[original]: F.col(quoted(now))})
            beside.append(places[original])
        self._kept = places

        def applied(rows: DataFrame) -> DataFrame:
            for columns in computed:
                rows = rows.withColumns(columns)
            return step.apply(rows.select(*map(column_named, (*visible, *beside, *_BESIDE))), (*beside, *_BESIDE))

        self._rows = self._rows.with_rows(applied)
        self._before = step.relation

    def stream(self, name: str) -> SourceStream:
        visible, stream = self._visible, self._stream
        extra = [one for one in dict.fromkeys([*self._kept.values(), *self._flags]) if one not in visible]
        named_by = {self._kept[one] for one in self._needed}
        hidden = tuple(one for one in extra if one not in named_by)
        columns = (*visible, *(one for one in extra if one in named_by))
        after = self._rows.with_rows(lambda rows: rows.select(*map(column_named, (*columns, *hidden, *_BESIDE))))
        return replace(
            after,
            name=name,
            columns=columns,
            keys=tuple(self._kept[key] for key in stream.keys),
            sequence_by=tuple(self._kept[column] for column in stream.sequence_by),
            hidden=hidden,
            schema=arrow_schema(after.prepared.drop(*_BESIDE).schema, relation=name),
            operation=tuple(self._description),
            functions=tuple(dict.fromkeys(self._functions)),
            event_time=None if stream.event_time is None else self._kept[stream.event_time],
        )

    def shown(self, node: Node) -> Node:
        """Return the rows that pass, with the columns of the last step."""
        for flag in self._flags:
            node = Apply(node, WhereStep(named(flag)))
        visible, names = self._visible, node.relation.schema.names
        is_keyed = {self._kept[key] for key in self._stream.keys} <= {*visible}
        order = [one for one in node.relation.sequence_by if one not in visible] if is_keyed else []
        hides = tuple(one for one in self._hides if one in visible)
        if hides or [*visible, *order] != names:
            node = Apply(node, SelectStep(tuple((name, named(name)) for name in (*visible, *order))), hides)
        return node


def lowered_query(root: Root, sources: Mapping[int, SourceStream], steps: Mapping[int, BoundStep]) -> LoweredTree:
    """Return a query over streams, given by the `id` of its sources, in the time zone of their session."""
    by_name: dict[str, SourceStream] = {}
    for stream in sources.values():
        if by_name.setdefault(stream.name, stream).row_source is not stream.row_source:
            raise OptionError(
                f'several streams of the query are called "{stream.name}"; messages and dead letters identify them by their '
                "names. Give each its own.",
                code="SAME_NAME",
                names=[stream.name],
            )
    zone = next(iter(sources.values())).session.conf.get(ZONE)
    return lowered(root, lambda source: sources[id(source)], steps, str(zone))


def lowered(
    root: Root, streams: Callable[[PlanSource], SourceStream], steps: Mapping[int, BoundStep], zone: str = "UTC"
) -> LoweredTree:
    """Return a query whose steps of Spark's own apply to the rows of its sources, and whose expressions are in a time zone."""
    sources = _Sources(streams, steps)
    done: dict[int, tuple[Node, Node]] = {}  # with the node itself, whose id is then not given to another one

    def visit(node: Node) -> Node:
        if id(node) not in done:
            done[id(node)] = node, change(node)
        return done[id(node)][1]

    def change(node: Node) -> Node:
        found = _steps_over_source(node, zone)
        if found is not None and streams(found[0]).control is None:
            return sources.stepped(*found)
        match node:
            case Read():
                return sources.read(node.source)
            case Apply(Merge(parts), OpaqueStep()):
                return Merge(tuple(visit(Apply(part, node.step, node.hides)) for part in parts))
            case Apply():
                return without_order(replace(node, child=visit(node.child)))
            case Merge():
                return Merge(tuple(map(visit, node.parts)))
            case Operate():
                return replace(node, inputs=tuple(map(visit, node.inputs)))

    return LoweredTree(in_zone(each_root(root, visit), zone), sources.streams)


def _steps_over_source(node: Node, zone: str) -> tuple[PlanSource, list[Apply]] | None:
    """Return a source and the steps over it, where only Spark can do the last of these; None for other nodes."""
    if not isinstance(node, Apply) or not _is_sparks(node, zone):
        return None
    steps: list[Apply] = []
    while isinstance(node, Apply):
        steps.append(node)
        node = node.child
    return (node.source, steps[::-1]) if isinstance(node, Read) else None


def _is_sparks(node: Apply, zone: str) -> bool:
    """Return whether only Spark can do a step: it is written for Spark, or is not computed in the zone by this library."""
    if isinstance(node.step, OpaqueStep) or is_utc(zone):
        return isinstance(node.step, OpaqueStep)
    try:
        node_in_zone(node, zone)
    except PlanError as error:
        if error.code != "SPARK_ONLY_STEP":
            raise
        return True
    return False


def _names_of(name: str) -> Iterator[str]:
    """Yield the possible names of a source: rows that Spark prepares in two ways are two sources."""
    yield name
    yield from (f"{name} ({at})" for at in count(2))


def _check_step(step: PlanStep, before: Relation) -> None:
    """Refuse a step that computes with a string that has a collation."""
    match step:
        case OpaqueStep():
            raise step.refusal()
        case WhereStep():
            read = set(columns_read(step.condition))
        case SelectStep():
            computed = [tree for _, tree in step.columns if plain_column(tree) is None]
            read = {name for tree in computed for name in columns_read(tree)}
    refuse_collations(before.schema, sorted(read), relation=before.name, use="part of an expression")


def _plan_source(stream: SourceStream) -> PlanSource:
    return PlanSource(
        relation=stream.relation(()),
        hidden=stream.hidden,
        has_baseline=stream.baseline is not None,
        max_watermark_jump=stream.max_watermark_jump,
    )


# Spark's analyser writes every implicit cast down, so a text means in `zset_join.sql_expressions`, which are Spark's dialect
# under ANSI mode, what the Column means in Spark.
def translated(written: RowStep, before: Relation) -> WhereStep | SelectStep:
    """Return a step of Spark's own, behind a stage, as a step of a plan."""
    if written.is_zoned and written.zone != "UTC":
        raise _not_ours(written, f"it depends on the time zone, and the session's is {written.zone}")
    try:
        done = _step(written, before)
        after = before.schema if done is None else done.output(before).schema
    except ZsetJoinError as error:
        raise _not_ours(written, error.message.splitlines()[0]) from error
    if done is None:
        raise _not_ours(written, "it is more than one filter or one selection")
    for ours, theirs in zip(after, written.relation.schema, strict=True):
        if not ours.type.equals(theirs.type):
            reason = f'its column "{ours.name}" would be of type {ours.type}, and is of type {theirs.type} in Spark'
            raise _not_ours(written, reason)
    return done


def _not_ours(written: RowStep, reason: str) -> PlanError:
    return PlanError(
        f"{written.title} is after a stage, and Spark sees rows only before the first one; this library cannot compute it "
        f"itself: {reason}. Write it as an expression of zset_join.expressions, do it to a stream before the first join or "
        "group, or to the rows of the output.",
        code="SPARK_ONLY_STEP",
        step=written.title,
        reason=reason,
    )


def _step(written: RowStep, before: Relation) -> WhereStep | SelectStep | None:
    from zset_join.sql_expressions.texts import bound_text, with_between

    sides = {"row": (before.name, before.schema)}

    def tree(text: str) -> Expression:
        found = bound_text(with_between(text), sides).tree
        if found is None:
            raise ZsetJoinError(f"{text} is not an expression")
        return expression_in_zone(found, {"row": before.schema}, "UTC")  # Spark writes instants so

    if written.condition is not None:
        return WhereStep(tree(written.condition))
    if written.selected is None:
        return None
    return SelectStep(tuple((name, tree(text)) for name, text in written.selected))
