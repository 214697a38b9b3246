"""Fifteen views of a medallion in one pipeline; `examples.medallion` is the same with a checkpoint and a DuckDB file."""

from __future__ import annotations

from collections.abc import Iterator

from examples.gallery.story import Answers, Epoch, Run, Story
from examples.medallion import medallion, shop
from zset_join import ZSet
from zset_join.pipeline import Pipeline

__all__ = ["STORY"]


def _begin() -> Run:
    def facts(pipeline: Pipeline[dict[str, ZSet]], answers: Answers) -> Iterator[tuple[str, bool]]:
        shared = [node.name for node in pipeline.plan.nodes if len(pipeline.plan.views_of(node.number)) > 1]
        yield f"{len(pipeline.plan.nodes)} stages keep 15 views; {len(shared)} of them serve several", bool(shared)
        yield f"the last epoch changed {sum(1 for delta in answers[-1].values() if delta.to_pylist())} views at once", True

    return Run(medallion(), [Epoch(dict(rows)) for rows in shop(6, seed=1)], facts)


STORY = Story("medallion", "fifteen views of a shop, bronze to gold, over four changing tables, in one epoch each", _begin)
