"""The answer key of a temporal join epoch by epoch: what is late, what is final, what is emitted when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from zset_join.testing.reference import Counts, row_identity
from zset_join.testing.reference_temporal import Key, LiveRows, Predicate, TimedRow, batch_temporal

__all__ = ["TemporalHistory"]


@dataclass(slots=True)
class TemporalHistory:
    """A temporal join by event time, epoch by epoch, that never forgets.

    A left row at or before the watermark *before* its epoch is late: it is set aside, or with `late="join"` answered where the
    version of its time cannot have been freed. A version is ignored where a newer one of its key was past already, and so is a
    retraction of what is past. In mode `on_watermark` a row leaves in the epoch whose watermark *after* it has reached the row,
    with the version known by then; what is emitted stays. In eager mode an answer is final once the watermark minus `keep`
    has passed its row. Of left rows that may change only what is behind that is late; without `keep` nothing ever is.

    Args:
        right_width: columns of the right side.
        how: `inner` or `left`.
        passes: the rest of ON.
        keep: how long after the watermark left rows still count, in eager mode; None: as long as they live.
        left_changes: left rows may be retracted.
        late: `side_output`, `drop` or `join`.
        late_rows: left rows of the last epoch that were set aside, one per change.
        late_versions: versions of the last epoch that were ignored.
        late_corrections: retractions of the last epoch that were ignored, of both sides.
    """

    right_width: int
    how: str = "inner"
    passes: Predicate | None = None
    keep: int | None = 0
    late: str = "side_output"
    left_changes: bool = False
    versions: LiveRows = field(default_factory=LiveRows)
    left: LiveRows = field(default_factory=LiveRows)
    late_rows: list[TimedRow] = field(default_factory=list)
    late_versions: list[TimedRow] = field(default_factory=list)
    late_corrections: list[TimedRow] = field(default_factory=list)
    _waiting: list[TimedRow] = field(default_factory=list)
    _final: Counts = field(default_factory=dict)

    def epoch(
        self,
        left: Sequence[tuple[TimedRow, int]],
        right: Sequence[tuple[TimedRow, int]],
        *,
        before: int | None,
        after: int | None,
    ) -> tuple[Counts, Counts]:
        """Take in one epoch; return what `on_watermark` emits in it, and what `once` does."""
        past = None if before is None or self.keep is None else before - self.keep
        before = past if self.left_changes else before
        newest = self._newest(past)
        self.late_rows, self.late_versions, self.late_corrections = [], [], []
        taken = []
        for row, weight in left:
            if before is None or past is None or row.time > before or (weight < 0 and row.time > past):
                taken.append((row, weight))
            elif weight < 0:
                self.late_corrections.append(row)
            elif self.late == "join" and (row.time > past or self._is_known(row, past)):
                taken.append((row, weight))
            else:
                self.late_rows.append(row)
        known = []
        for row, weight in right:
            if past is None or row.time > past:
                known.append((row, weight))
            elif weight < 0:
                self.late_corrections.append(row)
            elif newest.get(row_identity(row.key), row.time) > row.time:
                self.late_versions.append(row)
            else:
                known.append((row, weight))
        self.versions.add(known)
        self.left.add(taken)
        came = [row for row, weight in taken for _ in range(max(weight, 0))]
        self._waiting.extend(came)
        due = [row for row in self._waiting if after is not None and row.time <= after]
        self._waiting = [row for row in self._waiting if after is None or row.time > after]
        self._finish(None if after is None or self.keep is None else after - self.keep)
        return self._join(due), self._join(came)

    def everything(self) -> Counts:
        """Return the sum of what `eager` has emitted: what is final, and the join of what may still be corrected."""
        counts = dict(self._final)
        for row, count in self._join(self.left.rows()).items():
            counts[row] = counts.get(row, 0) + count
        return counts

    def _is_known(self, row: TimedRow, past: int) -> bool:
        """Return whether no version valid at a row's time was freed: it is the newest of its key, or all are of one time."""
        key = row_identity(row.key)
        times = [one.time for one in self.versions.rows() if one.time <= past and row_identity(one.key) == key]
        return not times or max(times) <= row.time or max(times) == min(times)

    def _newest(self, past: int | None) -> dict[Key, int]:
        """Return the newest time of each key up to a time."""
        times: dict[Key, int] = {}
        for row in self.versions.rows():
            if past is not None and row.time <= past:
                key = row_identity(row.key)
                times[key] = max(row.time, times.get(key, row.time))
        return times

    def _finish(self, past: int | None) -> None:
        """Make the answers final that are past."""
        final = [row for row in self.left.rows() if past is not None and row.time <= past]
        self.left.add((row, -1) for row in final)
        for row, count in self._join(final).items():
            self._final[row] = self._final.get(row, 0) + count

    def _join(self, left: Iterable[TimedRow]) -> Counts:
        return batch_temporal(left, self.versions.rows(), right_width=self.right_width, how=self.how, passes=self.passes)
