"""A directory of a pipeline or the checkpoint of a query inside Spark is compared with another query, or changed to it.

The law: nothing of Spark is imported for a directory whose state is that of a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zset_join.checkpoint.reading import stored_description
from zset_join.core.errors import OptionError
from zset_join.evolution.differences import PlanDiff
from zset_join.runners.local import checkpoint_diff

__all__ = ["diff_wherever", "evolve_wherever", "most_held", "undo_wherever"]


def diff_wherever(directory: str, query: Any, **given: Any) -> PlanDiff:
    """Return how the answers of another query would differ; see `diff_of_checkpoint` and `diff_of_executors`."""
    if not _is_on_executors(directory):
        return checkpoint_diff.diff_of_checkpoint(directory, getattr(query, "planned", query), **given)
    from zset_join.runners.spark.driver.executors_state import diff_of_executors

    return diff_of_executors(directory, getattr(query, "planned", query), **given)


def most_held(directory: str) -> int:
    """Return how many rows of its sources one stage of a directory holds at most; 0 on executors, where nobody counts them."""
    return 0 if _is_on_executors(directory) else checkpoint_diff.most_held(directory)


def evolve_wherever(directory: str, query: Any, **given: Any) -> PlanDiff:
    """Let a directory, or a checkpoint, be one of another query; see `evolve_directory` and `evolve_stopped_executors`."""
    if not _is_on_executors(directory):
        from zset_join.runners.local.stopped import evolve_directory

        return evolve_directory(directory, getattr(query, "planned", query), **given)
    from zset_join.runners.spark.driver.stopped_executors import evolve_stopped_executors

    if not hasattr(type(query), "placed"):
        raise OptionError(
            f"the state in {directory} lies in Spark's executors: only a program states what they run. Give MODULE:FUNCTION, "
            "whose function takes the session and returns the query.",
            code="NOT_FROM_HERE",
            what="evolve",
        )
    return evolve_stopped_executors(directory, query, **given)


def undo_wherever(directory: str, session: Callable[[], Any], **given: Any) -> PlanDiff:
    """Let a directory, or a checkpoint, be one of the query before its last change."""
    if not _is_on_executors(directory):
        from zset_join.runners.local.stopped import undo_of_directory

        return undo_of_directory(directory, **given)
    from zset_join.runners.spark.driver.stopped_executors import undo_stopped_executors

    return undo_stopped_executors(directory, session, **given)


def _is_on_executors(directory: str) -> bool:
    """Return whether the state of a directory lies in Spark's executors."""
    described = stored_description(directory)
    return described is not None and "keeps_view" not in described
