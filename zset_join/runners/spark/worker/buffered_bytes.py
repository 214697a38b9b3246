"""Bytes of an append-only join that a bucket reports; the driver adds them up (`planning.buffer_limit`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from zset_join.core.tick import Tick
from zset_join.state.join.append_buffer import BufferedEpoch
from zset_join.zset import ZSet

__all__ = ["AppendBuffer", "note_of_buffer"]


@runtime_checkable
class AppendBuffer(Protocol):
    """An operator that may only ever buffer rows, and counts the bytes of them."""

    def buffered(self, tick: Tick, deltas: Sequence[ZSet]) -> BufferedEpoch | None:
        """Return its bytes after an epoch; None if its inputs change."""
        ...

    def largest_key(self, tick: Tick, deltas: Sequence[ZSet]) -> tuple[tuple[Any, ...], int, int] | None:
        """Return the key that holds the most bytes, its rows and its bytes."""
        ...


def note_of_buffer(epoch: BufferedEpoch | None) -> dict[str, Any] | None:
    """Return a task's report of the bytes of its bucket."""
    if epoch is None:
        return None
    return {"held": epoch.after}
