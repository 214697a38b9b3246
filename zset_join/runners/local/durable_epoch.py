"""One epoch of a pipeline with a directory: stages are opened when they answer, in the state before it.

The law: states are closed by who opened them, or released by who comes next where an interrupt kept that one from it; and who
reads the stages of an open epoch in another thread has read them before they are closed.

Cost: opening a stage whose local state is present maps its files; folding the last epoch in costs its rows.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.record import BucketHistory
from zset_join.core.epochs import Tick
from zset_join.plan.query_plan import QueryPlan, StateNode
from zset_join.runners.common.stage_bucket import GLOBAL_BUCKET, BucketReceipt, log_input, report, report_due
from zset_join.runners.common.workers import Workers
from zset_join.runners.local.stage_states import built, operators_of
from zset_join.stages.effect import EffectPlace, Effects, has_effect
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.side import shared_sides
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, DurableOperator, NextDue, due_of

__all__ = ["DurableEpoch", "OpenStages"]


@dataclass(kw_only=True)
class DurableEpoch:
    plan: QueryPlan
    checkpoint: Checkpoint
    options: StageOptions
    workers: Workers
    is_timed: Sequence[bool]
    effects: Effects
    opened: ExitStack
    tick: Tick
    entered: list[BucketState]  # gets every state before it is opened
    held: Mapping[int, Mapping[int, tuple[int, int]]]  # see `held_sides`
    is_read: bool = False  # to be read only: no snapshot is written, and no logs are merged
    states: dict[int, BucketState] = field(default_factory=dict)
    contexts: dict[int, StageContext] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for state in self.plan.states:
            context = self.checkpoint.stage(state.name, self.tick)
            if self.is_read:
                nothing = frozenset[int]()
                context = replace(context, snapshot_buckets=nothing, merge_buckets=nothing, count_buckets=nothing)
            self.contexts[state.number] = context
        for number, context in self.contexts.items():  # what was put off until the next epoch is done although no row arrives
            if context.is_work_due(0):
                self.state(number, self.tick)

    def operator(self, number: int, tick: Tick) -> DurableOperator:
        return operators_of(self.plan.state_of[number], self.state(number, tick))[number]

    def read(self, number: int) -> DurableOperator:
        """Return the operator of a stage to read its state; where it has answered, its tick stays."""
        state = self.states.get(self.plan.state_of[number].number)
        return self.operator(number, self.tick if state is None else state.context.tick)

    def state(self, number: int, tick: Tick) -> DurableOperator:
        """Return the state of a stage; joins that share a table share one."""
        node = self.plan.state_of[number]
        state = self.states.get(node.number)
        if state is not None:
            state.context = replace(state.context, tick=tick)
        else:
            context = replace(self.contexts[node.number], tick=tick)
            state = BucketState(context, 0, partial(self._built, node), partial(self._hold, node.number))
            self.entered.append(state)
            self.states[node.number] = self.opened.enter_context(state)
        return state.operator

    def _built(self, node: StateNode, directory: str) -> DurableOperator:
        operator = built(node, self.options, directory, self.workers)
        written = {at for held in self.held.values() for number, at in held.values() if number == node.number}
        for at in written.union(self.held.get(node.number, ())):  # one of those that hold its rows may need all of them
            shared_sides(operator)[at].drops_unmatchable = False
        return operator

    def _hold(self, number: int, operator: DurableOperator) -> bool:
        """Let sides of a state hold those of others, which are opened; return whether one dropped its own rows for them."""
        held, is_new = self.held.get(number, {}), False
        for at, side in enumerate(shared_sides(operator)):
            there, place = held.get(at, (None, 0))
            if there is None:
                is_new |= side.hold_with(None)
            else:
                is_new |= side.hold_with(shared_sides(operator if there == number else self.state(there, self.tick))[place])
        return is_new

    def completed(self, number: int, operator: DurableOperator, tick: Tick, fed: list[ZSet]) -> list[ZSet]:
        node = self.plan.nodes[number]
        if not has_effect(node.stage):
            return fed
        place = EffectPlace(options=self.options, name=node.name, folder=self.checkpoint.files.folder)
        return self.effects.opened(node.stage, place).completed(operator, tick, fed)

    def next_due(self, number: int) -> NextDue:
        # The commit record has it, unless the last epoch had rows for the stage: these are folded in only now.
        key = f"{self.plan.state_of[number].name}/0"
        last = self.checkpoint.last
        if last is None:
            return NOTHING_DUE
        logs = last.histories.get(key, BucketHistory()).logs
        if logs and logs[-1].last_epoch == last.epoch and self.is_timed[number]:
            return due_of(self.operator(number, self.tick))
        return last.dues.get(key, NOTHING_DUE)

    def receipts(self, fed: Mapping[int, Sequence[ZSet]]) -> list[BucketReceipt]:
        """Log the inputs of the stages, by number; return the receipts of the open states."""
        receipts = []
        for node in self.plan.states:
            state = self.states.get(node.number)
            if state is not None:
                receipt = BucketReceipt(stage=node.name, bucket=GLOBAL_BUCKET)
                if any(number in fed for number in node.readers):
                    log_input(state, node.fed(fed), receipt, is_due=True)
                report_due(state.operator, state.context.tick, receipt)
                report(state, receipt)
                receipts.append(receipt)
        return receipts


Opening = Callable[[ExitStack, list[BucketState]], DurableEpoch]
"""Returns an epoch whose states are closed with the stack, and noted in the list before they are opened."""


class OpenStages:
    def __init__(self) -> None:
        self._entered: list[BucketState] = []
        self._epoch: DurableEpoch | None = None
        self._reading = threading.RLock()

    @contextmanager
    def epoch(self, opening: Opening) -> Iterator[DurableEpoch]:
        """Open an epoch; its stages can be read until the end."""
        self.release_interrupted()
        stack, epoch = ExitStack(), None
        try:
            epoch = self._epoch = opening(stack, self._entered)
            yield epoch
        except BaseException:
            with self._reading:
                self._forget(epoch)
                stack.__exit__(*sys.exc_info())
            raise
        with self._reading:
            if not self._forget(epoch):  # its states were released since
                stack.pop_all()
                return
            stack.close()
            self._entered.clear()

    @contextmanager
    def reading(self, number: int, opening: Opening) -> Iterator[DurableEpoch]:
        """Open the stages in the state before an epoch, to read them; where it is open, return it."""
        with self._reading, ExitStack() as stack:
            epoch = self._epoch
            if epoch is not None and epoch.tick.epoch == number:
                yield epoch
                return
            self.release_interrupted()
            yield opening(stack, self._entered)
            stack.close()
            self._entered.clear()

    def release_interrupted(self) -> None:
        """Release the states of an epoch that was interrupted, or is not closed: its own end then finds nothing to close."""
        self._epoch = None
        while self._entered:
            self._entered[-1].release()
            self._entered.pop()

    def _forget(self, epoch: DurableEpoch | None) -> bool:
        """Return whether an epoch is the one that is open, and let none be."""
        if self._epoch is not epoch:
            return False
        self._epoch = None
        return True
