"""Labels of times whose order does not fit into one word: text, bytes, wide decimals, unsigned 64-bit integers.

Every time that a row of the state has gets a *label*, a 64-bit number in the order of the times. Runs and probes compare labels
as they compare the words of other times. The same time has the same label while it is kept.

The law: labels are in the order of the values, at least two apart. Nothing depends on a label but the order: snapshots hold the
values, and two operators with the same rows may have other labels.

A new time is placed between its neighbours, beyond the first or last one in wide steps. When there is no room left between two,
`on_crowded` rewrites the state with labels in equal steps.

Remembers: per distinct time the value and about 160 bytes; times no row has any more are forgotten when they are the majority.

Cost: the distinct times of an epoch, each a search by halves. Times that arrive in order take room for good: 4 million of them
to each side before the state is rewritten. Times that arrive between two neighbours, always before the last one that arrived
there, use up the room between them after some twenty epochs; each rewriting costs the rows of the state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.row_conversion import cast_key
from zset_join.shapes.event_time import EventTime
from zset_join.state.rows.order_words import NULL_WORD

__all__ = ["TimeLabels", "time_values"]

_Words = npt.NDArray[np.int64]

_STEP = 1 << 40
_FURTHEST = 1 << 62
_BYTES = 160  # of a label in the dictionary and the list, besides its value


def time_values(times: EventTime, rows: pa.RecordBatch | pa.Table, which: int) -> pa.Array:
    """Return the time of each row of an input, in the type that times are compared in; what does not fit is NULL."""
    column = rows.column(times.columns[which])
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == times.kind else cast_key(column, times.kind)[0]


class TimeLabels:
    """Own the labels of one operator, or of operators that share rows.

    `on_crowded` is called with times of which some found no room; it must call `spread` with them and those of the
    rows, and rewrite all rows. `on_overtaken` is called where another process has changed the mapped rows; it must call `load`.
    """

    def __init__(self, *, step: int = _STEP) -> None:
        self.step = step
        self.on_crowded: Callable[[set[Any]], None] = self.spread
        self.on_overtaken: Callable[[], None] = lambda: None
        self._epoch: int | None = None
        self._label_of: dict[Any, int] = {}
        self._times: list[Any] = []

    def __len__(self) -> int:
        return len(self._times)

    def follow(self, epoch: int) -> None:
        """Note the last epoch that the rows have seen, by this process; see `check`."""
        self._epoch = epoch

    def check(self, epoch: int) -> None:
        """Read the labels again where the rows have seen another epoch than noted."""
        if self._epoch != epoch:
            self.on_overtaken()
            self._epoch = epoch

    def admit(self, columns: Sequence[pa.Array]) -> None:
        """Give the times of some columns labels, where they have none."""
        times = {time for column in columns for time in column.unique().to_pylist() if time is not None}
        new = times - self._label_of.keys()
        if not new:
            return
        placed = self._placed(sorted(new))
        if placed is None:
            self.on_crowded(times)
            return
        self._label_of |= placed
        if len(new) * 64 < len(self._times):
            for time in placed:
                insort(self._times, time)
        else:
            self._times = sorted([*self._times, *placed])

    def words(self, column: pa.Array, *, is_kept: bool) -> tuple[_Words, npt.NDArray[np.bool_] | None]:
        """Return the label of each time, and which are NULL; None when none is."""
        encoded = column.dictionary_encode()
        times = encoded.dictionary.to_pylist()
        own = [self._label_of[time] if is_kept else self._number(time) for time in times]
        labels = np.array([*own, NULL_WORD], np.int64)
        if not column.null_count:
            return labels[encoded.indices.to_numpy()], None
        missing = column.is_null().to_numpy(zero_copy_only=False)
        return labels[encoded.indices.fill_null(len(own)).to_numpy()], missing

    def spread(self, times: Iterable[Any]) -> None:
        """Forget all labels, and give these times new ones in equal steps."""
        self._times = sorted(times)
        count = len(self._times)
        step = min(self.step, _FURTHEST // max(count, 1))
        self._label_of = {time: (place - count // 2) * step for place, time in enumerate(self._times)}

    def load(self, labels: dict[Any, int]) -> None:
        self._label_of = labels
        self._times = sorted(labels)

    def resident_bytes(self) -> int:
        """Return about how many bytes it takes, by the first times."""
        some = self._times[:64]
        value = sum(len(one) if isinstance(one, str | bytes) else 40 for one in some) // max(len(some), 1)
        return len(self._times) * (_BYTES + value)

    def _number(self, time: Any) -> int:
        place = bisect_right(self._times, time)
        if not place:
            return self._label_of[self._times[0]] - 1 if self._times else 0
        before = self._times[place - 1]
        return self._label_of[before] + int(before != time)

    def _placed(self, new: list[Any]) -> dict[Any, int] | None:
        """Return labels for times in order; None where there is no room for one."""
        placed: dict[Any, int] = {}
        begin = 0
        while begin < len(new):
            place = bisect_left(self._times, new[begin])
            end = len(new) if place == len(self._times) else bisect_left(new, self._times[place], begin)
            count = end - begin
            low = self._label_of[self._times[place - 1]] if place else None
            high = self._label_of[self._times[place]] if place < len(self._times) else None
            if low is not None and high is not None:
                room = (high - low) // (count + 1)
                step = min(room, max(self.step >> 20, (high - low) >> 12))
            else:
                step = self.step
                low = low if low is not None else (0 if high is None else high) - step * (count + 1)
            if step < 2 or max(-low, low + step * count) >= _FURTHEST:
                return None
            placed.update((new[begin + at], low + step * (at + 1)) for at in range(count))
            begin = end
        return placed
