"""A stage names every column whose values it compares, so that a runner can refuse what it would compare in another way."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.stages.every_stage import EVENTS, QUOTES, ROWS, SCHEMA, STAGES, VERSIONS
from zset_join.expressions.tree import left, right
from zset_join.lookup.sources.function import FunctionSource
from zset_join.shapes.aggregate import AggregateCall
from zset_join.shapes.timed_join import AsOfOptions, TemporalOptions
from zset_join.stages import (
    AggregateStage,
    AsOfJoinStage,
    JoinStage,
    LookupJoinStage,
    ProcessTimeJoinStage,
    StateTtl,
    TemporalJoinStage,
    expiring_stage,
)

CONDITION = left("id") > right("at_number")
NUMBERED = {"schema": SCHEMA.append(pa.field("at_number", pa.int64()))}
LEFT = replace(EVENTS, name="rows")
AS_OF = AsOfOptions(left_time="at", right_time="at", op=">=", how="inner", residual=CONDITION)
OUTSIDE = FunctionSource(name="outside", schema=NUMBERED["schema"], function=lambda keys: keys)


def looked_at(stage):
    return {(one.relation.name, column, one.use) for one in stage.comparisons for column in one.columns}


@pytest.mark.parametrize("kind", sorted(STAGES))
def test_the_keys_of_every_stage_are_among_them(kind):
    stage = STAGES[kind]

    keys = {(one.relation.name, column) for one in stage.inputs for column in (*one.key, *one.relation.primary_key)}

    assert keys <= {(name, column) for name, column, _ in looked_at(stage)}


@pytest.mark.parametrize(
    "stage",
    [
        JoinStage(left=ROWS, right=replace(VERSIONS, **NUMBERED), residual=CONDITION),
        TemporalJoinStage(left=LEFT, right=replace(VERSIONS, **NUMBERED), options=TemporalOptions(residual=CONDITION)),
        AsOfJoinStage(left=LEFT, right=replace(QUOTES, **NUMBERED, name="versions"), options=AS_OF),
        ProcessTimeJoinStage(left=ROWS, right=replace(VERSIONS, **NUMBERED), residual=CONDITION),
        LookupJoinStage(
            probe=ROWS, source=OUTSIDE, key=("k",), columns=("k", "at_number"), residual=CONDITION, alias="versions"
        ),
    ],
    ids=lambda stage: stage.kind,
)
def test_the_condition_of_a_join_is_among_them(stage):
    assert {("rows", "id", "part of a condition"), ("versions", "at_number", "part of a condition")} <= looked_at(stage)


def test_an_argument_is_looked_at_but_that_of_a_count_is_not():
    calls = (AggregateCall("count", ("id",)), AggregateCall("max", ("at",), where=left("id") > 1, name="newest"))

    compared = looked_at(AggregateStage(source=EVENTS, group_by=("k",), calls=calls))

    assert compared == {
        ("events", "k", "a key of groupBy or distinct"),
        ("events", "at", "an argument of max"),
        ("events", "id", "part of the filter of max"),
    }


def test_a_stage_whose_rows_end_compares_what_the_stage_inside_does():
    inside = JoinStage(left=replace(EVENTS, mode="changelog"), right=replace(QUOTES, mode="changelog"))

    assert expiring_stage(inside, (EVENTS, QUOTES), (StateTtl("1 day"), None)).comparisons == inside.comparisons
