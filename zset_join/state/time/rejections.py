"""Rows of an epoch that an operator about time does not take, as messages.

Some break the contract of their relation; with policy `error` they stop the epoch. Others only come too late: they are set
aside under either policy, and counted; behind a bound of rows that may change they stop the epoch too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.kernels.rows import changes as ch
from zset_join.state.rows.rejected_rows import REJECTION_SCHEMA
from zset_join.zset import ZSet

__all__ = [
    "LATE_CORRECTION",
    "LATE_ROW",
    "LATE_VERSION",
    "NULL_KEY",
    "NULL_TIME",
    "TIME_JUMP",
    "GivenRows",
    "first_status",
    "late_or_rejected_rows",
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
