"""Bindings of the parts of a view inside Spark, beside the tree of the query."""

from __future__ import annotations

from dataclasses import dataclass, field

from zset_join.plan.query_plan import PlanSource
from zset_join.plan.row_steps import OpaqueStep
from zset_join.query.binding import Binding
from zset_join.runners.spark.planning.lowering import BoundStep
from zset_join.runners.spark.planning.source_stream import SourceStream

__all__ = ["BoundSource", "BoundTransform"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundSource(Binding):
    """Bind a source to a stream."""

    stream: SourceStream
    origin: object = field(default_factory=object)

    @classmethod
    def of(cls, stream: SourceStream, origin: object | None = None) -> BoundSource:
        source = PlanSource(
            relation=stream.relation(()),
            hidden=stream.hidden,
            has_baseline=stream.baseline is not None,
            max_watermark_jump=stream.max_watermark_jump,
        )
        return cls(source=source, stream=stream, origin=origin or object())


@dataclass(frozen=True, eq=False)
class BoundTransform:
    """A step that only Spark can do."""

    step: OpaqueStep
    bound: BoundStep
