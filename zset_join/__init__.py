"""Maintain the join of two changing tables, and what is computed from it, inside or outside Spark.

The in-process engine needs neither Spark nor Java; the streaming API is `zset_join.spark`.

Cost: `import zset_join` imports nothing else; each name below is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zset_join.core.extras import lazy_names

if TYPE_CHECKING:
    from zset_join.core.epochs import Tick
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
    from zset_join.core.options import BufferLimit, HotBudget
    from zset_join.core.relation import ChangelogMode, Relation
    from zset_join.operators.aggregate import Aggregate, Distinct
    from zset_join.operators.join import HashJoin
    from zset_join.operators.stateless import Select, Union, Where
    from zset_join.shapes.aggregate import AggregateCall
    from zset_join.shapes.operator_options import OperatorOptions
    from zset_join.zset import ZSet
    from zset_join.zset.protocol import Operator
else:
    __homes__ = {
        "Aggregate": "zset_join.operators.aggregate",
        "AggregateCall": "zset_join.shapes.aggregate",
        "BadInputError": "zset_join.core.errors",
        "BufferLimit": "zset_join.core.options",
        "ChangelogMode": "zset_join.core.relation",
        "Distinct": "zset_join.operators.aggregate",
        "HashJoin": "zset_join.operators.join",
        "HotBudget": "zset_join.core.options",
        "KeyTypeError": "zset_join.core.errors",
        "Operator": "zset_join.zset.protocol",
        "OperatorOptions": "zset_join.shapes.operator_options",
        "OptionError": "zset_join.core.errors",
        "PlanError": "zset_join.core.errors",
        "Relation": "zset_join.core.relation",
        "ResourceError": "zset_join.core.errors",
        "Select": "zset_join.operators.stateless",
        "SinkError": "zset_join.core.errors",
        "StateError": "zset_join.core.errors",
        "Tick": "zset_join.core.epochs",
        "Union": "zset_join.operators.stateless",
        "WeightOverflowError": "zset_join.core.errors",
        "Where": "zset_join.operators.stateless",
        "ZSet": "zset_join.zset",
        "ZsetJoinError": "zset_join.core.errors",
    }
    __getattr__, __dir__ = lazy_names(__name__, __homes__)

__all__ = [
    "Aggregate",
    "AggregateCall",
    "BadInputError",
    "BufferLimit",
    "ChangelogMode",
    "Distinct",
    "HashJoin",
    "HotBudget",
    "KeyTypeError",
    "Operator",
    "OperatorOptions",
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
