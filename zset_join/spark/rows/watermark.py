"""The event time of a stream, and how far its watermark stays behind: as it was given, or as `DataFrame.withWatermark` says.

Spark keeps what `withWatermark` said in the metadata of the column. A cast, or any other expression over the column, loses it;
then `watermark=` says it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import DataFrame

from zset_join.config import parse_seconds
from zset_join.errors import OptionError, PlanError

__all__ = ["check_time_type", "watermark_of", "with_watermark"]

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


def with_watermark(stream: _Stream, given: tuple[str, str | int] | None) -> _Stream:
    """Return a stream with its event time, as it was given or as its DataFrame has it.

    Raises:
        PlanError: a column that is not there or no time, or a delay that is none.
    """
    found = watermark_of(stream.name, stream.schema, stream.columns, stream.dataframe, given)
    if found is None:
        return stream
    made: _Stream = replace(stream, event_time=found[0], watermark_delay=found[1])  # type: ignore[type-var]  # a dataclass
    return made


def watermark_of(
    name: str, schema: pa.Schema, columns: Sequence[str], df: DataFrame, given: tuple[str, str | int] | None
) -> tuple[str, int] | None:
    """Return the event-time column of a stream and its delay; None where it has none.

    Args:
        name: of the stream.
        schema: its columns as Arrow types.
        columns: those of them that are part of the table.
        df: the DataFrame as it was given.
        given: what the user said.

    Raises:
        OptionError: it is no pair of a column and a delay.
        PlanError: a column that is not there, or is no time.
    """
    if given is None:
        found = [(field.name, int(field.metadata[_DELAY]) * 1000) for field in df.schema.fields if _DELAY in field.metadata]
        return next((one for one in found if one[0] in columns), None)
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


def check_time_type(kind: pa.DataType, *, name: str, column: str) -> None:
    """Refuse a column that is no time.

    Raises:
        PlanError: it is none.
    """
    if not (pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_integer(kind)):
        raise PlanError(
            f'watermark of "{name}": the column "{column}" has type {kind}; expected a timestamp, a date or an integer.',
            code="EVENT_TIME_TYPE",
            name=name,
            type=str(kind),
        )
