"""Conversion of the arguments of `Pipeline.step` into the changes of its sources.

The law: of every source, rows in = rows taken + rows set aside; nothing is read of a source the pipeline does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from zset_join.changelog.encoding import MOST_SINGLE_ROWS
from zset_join.core.errors import BadInputError, PlanError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.reading import Reading
from zset_join.runners.common.rejected import Rejected, RejectedRows, taken, without
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.runners.local.far_times import FarTimes
from zset_join.runners.local.watermarks import KnownTimes
from zset_join.sources.unread import Undecodable
from zset_join.zset import ZSet

__all__ = ["RowTaking"]


def check_appends(name: str, relation: Relation, delta: ZSet, *, epoch: int) -> None:
    if relation.mode != "append" or not (delta.weights < 0).any():
        return
    row = int(np.flatnonzero(delta.weights < 0)[0])
    raise BadInputError(
        f'source "{name}", epoch {epoch}: row {row} retracts, and rows of an append-only source are only added; '
        "nothing of the epoch was applied. Describe the source with changes(...).",
        code="RETRACTION_IN_APPEND",
        relation=name,
        epoch=epoch,
    )


class RowTaking:
    def __init__(self, plan: QueryPlan, readings: Mapping[str, Reading], *, is_strict: bool) -> None:
        self._plan = plan
        self._readings = readings
        self._relations = {source.name: source.relation for source in plan.sources}
        self._far_times = FarTimes({source.name: source for source in plan.sources})
        self._append_only = {name for name, relation in self._relations.items() if relation.mode == "append"}
        self._is_strict = is_strict

    def deltas(
        self, rows: Mapping[str, Any], epoch: int, known: KnownTimes
    ) -> tuple[dict[str, ZSet], list[Undecodable], list[RejectedRows]]:
        """Return the changes that rows mean, and where bad input is set aside what cannot be read, and times too far ahead."""
        if not isinstance(rows, Mapping):
            raise PlanError(
                f"step() is given {type(rows).__name__}, expected a dict from source to rows, such as "
                f'{{"{min(self._readings)}": [...]}}.',
                code="DELTA_TYPES",
            )
        deltas, unread, far = {}, [], []
        for name, given in rows.items():
            reading = self._readings.get(name)
            if reading is None:
                raise PlanError(
                    f'step() is given rows for "{name}"; the sources of this pipeline are {sorted(self._readings)}.',
                    code="UNKNOWN_SOURCE",
                    name=name,
                )
            if isinstance(given, PartlyRead):
                given, apart = given.parted(name)
                unread += apart
            if self._is_strict:
                delta = reading.delta(given)
                if name in self._append_only:
                    check_appends(name, self._relations[name], delta, epoch=epoch)
            else:
                delta, bad = reading.taken(given)
                unread += [] if bad is None else [bad]
            if delta.schema != self._relations[name].schema:
                delta = ZSet(conform(delta.rows, self._relations[name]), delta.weights)
            deltas[name], refused = self._far_times.part(name, delta, known)
            if refused is not None and self._is_strict:
                self._far_times.refuse(refused, epoch)
            far += [] if refused is None else [refused]
        return deltas, unread, far

    def without_heavy(self, deltas: Mapping[str, ZSet], views: Collection[str]) -> tuple[dict[str, ZSet], list[RejectedRows]]:
        """Return changes without the rows of more copies than outputs of some views take, and these rows."""
        # What rows make together, in a join, is not set aside.
        stages = {number for view in views for number in self._plan.stages_of(view)}
        feeds = [feed for view in views for feed in self._plan.view(view).feeds]
        feeds += [feed for number in stages for fed in self._plan.nodes[number].feeds for feed in fed]
        kept, heavy = dict(deltas), []
        for name in deltas.keys() & {feed.origin for feed in feeds}:
            delta = deltas[name]
            places = np.flatnonzero((delta.weights > MOST_SINGLE_ROWS) | (delta.weights < -MOST_SINGLE_ROWS))
            if len(places):
                kept[name] = without(delta, places)
                reason = f"has more than {MOST_SINGLE_ROWS} copies, which an output of single rows does not take"
                rejected = Rejected([taken(delta, places)], ["TOO_MANY_ROWS"] * len(places), [reason] * len(places))
                heavy.append(RejectedRows(name, rejected, is_of_source=True))
        return kept, heavy
