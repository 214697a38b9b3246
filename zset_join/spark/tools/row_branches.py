"""A join of a query with the steps behind it, and how one is asked about rows behind these steps.

Of the steps those before the first aggregate are followed back; what an aggregate makes of rows only as far as its group key.
Joins whose rows end by time are followed like any other. What other stages make is not; `unfollowed` names them.

Cost: as `RowQuestion`; with steps one small Spark job, and where no column of the join is asked for, a batch join of all row
versions in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.row_causes import CauseFinder
from zset_join.checkpoint.row_history import Row, RowHistory, RowQuestion, have_values
from zset_join.errors import OptionError
from zset_join.plan.joins import InputNode, JoinNode
from zset_join.relation import Relation
from zset_join.shapes.join import joined_schema, visible_columns
from zset_join.shown_values import shown_rows
from zset_join.spark.planning.join_plan import JoinPlan
from zset_join.spark.planning.row_steps import RowStep
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stage_plan import StagePlan
from zset_join.spark.planning.stages import Step, name_after
from zset_join.spark.planning.view_plan import ViewPlan
from zset_join.spark.rows.layout import WEIGHT, as_type
from zset_join.spark.rows.names import column_named
from zset_join.spark.tools.batch_view import batch_stage
from zset_join.spark.tools.logged_changes import logged_changes, stage_histories
from zset_join.stages import ExpiringStage, JoinStage, Stage, StageOptions
from zset_join.zset import ZSet, single_batch

__all__ = ["Branch", "LastingJoin", "Question", "branches_of", "is_stream", "unfollowed"]

_ROW = "__row"
_WHOLE_CHANGES = ("latest", "unchanged")


@dataclass(frozen=True, kw_only=True)
class LastingJoin:
    """A join whose rows end by time, with what is asked of a `JoinPlan`.

    Args:
        plan: of the stage with `state_ttl` around the join.
    """

    plan: StagePlan

    @property
    def stage(self) -> ExpiringStage:
        """Return the stage around the join."""
        if not isinstance(self.plan.stage, ExpiringStage):
            raise AssertionError("the rows of this join do not end by time")
        return self.plan.stage

    @cached_property
    def node(self) -> JoinNode:
        """Return the join, over what it is fed."""
        inside = self.stage.inside
        if not isinstance(inside, JoinStage):
            raise AssertionError("the stage around which rows end is a join")
        left, right = (
            InputNode(relation=relation, hidden=hidden)
            for relation, hidden in zip(inside.relations, inside.hidden, strict=True)
        )
        return JoinNode(
            left=left, right=right, how=inside.how, null_safe=inside.flags, using=inside.using, residual=inside.residual
        )

    @property
    def inputs(self) -> tuple[SourceStream | ViewPlan, ...]:
        """Return what it is fed."""
        return self.plan.inputs

    @property
    def before_steps(self) -> Relation:
        """Return its rows."""
        return self.plan.before_steps

    @property
    def session(self) -> SparkSession:
        """Return the session of the streams."""
        return self.plan.session


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A join, and the steps behind it up to a view; a view without a union has one.

    Args:
        join: the join.
        steps: all that is done with its rows.
        view_schema: the columns of the view.
    """

    join: JoinPlan | LastingJoin
    steps: tuple[Step, ...] = field(repr=False)
    view_schema: pa.Schema = field(repr=False)

    @property
    def stage(self) -> Stage:
        """Return the stage that makes the rows of the join."""
        return self.join.stage if isinstance(self.join, LastingJoin) else self.join.node.stage

    @cached_property
    def row_steps(self) -> tuple[RowStep, ...]:
        """Return the steps before the first aggregate."""
        before_aggregates: list[RowStep] = []
        for step in self.steps:
            if not isinstance(step, RowStep):
                break
            before_aggregates.append(step)
        return tuple(before_aggregates)

    @property
    def is_grouped(self) -> bool:
        """Say whether the view is made of groups."""
        return len(self.row_steps) < len(self.steps)

    @property
    def before(self) -> Relation:
        """Return what the first aggregate is given; without one, the view."""
        return self.row_steps[-1].relation if self.row_steps else self.join.before_steps

    @cached_property
    def traced(self) -> Mapping[str, str]:
        """Return the columns of the view that are columns of `before`, by their names in the view."""
        behind = self.steps[len(self.row_steps) :]
        return {after: name for name in self.before.schema.names if (after := name_after(behind, name)) is not None}

    @cached_property
    def sources(self) -> list[tuple[str, str]]:
        """Return, per column of the join's operator, (side, source column)."""
        return self._columns[1]

    @property
    def causes(self) -> CauseFinder:
        """Return what tells apart which changes belong to which rows of the join."""
        node = self.join.node
        schema, sources = self._columns
        shown = {
            at: name for at, name in zip(sources, schema.names, strict=True) if name in self.join.before_steps.schema.names
        }
        return CauseFinder(self._inputs, shown, node.null_safe)

    @cached_property
    def _columns(self) -> tuple[pa.Schema, list[tuple[str, str]]]:
        node = self.join.node
        columns = joined_schema(*self._inputs, node.how, using=node.using, output_names=None)
        return visible_columns(*columns, [side.hidden for side in node.sides])

    @property
    def _inputs(self) -> tuple[Relation, Relation]:
        return self.join.node.left.relation, self.join.node.right.relation


def branches_of(view: ViewPlan) -> tuple[Branch, ...]:
    """Return the joins that a view is made of, without those behind its sides, each with all steps behind it."""
    return tuple(Branch(join=join, steps=steps, view_schema=view.output.schema) for join, steps in _joins_of(view, view.steps))


def _joins_of(view: ViewPlan, steps: tuple[Step, ...]) -> list[tuple[JoinPlan | LastingJoin, tuple[Step, ...]]]:
    join = _join_of(view)
    if join is not None:
        return [(join, steps)]
    if view.stage_before_steps is not None:
        return []
    return [join for one in view.inputs if isinstance(one, ViewPlan) for join in _joins_of(one, (*one.steps, *steps))]


def _join_of(view: ViewPlan) -> JoinPlan | LastingJoin | None:
    if isinstance(view, JoinPlan):
        return view
    if isinstance(view, StagePlan) and isinstance(view.stage, ExpiringStage) and isinstance(view.stage.inside, JoinStage):
        return LastingJoin(plan=view)
    return None


def is_stream(view: ViewPlan) -> bool:
    """Say whether the rows of a view are those of a stream, as whole changes."""
    stage = view.stage_before_steps
    return not view.steps and stage is not None and stage.kind in _WHOLE_CHANGES and not isinstance(view.inputs[0], ViewPlan)


def unfollowed(view: ViewPlan) -> list[str]:
    """Return what makes rows of a view that are not followed back, as `explain` calls it; nothing where all of them are."""
    if _join_of(view) is not None:
        return []
    if view.stage_before_steps is not None:
        return [view.stage_before_steps.explain(None)[0]]
    streams = [f'the stream "{one.name}"' for one in view.inputs if not isinstance(one, ViewPlan)]
    return [*streams, *(title for one in view.inputs if isinstance(one, ViewPlan) for title in unfollowed(one))]


@dataclass(frozen=True, kw_only=True)
class Question:
    """Ask join stages for the history of rows.

    Args:
        checkpoint: of the query; its epochs wait.
        options: what its operators are built with.
        row: what the user asked for, for messages.
        most_rows: rows to report at most, per question.
    """

    checkpoint: Checkpoint
    options: StageOptions
    row: Mapping[str, Any]
    most_rows: int

    def ask(self, branch: Branch, stage: str, values: pa.Table, *, epochs: Collection[int] | None = None) -> RowHistory:
        """Return the history of the rows of a join that lead to rows with given values, of some others beside them.

        Args:
            branch: the join.
            stage: where it keeps its log.
            values: rows with columns of `branch.before`; who leads to one of them is asked for.
            epochs: tell what happened in these, with every change of the join keys; None: everything, with the changes that
                name the rows.

        Raises:
            OptionError: `ROW_QUESTION`: they are more than `most_rows`.
        """
        histories = stage_histories(self.checkpoint, stage)
        shown = branch.join.before_steps.schema
        of_join = {after: name for name in shown.names if (after := name_after(branch.row_steps, name)) is not None}
        plain = [name for name in values.column_names if name in of_join and not pt.is_nested(values.column(name).type)]
        narrowing = {of_join[name]: pc.unique(values.column(name)) for name in plain}
        if not _all_have_a_value(values, plain):
            join_rows = self._join_rows(branch, stage, values)
            if not join_rows.num_rows:
                return RowHistory(self.row, is_complete=all(history.snapshot is None for history in histories))
            narrowing = {at.name: pc.unique(join_rows.column(at.name)) for at in shown if not pt.is_nested(at.type)}
        # Rows in quarantine are in the log; they are left out here as they were left out then.
        build = partial(branch.stage.build, replace(self.options, on_bad_input="quarantine"))
        question = RowQuestion(
            build,
            shown,
            branch.sources,
            self.row,
            values=narrowing,
            most_rows=self.most_rows,
            epochs=epochs,
            tells_all=epochs is not None,
        )
        return question.ask(self.checkpoint.files, histories)

    def snapshot_epoch(self, stage: str) -> int:
        """Return the last epoch that some bucket of a stage has only in its snapshot; -1 where there is none."""
        snapshots = [history.snapshot for history in stage_histories(self.checkpoint, stage)]
        return max((snapshot.through_epoch for snapshot in snapshots if snapshot is not None), default=-1)

    def made(self, branch: Branch, history: RowHistory) -> list[list[tuple[int, Row]]]:
        """Return, per event, what the row steps make of the join rows it emitted, each with the number of its join row."""
        if not branch.row_steps:
            return [[(line, row) for line, (row, _) in enumerate(event.emitted)] for event in history.events]
        lines = _lines(history)
        results: list[list[tuple[int, Row]]] = [[] for _ in history.events]
        if lines:
            rows, numbers = self._behind_steps(branch, lines)
            for number, row in zip(numbers.tolist(), shown_rows(rows), strict=True):
                results[lines[number].event].append((lines[number].line, row))
        return results

    def shown(self, branch: Branch, history: RowHistory, values: pa.Table) -> RowHistory:
        """Return a history of join rows as one of the rows behind the row steps, of which those with given values are left.

        Of a group its join rows are left as they are: what is computed for an aggregate shows little of them.
        """
        lines = _lines(history)
        if not lines or not branch.row_steps:
            return history
        results, numbers = self._behind_steps(branch, lines)
        kept = have_values(results, {name: pc.unique(values.column(name)) for name in values.column_names})
        numbers = numbers[kept]
        if branch.is_grouped:
            rows = pa.Table.from_pylist([lines[at].row for at in numbers.tolist()], branch.join.before_steps.schema)
        else:
            rows = results.filter(pa.array(kept))
        events = np.array([line.event for line in lines], np.int64)[numbers]
        weights = np.array([line.weight for line in lines], np.int64)[numbers]
        emitted = ZSet(single_batch(rows), weights)
        return replace(
            history,
            events=tuple(
                replace(
                    event, emitted=_emitted(ZSet(emitted.rows.filter(pa.array(events == number)), weights[events == number]))
                )
                for number, event in enumerate(history.events)
            ),
        )

    def _behind_steps(self, branch: Branch, lines: Sequence[_Line]) -> tuple[pa.Table, np.ndarray[Any, np.dtype[np.int64]]]:
        """Return what the row steps make of join rows, and of which line each is."""
        rows = pa.Table.from_pylist([line.row for line in lines], branch.join.before_steps.schema)
        # The number of a line stands where its weight would, so that each result finds back to it.
        numbered = branch.join.session.createDataFrame(rows.append_column(WEIGHT, pa.array(range(len(lines)), pa.int64())))
        for step in branch.row_steps:
            numbered = step.apply(numbered)
        results: pa.Table = numbered.toArrow()
        numbers = np.asarray(results.column(WEIGHT), np.int64)
        columns = [as_type(results.column(at.name), at.type) for at in branch.before.schema]
        return pa.Table.from_arrays(columns, schema=branch.before.schema), numbers

    def _join_rows(self, branch: Branch, stage: str, values: pa.Table) -> pa.Table:
        """Return the rows of a join, of now or of earlier, whose result behind its row steps has the values asked for.

        Raises:
            OptionError: `ROW_QUESTION`: they are more than `most_rows`.
        """
        left, right = (self._versions(branch.join, stage, side) for side in (0, 1))
        # Each pair of versions, and each version by itself, as it was before its partner came or after it had gone.
        pairs = [(left, right), (left, right.limit(0)), (left.limit(0), right)]
        names = branch.join.before_steps.schema.names
        rows = reduce(DataFrame.unionAll, (batch_stage(branch.join.node.stage, pair) for pair in pairs)).toDF(*names, WEIGHT)
        rows = rows.withColumn(_ROW, F.struct(*map(column_named, names)))
        for step in branch.row_steps:
            rows = step.apply(rows, beside=(WEIGHT, _ROW))
        asked = branch.join.session.createDataFrame(values.rename_columns([f"__{at}" for at in range(values.num_columns)]))
        condition: Column = F.lit(True)
        for at, name in enumerate(values.column_names):
            condition &= column_named(name).eqNullSafe(F.col(f"__{at}"))
        matching = rows.join(F.broadcast(asked), condition, "left_semi")
        answer: pa.Table = matching.select(f"{_ROW}.*").limit(self.most_rows + 1).toArrow()
        if answer.num_rows > self.most_rows:
            raise OptionError(
                f"explain_row({dict(self.row)!r}): more than {self.most_rows} rows of the join have had these values; name "
                "more columns, best a key that the view shows, or raise most_rows.",
                code="ROW_QUESTION",
                row=dict(self.row),
                most_rows=self.most_rows,
            )
        return answer

    def _versions(self, join: JoinPlan | LastingJoin, stage: str, side: int) -> DataFrame:
        """Return every row that came in on one side, as far back as the log goes, each with weight 1."""
        schemas = [each.relation.schema for each in join.node.sides]
        histories, table = stage_histories(self.checkpoint, stage), list(join.node.stage.state_tables)[side]
        changes = logged_changes(join.session, self.checkpoint, histories, schemas, side, table=table)
        rows = changes.where("__weight > 0").select(*map(column_named, join.inputs[side].columns))
        return rows.withColumn("__weight", F.lit(1).cast("long"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A row that an event emitted: the numbers of both, and its weight."""

    event: int
    line: int
    row: Row
    weight: int


def _lines(history: RowHistory) -> list[_Line]:
    return [
        _Line(event=number, line=line, row=row, weight=weight)
        for number, event in enumerate(history.events)
        for line, (row, weight) in enumerate(event.emitted)
    ]


def _all_have_a_value(values: pa.Table, names: Sequence[str]) -> bool:
    """Say whether every row has a value that is not NULL in one of some columns."""
    has_value = np.zeros(values.num_rows, np.bool_)
    for name in names:
        has_value |= np.asarray(values.column(name).is_valid(), np.bool_)
    return bool(has_value.all())


def _emitted(rows: ZSet) -> tuple[tuple[Row, int], ...]:
    net = rows.consolidated()
    pairs = list(zip(shown_rows(net.rows), net.weights.tolist(), strict=True))
    return tuple(sorted(pairs, key=lambda pair: pair[1] > 0))
