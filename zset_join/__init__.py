"""Maintain the join of two changing tables, and what is computed from it, inside or outside Spark.

`import zset_join` brings the in-process engine and needs neither Spark nor Java; the streaming API is `zset_join.spark`.
"""

from __future__ import annotations

from zset_join.core.errors import (
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
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.core.tick import Tick
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.distinct import Distinct
from zset_join.operators.join import HashJoin
from zset_join.operators.select import Select
from zset_join.operators.union import Union
from zset_join.operators.where import Where
from zset_join.shapes.aggregate import AggregateCall
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = [
    "Aggregate",
    "AggregateCall",
    "BadInputError",
    "ChangelogMode",
    "Distinct",
    "HashJoin",
    "KeyTypeError",
    "Operator",
    "OptionError",
    "PlanError",
    "Relation",
    "ResourceError",
    "Select",
    "SinkError",
    "StateError",
    "Tick",
    "Union",
    "WeightOverflowError",
    "Where",
    "ZSet",
    "ZsetJoinError",
]
