"""Maintain the join of two changing tables, inside or outside Spark.

`import zset_join` brings the in-process engine and needs neither Spark nor Java; the streaming API is `zset_join.spark`.
"""

from __future__ import annotations

from zset_join.errors import (
    BadInputError,
    KeyTypeError,
    OptionError,
    PlanError,
    ResourceError,
    SinkError,
    StateError,
    WeightOverflowError,
    ZsetJoinError,
)
from zset_join.operators.join import HashJoin
from zset_join.protocol import Operator
from zset_join.relation import ChangelogMode, Relation
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = [
    "BadInputError",
    "ChangelogMode",
    "HashJoin",
    "KeyTypeError",
    "Operator",
    "OptionError",
    "PlanError",
    "Relation",
    "ResourceError",
    "SinkError",
    "StateError",
    "Tick",
    "WeightOverflowError",
    "ZSet",
    "ZsetJoinError",
]
