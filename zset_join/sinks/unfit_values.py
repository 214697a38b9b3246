"""Values that an output can never hold: which rows of an answer have one, decided before the epoch is committed.

The law: whether a row fits an output follows from the row alone, so it is the same at every attempt. An output holds the
rows of the view that fit it. A row that does not fit is refused before the commit, with nothing applied, or set aside as a
dead letter where bad input is. Its retraction finds nothing in the output and is omitted.

A sink that has such values implements `SelectiveSink`. What it lists here it refuses; everything else it takes. One that writes
single rows or one row per key is a `FormedSink`: what the weights of an answer do not allow is refused before the commit too.

Text that is no UTF-8 fits no output: readers cannot decode it.

Cost: one pass over the bytes of text columns and the numbers of bounded columns; nothing for other types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.changelog.encoding import check_encodable
from zset_join.changelog.formats import ChangelogFormat
from zset_join.core.errors import SinkError, ZsetJoinError
from zset_join.core.shown_values import shown_value
from zset_join.sinks.sink import Sink
from zset_join.zset import ZSet

__all__ = [
    "Bound",
    "FormedSink",
    "SelectiveSink",
    "UnfitRows",
    "check_fits",
    "check_weights",
    "fitting",
    "long_values",
    "reasons_by_row",
    "sized_rows",
    "text_with_nul",
    "unfit_rows",
    "unfit_values",
    "within_microseconds",
]

Bools = npt.NDArray[np.bool_]
Bound = Callable[[pa.DataType], tuple[int, int] | None]
"""Gives the smallest and the largest number that a temporal type may have in an output; None where it may have any."""

_SHOWN_LENGTH = 80
_INT64 = np.iinfo(np.int64)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class UnfitRows:
    """Rows with a value that an output can never hold."""

    column: str
    reason: str
    rows: Bools


@runtime_checkable
class SelectiveSink(Sink, Protocol):
    """A sink that can never hold some values of the types it was opened with."""

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        """Return the rows that do not fit; nothing where all do. The sink is open; nothing is written."""


@runtime_checkable
class FormedSink(Sink, Protocol):
    """A sink that writes its answers in a form, which may not have all weights.

    Attributes:
        written_as: the form, and the key of one that has one row per key; set once the sink is open.
    """

    written_as: tuple[Sequence[str], ChangelogFormat]


def check_weights(sink: Sink, chunks: Sequence[ZSet], *, epoch: int) -> None:
    """Refuse an answer with weights that the form of a sink does not have."""
    if not isinstance(sink, FormedSink) or not chunks:
        return
    delta = chunks[0] if len(chunks) == 1 else ZSet.concat(chunks, schema=chunks[0].schema).consolidated()
    try:
        check_encodable(delta, *sink.written_as)
    except ZsetJoinError as error:
        error.message = f"{sink!r}, epoch {epoch}, of which nothing was applied: {error.message}"
        raise


def unfit_rows(sink: Sink, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
    """Return the rows that do not fit a sink; one without a rule takes all."""
    return sink.unfit(rows) if rows.num_rows and isinstance(sink, SelectiveSink) else ()


def fitting(sink: Sink, delta: ZSet, *, drops: bool, epoch: int) -> ZSet:
    """Return the part of a delta that fits a sink."""
    unfit = unfit_rows(sink, delta.rows)
    if not unfit:
        return delta
    if not drops:
        check_fits(repr(sink), delta, unfit, epoch=epoch)
    kept = np.flatnonzero(~np.logical_or.reduce([one.rows for one in unfit]))
    return ZSet(delta.rows.take(pa.array(kept)), delta.weights[kept])


def check_fits(output: str, delta: ZSet, unfit: Sequence[UnfitRows], *, epoch: int) -> None:
    """Refuse a delta that inserts a row which does not fit."""
    for one in unfit:
        inserted = np.flatnonzero(one.rows & (delta.weights > 0))
        if len(inserted):
            first = int(inserted[0])
            value = _shown_text(delta.rows.column(one.column), first)
            raise SinkError(
                f'{output} cannot take row {first} of the answer of epoch {epoch}: column "{one.column}" is {value}, which '
                f"{one.reason}; nothing was applied. Correct or leave out the value in the query, or set "
                'on_bad_input="quarantine": such rows become dead letters and are left out of this output.',
                code="SINK_VALUE",
                output=output,
                epoch=epoch,
                column=one.column,
                row=first,
                rows=len(inserted),
            )


def reasons_by_row(rows: pa.RecordBatch, unfit: Sequence[UnfitRows]) -> dict[int, str]:
    """Return, for every row that does not fit, why: its first reason counts."""
    reasons: dict[int, str] = {}
    for one in unfit:
        for row in np.flatnonzero(one.rows).tolist():
            value = _shown_text(rows.column(one.column), row)
            reason = f'column "{one.column}" is {value}, which {one.reason}; the row is left out of this output'
            reasons.setdefault(row, reason)
    return reasons


def unfit_values(rows: pa.RecordBatch, bound: Bound | None = None) -> list[UnfitRows]:
    """Return the rows whose text is no UTF-8, or whose dates, times or timestamps leave their bounds, also in nested values.

    >>> rows = pa.RecordBatch.from_pydict({"d": pa.array([0, 9], pa.date32())})
    >>> [one.rows.tolist() for one in unfit_values(rows, lambda kind: (0, 5))]
    [[False, True]]
    """
    found: list[UnfitRows] = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if _has_leaf(field.type, _is_text) and not _is_valid(column):
            undecodable = _flagged(column, _undecodable)
            found.append(UnfitRows(field.name, "is no UTF-8", undecodable))
        if bound is not None and _has_leaf(field.type, pt.is_temporal):
            outside = _flagged(column, lambda leaf: _outside(leaf, bound))
            if outside.any():
                found.append(UnfitRows(field.name, "is outside the times that the output can hold", outside))
    return found


def within_microseconds(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the bounds of coarser timestamps that are stored as microseconds.

    >>> within_microseconds(pa.timestamp("ms")), within_microseconds(pa.timestamp("us"))
    ((-9223372036854775, 9223372036854775), None)
    """
    if not pt.is_timestamp(kind) or kind.unit not in ("s", "ms"):
        return None
    largest = _INT64.max // (1_000_000 // _PER_SECOND[kind.unit])
    return -largest, largest


def text_with_nul(rows: pa.RecordBatch) -> list[UnfitRows]:
    """Return the rows with a text that contains the character U+0000."""
    found = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if _is_text(field.type) and _has_zero_byte(column):
            flags = _flagged(column, lambda leaf: _as_flags(pc.match_substring(leaf, "\0")))
            if flags.any():
                found.append(UnfitRows(field.name, "contains the character U+0000", flags))
    return found


def sized_rows(rows: pa.RecordBatch, columns: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return, per row, the bytes of the texts and binary values in some columns."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in columns:
        column = rows.column(name)
        if _is_text(column.type) or pt.is_binary(column.type) or pt.is_large_binary(column.type):
            sizes += np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)
    return sizes


def long_values(rows: pa.RecordBatch, columns: Sequence[str], most_bytes: int, reason: str) -> list[UnfitRows]:
    """Return the rows whose texts and binary values are together longer than a bound, under the first of the columns."""
    if rows.nbytes <= most_bytes:
        return []
    flags = sized_rows(rows, columns) > most_bytes
    return [UnfitRows(columns[0], reason, flags)] if flags.any() else []


# ---------------------------------------------------------------- leaves of nested values


def _has_leaf(kind: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    if pt.is_dictionary(kind):
        return _has_leaf(kind.value_type, is_wanted)
    if not pt.is_nested(kind):
        return is_wanted(kind)
    return any(_has_leaf(kind.field(at).type, is_wanted) for at in range(kind.num_fields))


def _flagged(column: pa.Array, leaf_flags: Callable[[pa.Array], Bools]) -> Bools:
    """Return which rows have a leaf that is flagged, in a column of any type."""
    kind = column.type
    if pt.is_dictionary(kind):
        return _flagged(column.dictionary_decode(), leaf_flags)
    if pt.is_struct(kind):
        parts = [_flagged(part, leaf_flags) for part in column.flatten()]
        return np.logical_or.reduce(parts) if parts else np.zeros(len(column), np.bool_)
    if pt.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_field))
    if pt.is_map(kind):
        column = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if pt.is_list(column.type) or pt.is_large_list(column.type):
        flags = np.zeros(len(column), np.bool_)
        inside = _flagged(column.flatten(), leaf_flags)
        flags[np.asarray(pc.list_parent_indices(column))[inside]] = True
        return flags
    return leaf_flags(column)


def _outside(leaf: pa.Array, bound: Bound) -> Bools:
    limits = bound(leaf.type) if pt.is_temporal(leaf.type) else None
    if limits is None:
        return np.zeros(len(leaf), np.bool_)
    whole = pa.int32() if leaf.type.bit_width == np.dtype(np.int32).itemsize * 8 else pa.int64()
    numbers = np.asarray(pc.fill_null(leaf.view(whole), max(limits[0], 0))).astype(np.int64)
    return (numbers < limits[0]) | (numbers > limits[1])


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _undecodable(leaf: pa.Array) -> Bools:
    """Return which texts are no UTF-8; reached only where one is."""
    if not _is_text(leaf.type) or _is_valid(leaf):
        return np.zeros(len(leaf), np.bool_)
    return np.fromiter((not _is_valid(leaf.slice(at, 1)) for at in range(len(leaf))), np.bool_, len(leaf))


def _has_zero_byte(column: pa.Array) -> bool:
    data = column.buffers()[-1]
    return data is not None and bool((np.frombuffer(data, np.uint8) == 0).any())


def _as_flags(flags: pa.Array) -> Bools:
    return np.asarray(pc.fill_null(flags, fill_value=False), np.bool_)


def _shown_text(column: pa.Array, row: int) -> str:
    """Return a value for a message, cut where it is long."""
    text = repr(shown_value(column, row))
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."
