"""List a view of a directory from the state of its stages, as one in memory is.

The law: what is listed is the sum of all committed answers. The last epoch is not folded into the state yet, so reading opens
the stages as the next epoch does, which folds it in; a reader that dies after that leaves files as a refused epoch leaves them.
Where the next epoch is open, its stages are read, which are in the state before it.

A state that turns out to have forgotten rows, or to hold them on the disk, is not listed: the view is then the sum of its log.

Cost: folding the last epoch in, which the next one then need not do, and a pass over the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.durable_epoch import DurableEpoch
from zset_join.runners.local.listed_answers import list_view
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import AnswerListingOperator, DurableOperator

__all__ = ["list_view_of_directory"]


class _OpenStages:
    """Return the operators of the stages that are being read, one reader at a time."""

    def __init__(self) -> None:
        self.epoch: DurableEpoch | None = None

    def __call__(self, number: int) -> DurableOperator:
        assert self.epoch is not None  # noqa: S101 - set while rows are read
        return self.epoch.read(number)


def list_view_of_directory(
    directory: PipelineDirectory, plan: QueryPlan, name: str, shapes: Mapping[int, DurableOperator], options: StageOptions
) -> Callable[[], ZSet] | None:
    """Return a function that lists the rows of a view; None where the state of its stages does not hold them at all times."""
    view, stages = plan.view(name), _OpenStages()
    listed = list_view(plan, view, shapes, options, stages)
    if listed is None:
        return None
    origins = [feed.origin for feed in view.feeds if isinstance(feed.origin, int)]
    return partial(_rows, directory, name, stages, origins, listed)


def _rows(directory: PipelineDirectory, name: str, stages: _OpenStages, origins: list[int], listed: Callable[[], ZSet]) -> ZSet:
    with directory.reading() as stages.epoch:
        try:
            operators = [stages(number) for number in origins]
            if all(one.lists_answer for one in operators if isinstance(one, AnswerListingOperator)):
                return listed()
        finally:
            stages.epoch = None
    return directory.summed_view(name)
