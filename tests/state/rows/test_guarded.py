"""Every kind of stage there is makes an operator that tells wrong use, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from zset_join.aggregates.calls import AggregateCall
from zset_join.errors import PlanError, StateError
from zset_join.expressions import left
from zset_join.operators.as_of_join import AsOfOptions
from zset_join.operators.lookup_join import LookupJoin
from zset_join.operators.partial_upserts import PartialUpserts
from zset_join.operators.select import Select
from zset_join.operators.temporal_join import TemporalOptions
from zset_join.operators.union import Union
from zset_join.operators.where import Where
from zset_join.relation import Relation
from zset_join.stages import (
    AggregateStage,
    AsOfJoinStage,
    DeduplicateStage,
    JoinStage,
    LatestStage,
    ProcessTimeJoinStage,
    RouteStage,
    SharedTableStage,
    Stage,
    StageOptions,
    StateTtl,
    TemporalJoinStage,
    UnchangedStage,
    expiring_stage,
)
from zset_join.stages.stage import registered_kinds
from zset_join.tick import Tick
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64(), "at": pa.timestamp("us")})
COMMON: dict[str, Any] = {"schema": SCHEMA, "join_key": ("k",), "event_time": "at", "watermark_delay": 0}
EVENTS = Relation(name="events", **COMMON)
ROWS = Relation(name="rows", **COMMON, primary_key=("id",), mode="upsert")
VERSIONS = Relation(name="versions", **COMMON, primary_key=("k",), mode="upsert")
QUOTES = Relation(name="quotes", **COMMON)
CONTROLLED = Relation(
    name="partial", schema=SCHEMA.append(pa.field("control", pa.int64())), join_key=("k",), primary_key=("id",), mode="upsert"
)
TICK = Tick(0, 1_000)
ROW = {"id": [1], "k": [1], "at": [None], "control": [0]}

STAGES: dict[str, Stage] = {
    "aggregate": AggregateStage(source=EVENTS, group_by=("k",), calls=(AggregateCall("count"),)),
    "as_of_join": AsOfJoinStage(
        left=EVENTS, right=QUOTES, options=AsOfOptions(left_time="at", right_time="at", op=">=", how="inner")
    ),
    "deduplicate": DeduplicateStage(source=EVENTS, keys=("k",), order_by=("id",), keep="last"),
    "join": JoinStage(left=ROWS, right=VERSIONS),
    "latest": LatestStage(source=ROWS),
    "process_time_join": ProcessTimeJoinStage(left=EVENTS, right=VERSIONS),
    "route": RouteStage(source=ROWS),
    "shared_table": SharedTableStage(
        readers=(TemporalJoinStage(left=EVENTS, right=VERSIONS), TemporalJoinStage(left=EVENTS, right=VERSIONS))
    ),
    "state_ttl": expiring_stage(
        JoinStage(left=replace(EVENTS, mode="changelog"), right=replace(QUOTES, mode="changelog")),
        (EVENTS, QUOTES),
        (StateTtl("1 day"), StateTtl("1 day")),
    ),
    "temporal_join": TemporalJoinStage(left=EVENTS, right=VERSIONS, options=TemporalOptions()),
    "unchanged": UnchangedStage(source=EVENTS),
}


def of_stage(stage: Stage) -> Callable[[], Any]:
    return lambda: stage.build(StageOptions(), None)


MAKERS: dict[str, Callable[[], Any]] = {
    **{kind: of_stage(stage) for kind, stage in STAGES.items()},
    # Its stage asks an outside source; the operator does not.
    "lookup_join": lambda: LookupJoin(EVENTS, VERSIONS, output_names=["id", "k", "at", "id_2", "k_2", "at_2"]),
    "partial upserts": lambda: PartialUpserts(CONTROLLED, control="control"),
    "select": lambda: Select(EVENTS, ["k"]),
    "union": lambda: Union([EVENTS, QUOTES]),
    "where": lambda: Where(EVENTS, left("k") > 0),
}


@pytest.fixture(params=MAKERS)
def operator(request: pytest.FixtureRequest) -> Any:
    """Give an operator without state."""
    return MAKERS[request.param]()


def given(operator: Any) -> list[ZSet]:
    """Return a row, or none where it would have to be fetched first, for each input."""
    rows = [ZSet.of({name: ROW.get(name, [1]) for name in one.schema.names}, schema=one.schema) for one in operator.inputs[:1]]
    return rows + [ZSet.empty(one.schema) for one in operator.inputs[1:]]


def test_every_kind_of_stage_is_held_to_it() -> None:
    kinds = {kind for kind in registered_kinds() if not kind.startswith("test_")}  # other tests register some of their own
    assert kinds - set(MAKERS) == set()


def test_another_number_of_deltas_is_refused(operator: Any) -> None:
    deltas = [*given(operator), given(operator)[0]]

    for use in (operator.answer, operator.absorb, operator.rejections):
        with pytest.raises(PlanError) as refused:
            list(use(TICK, deltas))
        assert refused.value.code == "DELTA_COUNT"

    assert operator.absorbed_epoch == -1


def test_what_is_no_snapshot_is_refused_and_changes_nothing(operator: Any) -> None:
    empty = [ZSet.empty(one.schema) for one in operator.inputs]
    operator.absorb(TICK, empty)
    before = operator.snapshot()

    for tables in ({}, {name: pa.table({"other": [1]}) for name in before}):
        with pytest.raises(StateError) as refused:
            operator.restore(tables)
        assert refused.value.code == "SNAPSHOT_TABLES"

    assert operator.snapshot() == before
    assert operator.absorbed_epoch == 0
    operator.restore(before)


def test_an_answer_that_is_read_when_the_state_has_changed_is_refused(operator: Any) -> None:
    empty = [ZSet.empty(one.schema) for one in operator.inputs]
    late = operator.answer(TICK, empty)
    operator.absorb(TICK, empty)

    with pytest.raises(StateError) as refused:
        list(late)

    assert refused.value.code == "ANSWER_OUTDATED"


def test_a_closed_operator_says_so_and_may_be_closed_again(operator: Any) -> None:
    deltas = given(operator)
    operator.close()

    for use in (operator.answer, operator.absorb, operator.rejections):
        with pytest.raises(StateError) as refused:
            list(use(TICK, deltas))
        assert refused.value.code == "OPERATOR_CLOSED"

    operator.close()
