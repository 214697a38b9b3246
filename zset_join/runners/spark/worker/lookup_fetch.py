"""The fetch step of lookup stages inside Spark: a task queries the external table before its operator answers.

What it receives goes into the checkpoint's journal before it is used, so a retried task, or a twin, sends no query again. A
Python worker keeps its connections and caches between epochs, as long as Spark keeps the worker; those of an earlier start of
the query are closed.

Connections of a query are bounded: every process has its share of `max_connections`, and its buckets, of which it runs one at
a time, use the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zset_join.checkpoint.bucket import StageContext
from zset_join.stages import Stage
from zset_join.stages.effect import EffectPlace, Effects
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["with_outside"]

_opened: dict[str, tuple[int, Effects]] = {}


def with_outside(
    stage: Stage,
    operator: DurableOperator,
    context: StageContext,
    deltas: Sequence[ZSet],
    place: EffectPlace,
    counts: dict[str, Any],
) -> list[ZSet]:
    """Return the deltas for the operator of a stage that queries an external table."""
    effect = _kept(context).opened(stage, place)
    effect.forget(context.tick.epoch - 1)  # committed, with what was fetched in their logs
    heard = effect.completed(operator, context.tick, deltas)
    counts.update(effect.counts())
    return heard


def _kept(context: StageContext) -> Effects:
    """Return the fetch steps that this worker keeps for a query, as it was started last."""
    opened_at_ns, effects = _opened.get(context.query_id, (context.opened_at_ns, Effects()))
    if opened_at_ns != context.opened_at_ns:
        effects.close()
    _opened[context.query_id] = context.opened_at_ns, effects
    return effects
