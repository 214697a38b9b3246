"""What `Pipeline.progress` says of an epoch.

The law: of every source, rows = rows applied + rows put aside; what cannot be read is no row yet, and counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from zset_join.pipeline.prepared import PreparedEpoch
from zset_join.pipeline.watermarks import Watermarks
from zset_join.plan.query_plan import QueryPlan
from zset_join.zset import ZSet

__all__ = ["epoch_counts"]

_DIGITS = 6


def epoch_counts(
    plan: QueryPlan, prepared: PreparedEpoch, lookups: Mapping[str, Mapping[str, int]], watermarks: Watermarks
) -> dict[str, Any]:
    """Return the counts of an epoch, JSON-ready.

    `seconds` are those of reading the rows and of answering; what committing them and the outputs took is known only later, and
    stands in `Pipeline.progress` and, as `seconds_before`, in the record of the next epoch. `stages` has the stages that were
    asked, `held_by` the source that holds the watermark of a stage.

    Args:
        plan: the query.
        prepared: the epoch.
        lookups: what was asked of the outside, by stage.
        watermarks: of the plan.
    """
    answered, deltas, unread = prepared.answered, prepared.deltas, prepared.unread
    holding = {node.name: watermarks.holding(node.number) for node in plan.nodes}
    undecodable: Counter[str] = Counter()
    for unreadable in unread:
        undecodable[unreadable.source] += unreadable.records.num_rows
    rows = {name: len(delta) for name, delta in deltas.items()}
    for one in answered.rejected:
        if one.is_of_source:
            rows[one.inputs[0]] += one.table.num_rows
    return {
        "epoch": answered.epoch,
        "rows": rows,
        **_counted(answered.answers.values()),
        **(
            {"views": {name: _counted([delta]) for name, delta in answered.answers.items()}}
            if len(answered.answers) > 1
            else {}
        ),
        "rejected_rows": sum(one.table.num_rows for one in answered.rejected),
        **({"undecodable": dict(undecodable)} if undecodable else {}),
        **({"lookups": dict(lookups)} if lookups else {}),
        **({"corrections": answered.corrections} if answered.corrections else {}),
        "seconds": {name: round(seconds, _DIGITS) for name, seconds in prepared.seconds.items()},
        "stages": {
            plan.nodes[number].name: {"seconds": round(one.seconds, _DIGITS), "rows_in": one.rows_in, "rows_out": one.rows_out}
            for number, one in answered.work.items()
        },
        **({"held_by": held} if (held := {name: one for name, one in holding.items() if one is not None}) else {}),
        "late_rows": {name: one.late_rows for name, one in answered.times.sources.items()},
    }


def _counted(deltas: Iterable[ZSet]) -> dict[str, int]:
    """Return what a view, or several together, answered."""
    weights = [delta.weights for delta in deltas]
    return {"answer_rows": sum(map(len, weights)), "retractions": sum(int((one < 0).sum()) for one in weights)}
