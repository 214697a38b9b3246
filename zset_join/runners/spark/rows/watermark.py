"""The event time of a stream, and how far its watermark stays behind: as it was given, or as `DataFrame.withWatermark` set it.

Spark keeps what `withWatermark` set in the metadata of the column. A cast, or any other expression over the column, loses it;
then `watermark=` sets it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import DataFrame

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.options import parse_seconds

__all__ = ["duration_of", "watermark_of", "with_watermark", "within_jump"]

_DELAY = "spark.watermarkDelayMs"


class _Timed(Protocol):
    """A stream that may get an event time."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def dataframe(self) -> DataFrame: ...


_Stream = TypeVar("_Stream", bound=_Timed)


def with_watermark(stream: _Stream, given: tuple[str, str | int] | None, jump: str | int | None = None) -> _Stream:
    """Return a stream with its event time, as it was given or as its DataFrame has it."""
    watermark = watermark_of(stream.name, stream.schema, stream.columns, stream.dataframe, given)
    if watermark is None and jump is not None:
        raise OptionError(
            f'"{stream.name}": max_watermark_jump={jump!r} is measured from the watermark, and there is none. Give '
            "watermark=(column, delay) too, or leave it out.",
            code="CONFLICTING_ARGUMENTS",
            name=stream.name,
        )
    if watermark is None:
        return stream
    timed: _Stream = replace(stream, event_time=watermark[0], watermark_delay=watermark[1])  # type: ignore[type-var]  # a dataclass
    return within_jump(timed, duration_of(jump, stream.schema.field(watermark[0]).type, "max_watermark_jump"))


def within_jump(stream: _Stream, jump: int | None) -> _Stream:
    """Return a stream whose rows may be only so far ahead of its watermark."""
    if jump is None:
        return stream
    limited: _Stream = replace(stream, max_watermark_jump=jump, may_reject=True)  # type: ignore[type-var]  # a dataclass
    return limited


def watermark_of(
    name: str, schema: pa.Schema, columns: Sequence[str], df: DataFrame, given: tuple[str, str | int] | None
) -> tuple[str, int] | None:
    """Return the event-time column of a stream and its delay; None where it has none."""
    if given is None:
        watermarks = [
            (field.name, int(field.metadata[_DELAY]) * 1000) for field in df.schema.fields if _DELAY in field.metadata
        ]
        return next((one for one in watermarks if one[0] in columns), None)
    parts: Any = given
    if not isinstance(parts, tuple | list) or len(parts) != 2 or not isinstance(parts[0], str):
        raise OptionError(
            f'watermark={given!r} of "{name}": expected a column and a delay, such as ("ts", "10 seconds").',
            code="ARGUMENT",
            name=name,
        )
    column, delay = given
    if column not in columns:
        raise PlanError(
            f'watermark={given!r}: "{name}" has no column {column!r}; its columns are {list(columns)}.',
            code="UNKNOWN_COLUMN",
            name=name,
            missing=[column],
        )
    kind = schema.field(column).type
    check_time_type(kind, name=name, column=column)
    if pt.is_integer(kind):
        if isinstance(delay, bool) or not isinstance(delay, int) or delay < 0:
            raise OptionError(
                f'watermark={given!r} of "{name}": "{column}" is a whole number, so its delay is one too, 0 or more.',
                code="ARGUMENT",
                name=name,
            )
        return column, delay
    return column, parse_seconds(delay, option=f'watermark of "{name}"') * 1_000_000


def duration_of(given: str | int | None, kind: pa.DataType | None, option: str) -> int | None:
    """Return a duration in microseconds, or in the unit of an integer time; None stays None."""
    if given is None or (kind is not None and pt.is_integer(kind) and isinstance(given, int)):
        return given if given is None else int(given)
    return parse_seconds(given, option=option) * 1_000_000


def check_time_type(kind: pa.DataType, *, name: str, column: str) -> None:
    """Refuse a column that is no time."""
    if not (pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_integer(kind)):
        raise PlanError(
            f'watermark of "{name}": the column "{column}" has type {kind}; expected a timestamp, a date or an integer.',
            code="EVENT_TIME_TYPE",
            name=name,
            type=str(kind),
        )
