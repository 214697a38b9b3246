"""The reports of `verify` and `explain_row`, and the check of the values that a row is requested by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import OptionError
from zset_join.core.shown_values import MOST_ROWS, counted, html_differences, html_table

__all__ = ["InputChange", "Row", "RowEvent", "RowHistory", "VerificationReport", "of_outputs", "requested_values"]


@dataclass(frozen=True, kw_only=True, repr=False)
class VerificationReport:
    """Result of comparing rows with the batch query, as Z-sets.

    Attributes:
        equal: every row has the weight it should have.
        epoch: the last epoch; None before the first.
        basis: per stream, the origin of its table: "given", "log" or "snapshot and log"; empty in process, where it is all
            input.
        expected_rows: rows of the batch query, copies counted.
        actual_rows: rows of the view or the output, copies counted.
        different_rows: distinct rows whose weights differ, without those of the next two counts.
        left_out_rows: distinct rows that the output can never hold: its dead letters with the code `SINK_VALUE`.
        unjudged_rows: distinct rows whose weights differ only by ties that arrival decides, where only the state has the order
            of arrival: after another stage or a snapshot, or in a given table.
        differences: the first of them, as (row, expected weight, actual weight).
        sample: the share that was checked; None for all rows. The counts are those of the sample.
        sampled_by: the output columns by whose hash the sample was chosen.
        outputs: the compared outputs; none with `actual_df`. Counts and differences are those of the first that differs, or of
            the first.
        differing: those of them that differ.
    """

    equal: bool
    epoch: int | None
    expected_rows: int
    actual_rows: int
    different_rows: int
    basis: Mapping[str, str] = field(default_factory=dict)
    differences: Sequence[tuple[dict[str, Any], int, int]] = field(default_factory=tuple)
    sample: float | None = None
    sampled_by: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    left_out_rows: int = 0
    unjudged_rows: int = 0

    def __repr__(self) -> str:
        """Return the verdict alone; `str` has the differences."""
        return f"VerificationReport({str(self).splitlines()[0]})"

    def _repr_html_(self) -> str:
        """Return the verdict and the differences for a notebook."""
        return html_differences(str(self).splitlines()[0], self.differences)

    def __str__(self) -> str:
        verdict = (
            "equal"
            if self.equal
            else f"{counted(self.different_rows, 'row')} {'differs' if self.different_rows == 1 else 'differ'}"
        )
        if self.sample is not None:
            verdict += f" in a sample of {self.sample} by {', '.join(self.sampled_by)}"
        if len(self.outputs) > 1:
            verdict += f" in {' and '.join(self.differing)}" if self.differing else f" in all {len(self.outputs)} outputs"
        verdict += f", {self.left_out_rows} left out that it can never hold" if self.left_out_rows else ""
        verdict += f", {self.unjudged_rows} unjudged because of ties" if self.unjudged_rows else ""
        basis = ", ".join(f"{name} from {source}" for name, source in self.basis.items())
        counts = f"{counted(self.expected_rows, 'row')} expected, {self.actual_rows} {'emitted' if basis else 'answered'}"
        lines = [f"{verdict}: {counts}, after epoch {self.epoch}{f' (tables: {basis})' if basis else ''}"]
        lines += [f"  expected {expected}, got {actual}: {row}" for row, expected, actual in self.differences]
        return "\n".join(lines)


def of_outputs(reports: Mapping[str, VerificationReport]) -> VerificationReport:
    """Return the report of the first output that differs, or of the first, which names all; rows given have no name."""
    differing = tuple(name for name, report in reports.items() if not report.equal)
    chosen = reports[differing[0]] if differing else next(iter(reports.values()))
    return replace(chosen, outputs=tuple(filter(None, reports)), differing=tuple(filter(None, differing)))


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
