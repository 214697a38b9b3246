"""One stage of every registered kind, for what all of them are held to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.lookup.sources.function import FunctionSource
from zset_join.shapes.aggregate import AggregateCall
from zset_join.shapes.timed_join import AsOfOptions, TemporalOptions
from zset_join.stages import (
    AggregateStage,
    AsOfJoinStage,
    CurrentVersionsStage,
    DeduplicateStage,
    JoinStage,
    LatestStage,
    LookupJoinStage,
    ProcessTimeJoinStage,
    RouteStage,
    SharedTableStage,
    Stage,
    StateTtl,
    TemporalJoinStage,
    UnchangedStage,
    expiring_stage,
)
from zset_join.stages.stage import _readers

__all__ = ["CONTROLLED", "EVENTS", "QUOTES", "ROWS", "SCHEMA", "STAGES", "VERSIONS", "registered"]

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64(), "at": pa.timestamp("us")})
COMMON: dict[str, Any] = {"schema": SCHEMA, "join_key": ("k",), "event_time": "at", "watermark_delay": 0}
EVENTS = Relation(name="events", **COMMON)
ROWS = Relation(name="rows", **COMMON, primary_key=("id",), mode="upsert")
VERSIONS = Relation(name="versions", **COMMON, primary_key=("k",), mode="upsert")
QUOTES = Relation(name="quotes", **COMMON)
CONTROLLED = Relation(
    name="partial", schema=SCHEMA.append(pa.field("control", pa.int64())), join_key=("k",), primary_key=("id",), mode="upsert"
)
STAGES: dict[str, Stage] = {
    "aggregate": AggregateStage(source=EVENTS, group_by=("k",), calls=(AggregateCall("count"),)),
    "as_of_join": AsOfJoinStage(
        left=EVENTS, right=QUOTES, options=AsOfOptions(left_time="at", right_time="at", op=">=", how="inner")
    ),
    "current_versions": CurrentVersionsStage(source=VERSIONS, key=VERSIONS.primary_key),
    "deduplicate": DeduplicateStage(source=EVENTS, keys=("k",), order_by=("id",), keep="last"),
    "join": JoinStage(left=ROWS, right=VERSIONS),
    "latest": LatestStage(source=ROWS),
    "lookup_join": LookupJoinStage(
        probe=EVENTS,
        source=FunctionSource(name="outside", schema=SCHEMA, function=lambda keys: SCHEMA.empty_table()),  # noqa: ARG005 - a contract
        key=("k",),
        columns=("k", "id"),
    ),
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


def registered() -> set[str]:
    """Return the kinds of stages there are, without those that other tests have registered."""
    return {kind for kind in _readers if not kind.startswith("test_")}
