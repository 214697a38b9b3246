"""Read a stage's answer, or a view, from the state of its operators instead of the sum of its deltas.

The law: what is listed is the sum of all answers up to the last absorbed epoch. It holds for a view whose feeds all come from
stages whose operators list their answer whenever they are read: joins and groups in memory that forget no row and wait for no
time. Row steps behind them compute what they computed of the deltas.

Cost: a pass over the state per listing, and of the rows that the view's steps make; nothing per epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.plan.distinct_rows import emits_distinct_rows
from zset_join.plan.query_plan import PlanView, QueryPlan
from zset_join.runners.local.feeding import Feeding, columns_before
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import AnswerListingOperator, DurableOperator, ListingOperator, is_timed

__all__ = ["Chunks", "ListedGroups", "ListedPairs", "list_view"]

Chunks = Callable[[Collection[str] | None], Iterator[ZSet]]
"""Yields rows that are computed while they are read, with some of their columns, or all."""


@dataclass(frozen=True)
class ListedGroups:
    """Read the rows that an operator keeps of its answer."""

    operator: Callable[[], DurableOperator]
    relation: Relation
    keeps_copies: bool  # the weight of a row is the number of input rows behind it; else 1

    def __call__(self) -> ZSet:
        return ZSet.concat(list(self.chunks()), schema=self.relation.schema)

    def chunks(self) -> Iterator[ZSet]:
        for chunk in cast("ListingOperator", self.operator()).held():
            rows = pa.RecordBatch.from_arrays(chunk.rows.columns, schema=self.relation.schema)
            yield ZSet(rows, chunk.weights if self.keeps_copies else np.ones(len(chunk), np.int64))


@dataclass(frozen=True)
class ListedPairs:
    """Read the answer of an operator that computes it from its state."""

    operator: Callable[[], DurableOperator]
    relation: Relation

    def __call__(self) -> ZSet:
        return ZSet.concat(list(self.chunks(None)), schema=self.relation.schema)

    def chunks(self, columns: Collection[str] | None) -> Iterator[ZSet]:
        """Yield the rows in bounded chunks, with some columns or all; at least one column."""
        shown = self.relation.schema.names
        wanted = [name for name in shown if columns is None or name in columns] or shown[:1]
        schema = pa.schema([self.relation.schema.field(name) for name in wanted])
        for chunk in cast("AnswerListingOperator", self.operator()).listed(wanted):
            rows = [chunk.rows.column(name) for name in wanted]
            yield ZSet(pa.RecordBatch.from_arrays(rows, schema=schema), chunk.weights)


@dataclass(frozen=True)
class _ListedView:
    """Read the rows of a view from the stages it is made of."""

    feeding: Feeding
    answers: Mapping[int, Callable[[], Iterator[ZSet]]]
    is_distinct: bool

    def __call__(self) -> ZSet:
        """Return each distinct row with its weight."""
        parts = [self.feeding.collect({origin: chunk}) for origin, chunks in self.answers.items() for chunk in chunks()]
        rows = ZSet.concat([part for part in parts if len(part)], schema=self.feeding.schema)
        return rows if self.is_distinct else rows.consolidated()


def list_view(
    plan: QueryPlan,
    view: PlanView,
    operators: Mapping[int, DurableOperator],
    options: StageOptions,
    opened: Callable[[int], DurableOperator] | None = None,
) -> Callable[[], ZSet] | None:
    """Return a function that lists the rows of a view; None where the state of its stages does not hold them at all times.

    With a directory `operators` have no rows, and `opened` returns the operator of a stage while rows are read.
    """
    schema, answers = plan.output_of(view.name).schema, dict[int, Callable[[], Iterator[ZSet]]]()
    for feed in view.feeds:
        if isinstance(feed.origin, str):
            return None
        operator = operators[plan.state_of[feed.origin].number]
        known = partial(_itself, operator) if opened is None else partial(opened, feed.origin)
        same = [one.steps for one in view.feeds if one.origin == feed.origin]
        wanted = set[str]().union(*(columns_before(steps, schema.names) for steps in same))
        chunks = _chunks_of(plan, feed.origin, operator, known, options, wanted)
        if chunks is None:
            return None
        answers[feed.origin] = chunks
    first = view.feeds[0]
    stage = plan.nodes[first.origin].stage if isinstance(first.origin, int) and len(view.feeds) == 1 else None
    is_distinct = stage is not None and emits_distinct_rows(stage, first.steps)
    return _ListedView(Feeding(plan, view.feeds, schema), answers, is_distinct)


def _chunks_of(
    plan: QueryPlan,
    number: int,
    operator: DurableOperator,
    known: Callable[[], DurableOperator],
    options: StageOptions,
    wanted: Collection[str],
) -> Callable[[], Iterator[ZSet]] | None:
    """Return what lists the answer of a stage; None where its state does not hold it at all times."""
    stage, state = plan.nodes[number].stage, plan.state_of[number]
    used = state.options(options)
    if state.is_shared or not stage.follows_from_rows or is_timed(operator):
        return None
    if isinstance(operator, AnswerListingOperator):
        return None if not operator.lists_answer else partial(ListedPairs(known, stage.output).chunks, wanted)
    if isinstance(operator, ListingOperator) and (used.table_budget is None or stage.cold_state is None):
        return ListedGroups(known, stage.output, keeps_copies=stage.lists_input and not stage.answers_distinct_rows).chunks
    return None


def _itself(operator: DurableOperator) -> DurableOperator:
    return operator
