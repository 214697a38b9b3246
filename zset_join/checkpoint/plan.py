"""The plan of a query, read from what it wrote down in its checkpoint: for tools that do not have its program.

The law: stages that are built from here open the state as the query itself would, and the plan is the one that the query ran,
in process or inside Spark.
"""

from __future__ import annotations

from zset_join.checkpoint.reading import no_checkpoint, plan_missing, stored_plan, stored_query_id
from zset_join.plan.query_plan import QueryPlan
from zset_join.stages import Stage, read_stage

__all__ = ["query_plan", "stages_of"]


def stages_of(location: str) -> dict[str, Stage]:
    """Return the stages of a query by their names, in the order of an epoch."""
    return {one["name"]: read_stage(one["stage"]) for one in stored_plan(location)["stages"]}


def query_plan(location: str) -> QueryPlan:
    """Return the plan of a query."""
    if stored_query_id(location) is None:
        raise no_checkpoint(location)
    plan = stored_plan(location).get("plan")
    if plan is None:
        raise plan_missing(location)
    return QueryPlan.from_json(plan)
