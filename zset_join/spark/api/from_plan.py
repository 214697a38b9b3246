"""A query as it was written, in the words of no runner, as streams and views of Spark: what makes SQL run inside Spark.

    Read      the stream of a source
    Apply     the step as Spark's own expressions; before the first stage it is done to the stream
    Merge     UNION ALL: of streams in Spark, else of views
    Operate   the stage of the request, the very one that the runner in process builds

The law: the view answers with the changes of the plan. Stages are built by the request of the tree, so names,
types and keys are those of the plan; an expression whose type Spark would choose otherwise is cast to that of the plan.

A step over upserts keeps them where the key is kept: a row that does not pass deletes its key. A query without a stage gets one
that hands its rows on, for it is a stage that answers. A node that is used twice is run twice.

Classes of nodes, steps and stages are asked for here because this file turns one closed union into another; what it makes is
asked for nothing but its stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.errors import PlanError
from zset_join.expressions import Expression
from zset_join.expressions.sql_text import quote_name, to_sql
from zset_join.plan import InputNode, JoinNode, RouteNode, SideNode, ViewNode
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.requests import AggregateRequest
from zset_join.plan.row_steps import RowStep as PlanStep
from zset_join.plan.row_steps import SelectStep, WhereStep
from zset_join.plan.timed_requests import TemporalRequest
from zset_join.plan.tree import Apply, InputRows, Merge, Node, Operate, Read, with_columns
from zset_join.relation import Relation
from zset_join.spark.api.staged import as_changes, staged
from zset_join.spark.api.unions import union
from zset_join.spark.api.views import View
from zset_join.spark.planning.join_plan import JoinPlan
from zset_join.spark.planning.row_steps import RowStep, row_step
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stages import StageStep
from zset_join.spark.planning.view_plan import ViewPlan, check_inputs
from zset_join.spark.rows.names import column_named
from zset_join.spark.rows.row_reading import RAW, REJECT, WEIGHT
from zset_join.spark.rows.schemas import arrow_schema, field_type
from zset_join.spark.rows.text_select import select_text
from zset_join.stages import AggregateStage, ExpiringStage, JoinStage, RouteStage, Stage, UnchangedStage, needs_route

__all__ = ["Rows", "view_of"]

Rows = SourceStream | ViewPlan


@dataclass(frozen=True)
class _Part:
    """Rows of a node, and which of their columns no answer shows."""

    rows: Rows
    hidden: tuple[str, ...] = ()

    @property
    def relation(self) -> Relation:
        return self.rows.relation(()) if isinstance(self.rows, SourceStream) else self.rows.output


def view_of(root: Node, streams: Callable[[PlanSource], SourceStream]) -> View:
    """Return a query as a view, for `writeStream`.

    Args:
        root: the query as it was written.
        streams: gives the stream of a source; its columns are those of the source.

    Raises:
        PlanError: what Spark cannot do; the message says why.
    """
    translation = _Translation(streams)
    part = translation.part(root)
    view = translation.as_view(part.rows)
    shown = [name for name in view.columns if name not in part.hidden]
    return View(view if shown == view.columns else view.then(_picking(view, shown)))


class _Translation:
    """Turn nodes into streams and views, leaves first."""

    def __init__(self, streams: Callable[[PlanSource], SourceStream]) -> None:
        self._streams = streams
        self._taken: set[str] = set()

    def part(self, node: Node) -> _Part:
        """Return the rows of a node."""
        match node:
            case Read(source):
                stream = self._streams(source)
                if stream.hidden and not source.hidden:
                    # What orders the changes of its keys is not in the plan, whose steps would leave it out.
                    return _Part(self._changed(stream))
                return _Part(stream, stream.hidden)
            case Apply():
                part = self.part(node.child)
                if part.relation.mode == "upsert" and not node.takes_upserts:
                    part = _Part(self._changed(part.rows))
                return _Part(_applied(part.rows, node.step, is_internal=True), node.hidden)
            case Merge(parts):
                return _Part(self._merged([self.part(part) for part in parts]))
            case Operate():
                return self._operated(node)

    def _operated(self, node: Operate) -> _Part:
        parts = []
        for place, (child, keys) in enumerate(zip(node.inputs, node.request.computed_keys, strict=True)):
            part = self.part(child)
            if part.relation.mode == "upsert" and not node.request.takes_upserts(place):
                part = _Part(self._changed(part.rows))
            elif isinstance(part.rows, SourceStream):
                part = _Part(self._changed(part.rows)) if part.rows.control is not None else part
            if keys:
                step = with_columns(part.relation, keys)
                part = _Part(_applied(part.rows, step, is_internal=True), (*part.hidden, *(name for name, _ in keys)))
            parts.append(part)
        request = node.request.with_keys_computed()
        given = [InputRows(part.relation, part.hidden, isinstance(part.rows, ViewPlan)) for part in parts]
        stage = request.stage(given)
        if isinstance(request, AggregateRequest) and isinstance(stage, AggregateStage) and isinstance(parts[0].rows, ViewPlan):
            stage = replace(stage, reduces=True)
        stage, rows = self._told_apart(stage, [part.rows for part in parts])
        if len(parts) == 1 and isinstance(rows[0], ViewPlan):
            return _Part(rows[0].then(StageStep(stage=stage)))
        if isinstance(stage, JoinStage):
            return _Part(_joined(rows, stage, [part.hidden for part in parts]))
        is_temporal = isinstance(request, TemporalRequest)
        routes = [None if is_temporal else _route(row, one.relation) for row, one in zip(rows, stage.inputs, strict=True)]
        return _Part(staged(rows, stage, routes))

    def _told_apart(self, stage: Stage, rows: Sequence[Rows]) -> tuple[Stage, list[Rows]]:
        """Give every input of a stage a name that no other one has, and a stream the same."""
        called: list[Rows]
        if isinstance(stage, ExpiringStage):
            inside, called = self._told_apart(stage.inside, rows)
            sources = [
                replace(source, name=given.relation.name) for source, given in zip(stage.sources, inside.inputs, strict=True)
            ]
            return replace(stage, inside=inside, sources=tuple(sources)), called
        described: Any = stage
        relations = [one.name for one in fields(described) if isinstance(getattr(described, one.name), Relation)]
        called = []
        for argument, row in zip(relations, rows, strict=True):
            relation: Relation = getattr(described, argument)
            name = self._free(relation.name)
            if name != relation.name:
                described = replace(described, **{argument: replace(relation, name=name)})
            called.append(replace(row, name=name) if isinstance(row, SourceStream) and row.name != name else row)
        return described, called

    def _changed(self, rows: Rows) -> Rows:
        """Return upserts of a stream as changes of whole rows."""
        if isinstance(rows, ViewPlan) or rows.mode != "upsert":
            return rows
        name = self._free(rows.name)
        return as_changes(rows if name == rows.name else replace(rows, name=name))

    def _free(self, name: str) -> str:
        """Return a name, or one like it that no other input has; messages tell inputs apart by it."""
        wanted, number = name, 2
        while wanted in self._taken:
            wanted, number = f"{name}_{number}", number + 1
        self._taken.add(wanted)
        return wanted

    def _merged(self, parts: Sequence[_Part]) -> Rows:
        plain = [self._visible(part) for part in parts]
        streams = [rows for rows in plain if isinstance(rows, SourceStream)]
        if len(streams) == len(plain):
            return _united(streams)
        views = [self.as_view(rows) for rows in plain]
        united = views[0]
        for view in views[1:]:
            united = union(united, view)
        return united

    def _visible(self, part: _Part) -> Rows:
        """Return the changes of whole rows, without hidden columns."""
        rows = self._changed(part.rows)
        return rows if rows is not part.rows and isinstance(part.rows, SourceStream) else _shown(part).rows

    def as_view(self, rows: Rows) -> ViewPlan:
        """Return rows as a view: a stream goes through a stage that tells old values, or one that hands rows on."""
        changed = self._changed(rows)
        if isinstance(changed, ViewPlan):
            return changed
        stream = changed.of_whole_rows()
        name = self._free(stream.name)
        stream = stream if name == stream.name else replace(stream, name=name)
        return staged([stream], UnchangedStage(source=stream.relation(())))


def _united(streams: Sequence[SourceStream]) -> SourceStream:
    """Return the rows of streams as one stream; columns go by position."""
    first = streams[0]
    prepared = first.prepared
    names = prepared.columns
    for other in streams[1:]:
        prepared = prepared.unionAll(other.prepared.toDF(*names))
    columns = [
        field.with_nullable(any(one.schema.field(at).nullable for one in streams)) for at, field in enumerate(first.schema)
    ]
    jumps = [one.max_watermark_jump for one in streams if one.max_watermark_jump is not None]
    same_time = all(one.event_time == first.event_time and one.watermark_delay is not None for one in streams)
    return replace(
        first,
        name="_and_".join(dict.fromkeys(one.name for one in streams)),
        mode="append" if {one.mode for one in streams} == {"append"} else "changelog",
        keys=(),
        sequence_by=(),
        prepared=prepared,
        schema=pa.schema(columns),
        may_reject=any(one.may_reject for one in streams),
        operation=tuple(f"{one.name}: {text}" for one in streams for text in (*one.operation, "union")),
        functions=tuple(dict.fromkeys(function for one in streams for function in one.functions)),
        event_time=first.event_time if same_time else None,
        watermark_delay=max(one.watermark_delay or 0 for one in streams) if same_time else None,
        max_watermark_jump=min(jumps, default=None) if same_time else None,
        made_of=None,
    )


def _joined(rows: Sequence[Rows], stage: JoinStage, hidden: Sequence[tuple[str, ...]]) -> ViewPlan:
    """Return a join; as the fluent API makes it, unless a view has columns that only this join is to see."""
    if any(isinstance(row, ViewPlan) and names for row, names in zip(rows, hidden, strict=True)):
        routes = [_route(row, relation) for row, relation in zip(rows, stage.relations, strict=True)]
        return staged(rows, stage, routes)
    sides: list[SideNode] = []
    for row, relation, names, key in zip(rows, stage.relations, hidden, stage.row_keys, strict=True):
        if isinstance(row, ViewPlan):
            plain = Relation(name=relation.name, schema=relation.schema, join_key=relation.join_key, mode="changelog")
            sides.append(ViewNode(relation=plain, key=key or ()))
            continue
        source = InputNode(relation=relation, hidden=names, has_baseline=row.baseline is not None)
        sides.append(RouteNode(source=source) if needs_route(relation) else source)
    node = JoinNode(
        left=sides[0], right=sides[1], how=stage.how, null_safe=stage.flags, using=stage.using, residual=stage.residual
    )
    plan = JoinPlan(left=rows[0], right=rows[1], node=node)
    check_inputs(plan)
    return plan


def _route(rows: Rows, relation: Relation) -> Stage | None:
    return RouteStage(source=relation) if isinstance(rows, SourceStream) and needs_route(relation) else None


def _shown(part: _Part) -> _Part:
    """Return rows without their hidden columns."""
    if not part.hidden:
        return part
    if isinstance(part.rows, ViewPlan):
        left = [name for name in part.rows.columns if name not in part.hidden]
        return _Part(part.rows if left == part.rows.columns else part.rows.then(_picking(part.rows, left)))
    names = [name for name in part.rows.schema.names if name not in part.hidden]
    return _Part(
        replace(
            part.rows,
            prepared=part.rows.prepared.drop(*part.hidden),
            schema=pa.schema([part.rows.schema.field(name) for name in names]),
            hidden=(),
            sequence_by=(),
            made_of=None,
        )
    )


def _picking(view: ViewPlan, names: Sequence[str]) -> RowStep:
    chosen = list(map(column_named, names))
    return row_step(
        view.session, view.output, "select", lambda rows, kept: rows.select(*chosen, *map(column_named, kept)), is_internal=True
    )


def _applied(rows: Rows, step: object, *, is_internal: bool = False) -> Rows:
    """Return rows after a step.

    Raises:
        PlanError: the step is of a kind that no tree has.
    """
    if isinstance(step, WhereStep):
        return _kept(rows, step.condition)
    if isinstance(step, SelectStep):
        return _selected(rows, step, is_internal=is_internal)
    raise PlanError(
        f"{type(step).__name__} over rows is not known inside Spark; use where and select.", code="UNKNOWN_ROW_STEP"
    )


def _text(tree: Expression, schema: pa.Schema) -> str:
    """Return a tree over one row as Spark SQL; one made with `left(...)` or `right(...)` alone means the same."""
    return to_sql(
        tree,
        {"row": schema, "left": schema, "right": schema},
        dialect="spark",
        columns=lambda _, name: quote_name(name, "spark"),
    )


def _kept(rows: Rows, condition: Expression) -> Rows:
    before = rows.relation(()) if isinstance(rows, SourceStream) else rows.output
    text = _text(condition, before.schema)
    step = row_step(rows.session, before, f"where {text}", lambda given, _: given.where(text), is_internal=True)
    if isinstance(rows, ViewPlan):
        return rows.then(replace(step, tree=WhereStep(condition)))
    passes = F.expr(text)
    is_rejected = F.col(REJECT).isNotNull()
    if rows.mode == "upsert":
        weight = F.when(is_rejected | F.coalesce(passes, F.lit(False)), F.col(WEIGHT)).otherwise(F.lit(-1).cast("long"))
        prepared = rows.prepared.withColumn(WEIGHT, weight)
    else:
        prepared = rows.prepared.where(is_rejected | passes if rows.may_reject else passes)
    return replace(
        rows,
        prepared=prepared,
        operation=(*rows.operation, *step.description),
        made_of=_made_of(rows, WhereStep(condition)),
    )


def _made_of(rows: SourceStream, step: WhereStep | SelectStep) -> tuple[SourceStream, tuple[PlanStep, ...]]:
    """Return what a stream is made of after one more step."""
    origin, steps = rows.origin
    return origin, (*steps, step)


def _selected(rows: Rows, step: SelectStep, *, is_internal: bool) -> Rows:
    before = rows.relation(()) if isinstance(rows, SourceStream) else rows.output
    relation = step.output(before)
    texts = [_text(tree, before.schema) for _, tree in step.columns]
    selection = _row_step(rows, before, relation, texts, is_internal=is_internal)
    given = selection.relation.schema
    differing = [at for at, field in enumerate(relation.schema) if given.field(at).type != field.type]
    if differing:
        for at in differing:
            texts[at] = f"CAST({texts[at]} AS {field_type(relation.schema.field(at)).simpleString()})"
        selection = _row_step(rows, before, relation, texts, is_internal=is_internal)
    if isinstance(rows, ViewPlan):
        return rows.then(replace(selection, tree=step))
    kept = step.kept
    named = [f"{text} AS {quote_name(field.name, 'spark')}" for text, field in zip(texts, relation.schema, strict=True)]
    prepared = select_text(rows.prepared, [*named, WEIGHT, REJECT, RAW])
    hidden = tuple(kept[name] for name in rows.hidden if name in kept)
    names = relation.schema.names
    return replace(
        rows,
        prepared=prepared,
        columns=tuple(name for name in names if name not in hidden),
        keys=relation.primary_key,
        sequence_by=relation.sequence_by,
        hidden=hidden,
        schema=arrow_schema(prepared.drop(WEIGHT, REJECT, RAW).schema, relation=rows.name),
        operation=(*rows.operation, *selection.description),
        event_time=relation.event_time,
        watermark_delay=relation.watermark_delay,
        max_watermark_jump=None if relation.watermark_delay is None else rows.max_watermark_jump,
        made_of=_made_of(rows, step),
    )


def _row_step(rows: Rows, before: Relation, after: Relation, texts: Sequence[str], *, is_internal: bool) -> RowStep:
    named = [f"{text} AS {quote_name(field.name, 'spark')}" for text, field in zip(texts, after.schema, strict=True)]
    return row_step(
        rows.session,
        before,
        f"select {', '.join(named)}",
        lambda given, kept: select_text(given, [*named, *(quote_name(name, "spark") for name in kept)]),
        is_internal=is_internal,
    )
