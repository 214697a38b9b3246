"""Which rows of an epoch of a join by time come after the watermark had passed them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zset_join.kernels.rows import changes as ch
from zset_join.kernels.time import versions as v
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.state.time import rejections as b
from zset_join.state.time.key_runs import KeyGroups, KeyRuns

__all__ = ["Arrivals", "mark_late"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The rows of one input in an epoch.

    Args:
        times: of each row.
        status: of each row, as in `zset_join.kernels.rows.changes`; late rows are marked in it.
        weights: of each row.
    """

    times: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]
    weights: npt.NDArray[np.int64]


def mark_late(
    shape: VersionJoinShape,
    keys: KeyRuns,
    place: int,
    groups: KeyGroups,
    left: Arrivals,
    right: Arrivals,
    passed: tuple[int, int] | None,
) -> dict[str, int]:
    """Mark rows that arrive after the watermark had passed them; return the counts.

    Args:
        shape: which rows meet, and when.
        keys: the keys of the state.
        place: where the words of the run of right rows are in a key record.
        groups: the keys of the epoch.
        left: rows of the left input.
        right: rows of the right input.
        passed: the last time the watermark had passed before the epoch, and up to which rows were past; None for none.
    """
    if passed is None:
        return {}
    watermark, horizon = passed
    state = (keys.view, place, groups.numbers)
    is_late = (left.times <= watermark) & (left.status == ch.OK)
    late_rows = int((is_late & (left.weights > 0)).sum())
    if is_late.any():
        if shape.late == "join":
            new = np.where(left.weights > 0, left.status, ch.NOTHING).astype(np.uint8)
            until = keys.forgotten_until
            v.mark_unanswerable(*state, groups.group_of[0], left.times, len(new), horizon, until, new, b.LATE_ROW)
            left.status[new == b.LATE_ROW] = b.LATE_ROW
        else:
            code = b.LATE_ROW if shape.late == "side_output" else ch.NOTHING
            left.status[is_late & (left.weights > 0)] = code
        left.status[is_late & (left.weights < 0) & (left.times <= horizon)] = b.LATE_CORRECTION
    accepted = int(
        v.mark_late_versions(
            *state,
            groups.group_of[1],
            right.times,
            right.weights,
            len(right.times),
            shape.right.mode == "changelog",
            horizon,
            right.status,
            b.LATE_VERSION,
            b.LATE_CORRECTION,
        )
    )
    ignored = int((right.status == b.LATE_VERSION).sum())
    corrections = int((left.status == b.LATE_CORRECTION).sum() + (right.status == b.LATE_CORRECTION).sum())
    return {
        "late_rows": late_rows,
        "late_versions": accepted + ignored,
        "ignored_versions": ignored,
        "late_corrections": corrections,
    }
