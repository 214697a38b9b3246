"""Which stages run in one task follows from the plan alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from zset_join.expressions import col
from zset_join.plan.passes.fuse_stages import fuse_stages, fused_together
from zset_join.plan.planner import plan_query
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.row_steps import OpaqueStep
from zset_join.plan.spreading import spread
from zset_join.plan.tree import Apply
from zset_join.query import View, changes
from zset_join.query import functions as F  # noqa: N812 - as PySpark users write F


def table(name: str, keys: str = "k") -> View:
    return changes(name, {"k": pa.int64(), f"{name}_j": pa.int32(), f"{name}_v": pa.string()}, keys=keys)


def opaque(view: View, *kept: tuple[str, str]) -> View:
    step = OpaqueStep("f(x)", "abc", "it is a function", view.node.relation, kept=kept)
    return replace(view, node=Apply(view.node, step))


def plan_of(view: View) -> QueryPlan:
    return spread(plan_query(view.node)).plan


A, B, C, MOVING = table("a"), table("b"), table("c"), table("m", "m_j")
INNER = A.join(B, on="k")


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (INNER.join(C, on="k"), None),
        (INNER.where(col("a_j") > 0).select("k", "b_v").groupBy("k").agg(F.count()), None),
        (INNER.select(col("k").alias("l"), "a_v").groupBy("l").agg(F.count()), None),
        (opaque(INNER, ("k", "k")).groupBy("k").agg(F.count()), None),
        (
            opaque(INNER).groupBy("k").agg(F.count()),
            "its input is in buckets by a column that is not selected, and it needs buckets by k",
        ),
        (INNER.groupBy("a_v").agg(F.count()), "its input is in buckets by k, and it needs buckets by a_v"),
        (INNER.agg(F.count()), "it needs all rows in one bucket"),
        (MOVING.join(B, on="k", how="left").groupBy("k").agg(F.count()), "k may be NULL"),
    ],
)
def test_rows_stay_where_they_are_made_if_the_next_stage_looks_for_them_there(view: View, why: str | None) -> None:
    plan = plan_of(view)
    fusings = fuse_stages(plan, hashed=str)

    (last,) = [one for one in fusings if one.target == len(plan.nodes) - 1]
    assert (last.why_not or "fused").startswith(why or "fused")
    assert len(fused_together(plan, fusings)[-1]) == (1 if why else len([*last.senders, last.target]))


def test_keys_that_the_runner_hashes_in_other_types_are_shuffled() -> None:
    plan = plan_of(INNER.groupBy("k").agg(F.count()))
    names: list[Callable[[pa.DataType], str]] = [lambda _: "number", lambda kind: f"{kind} {next(calls)}"]
    calls = iter(range(100))

    assert [[one.why_not for one in fuse_stages(plan, hashed=name)] for name in names] == [
        [None],
        ["its input hashes k as int64 0, and it needs int64 1"],
    ]
