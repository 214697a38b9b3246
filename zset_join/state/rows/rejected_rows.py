"""Rows that break the contract of their relation, as messages.

Every bad row has a code, and every code comes with what is wrong, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_key
from zset_join.kernels.rows import changes as ch
from zset_join.state.rows.side import PreparedSide

__all__ = ["REJECTION_SCHEMA", "describe_rejection", "no_rejections", "rejection_table"]

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
