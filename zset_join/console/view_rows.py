"""The rows of a view that a pipeline keeps in its directory: its newest snapshot and the logs after it, added up.

Cost: everything the view holds is read; the sum is kept until another epoch is viewed.
"""

from __future__ import annotations

from zset_join.checkpoint.added_columns import conformed_rows
from zset_join.checkpoint.log import read_log
from zset_join.checkpoint.reading import CommittedState
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.plan.query_plan import QueryPlan
from zset_join.zset import ZSet, single_batch

__all__ = ["keeps_views", "view_history", "view_rows"]

_VIEW, _WEIGHT = "view", "__weight"


def view_history(committed: CommittedState, plan: QueryPlan, view: str) -> BucketHistory | None:
    """Return the files of a kept view; None if it is not kept or empty."""
    number = [one.name for one in plan.views].index(view)
    return committed.histories.get(f"{_VIEW}-{number}/0" if len(plan.views) > 1 else f"{_VIEW}/0")


def keeps_views(description: dict[str, object]) -> bool:
    """Return whether a checkpoint holds the rows of its views."""
    return bool(description.get("keeps_view"))


def view_rows(committed: CommittedState, plan: QueryPlan, view: str) -> ZSet:
    """Return the rows of a kept view, each distinct row with its weight."""
    schema = plan.output_of(view).schema
    history = view_history(committed, plan, view)
    parts: list[ZSet] = []
    if history is not None and history.snapshot is not None:
        table = read_snapshot(committed.files, history.snapshot)["view"]
        weights = single_batch(table.select([_WEIGHT])).column(0).to_numpy()
        parts.append(ZSet(conformed_rows(single_batch(table.drop_columns([_WEIGHT])), schema).cast(schema), weights))
    for log in () if history is None else history.logs:
        parts += [logged.deltas[0] for logged in read_log(committed.files, log, schemas=[schema])]
    if not parts:
        return ZSet.empty(schema)
    return ZSet.concat(parts, schema=schema).consolidated()
