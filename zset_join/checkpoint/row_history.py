"""How rows of a view came and went: the report of `explain_row`, and the check of the values it is given.

The law: what is reported as emitted are rows that the engine answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import OptionError
from zset_join.core.notebook import MOST_ROWS, html_table
from zset_join.core.shown_values import counted

__all__ = ["InputChange", "Row", "RowEvent", "RowHistory", "requested_values"]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InputChange:
    """Hold one change of an input."""

    stream: str
    row: Row
    weight: int


@dataclass(frozen=True, slots=True)
class RowEvent:
    """Hold what one epoch did to the rows requested."""

    epoch: int
    emitted: tuple[tuple[Row, int], ...]
    changes: tuple[InputChange, ...]
    is_snapshot: bool = False
    time: str = ""


@dataclass(frozen=True, repr=False)
class RowHistory:
    """How some rows of an output came and went."""

    question: Mapping[str, Any]
    events: Sequence[RowEvent] = field(default_factory=tuple)
    is_complete: bool = True

    @property
    def live_rows(self) -> tuple[tuple[Row, int], ...]:
        """Return the rows that are present after the last epoch, as (row, weight)."""
        total: dict[str, tuple[Row, int]] = {}
        for event in self.events:
            for row, weight in event.emitted:
                total[repr(row)] = row, weight + total.get(repr(row), (row, 0))[1]
        return tuple((row, weight) for row, weight in total.values() if weight)

    def __repr__(self) -> str:
        """Return the request and how much was found; `str` has all of it."""
        return f"RowHistory({str(self).splitlines()[0]})"

    def _repr_html_(self) -> str:
        """Return the events as a table for a notebook: what changed in the inputs, and the rows that went and came."""
        rows: list[list[Any]] = []
        signs: list[int] = []
        for event in self.events:
            shown = [(change.stream, change.row, change.weight) for change in event.changes]
            shown += [("view", row, weight) for row, weight in event.emitted]
            for name, row, weight in shown:
                values = ", ".join(f"{column}={value!r}" for column, value in row.items())
                rows.append([event.epoch, name, f"{weight:+d}", values])
                signs.append(-1 if weight < 0 else 1)
        few = rows[:MOST_ROWS]
        return html_table(["epoch", "where", "weight", "row"], few, caption=str(self).splitlines()[0], signs=signs)

    def __str__(self) -> str:
        named = ", ".join(f"{name}={value!r}" for name, value in self.question.items())
        since = "since the first epoch" if self.is_complete else "since the beginning of the log"
        lines = [f"{named}: {counted(len(self.events), 'epoch')} touched it {since}"]
        for event in self.events:
            lines.append(f"epoch {event.epoch}" + (" (from a snapshot)" if event.is_snapshot else ""))
            lines += [f"  {weight:+d} {row}" for row, weight in event.emitted]
            lines += [f"    because {change.stream} {change.weight:+d} {change.row}" for change in event.changes]
            lines += [f"    because {event.time}"] if event.time else []
        return "\n".join(lines)


def requested_values(shown: pa.Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that rows requested have, in the types of the columns."""
    unknown = [name for name in row if name not in shown.names]
    if unknown or not row:
        raise OptionError(
            f"explain_row({dict(row)!r}): name columns of the view, with values; its columns are {shown.names}.",
            code="ROW_QUESTION",
            columns=unknown,
        )
    return {name: _value(name, shown.field(name).type, value) for name, value in row.items()}


def _value(name: str, kind: pa.DataType, value: Any) -> Any:
    if value is None or pt.is_nested(kind):
        return value
    try:
        scalar = pa.scalar(value, kind)
        if pt.is_integer(kind) and scalar.as_py() != value:
            raise pa.ArrowInvalid("it is not a whole number")
        if isinstance(value, datetime) and pt.is_date(kind):
            raise pa.ArrowInvalid("a date has no time of day; give value.date()")
        return scalar
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise OptionError(
            f'{value!r} is not a value of the column "{name}" ({kind}): {error}', code="ROW_QUESTION", column=name, value=value
        ) from error
