"""Entry points of the streams of a query, and the report of each stream in the receipts of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zset_join.runners.spark.worker.receipts import TaskReceipt

__all__ = ["StreamPlace", "places_in_order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """Name the place where a stream enters a query."""

    name: str
    stage: str
    side: int
    behind: tuple[tuple[str, int], ...] = ()

    def first_receipts(self, receipts: Sequence[TaskReceipt]) -> list[TaskReceipt]:
        """Return the receipts of the stage that its rows reach first."""
        return [receipt for receipt in receipts if receipt.stage == self.stage]

    def put_aside(self, receipts: Sequence[TaskReceipt]) -> int:
        """Return how many of its rows were set aside, in whatever stage."""
        places = ((self.stage, self.side), *self.behind)
        return sum(receipt.quarantined_rows[side] for receipt in receipts for stage, side in places if receipt.stage == stage)


def places_in_order(names: Sequence[str], order: Sequence[str]) -> list[int]:
    """Return the places of streams in an order; those that it does not name, or not as often, follow as they are.

    >>> places_in_order(["a", "b", "a", "c"], ["b", "a", "d"])
    [1, 0, 2, 3]
    """
    left = list(range(len(names)))
    found = []
    for wanted in order:
        at = next((at for at in left if names[at] == wanted), None)
        if at is not None:
            left.remove(at)
            found.append(at)
    return [*found, *left]
