"""Which rows of an epoch of a join by time come after the watermark had passed them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.kernels.rows import changes as ch
from zset_join.kernels.time import versions as v
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.state.time import rejections as b
from zset_join.state.time.key_runs import KeyGroups, KeyRuns
from zset_join.state.time.versioned_rows import VersionedRows

__all__ = ["Arrivals", "Passed", "mark_late"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    times: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]  # as in `zset_join.kernels.rows.changes`; late rows are marked in it
    weights: npt.NDArray[np.int64]
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Passed:
    """The times that were past before an epoch."""

    watermark: int  # before the epoch
    horizon: int  # up to which rows were past
    refuses: bool  # every version up to there is marked, for an error


def mark_late(
    shape: VersionJoinShape,
    keys: KeyRuns,
    versions: VersionedRows,
    groups: KeyGroups,
    left: Arrivals,
    right: Arrivals,
    passed: Passed | None,
) -> dict[str, int]:
    """Mark rows that arrive after the watermark had passed them; return the counts."""
    # Left rows that may change are kept up to a bound, so only what is behind that is late. An update whose old row is behind
    # it is set aside whole, also with `late="join"`.
    if passed is None:
        return {}
    watermark, horizon = passed.watermark, passed.horizon
    state = (keys.view, versions.place, versions.view, groups.numbers)
    is_late = (left.times <= (horizon if shape.left_changes else watermark)) & (left.status == ch.OK)
    late_rows = int((is_late & (left.weights > 0)).sum())
    if is_late.any():
        if shape.late == "join":
            new = np.where(left.weights > 0, left.status, ch.NOTHING).astype(np.uint8)
            until = keys.forgotten_until
            v.mark_unanswerable(*state, groups.group_of[0], left.times, len(new), horizon, until, new, b.LATE_ROW)
            left.status[new == b.LATE_ROW] = b.LATE_ROW
            _mark_updates(shape, left, is_late)
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
    if passed.refuses:
        right.status[(right.times <= horizon) & (right.status == ch.OK)] = b.LATE_VERSION
    ignored = int((right.status == b.LATE_VERSION).sum())
    corrections = int((left.status == b.LATE_CORRECTION).sum() + (right.status == b.LATE_CORRECTION).sum())
    return {
        "late_rows": late_rows,
        "late_versions": accepted + ignored,
        "ignored_versions": ignored,
        "late_corrections": corrections,
    }


def _mark_updates(shape: VersionJoinShape, left: Arrivals, is_late: npt.NDArray[np.bool_]) -> None:
    """Mark late rows whose primary key is that of a late retraction of the epoch."""
    if not shape.left_changes or not shape.left.primary_key:
        return
    late = np.flatnonzero(is_late)
    columns = [left.rows.column(name).take(pa.array(late)).to_pylist() for name in shape.left.primary_key]
    keys = list(zip(*columns, strict=True))
    gone = {key for key, weight in zip(keys, left.weights[late].tolist(), strict=True) if weight < 0}
    replaced = [key in gone for key in keys] & (left.weights[late] > 0)
    left.status[late[replaced]] = b.LATE_ROW
