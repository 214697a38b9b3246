"""Where the operators of an epoch come from: memory, or the directory of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from zset_join.plan.query_plan import QueryPlan
from zset_join.protocol import NOTHING_DUE, DurableOperator, NextDue, TimedOperator
from zset_join.stages.effect import Effects
from zset_join.stages.stage import StageOptions
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["MemoryStates", "StageStates", "due_of", "earliest"]


class StageStates(Protocol):
    """Hand out the operators of one epoch, each in the state before it."""

    def operator(self, number: int, tick: Tick) -> DurableOperator:
        """Return the operator of a stage."""
        ...

    def next_due(self, number: int) -> NextDue:
        """Return when a stage must be asked though no row comes to it."""
        ...

    def completed(self, number: int, operator: DurableOperator, tick: Tick, fed: list[ZSet]) -> list[ZSet]:
        """Return the deltas that the operator of a stage is asked with, what the outside says among them."""
        ...


class MemoryStates:
    """Keep the operators of a plan in memory.

    Args:
        plan: the plan.
        options: what operators take from the options of a query.
    """

    def __init__(self, plan: QueryPlan, options: StageOptions) -> None:
        self.operators: list[DurableOperator] = []
        self.effects = Effects()
        self._plan, self._options = plan, options
        try:
            for node in plan.nodes:
                self.operators.append(node.stage.build(options, None))
        except BaseException:
            self.close()
            raise
        self._is_timed = [isinstance(operator, TimedOperator) for operator in self.operators]

    def operator(self, number: int, tick: Tick) -> DurableOperator:  # noqa: ARG002 - as the protocol has it
        """Return the operator of a stage."""
        return self.operators[number]

    def next_due(self, number: int) -> NextDue:
        """Return when a stage must be asked though no row comes to it."""
        return due_of(self.operators[number]) if self._is_timed[number] else NOTHING_DUE

    def completed(self, number: int, operator: DurableOperator, tick: Tick, fed: list[ZSet]) -> list[ZSet]:
        """Return the deltas that the operator of a stage is asked with, what the outside says among them."""
        node = self._plan.nodes[number]
        return self.effects.completed(node.stage, operator, tick, fed, options=self._options, name=node.name)

    def close(self) -> None:
        """Let go of all state, and of what asks the outside."""
        self.effects.close()
        for operator in self.operators:
            operator.close()


def due_of(operator: DurableOperator) -> NextDue:
    """Return when an operator must be asked though no row comes to it."""
    return operator.next_due() if isinstance(operator, TimedOperator) else NOTHING_DUE


def earliest(dues: Iterable[NextDue]) -> NextDue:
    """Return the first of several times.

    >>> earliest([NextDue(watermark_us=5), NextDue(watermark_us=3, processing_time_us=9)])
    NextDue(watermark_us=3, processing_time_us=9)
    """
    watermarks, times = [], []
    for due in dues:
        watermarks += [] if due.watermark_us is None else [due.watermark_us]
        times += [] if due.processing_time_us is None else [due.processing_time_us]
    return NextDue(min(watermarks, default=None), min(times, default=None))
