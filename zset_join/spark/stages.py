"""The stages of a query: joins and aggregates, and the steps over rows between them.

    join -> [where, select ...] -> aggregate -> [where, select ...] -> join-2 -> output

Stages are numbered in the order of an epoch: before a join comes what its left input is made of, then what its right one is.
To each belongs a *segment*: its answer, some row steps, and where the rows go then: to an aggregate, to a side of a join, or to
the output. Everything between two shuffles is one Spark task. Without row steps a stage's own Python function delivers its
answer: it writes the parts, sends rows to a join, or brings them down to what an aggregate needs. With row steps the function
yields its rows, Spark evaluates the expressions, and a second function (`ClosingTask`) delivers.

The law: the notes of all stages of an epoch arrive in its one job, and what a stage sent is what the next one was given.

Cost: nothing for a join alone; a second Python function per bucket for a segment with row steps; a shuffle per aggregate and
per join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zset_join.config import HotBudget, QueryOptions
from zset_join.errors import OptionError, StateError
from zset_join.plan import JoinNode, RouteNode
from zset_join.relation import Relation
from zset_join.spark.notes import TaskNote
from zset_join.spark.operators import AggregateNode
from zset_join.spark.progress import StreamPlace
from zset_join.spark.row_steps import RowStep
from zset_join.spark.stage_names import aggregate_stage, join_stage, rows_stage
from zset_join.state.row_limit import WHOLE_BUDGET_BYTES

__all__ = ["AggregateStep", "Segment", "Step", "check_rows", "explained_state", "hybrid_stages", "name_after", "with_steps"]

_KEEP_VALUES = ("min", "max", "count_distinct", "collect_list", "collect_set", "min_by", "max_by")


@dataclass(frozen=True, kw_only=True, eq=False)
class AggregateStep:
    """An aggregate behind a join, or behind other steps; DISTINCT is one that computes nothing.

    Args:
        node: what it computes.
    """

    node: AggregateNode

    @property
    def relation(self) -> Relation:
        """Return the rows after it."""
        return self.node.output

    @property
    def title(self) -> str:
        """Return what `explain` calls it."""
        if not self.node.calls:
            return f"Distinct {', '.join(self.node.group_by)}"
        calls = ", ".join(map(repr, self.node.calls))
        return (
            f"Aggregate by {', '.join(self.node.group_by)}: {calls}" if self.node.group_by else f"Aggregate all rows: {calls}"
        )

    def memory(self, buckets: int | None) -> str:
        """Return what it must remember, for `explain`."""
        single = [call.name for call in self.node.calls if call.kind in _KEEP_VALUES]
        remembers = "per group its key and sums" if self.node.group_by else "one row of sums"
        remembers = remembers if self.node.calls else "every distinct row with its copies"
        if single:
            remembers += f", and every distinct value with its copies for {', '.join(single)}"
        where = f"in {buckets or 'one per core'} buckets by group" if self.node.group_by else "in one bucket"
        return f"remembers: {remembers}; {where}"

    @property
    def shuffled(self) -> str:
        """Return what is shuffled to it where it is not fused, for `explain`."""
        columns = ", ".join(self.node.travelling.schema.names)
        return "one line of sums per group and task" if self.node.is_partial else f"the changed rows, cut down to {columns}"

    @property
    def description(self) -> tuple[str, ...]:
        """Return what a checkpoint remembers of it."""
        return (self.title, *(f"{field.name}: {field.type}" for field in self.relation.schema))


Step = RowStep | AggregateStep


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """What happens to the answer of one stage.

    Args:
        number: of the stage.
        source: what it computes.
        before: the answer.
        steps: what Spark does to its rows.
        target_stage: the stage that is given its rows; None for the output.
        side: which input of it they are.
    """

    number: int
    source: JoinNode | AggregateNode
    before: Relation
    steps: tuple[RowStep, ...] = ()
    target_stage: str | None = None
    side: int = 0

    @property
    def after(self) -> Relation:
        """Return the rows that leave it."""
        return self.steps[-1].relation if self.steps else self.before

    @property
    def source_stage(self) -> str:
        """Return the stage whose answer it is."""
        return join_stage(self.number) if isinstance(self.source, JoinNode) else aggregate_stage(self.number)

    @property
    def last_stage(self) -> str:
        """Return what the notes of its last function are called."""
        return rows_stage(self.number) if self.steps else self.source_stage


def name_after(steps: Sequence[Step], name: str) -> str | None:
    """Return what a column is called behind some steps; None where it is computed anew, added up or left out."""
    found: str | None = name
    for step in steps:
        if found is None:
            return None
        kept = {key: key for key in step.node.group_by} if isinstance(step, AggregateStep) else step.kept
        found = kept.get(found)
    return found


def with_steps(segments: Sequence[Segment], steps: Sequence[Step]) -> list[Segment]:
    """Put steps behind the segments that have no target yet.

    Args:
        segments: in the order of an epoch.
        steps: what is done with the rows of those without a target.
    """
    made = list(segments)
    for step in steps:
        ends = [at for at, one in enumerate(made) if one.target_stage is None]
        if isinstance(step, RowStep):
            for at in ends:
                made[at] = replace(made[at], steps=(*made[at].steps, step))
            continue
        number = made[-1].number + 1
        for at in ends:
            made[at] = replace(made[at], target_stage=aggregate_stage(number))
        made.append(Segment(number=number, source=step.node, before=step.relation))
    return made


def check_rows(
    segments: Sequence[Segment], places: Sequence[StreamPlace], notes: Sequence[TaskNote], buckets: int, epoch: int
) -> None:
    """Count the rows that came, that stages sent each other, and their notes.

    Raises:
        StateError: some are missing.
    """
    everywhere = list(range(buckets))
    for place in places:
        first = place.first_notes(notes)
        came = sum(note.rows_in[place.side] for note in first)
        applied = sum(note.applied[place.side] for note in first)
        aside = sum(note.quarantined_rows[place.side] for note in first)
        sent = sum(note.emitted[place.side] for note in first)
        joined = _given(notes, join_stage(place.number), place.side)
        if came != applied + aside or (place.is_routed and sent != joined):
            raise _lost(
                epoch, f'"{place.name}": rows in {came}, applied {applied}, quarantined {aside}, routed {sent}, joined {joined}'
            )
    for segment in segments:
        for stage in (segment.source_stage, segment.last_stage):
            told = sorted(note.bucket for note in notes if note.stage == stage)
            if told != everywhere:
                raise _lost(epoch, f"{stage} ran in buckets {told}")
    for stage, side in {(segment.target_stage, segment.side) for segment in segments if segment.target_stage is not None}:
        senders = [segment.last_stage for segment in segments if (segment.target_stage, segment.side) == (stage, side)]
        sent = sum(note.emitted[0] for note in notes if note.stage in senders)
        given = _given(notes, stage, side)
        if sent != given:
            raise _lost(epoch, f"{' and '.join(senders)} sent {sent} rows, {stage} was given {given}")


def _given(notes: Sequence[TaskNote], stage: str, side: int) -> int:
    return sum(note.rows_in[side] for note in notes if note.stage == stage)


def _lost(epoch: int, what: str) -> StateError:
    return StateError(
        f"epoch {epoch}: {what}; rows were lost on the way, nothing was committed. Restart the query; if it happens again, "
        "report it with the plan that explain() prints.",
        code="ROWS_LOST",
        epoch=epoch,
    )


def hybrid_stages(segments: Sequence[Segment], options: QueryOptions) -> int:
    """Return how many stages share the budget of hybrid state.

    Args:
        segments: of the view.
        options: of the query.

    Raises:
        OptionError: groups are to be hybrid, and there are none.
    """
    kinds = _kinds(segments)
    if options.table_budget is not None and not kinds["groups"]:
        raise OptionError(
            'default_hash_table="hybrid" is about the groups of groupBy(...) and distinct(), and this view has none (the one '
            'row of an agg() over everything cannot be on disk). Leave it out; rows of joins have default_hash_join="hybrid".',
            code="OPTION_VALUE",
            option="default_hash_table",
            value="hybrid",
        )
    return sum(number for kind, number in kinds.items() if _budget_of(kind, options) is not None)


def explained_state(segments: Sequence[Segment], options: QueryOptions, *, workers: int) -> list[str]:
    """Return what `explain` says of where the state is.

    Args:
        segments: of the view.
        options: of the query; its number of buckets may be unknown.
        workers: most Python workers that run at once.

    Raises:
        OptionError: as `hybrid_stages`.
    """
    stages = hybrid_stages(segments, options)
    budget = options.hot_budget or options.table_budget
    if budget is None:
        return ["State: all in memory"]
    kinds = {kind: _budget_of(kind, options) is not None for kind, number in _kinds(segments).items() if number}
    *others, last = [kind for kind, is_hybrid in kinds.items() if is_hybrid]
    hybrid = f"{', '.join(others)} and {last}" if others else last
    lines = [f"State: of {hybrid} at most {budget.describe()} in memory, the rest on local disk"]
    lines += [f"  of {name} all in memory" for name, is_hybrid in kinds.items() if not is_hybrid]
    if options.buckets is not None and stages * options.buckets > 1:
        one = "each bucket" if stages == 1 else f"each bucket of {stages} stages"
        lines.append(f"  {one}: {budget.share(stages * options.buckets).describe()}")
    workers = min(workers, options.buckets or workers)
    if budget.max_hot_bytes is not None and budget.max_hot_bytes < WHOLE_BUDGET_BYTES * workers:
        lines.append(
            f"  what an epoch needs beside its rows, some 50 MB in each of up to {workers} Python workers, comes on top: with "
            f"max_hot_bytes={WHOLE_BUDGET_BYTES * workers:,} or more it is taken from the budget"
        )
    return lines


def _kinds(segments: Sequence[Segment]) -> dict[str, int]:
    """Return how many joins there are, routes before them, and aggregates with groups."""
    joins = [segment.source for segment in segments if isinstance(segment.source, JoinNode)]
    return {
        "joins": len(joins),
        "routes": sum(isinstance(side, RouteNode) for join in joins for side in join.sides),
        "groups": sum(isinstance(segment.source, AggregateNode) and bool(segment.source.group_by) for segment in segments),
    }


def _budget_of(kind: str, options: QueryOptions) -> HotBudget | None:
    return options.table_budget if kind == "groups" else options.hot_budget
