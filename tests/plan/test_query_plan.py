"""A plan refuses what cannot run, and comes back from what it wrote down."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join import OptionError, PlanError
from zset_join.pipeline import Pipeline, View, appends
from zset_join.plan.query_plan import Feed, QueryPlan, StageNode
from zset_join.plan.row_steps import OpaqueStep
from zset_join.plan.tree import Apply

X = {"x": pa.int64()}


def counted():
    return appends("x", X).groupBy("x").count()


def test_a_plan_of_another_format_is_refused():
    with pytest.raises(PlanError, match="format 99"):
        QueryPlan.from_json({**counted().plan().to_json(), "format": 99})


def test_a_stage_that_reads_the_input_later_is_refused():
    plan = counted().plan()

    with pytest.raises(PlanError, match="nor a stage before it"):
        QueryPlan(plan.sources, (StageNode(0, plan.nodes[0].stage, ((Feed(0),),)),), plan.views)


def test_two_sources_of_one_name_are_refused():
    with pytest.raises(OptionError, match=r"several sources are called \['x'\]"):
        appends("x", X).union(appends("x", X)).plan()


def test_a_step_that_only_spark_can_do_is_kept_in_the_plan_and_refused_in_process():
    view = appends("x", X)
    step = OpaqueStep("my_function(x)", "abc", "it is a Python function", view.node.relation)
    opaque = View(node=Apply(view.node, step), name="x", bindings=view.bindings)

    assert QueryPlan.from_json(opaque.plan().to_json()).outputs[0].steps == (step,)
    with pytest.raises(PlanError, match="Spark only, before the first join or group: it is a Python function"):
        Pipeline(opaque)
