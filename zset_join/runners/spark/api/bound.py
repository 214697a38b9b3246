"""Bindings of the parts of a view inside Spark, beside the tree of the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zset_join.plan.query_plan import PlanSource
from zset_join.plan.row_steps import OpaqueStep
from zset_join.plan.tree import Apply, Node, Operate
from zset_join.query.binding import Binding
from zset_join.runners.spark.planning.placement import Bindings, BoundStep
from zset_join.runners.spark.planning.source_stream import SourceStream

__all__ = ["BoundSource", "BoundTransform", "bindings_of", "opaque_after_dedup"]


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


def bindings_of(steps: Sequence[BoundTransform], streams: Mapping[str, SourceStream]) -> Bindings:
    return Bindings(streams, {id(one.step): one.bound for one in steps})


def opaque_after_dedup(node: Node) -> list[str]:
    """Return the steps of Spark's own behind a dedup of versions, whose rows no longer show them."""
    # What a filter rejects ends the version before it, and what the dedup retracts was valid at its time all the same:
    # neither shows in the rows of such a view.
    titles: list[str] = []
    while isinstance(node, Apply):
        titles = [*([node.step.text] if isinstance(node.step, OpaqueStep) else []), *titles]
        node = node.child
    is_of_versions = isinstance(node, Operate) and node.stage.shows_newest
    return titles if is_of_versions else []
