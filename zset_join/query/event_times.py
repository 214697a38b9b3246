"""Event times and delays as users write them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.shapes.event_time import is_measured

__all__ = ["duration", "jump_of", "with_watermark"]

_SECOND_US = 10**6
_UNIT_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": _SECOND_US,
    "minute": 60 * _SECOND_US,
    "hour": 3600 * _SECOND_US,
    "day": 86400 * _SECOND_US,
}


def with_watermark(relation: Relation, watermark: tuple[str, Any]) -> Relation:
    timed = replace(relation, event_time=watermark[0])
    return replace(timed, watermark_delay=duration(watermark[1], timed.schema.field(watermark[0]).type, relation.name))


def jump_of(relation: Relation, given: Any) -> int | None:
    """Return how far ahead of its watermark a row of a source may be, in the unit of the delay; None: any distance."""
    if given is None:
        return None
    if relation.event_time is None or relation.watermark_delay is None:
        raise OptionError(
            f'source "{relation.name}": max_watermark_jump={given!r} is measured from the watermark, and there is none. Give '
            "it an event time and a delay too, or leave it out.",
            code="CONFLICTING_ARGUMENTS",
            name=relation.name,
        )
    return duration(given, relation.schema.field(relation.event_time).type, relation.name)


def duration(given: Any, kind: pa.DataType, name: str) -> int:
    """Return a duration in microseconds, or in the unit of an integer event time."""
    if not (is_measured(kind) or pt.is_time(kind)):
        expected = f"none, as a time of type {kind} has neither distances nor a watermark"
    elif pt.is_integer(kind):
        if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            return given
        expected = f"a whole number, as its event time is {kind}"
    else:
        parts = re.fullmatch(r"\s*(\d+)\s*(microsecond|millisecond|second|minute|hour|day)s?\s*", str(given).lower())
        if parts is not None:
            return int(parts[1]) * _UNIT_US[parts[2]]
        expected = 'a duration such as "10 seconds"'
    raise OptionError(
        f'source "{name}": {given!r} is given as a duration of its event time; expected {expected}.',
        code="OPTION_VALUE",
        value=given,
    )
