"""Operators of an epoch, from memory or from the directory of a pipeline.

Joins that look up in one table (`zset_join.plan.sharing`) have one state: each answers by its own number, and their epoch is
folded in once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from zset_join.core.epochs import Tick
from zset_join.operators.shared_table import SharedTable
from zset_join.plan.query_plan import QueryPlan, StateNode
from zset_join.plan.sharing import without_renaming
from zset_join.runners.common.bucketed import in_buckets, why_in_one_bucket
from zset_join.runners.common.parting import parted_when_large
from zset_join.runners.common.workers import Workers
from zset_join.stages.effect import EffectPlace, Effects, has_effect
from zset_join.stages.stage import StageOptions
from zset_join.stages.written import text_of
from zset_join.state.rows.directories import choose_seed
from zset_join.state.rows.side import SideState, hold_once, shared_sides
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, DurableOperator, NextDue, due_of, is_timed

__all__ = [
    "MemoryStates",
    "StageStates",
    "built",
    "held_sides",
    "operators_of",
    "shapes_of",
    "why_together",
    "with_long_chunks",
]

_CHUNK_ROWS = 1 << 20  # as many as a join makes at once: what is one chunk is not copied


def with_long_chunks(options: StageOptions) -> StageOptions:
    """Return options with larger chunks, since the engine concatenates them; given options are kept."""
    return replace(options, chunk_rows=_CHUNK_ROWS) if options.chunk_rows == StageOptions().chunk_rows else options


class StageStates(Protocol):
    """Return the operators of one epoch, each in the state before it."""

    def operator(self, number: int, tick: Tick) -> DurableOperator:
        """Return the operator of a stage."""

    def next_due(self, number: int) -> NextDue:
        """Return when a stage must next run without input."""

    def completed(self, number: int, operator: DurableOperator, tick: Tick, fed: list[ZSet]) -> list[ZSet]:
        """Return the deltas for the operator of a stage, external rows among them."""


class MemoryStates:
    def __init__(
        self,
        plan: QueryPlan,
        options: StageOptions,
        known: Mapping[int, DurableOperator] | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.states: dict[int, DurableOperator] = dict(known or {})
        self.operators: dict[int, DurableOperator] = {}
        self.effects = Effects()
        options = replace(options, hash_seed=choose_seed(options.hash_seed, None))  # one, so that joins find rows of each other
        self._plan, self._options = plan, options
        self.workers = Workers(1) if workers is None else workers
        try:
            for state in plan.states:
                if state.number not in self.states:
                    self.states[state.number] = built(state, options, None, self.workers)
                self.operators |= operators_of(state, self.states[state.number])
        except BaseException:
            self.close()
            raise
        self._is_timed = {number: is_timed(operator) for number, operator in self.operators.items()}

    def share(self, *, over_files: bool = False) -> None:
        """Let stages that are fed the same upserts hold them once, while no thread reads them."""
        for sides in self.fed_alike(over_files=over_files).values():
            hold_once(sides)

    def fed_alike(self, *, over_files: bool = False) -> dict[str, list[SideState]]:
        """Return sides by what they are fed, whatever its columns are called; by its name for a source without steps."""
        fed: dict[str, list[SideState]] = {}
        for state in self._plan.states:
            sides = shared_sides(self.states[state.number], over_files=over_files)
            for feeds, side in zip(self._plan.nodes[state.number].feeds, sides, strict=False):
                (first, *others), _ = without_renaming(self._plan, feeds)
                is_source = isinstance(first.origin, str) and not (first.steps or others)
                text = str(first.origin) if is_source else text_of([one.to_json() for one in (first, *others)])
                fed.setdefault(text, []).append(side)
        return fed

    def operator(self, number: int, tick: Tick) -> DurableOperator:  # noqa: ARG002 - as the protocol has it
        return self.operators[number]

    def next_due(self, number: int) -> NextDue:
        return due_of(self.operators[number]) if self._is_timed[number] else NOTHING_DUE

    def completed(self, number: int, operator: DurableOperator, tick: Tick, fed: list[ZSet]) -> list[ZSet]:
        node = self._plan.nodes[number]
        if not has_effect(node.stage):
            return fed
        place = EffectPlace(options=self._options, name=node.name)
        return self.effects.opened(node.stage, place).completed(operator, tick, fed)

    def absorb(self, requested: Mapping[int, tuple[Tick, Sequence[ZSet]]]) -> None:
        """Fold an epoch in: the ticks and deltas of the stages that ran, by number."""
        fed = {number: deltas for number, (_, deltas) in requested.items()}
        for state in self._plan.states:
            first = next((number for number in state.readers if number in requested), None)
            if first is not None:
                self.states[state.number].absorb(requested[first][0], state.fed(fed))

    def close(self, *, keeping: Collection[int] = ()) -> None:
        """Release all state but that which is still read, and the clients of lookup sources."""
        self.effects.close()
        for number, operator in self.states.items():
            if number not in keeping:
                operator.close()


def built(state: StateNode, options: StageOptions, directory: str | None, workers: Workers) -> DurableOperator:
    """Return the operator of a state, in one bucket per thread if its rows can be partitioned."""
    # In memory it is in buckets while its epochs are large; over a directory, where an epoch costs more, always.
    options = state.options(options)
    if workers.threads == 1 or why_together(state, options) is not None:
        return state.stage.build(options, directory)
    if directory is None:
        return parted_when_large(state.stage, options, workers)
    return in_buckets(state.stage, options, directory, workers)


def held_sides(plan: QueryPlan, options: StageOptions, workers: Workers) -> dict[int, dict[int, tuple[int, int]]]:
    """Return by state, for its sides that are fed what a side before them is, the state and the place of that one."""
    states = MemoryStates(plan, options, workers=workers)
    try:
        states.share(over_files=True)
        sides = {number: shared_sides(one) for number, one in states.states.items()}
        places = {id(side): (number, at) for number, held in sides.items() for at, side in enumerate(held)}
        found = {
            number: {at: places[id(side.writer)] for at, side in enumerate(held) if side.follows}
            for number, held in sides.items()
        }
        return {number: held for number, held in found.items() if held}
    finally:
        states.close()


def why_together(state: StateNode, options: StageOptions) -> str | None:
    """Return why the rows of a state stay in one bucket; None where they are partitioned by key."""
    return "several joins look up in it" if state.is_shared else why_in_one_bucket(state.stage, state.options(options))


def operators_of(state: StateNode, built: DurableOperator) -> dict[int, DurableOperator]:
    """Return the operators of the stages of a state, by the numbers of the stages."""
    if isinstance(built, SharedTable):
        return dict(zip(state.readers, built.readers, strict=True))
    return {state.number: built}


def shapes_of(plan: QueryPlan, options: StageOptions, held: ExitStack) -> dict[int, DurableOperator]:
    """Return operators of a plan without rows, by the number of their state; they are closed with the stack."""
    shapes = {}
    for node in plan.states:
        operator = node.stage.build(node.options(options), None)
        held.callback(operator.close)
        shapes[node.number] = operators_of(node, operator)[node.number]
    return shapes
