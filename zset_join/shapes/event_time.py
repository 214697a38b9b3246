"""Event times as numbers: what rows are ordered by, and what a watermark means beside them.

A watermark is in microseconds, or in the unit of an integer event time. A time column keeps its own unit; what is compared with
it is brought to that unit, so that `time <= watermark` means the same instant in both. NULL has the smallest number.

Rows are ordered by any type whose order fits into 64 bits: besides timestamps, dates and integers a time of day, a duration, a
decimal of up to 18 digits, a float (NaN last, -0.0 equal to 0.0) and a boolean. Only the first three have watermarks, and only
types whose numbers are evenly spaced have distances. Text (by its UTF-8 bytes), bytes, wider decimals and unsigned 64-bit
integers are *labelled*: an operator gives each value a number of its own (decision 0023).

Known limits: the smallest 64-bit integer is ordered with NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import KeyTypeError, PlanError
from zset_join.core.key_types import common_key_type, storage_type
from zset_join.core.relation import Relation

__all__ = ["EventTime", "has_clock", "is_measured", "time_column"]

_MICROSECONDS = {"s": Fraction(10**6), "ms": Fraction(10**3), "us": Fraction(1), "ns": Fraction(1, 1000)}
_LARGEST = (1 << 63) - 1
_DECIMAL_DIGITS = 18


def time_column(relation: Relation, *, role: str) -> str:
    if relation.event_time is None:
        raise PlanError(
            f'relation "{relation.name}" has no event time, and as the {role} of a join by event time it needs one. Name the '
            'column: event_time="changed_at", watermark=("changed_at", "10 seconds") or versioned_by="changed_at".',
            code="NO_EVENT_TIME",
            relation=relation.name,
        )
    return relation.event_time


def has_clock(kind: pa.DataType) -> bool:
    """Return whether the clock reaches the values of a type: timestamps and dates."""
    return bool(pt.is_timestamp(kind) or pt.is_date(kind))


def is_measured(kind: pa.DataType) -> bool:
    """Return whether values of a type have a watermark: timestamps, dates, and integers of up to 63 bits."""
    return has_clock(kind) or bool(pt.is_integer(kind) and not pt.is_uint64(kind))


def _is_ordered(kind: pa.DataType) -> bool:
    """Return whether the order of a type fits into 64 bits, NULL beside it."""
    is_short = pt.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS
    others = (pt.is_time, pt.is_duration, pt.is_floating, pt.is_boolean)
    return bool(is_measured(kind) or is_short or any(one(kind) for one in others))


def _is_labelled(kind: pa.DataType) -> bool:
    """Return whether the values of a type have an order that takes labels."""
    return bool(_is_text(kind) or _is_bytes(kind) or pt.is_decimal(kind) or pt.is_uint64(kind)) and not _is_ordered(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


class EventTime:
    """Bring the event times of some inputs to one kind of number."""

    def __init__(
        self, relations: Sequence[Relation], columns: Sequence[str], *, has_watermark: bool = False, may_label: bool = False
    ) -> None:
        self.columns = tuple(columns)
        types = [storage_type(relation.schema.field(name).type) for relation, name in zip(relations, columns, strict=True)]
        for relation, name, kind in zip(relations, columns, types, strict=True):
            timed = has_watermark or (relation.event_time == name and relation.watermark_delay is not None)
            if not (is_measured(kind) if timed else _is_ordered(kind) or (may_label and _is_labelled(kind))):
                expected = "with a watermark it is a timestamp, a date or an integer of up to 63 bits"
                if not timed:
                    expected = (
                        "rows are ordered by a timestamp, a date, a time of day, a duration, an integer of up to 63 bits, a "
                        f"decimal of up to {_DECIMAL_DIGITS} digits, a float or a boolean"
                    )
                    if may_label:
                        expected = "rows are ordered by a time, a number, a boolean, text or bytes"
                raise KeyTypeError(
                    f'relation "{relation.name}": "{name}" has type {kind}, and it is the time of a join; {expected}. Cast it.',
                    code="TIME_TYPE",
                    relation=relation.name,
                    column=name,
                    type=str(kind),
                )
        if len(types) > 1 and not self._are_alike(types[0], types[1]):
            raise KeyTypeError(
                f'the times "{columns[0]}" ({types[0]}) of "{relations[0].name}" and "{columns[1]}" ({types[1]}) of '
                f'"{relations[1].name}" are not of one type; cast one of them to the type of the other.',
                code="TIME_TYPES_DIFFER",
                left=str(types[0]),
                right=str(types[1]),
            )
        self.kind = types[0]
        for kind in types[1:]:
            self.kind = common_key_type(self.kind, kind, left_column=columns[0], right_column=columns[1])
        self.is_labelled = _is_labelled(self.kind)
        if self.is_labelled and not may_label:
            raise KeyTypeError(
                f'the times "{columns[0]}" and "{columns[1]}" are compared as {self.kind}, which has more than '
                f"{_DECIMAL_DIGITS} digits. Cast both to one narrower type.",
                code="TIME_TYPE",
                type=str(self.kind),
            )
        self._unit = Fraction(1)
        if pt.is_timestamp(self.kind) or pt.is_time(self.kind):
            self._unit = _MICROSECONDS[self.kind.unit]
        elif pt.is_date32(self.kind):
            self._unit = Fraction(86_400 * 10**6)
        elif pt.is_date64(self.kind):
            self._unit = Fraction(10**3)

    @staticmethod
    def _are_alike(left: pa.DataType, right: pa.DataType) -> bool:
        if pt.is_timestamp(left) and pt.is_timestamp(right):
            return bool((left.tz is None) == (right.tz is None))
        alike = (pt.is_date, pt.is_integer, pt.is_decimal, pt.is_floating, _is_text, _is_bytes)
        return bool(left == right or any(one(left) and one(right) for one in alike))

    def of_watermark(self, watermark: int | None) -> int | None:
        """Return the last time that a watermark has passed, None for no watermark, or for times that have none."""
        if watermark is None or not is_measured(self.kind):
            return None
        return _bounded((watermark / self._unit).__floor__())

    def of_delay(self, delay: int) -> int:
        """Return a duration, rounded up."""
        return _bounded((delay / self._unit).__ceil__())

    def as_watermark(self, time: int) -> int:
        """Return the smallest watermark that has passed a time."""
        return (time * self._unit).__ceil__()


def _bounded(number: int) -> int:
    return max(-_LARGEST, min(_LARGEST, number))
