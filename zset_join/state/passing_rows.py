"""What an epoch's changes make of rows that have no room in memory: they are read from disk, paired and let go.

The law: the answer is that of the same rows in memory. No row that passes is changed by the epoch, for those are brought in by
their identity; and where it matters whether a side has rows of a key, one that stays is in memory (`standing_rows`).

Rows come in the order in which they lie on disk, so the changes are worked off by ranges of their hash. Memory: the pages of
one group of rows, and a second list of the changes. Cost: the pages are read once, or twice where the insertions cannot be held
until all retractions are out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from spill.row_bytes import UnpackedRows
from zset_join.state.changed_groups import ChangedGroups, OutputArrays, Step
from zset_join.state.cold_side import ColdSide

__all__ = ["PassingRows", "Piece", "Place"]

Place = tuple[int, ...]
Piece = tuple[Place, Callable[[int], Sequence[Step]]]
"""A part of an epoch, and what makes the steps that append its retractions (-1), its insertions (1) or both (0)."""

_Codes = npt.NDArray[np.int64]


class PassingRows:
    """Pair rows that pass through memory.

    Args:
        groups: the changes.
        cold: rows on disk, per side.
        lone: per side, what the join says about its lone rows.
        pairs: whether the join shows pairs.
        output: where steps append.
    """

    def __init__(
        self, groups: ChangedGroups, cold: Sequence[ColdSide], lone: tuple[int, int], *, pairs: bool, output: OutputArrays
    ) -> None:
        self._groups = groups
        self._cold = cold
        self._lone = lone
        self._pairs = pairs
        self._output = output

    def pieces(self, passing: Sequence[bool], without: Sequence[_Codes], only: set[Place] | None = None) -> Iterator[Piece]:
        """Yield a piece for each group of rows; its steps are to be done before the next is asked for.

        Args:
            passing: per side, whether what is on disk of the keys that change on the other side passes.
            without: per side, hashes of keys that do not.
            only: places of the pieces wanted; default: all.
        """
        if not any(passing):
            return
        groups = self._groups
        groups.sort_by_range()
        for part in range(groups.parts):
            if only is not None and not any(place[0] == part for place in only):
                continue
            groups.enter(part, of_ranges=True)
            for side, passes in enumerate(passing):
                if not passes:
                    continue
                changed = groups.changed_codes(1 - side)
                wanted = changed[~np.isin(changed, without[side])] if len(without[side]) else changed
                for number, found in enumerate(self._cold[side].pass_through(wanted)):
                    place = (part, side, number)
                    if only is None or place in only:
                        yield place, partial(self._steps, side, found)
            groups.note_passed()

    def _steps(self, side: int, found: tuple[_Codes, UnpackedRows], sign: int) -> list[Step]:
        codes, rows = found
        return [
            self._groups.passing_step(
                side, codes, rows, kind=self._lone[side], pairs=self._pairs, sign=sign, output=self._output
            )
        ]
