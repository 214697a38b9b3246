"""All rows that a join shows, as pairs of record addresses, from the state of its two sides.

The law: what is listed is the sum of all answers so far. No row is fed to anything, and nothing of the state changes.

The side with more rows is walked record by record, the other one is looked up; rows of the other side alone take a second
walk. Behind a residual predicate every pair with equal keys is judged, and rows alone follow from their degree.

Memory: arrays of one chunk. Cost: a look-up per row, plus the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.core.errors import WeightOverflowError
from zset_join.kernels.join.listed_rows import LISTED_CURSOR_WORDS, emit_listed_rows
from zset_join.kernels.join.pairs import OVERFLOW
from zset_join.kernels.rows.side import H_LIVE_ROWS, H_ROWS_END
from zset_join.state.join.changed_groups import Pairs
from zset_join.state.rows.side import SideState

__all__ = ["ListedRows"]


class ListedRows:
    def __init__(
        self,
        sides: Sequence[SideState],
        one_sided: tuple[int, int],
        *,
        pairs: bool,
        passes: Callable[[Any, Any], npt.NDArray[np.bool_]] | None,
    ) -> None:
        self._sides, self._one_sided, self._pairs, self._passes = sides, one_sided, pairs, passes

    def pieces(self, rows: int) -> Iterator[Pairs]:
        """Yield left and right record addresses (0: padded) and weights, at most so many; each is valid until the next."""
        words = np.empty((3, rows), np.int64)
        alone = list(self._one_sided)
        if self._pairs:
            walked = int(self._sides[1].header[H_LIVE_ROWS] > self._sides[0].header[H_LIVE_ROWS])
            if self._passes is None:
                yield from self._walk(walked, words, pairs=True, kind=alone[walked])
                alone[walked] = 0
            else:
                for left, right, weights in self._walk(walked, words, pairs=True, kind=0):
                    kept = np.flatnonzero(self._passes(left, right))
                    if len(kept):
                        yield left[kept], right[kept], weights[kept]
        for side, kind in enumerate(alone):
            if kind:
                yield from self._walk(side, words, pairs=False, kind=kind)

    def _walk(self, side: int, words: npt.NDArray[np.int64], *, pairs: bool, kind: int) -> Iterator[Pairs]:
        own, other = self._sides[side], self._sides[1 - side]
        cursor = np.zeros(LISTED_CURSOR_WORDS, np.int64)
        count, capacity = int(own.header[H_ROWS_END]), words.shape[1]
        lines = [int(line.ctypes.data) for line in words]
        while cursor[0] < count:
            filled = emit_listed_rows(
                own.view,
                own.join_columns.address,
                other.view,
                other.join_columns.address,
                own.first_record,
                count,
                pairs,
                kind,
                int(cursor.ctypes.data),
                lines[side],
                lines[1 - side],
                lines[2],
                0,
                capacity,
            )
            if cursor[0] == OVERFLOW:
                left, right = (side.relation.name for side in self._sides)
                raise WeightOverflowError(
                    f'the rows of the join of "{left}" and "{right}": the product of two weights does not fit an int64, and '
                    "they cannot be read from its state. Retract duplicate rows on one side; a weight is the number of copies.",
                    code="WEIGHT_OVERFLOW",
                )
            if filled:
                yield words[0, :filled], words[1, :filled], words[2, :filled]
