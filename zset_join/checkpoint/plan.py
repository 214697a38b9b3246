"""The stages of a query, built from what it wrote down in its checkpoint: for tools that do not have its program.

The law: what is built here opens the state of the stages as the query itself would.
"""

from __future__ import annotations

from zset_join.checkpoint.reading import stored_plan
from zset_join.stages import Stage, read_stage

__all__ = ["stages_of"]


def stages_of(location: str) -> dict[str, Stage]:
    """Return the stages of a query by their names, in the order of an epoch.

    Args:
        location: `checkpointLocation`.

    Raises:
        StateError: the plan is missing, as in a checkpoint of an older version, or damaged.
        PlanError: it has a kind of stage that this version does not know.
    """
    return {one["name"]: read_stage(one["stage"]) for one in stored_plan(location)["stages"]}
