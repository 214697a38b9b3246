"""Messages for rows that no group can take.

Every bad row has a code, and every code explains what is wrong, what was expected and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import counted, shown_key
from zset_join.kernels.rows import changes as ch
from zset_join.state.rows.rejected_rows import REJECTION_SCHEMA
from zset_join.zset import ZSet

__all__ = ["RejectedChanges", "describe_rejection", "rejection_table"]

_REASONS = {
    ch.ABSENT_ROW: (
        "ABSENT_ROW",
        "retracts an absent row; a changelog may not retract what it has not inserted",
    ),
    ch.WEIGHT_OVERFLOW: ("WEIGHT_OVERFLOW", "raises the number of rows of its group past 2^63 - 1"),
    ch.RETRACTION_IN_APPEND: (
        "RETRACTION_IN_APPEND",
        "has a negative weight, but the relation is append-only; declare keys or a weight column if it changes",
    ),
}


@dataclass(frozen=True, slots=True)
class RejectedChanges:
    """The rows of one delta that were omitted."""

    delta: ZSet  # all rows
    status: npt.NDArray[Any]  # per row, one of `zset_join.kernels.rows.changes`

    @property
    def kept(self) -> ZSet:
        """Return the changes that were not omitted."""
        if not self.positions:
            return self.delta
        is_kept = self.status <= ch.LAST_HARMLESS
        return ZSet(self.delta.rows.filter(pa.array(is_kept)), self.delta.weights[is_kept])

    @property
    def positions(self) -> list[int]:
        return np.flatnonzero(self.status > ch.LAST_HARMLESS).tolist()


def rejection_table(relation: Relation, rejected: RejectedChanges) -> pa.Table:
    """Return one line per bad row, with its position in its delta."""
    lines = []
    for row in rejected.positions:
        code, reason = _REASONS[int(rejected.status[row])]
        weight = int(rejected.delta.weights[row])
        lines.append({"input": relation.name, "row": row, "weight": weight, "code": code, "reason": reason})
    return pa.Table.from_pylist(lines, schema=REJECTION_SCHEMA)


def describe_rejection(relation: Relation, rejected: RejectedChanges, tick: Tick) -> BadInputError:
    """Return the error for the first bad row, naming stream, key, weight, epoch and cure."""
    positions = rejected.positions
    row = positions[0]
    code, reason = _REASONS[int(rejected.status[row])]
    columns = relation.primary_key or tuple(relation.schema.names)
    key = shown_key([rejected.delta.rows.column(name) for name in columns], row)
    weight = int(rejected.delta.weights[row])
    error_type = WeightOverflowError if code == "WEIGHT_OVERFLOW" else BadInputError
    return error_type(
        f'relation "{relation.name}", epoch {tick.epoch}: the change with key {key} and weight {weight} {reason} '
        f"({counted(len(positions), 'such row')} in this epoch; nothing of it was applied). "
        'Correct the source, start it from a snapshot, or set on_bad_input="quarantine" to quarantine bad rows.',
        code=code,
        relation=relation.name,
        key=key,
        weight=weight,
        epoch=tick.epoch,
        rejected_rows=len(positions),
    )
