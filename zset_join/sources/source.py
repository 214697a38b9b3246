"""The contract of what a pipeline reads by itself, without a JVM.

The law: `poll` after `open(position)` gives what follows that position, and the position behind what it gave. A pipeline keeps
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
            position: what an earlier `poll` gave, JSON-ready; None: from the beginning.

        Raises:
            StateError: what follows the position is absent any more, or the position is not of this source.
        """
        ...

    def poll(self, *, most_rows: int, wait_seconds: float) -> tuple[pa.Table, Any]:
        """Return the next rows, at most so many, and the position behind them; no rows where none came in time.

        Raises:
            StateError: rows were lost meanwhile.
        """
        ...

    def close(self) -> None:
        """Release connections. Closing twice is allowed."""
        ...
