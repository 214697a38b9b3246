"""The logical moment of one answer.

A `Tick` names an epoch, its processing time, and the watermarks of event time before and after its rows. Operators have no
clock of their own: all they use of time comes from here, so that a replayed epoch sees the time its first attempt
saw.
"""

from __future__ import annotations

from dataclasses import dataclass

from zset_join.core.errors import StateError

__all__ = ["Tick"]


@dataclass(frozen=True, slots=True)
class Tick:
    """One epoch.

    Args:
        epoch: number of the epoch, counted from 0; inside Spark it is the batch id.
        processing_time_us: microseconds since 1970-01-01 UTC, set by the driver for the epoch; never decreases. None: nothing
            expires by processing time.
        watermark_before_us: event time that the stage's inputs had passed before this epoch, the smallest of them: rows at or
            before it are late. Microseconds, or in the unit of an integer event time. None: no watermark yet.
        watermark_us: the watermark after this epoch's rows; rows that wait for it are released in this epoch.

    >>> Tick(3, watermark_us=10).watermark_us
    10
    """

    epoch: int
    processing_time_us: int | None = None
    watermark_before_us: int | None = None
    watermark_us: int | None = None

    def check_follows(self, absorbed_epoch: int) -> None:
        """Reject an epoch that a state contains already, or a later one."""
        if self.epoch <= absorbed_epoch:
            raise StateError(
                f"epoch {self.epoch} was absorbed before (the state is at {absorbed_epoch}); every epoch is absorbed once, "
                "in order.",
                code="EPOCH_ABSORBED",
                epoch=self.epoch,
                absorbed_epoch=absorbed_epoch,
            )
