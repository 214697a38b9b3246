"""The contract of a source that a pipeline polls, without a JVM.

The law: `poll` after `open(position)` returns the rows after that position, and the next position. A pipeline keeps
the position in the commit record of the epoch that took the rows, so no row is taken twice or omitted, whatever is killed.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

__all__ = ["Source"]


@runtime_checkable
class Source(Protocol):
    """Interface of a source for `run`. It is used by one thread."""

    def open(self, position: Any) -> None:
        """Go to a position.

        Args:
            position: from an earlier `poll`, JSON-ready; None: from the beginning.

        Raises:
            StateError: the rows after the position are gone, or the position is not of this source.
        """
        ...

    def poll(self, *, most_rows: int, wait_seconds: float) -> tuple[pa.Table, Any]:
        """Return the next rows, at most so many, and the next position; no rows if none arrived in time.

        Raises:
            StateError: rows were lost meanwhile.
        """
        ...

    def close(self) -> None:
        """Release connections. Closing twice is allowed."""
        ...
