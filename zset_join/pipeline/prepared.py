"""An epoch that is answered and not yet taken, so that several pipelines can all answer before any of them changes.

    with pipeline.prepare({"orders": rows}) as prepared:      nothing has changed
        pipeline.commit(prepared)                             the epoch counts

The law: closing a prepared epoch without `commit` leaves the pipeline, its directory and its outputs as they were.

Memory: the answer of the epoch; with a directory the stages that were opened for it.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from zset_join.errors import BadInputError, OptionError
from zset_join.pipeline.dead_letters import Undecodable
from zset_join.pipeline.durable import DurableEpoch
from zset_join.pipeline.engine import AnsweredEpoch
from zset_join.zset import ZSet

__all__ = ["PreparedEpoch", "epoch_time", "refuse_retractions"]


@dataclass(eq=False)
class PreparedEpoch:
    """Hold one answered epoch of a pipeline.

    Args:
        answered: its answer, and what absorbing it takes.
        deltas: by source, its changes.
        unread: what could not be decoded.
        opened: its stages, of a pipeline with a directory; None in memory.
        stack: closes them.
    """

    answered: AnsweredEpoch
    deltas: Mapping[str, ZSet]
    unread: Sequence[Undecodable]
    opened: DurableEpoch | None
    stack: ExitStack

    @property
    def delta(self) -> ZSet:
        """Return the change of the view."""
        return self.answered.delta

    def close(self) -> None:
        """Close what was opened for the epoch. Closing twice is allowed."""
        self.stack.close()

    def __enter__(self) -> PreparedEpoch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self.stack.__exit__(kind, error, traceback)


def epoch_time(given: datetime.datetime | int | None, before_us: int | None) -> int:
    """Return the processing time of an epoch in microseconds since 1970: never before that of the last one.

    Raises:
        OptionError: a datetime without a time zone.
    """
    if isinstance(given, datetime.datetime):
        if given.tzinfo is None:
            raise OptionError(
                f"processing_time={given!r} has no time zone; give one, such as datetime.UTC.", code="PROCESSING_TIME"
            )
        wanted = int(given.timestamp() * 1_000_000)
    else:
        wanted = time.time_ns() // 1000 if given is None else given
    return wanted if before_us is None else max(wanted, before_us)


def refuse_retractions(name: str, delta: ZSet, epoch: int) -> None:
    """Refuse retractions from a source whose rows are only added, also where it goes through no stage.

    Raises:
        BadInputError: a row has a negative weight.
    """
    if not (delta.weights < 0).any():
        return
    row = int(np.flatnonzero(delta.weights < 0)[0])
    raise BadInputError(
        f'source "{name}", epoch {epoch}: row {row} retracts, and rows of an append-only source are only added; '
        "nothing of the epoch was applied. Describe the source with changes(...).",
        code="RETRACTION_IN_APPEND",
        relation=name,
        epoch=epoch,
    )
