"""The plan of a view: a tree of streams, stages and steps, as plain data that every tool over a query reads.

    ViewPlan: JoinPlan | StagePlan | UnionPlan, each with its inputs (plans or `SourceStream`s) and the steps behind it

The fluent API makes it, word by word; the runner, `verify`, sampling, `explain_row` and rescaling are handed it, so none of
them asks the API. It is planned once: stages, their names, what is fused and what the checkpoint remembers are computed when
they are first asked for, and kept. An epoch plans nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from pyspark.sql import SparkSession

from zset_join.config import QueryOptions
from zset_join.errors import OptionError, PlanError
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.table_index import TableIndex
from zset_join.relation import Relation
from zset_join.spark.planning.buffer_limit import explained_limit
from zset_join.spark.planning.collations import refuse_compared_collations
from zset_join.spark.planning.fusing import FusedStages, Fusing, fused_stages_of, fusings_of
from zset_join.spark.planning.query_plan import query_plan_of, sharing, written_plan
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stages import PlannedStage, StageStep, Step, explained_state, named, with_steps
from zset_join.spark.rows.names import names_clash
from zset_join.spark.rows.user_functions import UserFunction, explained_functions
from zset_join.stages import Stage

__all__ = ["ViewPlan", "check_inputs", "check_names"]


@dataclass(frozen=True, kw_only=True)
class ViewPlan(ABC):
    """Rows that follow from streams, as a description that is not yet running.

    Args:
        steps: what is done with the rows, in order.
        shares_tables: joins that look up in one table share its copy, where this is the view of a query; not so in the
            checkpoint of a version that did not.
        indexes: declared ones.
    """

    steps: tuple[Step, ...] = field(default=(), repr=False)
    shares_tables: bool = field(default=True, repr=False)
    indexes: tuple[TableIndex, ...] = field(default=(), repr=False)

    @property
    @abstractmethod
    def session(self) -> SparkSession:
        """Return the session of the streams."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[SourceStream | ViewPlan, ...]:
        """Return what the view is made of."""

    @property
    @abstractmethod
    def before_steps(self) -> Relation:
        """Return the columns before the steps."""

    @property
    def stage_before_steps(self) -> Stage | None:
        """Return the stage that makes the rows before the steps of the inputs; None where they are just put together."""
        return None

    @abstractmethod
    def _described(self) -> dict[str, Any]:
        """Return what a checkpoint remembers of the view, without its steps."""

    @abstractmethod
    def _explained(self, buckets: int | None) -> list[str]:
        """Return what `explain` says of the view, without its steps."""

    @abstractmethod
    def _source_stages(self) -> list[PlannedStage]:
        """Return the planned stages before the steps, numbered from 0; those without a target are this view's rows."""

    @property
    def row_source(self) -> object:
        """Return what is the same object for the same rows: those behind other steps are others."""
        return self.steps

    @property
    def name(self) -> str:
        """Return what messages call the view."""
        return self.output.name

    @property
    def output(self) -> Relation:
        """Return the columns of the view, and its key where it has one."""
        return self.steps[-1].relation if self.steps else self.before_steps

    @cached_property
    def planned_stages(self) -> tuple[PlannedStage, ...]:
        """Return the stages of the view with what happens to their answers, in the order of an epoch."""
        return self._sharing[0]

    @cached_property
    def _sharing(self) -> tuple[tuple[PlannedStage, ...], tuple[tuple[int, str], ...]]:
        stages = named(self.unnamed_stages)
        return sharing(stages) if self.shares_tables else (stages, ())

    @property
    def unnamed_stages(self) -> list[PlannedStage]:
        """Return the planned stages of the view as a part of a larger one."""
        return with_steps(self._source_stages(), self.steps)

    @cached_property
    def fusings(self) -> list[Fusing]:
        """Return, for every input of a stage that earlier stages make, whether it is fused."""
        return fusings_of(self.planned_stages)

    @cached_property
    def fused_stages(self) -> tuple[FusedStages, ...]:
        """Return the groups of stages that run in one task, as an epoch runs them."""
        return fused_stages_of(self.planned_stages)

    @property
    def number_before_steps(self) -> int:
        """Return the number of the last stage that is none of the steps."""
        return self.planned_stages[-1].number - sum(step.stage is not None for step in self.steps)

    @cached_property
    def joins(self) -> tuple[ViewPlan, ...]:
        """Return the joins among the plans that this one is made of, itself included, in the order of an epoch."""
        return tuple(join for one in self.inputs if isinstance(one, ViewPlan) for join in one.joins)

    @cached_property
    def functions(self) -> tuple[UserFunction, ...]:
        """Return the user's own functions in the view and its inputs."""
        functions = [one for source in self.inputs for one in source.functions]
        functions += [one for step in self.steps for one in step.functions]
        return tuple(dict.fromkeys(functions))

    @cached_property
    def streams(self) -> tuple[SourceStream, ...]:
        """Return the streams that the view follows from."""
        return tuple(stream for one in self.inputs for stream in (one.streams if isinstance(one, ViewPlan) else (one,)))

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns of the view."""
        return list(self.output.schema.names)

    def then(self, step: Step) -> Self:
        """Return the view with one more step."""
        plan = replace(self, steps=(*self.steps, step))
        check_names(plan.columns)  # making the output checks the step as well
        if step.stage is not None:
            refuse_compared_collations(step.stage)
        return plan

    def fingerprint(self) -> dict[str, Any]:
        """Return a JSON-ready description; a checkpoint refuses a query whose description differs."""
        described = self._described()
        return {**described, "steps": [list(step.description) for step in self.steps]} if self.steps else described

    def description(self) -> dict[str, Any]:
        """Return what a checkpoint remembers of the view of a query: its fingerprint, and which stages share a state."""
        shared = {one.shared.name: one.shared for one in self.planned_stages if one.shared is not None}
        states = {
            name: {"columns": [] if one.index is None else list(one.index.columns), "readers": list(one.readers)}
            for name, one in sorted(shared.items())
        }
        return {**self.fingerprint(), "shared": states} if states else self.fingerprint()

    def explained_indexes(self) -> list[str]:
        """Return which index every join uses that looks up in a table, and why it keeps a copy of its own."""
        names = {one.number: one.name for one in self.planned_stages}
        reasons = dict(self._sharing[1])
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

    def to_json(self) -> dict[str, Any]:
        """Return what it takes to build the operators of the view without its program, and its plan; JSON-ready."""
        return written_plan(self.planned_stages, self.name)

    @property
    def query_plan(self) -> QueryPlan:
        """Return the plan that does not depend on Spark: sources, stages and feeds."""
        return query_plan_of(self.planned_stages, self.name)

    def query_explanation(self, output: str | None, options: QueryOptions) -> str:
        """Return what `explain` of a query prints.

        Args:
            output: where the answer goes; None when not yet known.
            options: of the query.

        Raises:
            OptionError: groups are to be hybrid, and there are none; or the limit of append-only joins does not fit.
        """
        lines = [] if output is None else [f"Output to {output}"]
        lines += explained_state(self.planned_stages, options, workers=self.session.sparkContext.defaultParallelism)
        lines += explained_limit(self.planned_stages, options.buffer_limit)
        lines += explained_functions(self.functions, options.udf_version)
        lines += self.explained_indexes()
        return "\n".join([*lines, self.explanation(buckets=options.buckets)])

    def explanation(self, *, buckets: int | None = None) -> str:
        """Return what `explain` prints."""
        lines: list[str] = []
        if self.steps:
            key = ", ".join(self.output.primary_key)
            lines.append(f"key: {key}" if key else "key: none; the view may hold equal rows")
        number = self.planned_stages[-1].number
        for depth, step in enumerate(reversed(self.steps)):
            branch = f"{'   ' * (depth - 1)}└─ " if depth else ""
            lines.append(f"{branch}{step.title}")
            if isinstance(step, StageStep):
                (fusing,) = (one for one in self.fusings if one.target == number)
                shuffled = step.shuffled if fusing.why_not is not None else "nothing"
                facts = [*step.facts(buckets), f"shuffles: {shuffled}", fusing.line(self.before_steps.name)]
                lines += [f"{'   ' * depth}   {line}" for line in facts]
                number -= 1
        source = self._explained(buckets)
        indent = "   " * len(self.steps)
        source = [f"{indent[3:]}└─ {source[0]}", *(f"{indent}{line}" for line in source[1:])] if self.steps else source
        return "\n".join([*lines, *source])


def check_names(columns: list[str]) -> None:
    """Refuse columns that Spark would take for one.

    Raises:
        PlanError: there are such.
    """
    clashing = names_clash(columns)
    if clashing:
        raise PlanError(
            f"the view would have the columns {clashing}, which differ only by case; Spark takes them for one. Rename one.",
            code="OUTPUT_NAMES",
            columns=clashing,
        )


def check_inputs(view: ViewPlan) -> None:
    """Refuse inputs that messages and the dead-letter table could not tell apart, and strings compared under a collation."""
    if view.stage_before_steps is not None:
        refuse_compared_collations(view.stage_before_steps)
    stages = [one for one in view.planned_stages if not one.stage.forwards]
    latest = {(one.target, one.side): one.stage.output.name for one in stages if one.stage.kind == "latest"}
    names = [
        given.relation.name
        for one in stages
        for side, given in enumerate(one.stage.inputs)
        if given.reduce is None and latest.get((one.number, side)) != given.relation.name  # the same rows, filled
    ]
    taken = sorted({name for name in names if names.count(name) > 1})
    if taken:
        raise OptionError(
            f"several inputs of the query are called {taken}; messages and the dead-letter table tell them apart by their "
            'names. Give each its own: a stream that is used twice is stream.alias("another name") the second time.',
            code="SAME_NAME",
            names=taken,
        )
