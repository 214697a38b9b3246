"""Everything that came: the changes of every source, epoch by epoch, kept where `keep_inputs` asks for it.

The law: replayed in order through an empty pipeline they give the same answers.

Memory: all changes that ever came, as Arrow; with a directory they are in its log as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from zset_join.zset import ZSet

__all__ = ["InputHistory", "PastEpoch"]


@dataclass(frozen=True, slots=True)
class PastEpoch:
    """Hold what came in one epoch.

    Args:
        epoch: its number.
        processing_time_us: its processing time.
        deltas: by source, the changes; those without rows are left out.
        fetched: by number of a stage that asks the outside, the answers; None: they are not known.
        watermarks: by number of a stage, its watermark after the epoch, where it was recorded; None: they follow from the rows.
    """

    epoch: int
    processing_time_us: int | None
    deltas: Mapping[str, ZSet] = field(default_factory=dict)
    fetched: Mapping[int, ZSet] | None = None
    watermarks: Mapping[int, int] | None = None


class InputHistory:
    """Keep what came."""

    def __init__(self) -> None:
        self._epochs: list[PastEpoch] = []

    def add(
        self,
        epoch: int,
        processing_time_us: int | None,
        deltas: Mapping[str, ZSet],
        *,
        fetched: Mapping[int, ZSet] | None = None,
    ) -> None:
        """Add an epoch; the arguments are those of `PastEpoch`."""
        kept = {name: delta for name, delta in deltas.items() if len(delta)}
        self._epochs.append(PastEpoch(epoch, processing_time_us, kept, fetched))

    def __iter__(self) -> Iterator[PastEpoch]:
        return iter(self._epochs)

    def __len__(self) -> int:
        return len(self._epochs)
