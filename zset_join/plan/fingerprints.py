"""What makes a stage of one plan the same as a stage of another: then its state may be kept.

The law: two stages have one fingerprint iff they do the same to the same rows, from the sources up: what is written of a stage,
the columns of its answer, the row steps before it, and the same below. What relations and views are called does not count; what
a source is called does, for that is which source it is. Reading a plan twice gives the same fingerprints, in any process.

A stage with lookups is the same where it makes them through the same object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from zset_join.plan.query_plan import Feed, QueryPlan, StageNode
from zset_join.plan.row_steps import RowStep
from zset_join.plan.unnamed import text_of
from zset_join.stages.effect import EffectStage
from zset_join.stages.written import write_relation

__all__ = ["FeedPrint", "Fingerprints"]


@dataclass(frozen=True)
class FeedPrint:
    """Identify the rows that a feed passes on, whatever plan it is in.

    Args:
        origin: fingerprint of the source or stage.
        steps: what is done to its rows.
    """

    origin: str
    steps: tuple[RowStep, ...]

    @cached_property
    def text(self) -> str:
        """Return what is equal for feeds of the same rows."""
        return text_of([self.origin, [step.to_json() for step in self.steps]])


class Fingerprints:
    """Hold the fingerprints of a plan.

    Args:
        plan: the plan.

    Attributes:
        sources: by name.
        nodes: of each stage, by number.
    """

    def __init__(self, plan: QueryPlan) -> None:
        self.plan = plan
        self.sources = {source.name: _digest("source", text_of(source.to_json(), names=True)) for source in plan.sources}
        self.nodes: list[str] = []
        for node in plan.nodes:
            self.nodes.append(self._of_node(node))

    def origin(self, origin: str | int) -> str:
        """Return that of a source or a stage."""
        return self.sources[origin] if isinstance(origin, str) else self.nodes[origin]

    def feeds(self, feeds: Sequence[Feed]) -> tuple[FeedPrint, ...]:
        """Return those of the feeds of one input."""
        return tuple(FeedPrint(self.origin(feed.origin), feed.steps) for feed in feeds)

    def text(self, feeds: Sequence[Feed]) -> str:
        """Return what is equal for inputs, or views, of the same rows."""
        return text_of([one.text for one in self.feeds(feeds)])

    @cached_property
    def states(self) -> Mapping[int, str]:
        """Return those of what has one state, by its number: a stage, or a table with the joins that look up in it."""
        return {
            state.number: self.nodes[state.number]
            if not state.is_shared
            else _digest("shared", *(self.nodes[number] for number in state.readers))
            for state in self.plan.states
        }

    def _of_node(self, node: StageNode) -> str:
        stage = node.stage
        outside = str(id(getattr(stage, "source", stage))) if isinstance(stage, EffectStage) else ""
        written = text_of([stage.to_json(), write_relation(stage.output)])
        return _digest("stage", written, outside, *(self.text(feeds) for feeds in node.feeds))


def _digest(*texts: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(f"{len(text)} {text}".encode())
    return digest.hexdigest()
