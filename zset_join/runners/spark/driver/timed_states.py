"""Times of a query on executors that is compared or changed in the form of the driver: watermarks, and what waits for when.

The law: a stage that continues has the watermark that it had, whatever it is called; others go by that of their streams. What
had to be answered at a time is answered at that time, or in the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.common.event_clock import stage_watermark
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.local.watermarks import KnownTimes, SourceTime, Watermarks
from zset_join.runners.spark.planning.other_mode import StatePair
from zset_join.stages import Stage
from zset_join.zset.protocol import NOTHING_DUE, NextDue, earliest

__all__ = ["kept_dues", "times_on_driver", "times_on_executors"]

_ANY_WATERMARK = -(1 << 62)


def times_on_driver(plan: QueryPlan, pairs: Sequence[StatePair], record: CommitRecord) -> KnownTimes:
    """Return the event times after an epoch of executors, as the driver has them."""
    fresh, late = Watermarks(plan).known, record.late_rows
    sources = {name: SourceTime(record.watermarks.get(name), None, late.get(name, 0)) for name in fresh.sources}
    executors = {pair.driver: pair.executors for pair in pairs}
    stages: list[int | None] = [None] * len(plan.nodes)
    for state in plan.states:
        name = executors.get(state.name)
        for number in state.readers:
            stages[number] = None if name is None else record.watermarks.get(stage_watermark(name))
    return KnownTimes(sources, tuple(stages))


def times_on_executors(evolution: Evolution, pairs: Sequence[StatePair], record: CommitRecord) -> dict[str, int]:
    """Return the watermarks of a commit record of executors, of the new query."""
    known = evolution.known_times()
    state_of = {state.name: state.number for state in evolution.plan.states}
    watermarks: dict[str, int | None] = {name: record.watermarks.get(name) for name in known.sources}
    watermarks |= {stage_watermark(pair.executors): known.stages[state_of[pair.driver]] for pair in pairs}
    return {name: watermark for name, watermark in watermarks.items() if watermark is not None}


def kept_dues(name: str, stage: Stage, histories: Mapping[str, BucketHistory], record: CommitRecord) -> dict[str, NextDue]:
    """Return when the buckets of a stage that keeps its files must answer though no row arrives."""
    # Rows of the last epoch are folded only by the next one, so when they are due is not known yet: such a bucket is due in
    # the next epoch, which comes at once where rows may wait for a processing time alone.
    own = {key: history for key, history in histories.items() if key.rpartition("/")[0] == name}
    dues = {key: due for key, due in record.dues.items() if key in own}
    by_watermark = stage_watermark(name) in record.watermarks and not stage.parks
    next_epoch = NextDue(watermark_us=_ANY_WATERMARK) if by_watermark else NextDue(processing_time_us=0)
    for key, history in own.items():
        snapshot = -1 if history.snapshot is None else history.snapshot.through_epoch
        if record.epoch in (snapshot, *(log.last_epoch for log in history.logs[-1:])):
            dues[key] = earliest([dues.get(key, NOTHING_DUE), next_epoch])  # older rows may wait for a processing time
    return dues
