"""From a delta to the rows of a changelog.

The laws: decoding what was encoded gives the delta back (in `UpsertFormat` only relative to the rows that were present
before); per key -1 comes before +1; a retraction and an insertion are called an update exactly when they share the
key.

Ties and edge cases: keys are compared as Spark compares them: NULL = NULL, NaN = NaN, 0.0 = -0.0, nested values
included. Without a key every row is its own key, and there are no updates. Where a key is retracted and inserted a
different number of times, the pairs are updates and the rest deletes or inserts.

Limits: one delta at a time, so the changes of one key must not be spread over several; consolidate first, or rows
that cancel out are written down as well. A weight beyond 1 becomes that many rows in every format but `WeightFormat`,
up to `max_rows`.

Memory: columns are shared with the delta in `WeightFormat`, otherwise copied once; 8 bytes per row and key column on
the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from zset_join.changelog.formats.rows import (
    CHANGE_TYPES,
    ROW_KINDS,
    AppendFormat,
    ChangeDataFeedFormat,
    ChangelogFormat,
    UpsertFormat,
    WeightFormat,
)
from zset_join.core.errors import OptionError, PlanError, ResourceError, SinkError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_key
from zset_join.kernels.values.nested import canonical_floats, canonical_nested, is_nested
from zset_join.zset import ZSet

__all__ = [
    "MOST_SINGLE_ROWS",
    "check_encodable",
    "check_key",
    "comparable_values",
    "encode",
    "encoded_schema",
    "group_keys",
]

MOST_SINGLE_ROWS = 10_000_000
"""How many rows a delta may be written as in a form without weights."""

_Int64s: TypeAlias = npt.NDArray[np.int64]

# Row kind of a line: by whether its row arrives, then by whether it is half of an update.
_KINDS = np.array([[3, 1], [0, 2]], np.int64)
_MOMENT = pa.timestamp("us", tz="UTC")


def encode(
    delta: ZSet,
    key: Relation | Sequence[str],
    changelog_format: ChangelogFormat,
    *,
    epoch: int | None = None,
    committed_at_us: int = 0,
    max_rows: int = MOST_SINGLE_ROWS,
) -> pa.RecordBatch:
    """Write a delta down as rows of a changelog.

    Args:
        delta: the changes of one epoch, consolidated; n rows.
        key: the columns that identify a row downstream, or a relation with a primary key. Empty: the whole row does.
        changelog_format: the form of a row's operation.
        epoch: number of the epoch, written by `ChangeDataFeedFormat`.
        committed_at_us: microseconds since 1970-01-01 UTC, written by `ChangeDataFeedFormat` with a `timestamp_column`.
        max_rows: maximum rows after weights beyond 1 are expanded; a delta without such weights may be larger.

    Returns:
        The columns of the delta, then those of the format. With a key, the changes of one key are adjacent.

    Raises:
        PlanError: a key column that does not exist, or a format whose columns exist already.
        OptionError: the format needs an epoch.
        ResourceError: more than `max_rows` rows.
        SinkError: a retraction in `AppendFormat`, or two live rows that claim one key in `UpsertFormat`.

    Cost: linear in the rows written, plus one sort of n integers with a key.

    >>> from zset_join.changelog.formats import RowKindFormat
    >>> delta = ZSet.of({"id": [1, 1, 2], "v": ["a", "b", "c"]}, [-1, 1, 1])
    >>> encode(delta, ["id"], RowKindFormat()).column("row_kind").to_pylist()
    ['-U', '+U', '+I']
    """
    columns = tuple(key.primary_key if isinstance(key, Relation) else key)
    schema = encoded_schema(delta.schema, changelog_format)
    check_key(delta.schema, columns, changelog_format)
    if isinstance(changelog_format, WeightFormat):
        return _with_columns(schema, delta.rows, pa.array(delta.weights))
    if isinstance(changelog_format, UpsertFormat):
        return _encode_upserts(delta, columns, schema)
    check_encodable(delta, columns, changelog_format, max_rows=max_rows)
    groups = group_keys([delta.rows.column(name) for name in columns]) if columns else None
    order = _expanded_order(delta, groups)
    rows = delta.rows.take(pa.array(order))
    if isinstance(changelog_format, AppendFormat):
        return rows
    comes = delta.weights[order] > 0
    kinds = pa.array(_KINDS[comes.astype(np.int64), _updates(comes, None if groups is None else groups[order])])
    if isinstance(changelog_format, ChangeDataFeedFormat):
        if epoch is None:
            raise OptionError(
                f'column "{changelog_format.version_column}" holds the epoch; pass epoch=..., the number of the epoch '
                "that the delta belongs to.",
                code="MISSING_EPOCH",
            )
        added = [pa.array(CHANGE_TYPES).take(kinds), pa.array(np.full(len(order), epoch, np.int64))]
        if changelog_format.timestamp_column is not None:
            added.append(pa.repeat(pa.scalar(committed_at_us, _MOMENT), len(order)))
        return _with_columns(schema, rows, *added)
    return _with_columns(schema, rows, pa.array(ROW_KINDS).take(kinds))


def check_encodable(
    delta: ZSet, key: Sequence[str], changelog_format: ChangelogFormat, *, max_rows: int = MOST_SINGLE_ROWS
) -> None:
    """Refuse a delta whose weights the format cannot show."""
    if isinstance(changelog_format, WeightFormat):
        return
    if isinstance(changelog_format, UpsertFormat):
        _groups_of_claims(delta, key)
        return
    if isinstance(changelog_format, AppendFormat) and (delta.weights < 0).any():
        row = int(np.flatnonzero(delta.weights < 0)[0])
        raise SinkError(
            f"the row {_row(delta, row)} is retracted, and the output is append-only; write it in a format with retractions.",
            code="RETRACTION_IN_APPEND",
            row=_row(delta, row),
        )
    # The lowest int64 has no positive counterpart; as unsigned it has.
    copies = np.abs(delta.weights).astype(np.uint64)
    highest = int(copies.max(initial=0))
    if highest > max_rows or (highest > 1 and int(copies.sum()) > max_rows):
        row = int(copies.argmax())
        raise ResourceError(
            f"written as single rows, the change takes more than {max_rows} rows; its largest weight is "
            f"{int(delta.weights[row])}, of row {_row(delta, row)}. Use a form with a weight column, or change fewer copies in "
            "an epoch.",
            code="TOO_MANY_ROWS",
            max_rows=max_rows,
            weight=int(delta.weights[row]),
        )


def _groups_of_claims(delta: ZSet, key: Sequence[str]) -> _Int64s:
    """Refuse two live rows that claim one key; return the number of the key of each row."""
    groups = group_keys([delta.rows.column(name) for name in key])
    claims = np.bincount(groups[delta.weights > 0], minlength=len(delta))
    doubled = np.flatnonzero((claims[groups] > 1) & (delta.weights > 0) | (delta.weights > 1))
    if len(doubled):
        row = int(doubled[0])
        name = shown_key([delta.rows.column(column) for column in key], row)
        raise SinkError(
            f"after this epoch more than one live row claims the key {name} of {list(key)}, of which the "
            "output can keep only one. Add columns to the key until it identifies a row, or choose an output without a key.",
            code="KEY_CLAIMED_TWICE",
            key=name,
            columns=list(key),
        )
    return groups


def encoded_schema(schema: pa.Schema, changelog_format: ChangelogFormat) -> pa.Schema:
    """Return the columns that `encode` writes for rows with these columns.

    Raises:
        PlanError: a column of the format is among them already.

    >>> encoded_schema(pa.schema({"id": pa.int64()}), WeightFormat()).names
    ['id', '_weight']
    """
    added = _added_fields(changelog_format)
    clashing = [field.name for field in added if field.name in schema.names]
    if clashing:
        raise PlanError(
            f"the format adds {clashing}, and the rows have columns of that name; rename them, or give the format other names.",
            code="DUPLICATE_COLUMN",
            columns=clashing,
        )
    return pa.schema([*schema, *added])


def _added_fields(changelog_format: ChangelogFormat) -> list[pa.Field]:
    if isinstance(changelog_format, AppendFormat):
        return []
    if isinstance(changelog_format, WeightFormat):
        return [pa.field(changelog_format.column, pa.int64(), nullable=False)]
    if isinstance(changelog_format, UpsertFormat):
        return [pa.field(changelog_format.column, pa.bool_(), nullable=False)]
    fields = [pa.field(changelog_format.column, pa.string(), nullable=False)]
    if isinstance(changelog_format, ChangeDataFeedFormat):
        fields.append(pa.field(changelog_format.version_column, pa.int64(), nullable=False))
        if changelog_format.timestamp_column is not None:
            fields.append(pa.field(changelog_format.timestamp_column, _MOMENT, nullable=False))
    return fields


def group_keys(columns: Sequence[pa.Array]) -> _Int64s:
    """Number the distinct keys of n rows in the order in which they first appear.

    >>> group_keys([pa.array([0.0, 7.0, -0.0, None])]).tolist()
    [0, 1, 0, 2]
    """
    combined: _Int64s | None = None
    for column in columns:
        numbers, count = _numbered(comparable_values(column))
        if combined is None:
            combined = numbers
        else:
            # At most n numbers each, so the product stays below 2^63 for any n that fits in memory.
            combined, _ = _numbered(pa.array(combined * count + numbers))
    return np.zeros(0, np.int64) if combined is None else combined


def comparable_values(column: pa.Array) -> pa.Array:
    """Return values that are the same bits exactly where those of the column are equal in Spark's sense; NULL stays NULL.

    >>> comparable_values(pa.array([0.0, -0.0])).to_pylist()
    [0, 0]
    """
    if isinstance(column.type, pa.BaseExtensionType):
        return comparable_values(column.storage)
    if pt.is_dictionary(column.type):
        return comparable_values(column.dictionary_decode())
    if is_nested(column.type):
        return canonical_nested(column)
    if pt.is_floating(column.type):
        width = column.type.bit_width // 8
        values = np.frombuffer(column.buffers()[1] or b"", f"u{width}", len(column), column.offset * width)
        return pa.array(canonical_floats(values), mask=column.is_null().to_numpy(zero_copy_only=False))
    return column


def _numbered(column: pa.Array) -> tuple[_Int64s, int]:
    encoded = column.dictionary_encode(null_encoding="encode")
    numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers, max(1, len(encoded.dictionary))


def _expanded_order(delta: ZSet, groups: _Int64s | None) -> _Int64s:
    """Return the rows to write: each as often as its weight, retractions first, per key where there is one."""
    comes = delta.weights > 0
    order = np.argsort(comes if groups is None else groups * 2 + comes, kind="stable")
    return np.repeat(order, np.abs(delta.weights[order])).astype(np.int64)


def _updates(comes: npt.NDArray[np.bool_], groups: _Int64s | None) -> _Int64s:
    """Return 1 for the ordered lines that are half of an update."""
    count = len(comes)
    if groups is None or not count:
        return np.zeros(count, np.int64)
    lines = groups * 2 + comes
    per_line_kind = np.bincount(lines, minlength=2 * (int(groups.max()) + 1))
    paired = np.minimum(per_line_kind[0::2], per_line_kind[1::2])
    is_first = np.concatenate([[True], lines[1:] != lines[:-1]])
    starts = np.flatnonzero(is_first)
    ranks = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
    return np.asarray(ranks < paired[groups], np.int64)


def _encode_upserts(delta: ZSet, columns: tuple[str, ...], schema: pa.Schema) -> pa.RecordBatch:
    """Write one line per key: the row that is present after the epoch, or the one that has gone; the gone come first."""
    groups = _groups_of_claims(delta, columns)
    inserted, retracted = np.flatnonzero(delta.weights > 0), np.flatnonzero(delta.weights < 0)
    gone = retracted[np.isin(groups[retracted], groups[inserted], invert=True)]
    # Of several retracted rows of one key the last one represents the delete.
    last = np.zeros(len(groups), np.int64)
    last[groups[gone]] = gone
    deletes = gone[last[groups[gone]] == gone]
    order = np.concatenate([deletes, inserted])
    deleted = pa.array(np.arange(len(order)) < len(deletes))
    return _with_columns(schema, delta.rows.take(pa.array(order)), deleted)


def check_key(schema: pa.Schema, columns: Sequence[str], changelog_format: ChangelogFormat) -> None:
    if not columns and isinstance(changelog_format, UpsertFormat):
        raise PlanError(
            "upserts need a key that identifies the row they replace; pass key=[...], the columns of a row's identity.",
            code="MISSING_PRIMARY_KEY",
        )
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise PlanError(
            f"key={list(columns)} names {missing}, which is not among the columns {schema.names}.",
            code="UNKNOWN_COLUMN",
            missing=missing,
        )


def _with_columns(schema: pa.Schema, rows: pa.RecordBatch, *added: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*rows.columns, *added], schema=schema)


def _row(delta: ZSet, row: int) -> tuple[object, ...]:
    return shown_key(delta.rows.columns, row)
