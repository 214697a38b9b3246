"""An epoch that is answered and not yet taken, so that several pipelines can all answer before any of them changes.

    with pipeline.prepare({"orders": rows}) as prepared:      nothing has changed
        pipeline.commit(prepared)                             the epoch counts

The law: closing a prepared epoch without `commit` leaves the pipeline, its directory and its outputs as they were.

Memory: the answer of the epoch; with a directory the stages that were opened for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from zset_join.core.errors import StateError
from zset_join.runners.local.durable_epoch import DurableEpoch
from zset_join.runners.local.engine import AnsweredEpoch
from zset_join.sources.unread import Undecodable
from zset_join.zset import ZSet

__all__ = ["PreparedEpoch"]


@dataclass(eq=False)
class PreparedEpoch:
    """An answered epoch of a pipeline."""

    answered: AnsweredEpoch
    deltas: Mapping[str, ZSet]
    unread: Sequence[Undecodable]
    opened: DurableEpoch | None  # None in memory
    stack: ExitStack | None = None  # closes `opened`

    @property
    def answers(self) -> Mapping[str, ZSet]:
        """Return the change of every view, by name."""
        return self.answered.answers

    @property
    def delta(self) -> ZSet:
        """Return the change of the only view."""
        return self.answered.delta

    def check_is_next(self, epoch: int) -> None:
        """Refuse to take the epoch where another one is next."""
        if self.answered.epoch != epoch:
            raise StateError(
                f"the prepared epoch {self.answered.epoch} is not the next one, {epoch}. Prepare it again.",
                code="EPOCH_GAP",
                epoch=self.answered.epoch,
                expected=epoch,
            )

    def close(self) -> None:
        """Close the resources of the epoch. Closing twice is allowed."""
        if self.stack is not None:
            self.stack.close()

    def __enter__(self) -> PreparedEpoch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self.stack is None else self.stack.__exit__(kind, error, traceback)
