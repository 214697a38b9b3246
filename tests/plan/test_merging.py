"""Plans with one view more or less keep what they were planned to keep."""

from __future__ import annotations

from zset_join.pipeline import appends
from zset_join.plan.merging import are_mergeable, merged_plan, plan_without
from zset_join.query.several import plan_of

ROWS = appends("rows", "k BIGINT, x BIGINT, note BIGINT")
BY_K, BY_X = ROWS.groupBy("k").count(), ROWS.groupBy("x").count()


def test_a_view_more_or_less_leaves_keep_state_as_it_was():
    one, other = (plan_of({name: view}, keep_state="needed") for name, view in (("k", BY_K), ("x", BY_X)))

    merged, _ = merged_plan(one, other)

    assert (merged.keep_state, plan_without(merged, "k")[0].keep_state) == ("needed", "needed")


def test_plans_that_keep_other_columns_are_not_merged():
    assert are_mergeable(plan_of({"k": BY_K}), plan_of({"x": BY_X}))
    assert not are_mergeable(plan_of({"k": BY_K}), plan_of({"x": BY_X}, keep_state="needed"))
