"""The logical moment of one answer.

A `Tick` names an epoch and the time that rules retention in it. Operators have no clock of their own: whatever they
need to know about time comes from here, so that a replayed epoch sees the time its first attempt saw.
"""

from __future__ import annotations

from dataclasses import dataclass

from zset_join.errors import StateError

__all__ = ["Tick"]


@dataclass(frozen=True, slots=True)
class Tick:
    """One epoch.

    Args:
        epoch: number of the epoch, counted from 0; inside Spark it is the batch id.
        watermark: microseconds since 1970-01-01 UTC; event time where the query has a watermark, else the wall-clock time
            fixed by the driver for the epoch. None means that nothing ever expires.

    >>> Tick(3)
    Tick(epoch=3, watermark=None)
    """

    epoch: int
    watermark: int | None = None

    def check_follows(self, absorbed_epoch: int) -> None:
        """Refuse to be absorbed into a state that holds this epoch, or a later one, already.

        Args:
            absorbed_epoch: the last epoch in the state, -1 when there was none.

        Raises:
            StateError: the epoch was absorbed before.
        """
        if self.epoch <= absorbed_epoch:
            raise StateError(
                f"epoch {self.epoch} was absorbed before (the state stands at {absorbed_epoch}); every epoch is absorbed once, "
                "in order.",
                code="EPOCH_ABSORBED",
                epoch=self.epoch,
                absorbed_epoch=absorbed_epoch,
            )
