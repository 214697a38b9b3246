"""A directory of a pipeline or the checkpoint of a query inside Spark is compared with another query, whatever holds its state.

The law: nothing of Spark is imported for a directory whose state is that of a pipeline.
"""

from __future__ import annotations

from typing import Any

from zset_join.checkpoint.reading import stored_description
from zset_join.evolution.differences import PlanDiff
from zset_join.runners.local import pinned

__all__ = ["diff_wherever"]


def diff_wherever(directory: str, query: Any, **given: Any) -> PlanDiff:
    """Return what another query would answer otherwise; see `pinned.diff_wherever` and `diff_of_executors`.

    Args:
        directory: of a pipeline, or `checkpointLocation`.
        query: the other query.
        given: as for these.
    """
    described = stored_description(directory)
    if described is None or "keeps_view" in described:
        return pinned.diff_wherever(directory, query, **given)
    from zset_join.runners.spark.driver.executors_state import diff_of_executors

    return diff_of_executors(directory, query, **given)
