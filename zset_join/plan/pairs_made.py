"""What `explain` shows of a group over a many-to-many join: that it makes no pairs, or why it makes them.

The law: with `keep_state="needed"`, a group over a join in which no side has one row per key either is fed products of sums
(`plan.passes.sum_pairs`), or a line gives the first reason why it is not. Both are read from the plan alone, so that a plan
that was read back shows them too.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.plan.row_steps import name_after
from zset_join.shapes.aggregate import AggregateCall
from zset_join.stages.aggregate import AggregateStage
from zset_join.stages.join import JoinStage

__all__ = ["PAIRS", "explained_pairs", "why_not_summed"]

PAIRS = "pairs: "
"""How the columns begin that hold products of sums."""
_SUMMED = ("count", "sum", "avg", "min", "max")
_COMPUTED = "__key_"


def explained_pairs(plan: Any, node: Any) -> list[str]:
    """Return a line about the pairs of a group of a `QueryPlan`; none for other stages, and where all columns are kept."""
    join = _joined_below(plan, node)
    if plan.keep_state != "needed" or join is None or not isinstance(node.stage, AggregateStage):
        return []
    if all(_is_group(plan, feed.origin) for feeds in join.feeds for feed in feeds) and _is_of_sums(node.stage):
        return ["group without pairs: sums of both sides are multiplied"]
    why = _why_pairs(plan, node, node.stage, join)
    return [] if why is None else [f"makes the pairs of the join, since {why}"]


def why_not_summed(call: AggregateCall, schema: pa.Schema) -> str | None:
    """Return why a call needs pairs; None where it is a sum of products, or a least or greatest value."""
    if call.where is not None:
        return f"{call.name} has a FILTER"
    if call.kind not in _SUMMED or len(call.columns) > 1:
        return f"{call.name} is no count, sum, avg, min or max of one column"
    if call.kind in ("sum", "avg"):
        kind = schema.field(call.columns[0]).type
        if not pt.is_integer(kind) or pt.is_uint64(kind):
            return f"{call.name} adds values of type {kind}; only sums of integers are exact"
    return None


def _joined_below(plan: Any, node: Any) -> Any:
    """Return the join whose rows alone a stage reads; None where it reads others."""
    feeds = node.feeds[0]
    if len(node.feeds) > 1 or len(feeds) > 1 or not isinstance(feeds[0].origin, int):
        return None
    below = plan.nodes[feeds[0].origin]
    return below if isinstance(below.stage, JoinStage) else None


def _is_group(plan: Any, origin: str | int) -> bool:
    return isinstance(origin, int) and isinstance(plan.nodes[origin].stage, AggregateStage)


def _is_of_sums(stage: AggregateStage) -> bool:
    return bool(stage.calls) and all(call.name.startswith(PAIRS) for call in stage.calls)


def _why_pairs(plan: Any, node: Any, group: AggregateStage, below: Any) -> str | None:
    """Return the first reason; None where there is at most one pair per row of a side, or none is known."""
    join = below.stage
    assert isinstance(join, JoinStage)  # noqa: S101 - `_joined_below` has looked
    rows = zip(join.relations, join.row_keys, strict=True)
    keys = [(one.primary_key if key is None else key, one.join_key) for one, key in rows]
    if not group.calls or any(key and {*key} <= {*by} for key, by in keys):
        return None
    steps = node.feeds[0][0].steps
    shown = {name_after(steps, name) for name in join.output.schema.names}
    read = [*group.group_by, *(name for call in group.calls for name in call.columns)]
    straight = [
        relation.name
        for relation, feeds in zip(join.relations, below.feeds, strict=True)
        if relation.mode == "changelog" and any(isinstance(feed.origin, str) for feed in feeds)
    ]
    reasons = [
        (join.how != "inner", f"it is a {join.how.replace('_', ' ')} join"),
        (join.residual is not None, "it has a condition beside its keys"),
        (any(by.startswith(_COMPUTED) for _, one in keys for by in one), "one of its keys is computed"),
        (not group.group_by, "all rows are one group"),
        (bool(straight), f'-1 of the changelog "{", ".join(straight)}" is compared with whole rows'),
        (any(step.condition is not None for step in steps), "rows are filtered behind it"),
        (not shown.issuperset(read), "columns are computed behind it"),
        (sum(feed.origin == below.number for feed in plan.feeds()) > 1, "others read it"),
    ]
    calls = (why_not_summed(call, group.source.schema) for call in group.calls)
    return next((why for is_so, why in reasons if is_so), None) or next(filter(None, calls), None)
