"""Epochs between answer and commit: of a directory, prepared ones, and those that were interrupted.

`closed`, `closed_unread`: error of a pipeline whose epoch was interrupted: whether the epoch counts, and what to do.

The law: an exception of any kind, at any line of a step, leaves a pipeline that continues as if nothing had happened, or one
that refuses every further step. What it reports of the epoch follows from the commit record.

`DurableEpoch`, `OpenStages`: one epoch of a pipeline with a directory: stages are opened when they answer, in the state before
it.

The law: states are closed by who opened them, or released by who comes next where an interrupt kept that one from it; and who
reads the stages of an open epoch in another thread has read them before they are closed.

Cost: opening a stage whose local state is present maps its files; folding the last epoch in costs its rows.

`PreparedEpoch`: an epoch that is answered and not yet taken, so that several pipelines can all answer before any of them
changes.

    with pipeline.prepare({"orders": rows}) as prepared:      nothing has changed
        pipeline.commit(prepared)                             the epoch counts

The law: closing a prepared epoch without `commit` leaves the pipeline, its directory and its outputs as they were.

Memory: the answer of the epoch; with a directory the stages that were opened for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.record import BucketHistory
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.plan.query_plan import QueryPlan, StateNode
from zset_join.runners.common.stage_bucket import GLOBAL_BUCKET, BucketReceipt, log_input, report, report_due
from zset_join.runners.common.workers import Workers
from zset_join.runners.local.engine import AnsweredEpoch, built, operators_of
from zset_join.sources.source import Undecodable
from zset_join.stages.effect import EffectPlace, Effects, has_effect
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.side import shared_sides
from zset_join.storage.operations import EpochOutcome
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, DurableOperator, NextDue, due_of

__all__ = ["DurableEpoch", "OpenStages", "PreparedEpoch", "closed", "closed_unread", "epoch_gap", "out_of_memory", "unfinished"]

_DURABLE: Mapping[EpochOutcome, str] = {
    "open": "failed or was interrupted while it was committed, and does not count: open the pipeline again from its directory, "
    "and give it the rows of this epoch again",
    "committed": "was committed, and a later step failed or was interrupted: do not send its rows again. Open the pipeline "
    "again from its directory; it continues after this epoch, and its outputs receive missing epochs",
    "unknown": "failed or was interrupted while it was committed, and whether it counts cannot be seen: open the pipeline "
    "again from its directory, and compare its attribute epoch",
}


def closed() -> StateError:
    return StateError("this pipeline was closed. Rebuild it, or open it again from its directory.", code="PIPELINE_BROKEN")


def closed_unread(view: str, location: str) -> StateError:
    """Return the error of a view that is read after its pipeline was closed, when files of the directory are gone."""
    return StateError(
        f'view "{view}" was not read before this pipeline was closed, and the files in {location} that hold it are gone: '
        "another pipeline has continued the directory, or it was removed. Open the directory again, or read the view before "
        "close().",
        code="PIPELINE_BROKEN",
        view=view,
    )


def unfinished(epoch: int, outcome: EpochOutcome | None) -> StateError:
    if outcome is None:
        what = "failed or was interrupted while it was applied, and this pipeline is in memory: rebuild it from its inputs"
    else:
        what = _DURABLE[outcome]
    return StateError(f"epoch {epoch} {what}.", code="PIPELINE_BROKEN", epoch=epoch)


def out_of_memory(epoch: int, failure: MemoryError, refusal: StateError | None, *, is_taken: bool) -> StateError:
    if refusal is not None:
        what = f"Besides, {refusal.message}"
    elif is_taken:
        what = "The epoch was applied, and the next step passes it to the outputs: do not send its rows again."
    else:
        what = "Nothing of it was applied: give its rows in several steps, or set a memory budget."
    reason = str(failure) or "no reason given"
    return StateError(
        f"epoch {epoch} needs more memory than this process has ({reason}). {what}", code="OUT_OF_MEMORY", epoch=epoch
    )


def epoch_gap(epoch: int, expected: int) -> StateError:
    return StateError(
        f"step(epoch={epoch}) was called, and the next epoch of this pipeline is {expected}; only that one can be taken, and "
        "the one before be answered again.",
        code="EPOCH_GAP",
        epoch=epoch,
        expected=expected,
    )


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


@dataclass(eq=False)
class PreparedEpoch:
    """An answered epoch of a pipeline."""

    answered: AnsweredEpoch
    deltas: Mapping[str, ZSet]
    unread: Sequence[Undecodable]
    opened: DurableEpoch | None  # None in memory
    stack: ExitStack | None = None  # closes `opened`

    @property
    def answers(self) -> Mapping[str, ZSet]:
        """Return the change of every view, by name."""
        return self.answered.answers

    @property
    def delta(self) -> ZSet:
        """Return the change of the only view."""
        return self.answered.delta

    def check_is_next(self, epoch: int) -> None:
        """Refuse to take the epoch where another one is next."""
        if self.answered.epoch != epoch:
            raise StateError(
                f"the prepared epoch {self.answered.epoch} is not the next one, {epoch}. Prepare it again.",
                code="EPOCH_GAP",
                epoch=self.answered.epoch,
                expected=epoch,
            )

    def close(self) -> None:
        """Close the resources of the epoch. Closing twice is allowed."""
        if self.stack is not None:
            self.stack.close()

    def __enter__(self) -> PreparedEpoch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self.stack is None else self.stack.__exit__(kind, error, traceback)
