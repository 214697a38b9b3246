"""Answer `query.explain_row`: the history of output rows, from what the checkpoint keeps of the join stage.

A view that does more than join is asked in the columns of its own output. They are followed back through its steps:

- a column that is a column of the join, whatever it was renamed to, narrows the question to rows of the join as it stands;
- a computed column (`withColumn`, `select`) does not say where its value came from. Is nothing else asked for, then every row
  version that the log keeps is joined by Spark, the steps are applied, and the join rows whose result has the value are asked
  about;
- a group key leads to the rows of the join that are in the group, as they came and went. What an aggregate made of them cannot
  be asked for.

The law: what is reported as emitted are rows that the engine answers: those whose result has the values asked for, when Spark's
own expressions are applied, and for a view without groups this result.

Cost: as `RowQuestion`; with steps one small Spark job, and for computed columns a batch join of all row versions in the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.row_history import RowHistory, RowQuestion, asked_values, have_values
from zset_join.errors import OptionError, StateError
from zset_join.relation import Relation
from zset_join.spark.joined import JoinedStream
from zset_join.spark.layout import WEIGHT, as_type
from zset_join.spark.names import column_named
from zset_join.spark.operators import join_builder
from zset_join.spark.row_steps import RowStep
from zset_join.spark.runner import EpochRunner
from zset_join.spark.schemas import spark_type
from zset_join.spark.stage_names import JOIN_STAGE
from zset_join.spark.stages import name_after
from zset_join.spark.verification import batch_join, logged_changes, stage_histories
from zset_join.spark.views import View
from zset_join.state.join_shape import joined_schema
from zset_join.zset import ZSet, single_batch

__all__ = ["explain_row"]

_ROW = "__row"


def explain_row(joined: View, runner: EpochRunner, row: Mapping[str, Any], *, most_rows: int) -> RowHistory:
    """Return which input changes made and unmade the output rows with given values.

    Args:
        joined: the view.
        runner: what runs its epochs; they wait.
        row: columns of the output to values.
        most_rows: rows to report at most.

    Raises:
        OptionError: `ROW_QUESTION`: no such rows can be asked for, or too many are.
        StateError: the checkpoint cannot be read.
    """
    if len(joined.joins) > 1 or not isinstance(joined, JoinedStream):
        raise OptionError(
            f"explain_row answers for the rows of one join; this view is made of {len(joined.joins)}. Run the join you ask "
            "about as a query of its own, and ask there.",
            code="ROW_QUESTION",
        )
    steps = _row_steps(joined)
    before = steps[-1].relation if steps else joined.before_steps
    values = _traced(joined, len(steps), before, row)
    node = joined.node
    left, right = node.left.relation, node.right.relation
    _, sources = joined_schema(left, right, node.how, using=node.using, output_names=None)
    # Rows in quarantine are in the log; they are left out here as they were left out then.
    build = join_builder(node, replace(runner.operator_options, on_bad_input="quarantine"))
    shown = joined.before_steps.schema
    of_join = {after: name for name in shown.names if (after := name_after(steps, name)) is not None}
    narrowing = {of_join[name]: found for name, found in values.items() if name in of_join}
    with runner.pause():
        checkpoint = runner.checkpoint
        if checkpoint is None:
            raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
        histories = stage_histories(checkpoint, JOIN_STAGE)
        is_complete = all(history.snapshot is None for history in histories)
        if all(found.null_count for found in narrowing.values()):
            found = _join_rows(joined, checkpoint, steps, values, row, most_rows)
            if not found.num_rows:
                return RowHistory(row, is_complete=is_complete, is_group=len(steps) < len(joined.steps))
            narrowing = {at.name: pc.unique(found.column(at.name)) for at in shown if not pt.is_nested(at.type)}
        question = RowQuestion(build, shown, sources, row, values=narrowing, most_rows=most_rows)
        history = question.ask(checkpoint.files, histories)
        if steps:
            history = _behind(history, joined, steps, before, values)
        return replace(history, is_group=len(steps) < len(joined.steps))


def _row_steps(joined: JoinedStream) -> tuple[RowStep, ...]:
    """Return the steps before the first aggregate."""
    found: list[RowStep] = []
    for step in joined.steps:
        if not isinstance(step, RowStep):
            break
        found.append(step)
    return tuple(found)


def _traced(joined: JoinedStream, first: int, before: Relation, row: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Return what is asked for, by the columns that the first aggregate is given; without one, those of the output.

    Raises:
        OptionError: `ROW_QUESTION`: as `asked_values`; or a column is what an aggregate makes of several rows.
    """
    asked = asked_values(joined.output.schema, row)
    shown = {after: name for name in before.schema.names if (after := name_after(joined.steps[first:], name)) is not None}
    for name in asked:
        if name not in shown:
            cure = (
                f"ask for groups by their key: {sorted(shown)}"
                if shown
                else "the view does not show the key of its groups, so they cannot be told apart"
            )
            raise OptionError(
                f'explain_row({dict(row)!r}): "{name}" is made of several rows by an aggregate, which does not '
                f"remember them; {cure}.",
                code="ROW_QUESTION",
                column=name,
            )
    return {shown[name]: found for name, found in asked.items()}


def _join_rows(
    joined: JoinedStream,
    checkpoint: Checkpoint,
    steps: Sequence[RowStep],
    values: Mapping[str, pa.Array],
    row: Mapping[str, Any],
    most_rows: int,
) -> pa.Table:
    """Return the rows of the join, of now or of earlier, whose result behind some steps has the values asked for.

    Raises:
        OptionError: `ROW_QUESTION`: they are more than `most_rows`.
    """
    left, right = (_versions(joined, checkpoint, side) for side in (0, 1))
    # Each pair of versions, and each version by itself, as it was before its partner came or after it had gone.
    pairs = [(left, right), (left, right.limit(0)), (left.limit(0), right)]
    names = joined.before_steps.schema.names
    rows = reduce(DataFrame.unionAll, (batch_join(joined, *pair) for pair in pairs)).toDF(*names, WEIGHT)
    rows = rows.withColumn(_ROW, F.struct(*map(column_named, names)))
    for step in steps:
        rows = step.apply(rows, beside=(WEIGHT, _ROW))
    condition: Column = F.lit(True)
    for name, found in values.items():
        condition &= column_named(name).eqNullSafe(F.lit(found[0].as_py()).cast(spark_type(found.type)))
    made: pa.Table = rows.where(condition).select(f"{_ROW}.*").limit(most_rows + 1).toArrow()
    if made.num_rows > most_rows:
        raise OptionError(
            f"explain_row({dict(row)!r}): more than {most_rows} rows of the join have had these values; name more columns, "
            "best a key that the view shows, or raise most_rows.",
            code="ROW_QUESTION",
            row=dict(row),
            most_rows=most_rows,
        )
    return made


def _versions(joined: JoinedStream, checkpoint: Checkpoint, side: int) -> DataFrame:
    """Return every row that came in on one side, as far back as the log goes, each with weight 1."""
    stream, schemas = (joined.left, joined.right)[side], [each.relation.schema for each in joined.node.sides]
    changes = logged_changes(joined.session, checkpoint, stage_histories(checkpoint, JOIN_STAGE), schemas, side)
    rows = changes.where("__weight > 0").select(*map(column_named, stream.columns))
    return rows.withColumn("__weight", F.lit(1).cast("long"))


def _behind(
    history: RowHistory,
    joined: JoinedStream,
    steps: Sequence[RowStep],
    after: Relation,
    values: Mapping[str, pa.Array],
) -> RowHistory:
    """Return a history of join rows as one of the rows behind some steps, of which those with the values asked for are left.

    Of a group its join rows are left as they are: what is computed for an aggregate shows little of them.
    """
    lines = [(number, row, weight) for number, event in enumerate(history.events) for row, weight in event.emitted]
    if not lines:
        return history
    rows = pa.Table.from_pylist([row for _, row, _ in lines], joined.before_steps.schema)
    # The number of a line stands where its weight would, so that each result finds back to its event.
    made = joined.session.createDataFrame(rows.append_column(WEIGHT, pa.array(range(len(lines)), pa.int64())))
    for step in steps:
        made = step.apply(made)
    found: pa.Table = made.toArrow().combine_chunks()
    found = found.filter(pa.array(have_values(found, values)))
    numbers = np.asarray(found.column(WEIGHT), np.int64)
    events = np.array([number for number, _, _ in lines], np.int64)[numbers]
    weights = np.array([weight for _, _, weight in lines], np.int64)[numbers]
    if len(steps) < len(joined.steps):
        shown = single_batch(rows.take(pa.array(numbers)))
    else:
        columns = [as_type(found.column(at.name), at.type).combine_chunks() for at in after.schema]
        shown = pa.RecordBatch.from_arrays(columns, schema=after.schema)
    told = ZSet(shown, weights)
    return replace(
        history,
        events=tuple(
            replace(event, emitted=_emitted(ZSet(told.rows.filter(pa.array(events == number)), weights[events == number])))
            for number, event in enumerate(history.events)
        ),
    )


def _emitted(rows: ZSet) -> tuple[tuple[dict[str, Any], int], ...]:
    net = rows.consolidated()
    pairs = list(zip(net.rows.to_pylist(), net.weights.tolist(), strict=True))
    return tuple(sorted(pairs, key=lambda pair: pair[1] > 0))
