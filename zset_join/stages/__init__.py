"""The stages a plan is made of: what both runners run, each in a file of its own beside the contract in `stage`.

Code that reads stages from JSON imports this package, which registers all of them.
"""

from __future__ import annotations

from zset_join.stages.aggregate import AggregateStage
from zset_join.stages.current_versions import CurrentVersionsStage
from zset_join.stages.deduplicate import DeduplicateStage
from zset_join.stages.expiring import ExpiringStage, StateTtl, expiring_stage, state_ttls
from zset_join.stages.join import JoinStage
from zset_join.stages.latest import LatestStage
from zset_join.stages.lookup_join import LookupJoinStage
from zset_join.stages.process_time_join import ProcessTimeJoinStage
from zset_join.stages.shared_table import SharedTableStage
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, read_stage, register_stage
from zset_join.stages.temporal_join import TemporalJoinStage
from zset_join.stages.timed_join import AsOfJoinStage
from zset_join.stages.unchanged import RouteStage, UnchangedStage

__all__ = [
    "AggregateStage",
    "AsOfJoinStage",
    "CurrentVersionsStage",
    "DeduplicateStage",
    "ExpiringStage",
    "JoinStage",
    "LatestStage",
    "LookupJoinStage",
    "OutputKey",
    "ProcessTimeJoinStage",
    "RouteStage",
    "SharedTableStage",
    "Stage",
    "StageInput",
    "StageOptions",
    "StateTtl",
    "TableKey",
    "TemporalJoinStage",
    "UnchangedStage",
    "expiring_stage",
    "read_stage",
    "register_stage",
    "state_ttls",
]
