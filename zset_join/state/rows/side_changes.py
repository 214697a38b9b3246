"""Changes of a delta on one side, as removed and added rows.

`SideChanges` turns a delta of any changelog mode into *net* changes: per identity at most one row that goes (or loses copies)
and one that arrives (or gains copies). An identical upsert is no change, nor is a row that arrives and goes in the same epoch.

Where nothing is stored, as for an append-only left input, rows are looked at and passed on.

Remembers every live row otherwise, as a `SideState` does.

`rejection_table`: rows that break the contract of their relation, as messages.

Every bad row has a code, and every code comes with what is wrong, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_key
from zset_join.kernels.rows import changes as ch
from zset_join.kernels.rows.side import CHANGE_WORDS
from zset_join.state.rows.side import PreparedSide, SideState
from zset_join.zset import ZSet

__all__ = ["REJECTION_SCHEMA", "NetChanges", "SideChanges", "describe_rejection", "no_rejections", "rejection_table"]


@dataclass(slots=True)
class NetChanges:
    prepared: PreparedSide
    lost: pa.RecordBatch  # rows that go, or lose copies
    lost_copies: npt.NDArray[np.int64]
    new: pa.RecordBatch  # in the order they came
    new_copies: npt.NDArray[np.int64]
    touched: npt.NDArray[np.int64]  # numbers of the state rows that change
    touched_copies: npt.NDArray[np.int64]  # present afterwards
    touched_gains: npt.NDArray[np.bool_]
    after_refs: npt.NDArray[np.int64]  # records of the changed rows that are present afterwards
    after_copies: npt.NDArray[np.int64]


class SideChanges:
    def __init__(self, side: SideState, *, stores: bool) -> None:
        self.side = side
        self.stores = stores
        self._plan = side.layout.gather_plan(range(len(side.relation.schema)))
        self.schema = pa.schema([field.with_nullable(True) for field in side.relation.schema])

    def resolve(self, delta: ZSet, *, ignores_absent: bool = False) -> NetChanges:
        """Return the changes of a delta. Cost: the rows of the delta."""
        prepared = self.side.prepare(delta)
        if ignores_absent and prepared.rejected:
            status = prepared.status[: prepared.count]
            absent = status == ch.ABSENT_ROW
            status[absent] = ch.NOTHING
            prepared.rejected -= int(absent.sum())
            prepared.unknown_deletes += int(absent.sum())
        changes = np.empty((prepared.most_changes, CHANGE_WORDS), np.int64)
        end = self.side.list_changes(prepared, 0, int(changes.ctypes.data))
        refs, numbers, after = changes[:end, 0], changes[:end, 1], changes[:end, 3]
        gained = changes[:end, 3] - changes[:end, 2]
        return NetChanges(
            prepared,
            self.rows_of(refs[gained < 0]),
            -gained[gained < 0],
            self.rows_of(refs[gained > 0]),
            gained[gained > 0],
            numbers[numbers > 0],
            after[numbers > 0],
            gained[numbers > 0] > 0,
            refs[after > 0],
            after[after > 0],
        )

    def rows_of(self, refs: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return the rows of some records, of the state or of the delta that was resolved last."""
        refs = np.ascontiguousarray(refs)
        if not len(refs):
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        columns = self._plan.gather(int(refs.ctypes.data), len(refs), self.side.arena.heap_address)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def absorb(self, changes: NetChanges | None, processing_time_us: int | None) -> None:
        self.side.absorb(None if changes is None or not self.stores else changes.prepared, processing_time_us)


REJECTION_SCHEMA = pa.schema(
    {"input": pa.string(), "row": pa.int64(), "weight": pa.int64(), "code": pa.string(), "reason": pa.string()}
)

_CODES = {
    ch.NULL_PRIMARY_KEY: (
        "NULL_PRIMARY_KEY",
        "has NULL in its primary key {primary_key}; a primary key identifies a row",
    ),
    ch.NULL_SEQUENCE: (
        "NULL_SEQUENCE",
        "has NULL in its sequence {sequence_by}; every change needs its place in the order",
    ),
    ch.ABSENT_ROW: (
        "ABSENT_ROW",
        "retracts an absent row; a changelog may not retract what it has not inserted",
    ),
    ch.WEIGHT_OVERFLOW: ("WEIGHT_OVERFLOW", "raises the weight of a row past 2^63 - 1"),
    ch.KEY_RANGE: (
        "KEY_RANGE",
        "has a join key {join_key} that does not fit the type both sides are compared in; cast it first",
    ),
    ch.RETRACTION_IN_APPEND: (
        "RETRACTION_IN_APPEND",
        "has a negative weight, but the relation is append-only; declare keys or a weight column if it changes",
    ),
}


def _reason(relation: Relation, status: int) -> tuple[str, str]:
    code, text = _CODES[status]
    return code, text.format(
        primary_key=list(relation.primary_key), sequence_by=list(relation.sequence_by), join_key=list(relation.join_key)
    )


def no_rejections() -> pa.Table:
    return REJECTION_SCHEMA.empty_table()


def _rejected_positions(prepared: PreparedSide) -> list[int]:
    status = prepared.status[: prepared.count]
    return np.flatnonzero(status > ch.LAST_HARMLESS).tolist()


def rejection_table(inputs: Sequence[Relation], sides: Sequence[PreparedSide | None]) -> pa.Table:
    """Return one line per bad row, with its position in its delta."""
    lines: list[dict[str, object]] = []
    for relation, prepared in zip(inputs, sides, strict=True):
        if prepared is not None and prepared.rejected:
            for row in _rejected_positions(prepared):
                code, reason = _reason(relation, int(prepared.status[row]))
                weight = int(prepared.delta.weights[row])
                lines.append({"input": relation.name, "row": row, "weight": weight, "code": code, "reason": reason})
    return pa.Table.from_pylist(lines, schema=REJECTION_SCHEMA)


def describe_rejection(inputs: Sequence[Relation], sides: Sequence[PreparedSide | None], tick: Tick) -> BadInputError:
    """Return the error for the first bad row, naming stream, key, weight, epoch and cure."""
    for relation, prepared in zip(inputs, sides, strict=True):
        if prepared is None or not prepared.rejected:
            continue
        row = _rejected_positions(prepared)[0]
        status = int(prepared.status[row])
        code, reason = _reason(relation, status)
        key_columns = relation.primary_key or tuple(relation.schema.names)
        key = shown_key([prepared.delta.rows.column(name) for name in key_columns], row)
        weight = int(prepared.delta.weights[row])
        count = "1 such row" if prepared.rejected == 1 else f"{prepared.rejected} such rows"
        error_type = WeightOverflowError if status == ch.WEIGHT_OVERFLOW else BadInputError
        return error_type(
            f'relation "{relation.name}", epoch {tick.epoch}: the change with key {key} and weight {weight} {reason} '
            f"({count} in this epoch; nothing of it was applied). "
            'Correct the source, start it from a snapshot, or set on_bad_input="quarantine" to quarantine bad rows.',
            code=code,
            relation=relation.name,
            key=key,
            weight=weight,
            epoch=tick.epoch,
            rejected_rows=prepared.rejected,
        )
    raise AssertionError("no rejected row to describe")
