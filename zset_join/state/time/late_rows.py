"""Rows of an epoch that an operator about time does not take, as messages; and which come after the watermark.

Some break the contract of their relation; with policy `error` they stop the epoch. Others only come too late: they are set
aside under either policy, and counted; behind a bound of rows that may change they stop the epoch too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.kernels.rows import changes as ch
from zset_join.kernels.time import versions as v
from zset_join.shapes.timed_join import VersionJoinShape
from zset_join.state.rows.side_changes import REJECTION_SCHEMA
from zset_join.state.time.key_runs import KeyGroups, KeyRuns
from zset_join.state.time.versioned_rows import PreparedRows, VersionedRows
from zset_join.zset import ZSet

__all__ = [
    "LATE_CORRECTION",
    "NULL_KEY",
    "NULL_TIME",
    "TIME_JUMP",
    "Arrivals",
    "GivenRows",
    "Passed",
    "VersionEpoch",
    "first_status",
    "late_or_rejected_rows",
    "mark_late",
    "raise_for_rejections",
]

NULL_TIME, NULL_KEY, TIME_JUMP = 20, 21, 22
LATE_ROW, LATE_VERSION, LATE_CORRECTION = 30, 31, 32
_FIRST_LATE = 30

_CODES = {
    ch.ABSENT_ROW: ("ABSENT_ROW", "retracts an absent row; a changelog may not retract what it has not inserted"),
    ch.KEY_RANGE: ("KEY_RANGE", "has a key that does not fit the type both sides are compared in; cast it first"),
    ch.RETRACTION_IN_APPEND: (
        "RETRACTION_IN_APPEND",
        "has a negative weight, but the relation is append-only; declare keys or a weight column if it changes",
    ),
    NULL_TIME: ("NULL_TIME", "has NULL in its time column {event_time}; every row needs its place in time"),
    NULL_KEY: ("NULL_KEY", "has NULL in the key {key}; a version belongs to a key"),
    TIME_JUMP: (
        "TIME_JUMP",
        "has a time in {event_time} that is further ahead of the watermark than max_watermark_jump allows",
    ),
    LATE_ROW: ("LATE_ROW", "arrived after the watermark had passed its time in {event_time}"),
    LATE_VERSION: (
        "LATE_VERSION",
        "is a version older than the one that is kept for its key: what it would change has been answered and freed",
    ),
    LATE_CORRECTION: (
        "LATE_CORRECTION",
        "retracts a row whose time in {event_time} the watermark has passed: what it would change has been freed",
    ),
}


class GivenRows:
    def __init__(self, relation: Relation, delta: ZSet, key: Sequence[str], status: npt.NDArray[np.uint8]) -> None:
        self.relation, self.delta, self.key, self.status = relation, delta, tuple(key), status

    def rejected_count(self) -> int:
        """Return how many rows break the contract; late ones do not."""
        return int(((self.status > ch.LAST_HARMLESS) & (self.status < _FIRST_LATE)).sum())

    def reason_of(self, row: int) -> tuple[str, str]:
        code, text = _CODES[int(self.status[row])]
        return code, text.format(event_time=self.relation.event_time, key=list(self.key))


def first_status(weights: npt.NDArray[np.int64], *, is_append: bool) -> npt.NDArray[np.uint8]:
    """Return the status that the weight of each row allows."""
    status = np.where(weights == 0, ch.ZERO_WEIGHT, ch.OK).astype(np.uint8)
    if is_append:
        status[weights < 0] = ch.RETRACTION_IN_APPEND
    return status


def late_or_rejected_rows(inputs: Sequence[GivenRows], *, with_late: bool = True) -> pa.Table:
    """Return one line per row that was not taken, with its position in its delta."""
    lines: list[dict[str, object]] = []
    for given in inputs:
        listed = (given.status > ch.LAST_HARMLESS) & (with_late | (given.status < _FIRST_LATE))
        for row in np.flatnonzero(listed).tolist():
            code, reason = given.reason_of(row)
            weight = int(given.delta.weights[row])
            lines.append({"input": given.relation.name, "row": row, "weight": weight, "code": code, "reason": reason})
    return pa.Table.from_pylist(lines, schema=REJECTION_SCHEMA)


def raise_for_rejections(inputs: Sequence[GivenRows], tick: Tick, *, of_late: bool = False) -> None:
    """Raise for the first row that breaks the contract; late rows do not, unless `of_late`."""
    for given in inputs:
        bad = np.flatnonzero((given.status > ch.LAST_HARMLESS) & (of_late | (given.status < _FIRST_LATE)))
        if not len(bad):
            continue
        code, reason = given.reason_of(int(bad[0]))
        shown = given.relation.primary_key or tuple(given.relation.schema.names)
        key = tuple(given.delta.rows.column(name)[int(bad[0])].as_py() for name in shown)
        weight = int(given.delta.weights[bad[0]])
        count = "1 such row" if len(bad) == 1 else f"{len(bad)} such rows"
        cure = "Correct the source, start it from a snapshot"
        if given.status[bad[0]] >= _FIRST_LATE:
            cure = 'Raise keep_probe_for or leave it out, choose late="side_output"'
        raise BadInputError(
            f'relation "{given.relation.name}", epoch {tick.epoch}: the change with key {key} and weight {weight} {reason} '
            f"({count} in this epoch; nothing of it was applied). "
            f'{cure}, or set on_bad_input="quarantine" to quarantine bad rows.',
            code=code,
            relation=given.relation.name,
            key=key,
            weight=weight,
            epoch=tick.epoch,
            rejected_rows=len(bad),
        )


@dataclass(slots=True)
class VersionEpoch:
    tick: Tick
    deltas: tuple[ZSet, ZSet]
    groups: KeyGroups
    right: PreparedRows
    left: PreparedRows | None  # None where left rows are not kept in runs
    left_address: int  # of the records of the left rows
    left_times: npt.NDArray[np.int64]  # that the left rows request
    given: tuple[GivenRows, GivenRows]
    counts: dict[str, int] = field(default_factory=dict)
    owners: list[Any] = field(default_factory=list)  # keep what addresses point to


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
            v.mark_unanswerable(*state, groups.group_of[0], left.times, len(new), horizon, until, new, LATE_ROW)
            left.status[new == LATE_ROW] = LATE_ROW
            _mark_updates(shape, left, is_late)
        else:
            code = LATE_ROW if shape.late == "side_output" else ch.NOTHING
            left.status[is_late & (left.weights > 0)] = code
        left.status[is_late & (left.weights < 0) & (left.times <= horizon)] = LATE_CORRECTION
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
            LATE_VERSION,
            LATE_CORRECTION,
        )
    )
    if passed.refuses:
        right.status[(right.times <= horizon) & (right.status == ch.OK)] = LATE_VERSION
    ignored = int((right.status == LATE_VERSION).sum())
    corrections = int((left.status == LATE_CORRECTION).sum() + (right.status == LATE_CORRECTION).sum())
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
    left.status[late[replaced]] = LATE_ROW
