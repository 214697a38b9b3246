"""Rows whose event time is too far ahead of the watermark of their source.

One row from far in the future would move the watermark past every row that is still to come. Where a source is described with
`max_watermark_jump`, such a row is bad input: it reaches no operator and moves no watermark, whatever the query does with it.

The law: it is measured from the watermark of the source before the epoch, so an epoch that is repeated judges as it did before.
The rows of an epoch do not judge each other, and those of the first epoch with event times all pass: nothing is known by then.

Edge cases: NULL is no time, and passes. The bound itself passes.

Cost: one array pass over the times of such a source; rows are copied where some are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import BadInputError
from zset_join.core.shown_values import shown_key, shown_value
from zset_join.plan.query_plan import PlanSource
from zset_join.runners.common.rejected import Rejected, RejectedRows, taken, without
from zset_join.runners.local.watermarks import KnownTimes
from zset_join.shapes.event_time import EventTime
from zset_join.state.time.order_words import time_words
from zset_join.zset import ZSet

__all__ = ["FarTimes"]


class FarTimes:
    """Part the rows of sources that have a bound."""

    def __init__(self, sources: Mapping[str, PlanSource]) -> None:
        self._sources = {name: source for name, source in sources.items() if source.max_watermark_jump is not None}
        self._times = {
            name: EventTime([source.relation], [str(source.relation.event_time)]) for name, source in self._sources.items()
        }

    def part(self, name: str, delta: ZSet, known: KnownTimes) -> tuple[ZSet, RejectedRows | None]:
        """Return the rows of a source that may be taken, and those that may not."""
        if not self._sources:
            return delta, None
        source, limit = self._sources.get(name), self._limit(name, known)
        if source is None or limit is None or not len(delta):
            return delta, None
        time = self._times[name]
        words, last = time_words(time, delta.rows, 0)[0], time.of_watermark(limit)
        if last is None or not (is_far := words > last).any():
            return delta, None
        bad = np.flatnonzero(is_far)
        refused = taken(delta, bad)
        column = refused.rows.column(str(source.relation.event_time))
        reasons = [_reason(source, column, row, limit) for row in range(len(refused))]
        rejected = Rejected([refused], ["TIME_JUMP"] * len(reasons), reasons)
        return without(delta, bad), RejectedRows(name, rejected, is_of_source=True)

    def refuse(self, refused: RejectedRows, epoch: int) -> None:
        name, (delta,) = refused.name, refused.rejected.rows
        relation = self._sources[name].relation
        shown = relation.primary_key or tuple(relation.schema.names)
        key = shown_key([delta.rows.column(column) for column in shown], 0)
        count = "1 such row" if len(delta) == 1 else f"{len(delta)} such rows"
        raise BadInputError(
            f'source "{name}", epoch {epoch}: the change with key {key} and weight {int(delta.weights[0])} '
            f"{refused.rejected.reasons[0]} ({count} in this epoch; nothing of it was applied). Correct the "
            'source, raise max_watermark_jump, or set on_bad_input="quarantine" to quarantine bad rows.',
            code="TIME_JUMP",
            relation=name,
            key=key,
            weight=int(delta.weights[0]),
            epoch=epoch,
            rejected_rows=len(delta),
        )

    def _limit(self, name: str, known: KnownTimes) -> int | None:
        """Return the largest time that is taken; None where every one is."""
        source, before = self._sources.get(name), known.sources.get(name)
        if source is None or source.max_watermark_jump is None or before is None or before.watermark_us is None:
            return None
        return before.watermark_us + source.max_watermark_jump


def _reason(source: PlanSource, column: pa.Array, row: int, limit: int) -> str:
    bound = pa.array([limit], pa.int64())
    if not pt.is_integer(column.type):
        bound = bound.cast(pa.timestamp("us"))
    return (
        f"has the time {shown_value(column, row)} in {source.relation.event_time}, further ahead of the watermark of its "
        f"source than max_watermark_jump allows; expected at most {shown_value(bound, 0)}"
    )
