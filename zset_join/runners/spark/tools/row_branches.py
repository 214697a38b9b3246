"""A join of a query with the path to the view, and the history of rows along it.

Of what is behind a join its own steps are followed back; what a stage makes of rows only as far as its group key. Joins whose
rows end by time are followed like any other. What other stages make is not; `unfollowed` names them.

Cost: as `RowQuestion`; with steps one small Spark job, and where no column of the join is requested, a batch join of all row
versions in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.row_causes import CauseFinder
from zset_join.checkpoint.row_history import Row, RowHistory, RowQuestion, have_values
from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import counted, shown_rows
from zset_join.plan.row_steps import name_after
from zset_join.runners.spark.planning.placed import feeding, forwards_rows, join_in, kept_by
from zset_join.runners.spark.planning.row_steps import RowStep
from zset_join.runners.spark.planning.stages import PlannedStage
from zset_join.runners.spark.rows.layout import WEIGHT, as_type
from zset_join.runners.spark.rows.names import column_named
from zset_join.runners.spark.tools.batch_tables import BatchTables
from zset_join.runners.spark.tools.logged_changes import logged_changes, stage_histories
from zset_join.stages import StageOptions
from zset_join.stages.stage import EquiJoin
from zset_join.zset import ZSet, single_batch

__all__ = ["Branch", "Question", "are_of_a_stream", "branches_of", "unfollowed"]

_ROW = "__row"


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A join and the path from it to a view; a view without a union has one."""

    path: tuple[PlannedStage, ...]
    view_schema: pa.Schema = field(repr=False)

    @property
    def join(self) -> PlannedStage:
        return self.path[0]

    @cached_property
    def inside(self) -> EquiJoin:
        """Return the join itself, over what it is fed."""
        inside = join_in(self.join.stage)
        if inside is None:
            raise AssertionError(f"{self.join.name} is not a join")
        return inside

    @property
    def row_steps(self) -> tuple[RowStep, ...]:
        return self.join.steps

    @property
    def is_grouped(self) -> bool:
        return len(self.path) > 1

    @property
    def before(self) -> Relation:
        """Return the input of the next stage; without one, the view."""
        return self.join.after

    @cached_property
    def traced(self) -> Mapping[str, str]:
        """Return the columns of the view that are columns of `before`, by their names in the view."""
        traced = {name: name for name in self.before.schema.names}
        for one in self.path[1:]:
            shown = {name: after for name in kept_by(one.stage) if (after := name_after(one.steps, name)) is not None}
            traced = {shown[now]: name for now, name in traced.items() if now in shown}
        return traced

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Return, per column of the join's operator, (side, source column)."""
        return list(self.inside.shape.sources)

    @property
    def causes(self) -> CauseFinder:
        """Return the condition that assigns changes to rows of the join."""
        shown = dict(zip(self.sources, self.join.before.schema.names, strict=True))
        return CauseFinder(self.inside.relations, shown, self.inside.flags)

    def columns_of(self, side: int) -> list[str]:
        """Return the columns of an input that are shown or compared."""
        relation = self.inside.relations[side]
        return [name for name in relation.schema.names if name not in self.inside.hidden[side] or name in relation.join_key]


def branches_of(stages: Sequence[PlannedStage], rows: Sequence[PlannedStage], schema: pa.Schema) -> tuple[Branch, ...]:
    """Return the joins that rows are made of, without those behind their sides, each with all that is behind it."""
    return tuple(Branch(path=path, view_schema=schema) for one in rows for path in _paths(stages, one, ()))


def _paths(
    stages: Sequence[PlannedStage], one: PlannedStage, behind: tuple[PlannedStage, ...]
) -> Iterator[tuple[PlannedStage, ...]]:
    if join_in(one.stage) is not None:
        yield (one, *behind)
    else:
        for before in _only_input(stages, one):
            yield from _paths(stages, before, (one, *behind))


def _only_input(stages: Sequence[PlannedStage], one: PlannedStage) -> list[PlannedStage]:
    """Return the stages that feed a stage of one input; none where it has several, or is fed a stream."""
    return feeding(stages, one.number, 0) if len(one.stage.inputs) == 1 else []


def are_of_a_stream(rows: Sequence[PlannedStage]) -> bool:
    """Return whether the input that some stages feed holds whole changes of a stream; without a stage, the stream feeds it."""
    return not rows or (len(rows) == 1 and forwards_rows(rows[0].stage) and bool(rows[0].streams) and not rows[0].steps)


def unfollowed(stages: Sequence[PlannedStage], rows: Sequence[PlannedStage]) -> list[str]:
    """Return the titles of stages whose rows are not traced; empty if all are."""
    titles: list[str] = []
    for one in rows:
        if join_in(one.stage) is None:
            before = _only_input(stages, one)
            titles += unfollowed(stages, before) if before else [one.stage.explain(None)[0]]
    return titles


@dataclass(frozen=True, kw_only=True)
class Question:
    """Read the history of rows from join stages."""

    checkpoint: Checkpoint
    options: StageOptions
    row: Mapping[str, Any]
    most_rows: int
    session: SparkSession = field(repr=False)

    def find_history(self, branch: Branch, values: pa.Table, *, epochs: Collection[int] | None = None) -> RowHistory:
        """Return the history of the rows of a join that lead to rows with given values, of some others beside them."""
        histories = self._histories(branch)
        shown = branch.join.before.schema
        of_join = {after: name for name in shown.names if (after := name_after(branch.row_steps, name)) is not None}
        plain = [name for name in values.column_names if name in of_join and not pt.is_nested(values.column(name).type)]
        narrowing = {of_join[name]: pc.unique(values.column(name)) for name in plain}
        if not _all_have_a_value(values, plain):
            join_rows = self._join_rows(branch, values)
            if not join_rows.num_rows:
                return RowHistory(self.row, is_complete=all(history.snapshot is None for history in histories))
            narrowing = {at.name: pc.unique(join_rows.column(at.name)) for at in shown if not pt.is_nested(at.type)}
        # Rows in quarantine are in the log; they are omitted here as they were omitted then.
        build = partial(branch.join.stage.build, replace(self.options, on_bad_input="quarantine"))
        question = RowQuestion(
            build,
            shown,
            branch.sources,
            self.row,
            values=narrowing,
            most_rows=self.most_rows,
            epochs=epochs,
            has_all_causes=epochs is not None,
        )
        return question.find_history(self.checkpoint.files, histories)

    def _histories(self, branch: Branch) -> list[BucketHistory]:
        return stage_histories(self.checkpoint, branch.join.state_name)

    def snapshot_epoch(self, branch: Branch) -> int:
        """Return the last epoch that some bucket of a join has only in its snapshot; -1 where there is none."""
        snapshots = [history.snapshot for history in self._histories(branch)]
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
        """Return a history of join rows as one of the rows behind the row steps, of which those with given values are left."""
        # Of a group its join rows are left as they are: what is computed for an aggregate shows little of them.
        lines = _lines(history)
        if not lines or not branch.row_steps:
            return history
        results, numbers = self._behind_steps(branch, lines)
        kept = have_values(results, {name: pc.unique(values.column(name)) for name in values.column_names})
        numbers = numbers[kept]
        if branch.is_grouped:
            rows = pa.Table.from_pylist([lines[at].row for at in numbers.tolist()], branch.join.before.schema)
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
        """Return the join rows after the row steps, and the line of each."""
        rows = pa.Table.from_pylist([line.row for line in lines], branch.join.before.schema)
        # The number of a line takes the place of its weight, so that each result is matched with its line.
        numbered = self.session.createDataFrame(rows.append_column(WEIGHT, pa.array(range(len(lines)), pa.int64())))
        for step in branch.row_steps:
            numbered = step.apply(numbered)
        results: pa.Table = numbered.toArrow()
        numbers = np.asarray(results.column(WEIGHT), np.int64)
        columns = [as_type(results.column(at.name), at.type) for at in branch.before.schema]
        return pa.Table.from_arrays(columns, schema=branch.before.schema), numbers

    def _join_rows(self, branch: Branch, values: pa.Table) -> pa.Table:
        """Return the rows of a join, of now or of earlier, whose result behind its row steps has the values requested."""
        left, right = (self._versions(branch, side) for side in (0, 1))
        # Each pair of versions, and each version by itself, as it was before its partner came or after it had gone.
        pairs = [(left, right), (left, right.limit(0)), (left.limit(0), right)]
        names = branch.join.before.schema.names
        with BatchTables(self.session, {}) as tables:
            rows = reduce(DataFrame.unionAll, (tables.rows_of(branch.inside, pair) for pair in pairs))
            rows = rows.toDF(*names).withColumn(WEIGHT, F.lit(1).cast("long"))
            rows = rows.withColumn(_ROW, F.struct(*map(column_named, names)))
            for step in branch.row_steps:
                rows = step.apply(rows, beside=(WEIGHT, _ROW))
            wanted = self.session.createDataFrame(values.rename_columns([f"__{at}" for at in range(values.num_columns)]))
            condition: Column = F.lit(True)
            for at, name in enumerate(values.column_names):
                condition &= column_named(name).eqNullSafe(F.col(f"__{at}"))
            matching = rows.join(F.broadcast(wanted), condition, "left_semi")
            answer: pa.Table = matching.select(f"{_ROW}.*").limit(self.most_rows + 1).toArrow()
        if answer.num_rows > self.most_rows:
            raise OptionError(
                f"explain_row({dict(self.row)!r}): more than {counted(self.most_rows, 'row')} of the join had these values; "
                "name more columns, best a key that the view shows, or raise most_rows.",
                code="ROW_QUESTION",
                row=dict(self.row),
                most_rows=self.most_rows,
            )
        return answer

    def _versions(self, branch: Branch, side: int) -> DataFrame:
        """Return every row that arrived on one side, as far back as the log goes."""
        schemas = [given.fed.schema for given in branch.join.stage.inputs]
        table = list(branch.inside.state_tables)[side]
        changes = logged_changes(self.session, self.checkpoint, self._histories(branch), schemas, side, table=table)
        return changes.where("__weight > 0").select(*map(column_named, branch.columns_of(side)))


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
    """Return whether every row has a value that is not NULL in one of some columns."""
    has_value = np.zeros(values.num_rows, np.bool_)
    for name in names:
        has_value |= np.asarray(values.column(name).is_valid(), np.bool_)
    return bool(has_value.all())


def _emitted(rows: ZSet) -> tuple[tuple[Row, int], ...]:
    net = rows.consolidated()
    pairs = list(zip(shown_rows(net.rows), net.weights.tolist(), strict=True))
    return tuple(sorted(pairs, key=lambda pair: pair[1] > 0))
