"""Page storage of a run: the part of a cold store that depends on the storage.

The law: `read` returns the bytes that were appended to that run under that page number; a run that was not finished leaves
nothing behind once it is discarded. Pages contain no rows, codes or liveness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spill.cold_store import Int64s
from spill.read_kernels import WINDOW_WORDS
from zset_join.core.errors import StateError

__all__ = ["PageWriter", "Pages", "ReadPages", "damaged_page", "damaged_run"]


@dataclass(frozen=True, slots=True)
class ReadPages:
    """Pages in memory."""

    addresses: Int64s  # valid as long as `owner` lives
    owner: Any
    read_bytes: int  # gaps included
    # Of mapped files; the pages of a window are present from `open_window` to `close_window`.
    windows: Int64s = field(default_factory=lambda: np.empty((0, WINDOW_WORDS), np.int64))


class PageWriter(Protocol):
    """Write one run, front to back."""

    def append(self, content: npt.NDArray[np.uint8], ends: Int64s) -> None:
        """Add pages that are in `content` one behind the other; `ends`: where each ends."""
        ...

    def finish(self) -> None:
        """The run is complete."""
        ...

    def discard(self) -> None:
        """Leave nothing behind; after `finish` this is an error of the caller."""
        ...


class Pages(Protocol):
    """Keep the pages of the runs of one store.

    Attributes:
        kind: what they are, for the manifest of the store.
        group_bytes: of pages that are best read together.
    """

    kind: str
    group_bytes: int

    def write(self, run: int) -> PageWriter:
        """Begin a run."""
        ...

    def read(
        self,
        runs: Sequence[int],
        page_runs: Int64s,
        pages: Int64s,
        begins: Int64s,
        ends: Int64s,
        *,
        reuse: ReadPages | None = None,
        may_map: bool = False,
    ) -> ReadPages:
        """Return some pages.

        Args:
            runs: numbers of runs.
            page_runs: position in `runs` of each page, ascending.
            pages: numbers, ascending in each run; at least one.
            begins: first byte of each page in its run.
            ends: end of each page in its run.
            reuse: pages of an earlier read that nobody looks at any more; their memory may be taken for these.
            may_map: whether pages may be in windows.

        Raises:
            StateError: the run or a page of it is missing.
        """
        ...

    def check(self, run: int, *, pages: int, size: int) -> None:
        """Raise StateError if a run is absent, or has not as many pages, or as many bytes, as its directory records."""
        ...

    def drop(self, run: int) -> None:
        """Remove a run and give its space back."""
        ...

    def commit(self) -> None:
        """Make the written rows visible to the next process that opens the store."""
        ...

    def disk_bytes(self) -> int:
        """Return the bytes on disk."""
        ...

    def resident_bytes(self) -> int:
        """Return the bytes of memory kept between calls."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


def damaged_page(place: str, run: int, page: int) -> StateError:
    """Return the error of a page that is not what was written; `place` is the directory of its store."""
    return StateError(
        f"page {page} of run {run} of a cold store is damaged: {place} cannot be read or has other bytes than were written. "
        "It is a cache: remove the directory, and it is rebuilt from the checkpoint.",
        code="COLD_STORE_DAMAGED",
        path=place,
        run=run,
        page=page,
    )


def damaged_run(place: str, run: int, what: str) -> StateError:
    """Return the error of a run that is not what was written, and in what; `place` is the directory of its store."""
    return StateError(
        f"run {run} of the cold store in {place} is damaged: {what}. It is a cache: remove the directory, and it is rebuilt "
        "from the checkpoint.",
        code="COLD_STORE_DAMAGED",
        path=place,
        run=run,
    )
