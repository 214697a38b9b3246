"""Row steps before the first stage, applied to the streams; and row steps as Spark expressions.

The law: the rows of a stream after a step are those of the plan, whose expressions are in UTC. One whose type Spark would
choose otherwise is cast to that of the plan. A step over upserts keeps them where the key is kept: a row that does not pass
deletes its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.sql_text import quote_name, to_sql
from zset_join.plan.row_steps import OpaqueStep, SelectStep, WhereStep
from zset_join.plan.row_steps import RowStep as PlanStep
from zset_join.runners.spark.planning.job_settings import job_settings
from zset_join.runners.spark.planning.row_steps import ZONE, RowStep, row_step
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.baseline import union
from zset_join.runners.spark.rows.names import select_text
from zset_join.runners.spark.rows.row_reading import RAW, REJECT, WEIGHT
from zset_join.runners.spark.rows.schemas import arrow_schema, field_type

__all__ = ["as_input", "spark_step", "step_text", "stepped", "united"]


def spark_step(session: SparkSession, before: Relation, step: WhereStep | SelectStep) -> RowStep:
    """Return a step as Spark's own expressions."""
    if step.condition is not None:
        text = step_text(step.condition, before.schema)
        return row_step(session, before, f"where {text}", lambda given, _: given.where(text), is_internal=True)
    return _selection(session, before, step)


def stepped(stream: SourceStream, step: PlanStep) -> SourceStream:
    match step:
        case WhereStep():
            return _kept(stream, step)
        case SelectStep():
            return _selected(stream, step)
        case OpaqueStep():
            raise step.refusal()


def united(streams: Sequence[SourceStream]) -> SourceStream:
    """Return the rows of streams as one stream; columns go by position."""
    first = streams[0]
    if len(streams) == 1:
        return first
    names = first.prepared.columns
    prepared = reduce(DataFrame.unionAll, [other.prepared.toDF(*names) for other in streams[1:]], first.prepared)
    baseline = union(one.baseline.toDF(*names) for one in streams if one.baseline is not None)
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
        baseline=baseline,
        schema=pa.schema(columns),
        may_reject=any(one.may_reject for one in streams),
        operation=tuple(f"{one.name}: {text}" for one in streams for text in (*one.operation, "union")),
        functions=tuple(dict.fromkeys(function for one in streams for function in one.functions)),
        event_time=first.event_time if same_time else None,
        watermark_delay=max(one.watermark_delay or 0 for one in streams) if same_time else None,
        max_watermark_jump=min(jumps, default=None) if same_time else None,
        made_of=None,
    )


def as_input(stream: SourceStream, relation: Relation) -> SourceStream:
    """Return a stream as the input of a stage: under the name it has there, with the columns that the stage is fed."""
    wanted = set(relation.schema.names)
    if set(stream.schema.names) > wanted:
        left_out = tuple(name for name in stream.schema.names if name not in wanted)
        whole = stream.of_whole_rows()
        dropped = [name for name in left_out if name in whole.schema.names]
        stream = replace(
            whole.with_rows(lambda rows: rows.drop(*dropped)),
            schema=pa.schema([field for field in whole.schema if field.name in wanted]),
            hidden=tuple(name for name in whole.hidden if name in wanted),
            sequence_by=tuple(name for name in whole.sequence_by if name in wanted),
        )
    return stream if stream.name == relation.name else replace(stream, name=relation.name)


def step_text(tree: Expression, schema: pa.Schema) -> str:
    """Return a tree over one row as Spark SQL; one made with `left(...)` or `right(...)` alone means the same."""
    return to_sql(
        tree,
        {"row": schema, "left": schema, "right": schema},
        dialect="spark",
        columns=lambda _, name: quote_name(name, "spark"),
    )


def _selection(session: SparkSession, before: Relation, step: SelectStep) -> RowStep:
    """Return a selection with the types of the plan."""
    relation = step.output(before)
    texts = [step_text(tree, before.schema) for _, tree in step.columns]
    selection = _row_step(session, before, relation, texts)
    given = selection.relation.schema
    differing = [at for at, field in enumerate(relation.schema) if given.field(at).type != field.type]
    if differing:
        for at in differing:
            texts[at] = f"CAST({texts[at]} AS {field_type(relation.schema.field(at)).simpleString()})"
        selection = _row_step(session, before, relation, texts)
    return selection


def _row_step(session: SparkSession, before: Relation, after: Relation, texts: Sequence[str]) -> RowStep:
    names = [quote_name(field.name, "spark") for field in after.schema]
    named = [text if text == name else f"{text} AS {name}" for text, name in zip(texts, names, strict=True)]
    return row_step(
        session,
        before,
        f"select {', '.join(named)}",
        lambda given, kept: select_text(given, [*named, *(quote_name(name, "spark") for name in kept)]),
        is_internal=True,
    )


def _made_of(stream: SourceStream, step: WhereStep | SelectStep) -> tuple[SourceStream, tuple[PlanStep, ...]]:
    """Return the composition of a stream after one more step."""
    origin, steps = stream.origin
    return origin, (*steps, step)


def _kept(stream: SourceStream, where: WhereStep) -> SourceStream:
    step, text = _in_utc(stream, where), step_text(where.condition, stream.schema)

    def kept(rows: DataFrame) -> DataFrame:
        passes, is_rejected = F.expr(text), F.col(REJECT).isNotNull()
        if stream.mode != "upsert":
            return rows.where(is_rejected | passes if stream.may_reject else passes)
        weight = F.when(is_rejected | F.coalesce(passes, F.lit(False)), F.col(WEIGHT)).otherwise(F.lit(-1).cast("long"))
        return rows.withColumn(WEIGHT, weight)

    after = stream.with_rows(lambda rows: step.evaluated(rows, kept).toDF(*rows.columns))
    return replace(after, operation=(*stream.operation, *step.description), made_of=_made_of(stream, where))


def _in_utc(stream: SourceStream, step: WhereStep | SelectStep) -> RowStep:
    with job_settings(stream.session, {ZONE: "UTC"}):
        return spark_step(stream.session, stream.relation(()), step)


def _selected(stream: SourceStream, step: SelectStep) -> SourceStream:
    before = stream.relation(())
    relation = step.output(before)
    selection, kept = _in_utc(stream, step), step.kept
    after = stream.with_rows(lambda rows: selection.apply(rows, (WEIGHT, REJECT, RAW)))
    hidden = tuple(kept[name] for name in stream.hidden if name in kept)
    return replace(
        after,
        columns=tuple(name for name in relation.schema.names if name not in hidden),
        keys=relation.primary_key,
        sequence_by=relation.sequence_by,
        hidden=hidden,
        schema=arrow_schema(after.prepared.drop(WEIGHT, REJECT, RAW).schema, relation=stream.name),
        operation=(*stream.operation, *selection.description),
        event_time=relation.event_time,
        watermark_delay=relation.watermark_delay,
        max_watermark_jump=None if relation.watermark_delay is None else stream.max_watermark_jump,
        made_of=_made_of(stream, step),
    )
