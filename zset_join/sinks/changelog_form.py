"""The forms in which a delta is written down as a changelog.

| form               | added columns                                             | one row of weight w becomes |
|--------------------|-----------------------------------------------------------|-----------------------------|
| `weight`           | `_weight` int64                                           | one line                    |
| `row_kind`         | `_row_kind` `+I` `-U` `+U` `-D`                           | abs(w) lines                |
| `change_data_feed` | `_change_type` `insert` `update_preimage`                 | abs(w) lines                |
|                    | `update_postimage` `delete`, `_commit_version` (epoch),   |                             |
|                    | `_commit_timestamp` (when the epoch was written)          |                             |

A retraction and an insertion are an update only when both hold the same key; without a key, and where a key is only
retracted or only inserted, they are `-D` and `+I`. The lines keep the order of the delta, in which retractions come
first.

Keys are the same as everywhere else (NaN = NaN, 0.0 = -0.0, NULL = NULL). Source: RowKind of Flink, change columns of
Spark 4.2 and Delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from zset_join.errors import OptionError, SinkError
from zset_join.kernels.nested import canonical_floats, encode_nested, is_nested
from zset_join.kernels.nested_bytes import copy_runs
from zset_join.zset import ZSet

__all__ = ["ChangelogForm", "changelog_schema", "key_ordinals", "to_changelog"]

ChangelogForm = Literal["weight", "row_kind", "change_data_feed"]

_ADDED: dict[str, list[pa.Field]] = {
    "weight": [pa.field("_weight", pa.int64())],
    "row_kind": [pa.field("_row_kind", pa.string())],
    "change_data_feed": [
        pa.field("_change_type", pa.string()),
        pa.field("_commit_version", pa.int64()),
        pa.field("_commit_timestamp", pa.timestamp("us", tz="UTC")),
    ],
}

# Indexed by 2 * (part of an update) + (inserted).
_LABELS = {
    "row_kind": pa.array(["-D", "+I", "-U", "+U"]),
    "change_data_feed": pa.array(["delete", "insert", "update_preimage", "update_postimage"]),
}

# Refined ordinals stay below this before they are multiplied by the values of another column.
_DENSE_LIMIT = 1 << 31


def changelog_schema(schema: pa.Schema, form: ChangelogForm) -> pa.Schema:
    """Return the columns of the changelog of rows with this schema.

    Raises:
        OptionError: the form is unknown.
        SinkError: one of its columns is among those of the rows.

    >>> changelog_schema(pa.schema({"k": pa.int8()}), "weight").names
    ['k', '_weight']
    """
    if form not in _ADDED:
        raise OptionError(
            f"form={form!r} is unknown; use one of {', '.join(get_args(ChangelogForm))}.", code="SINK_OPTION", form=form
        )
    clashes = sorted({field.name for field in _ADDED[form]} & set(schema.names))
    if clashes:
        raise SinkError(
            f"the output has columns named {clashes}, which form={form!r} adds; rename them or use another form.",
            code="SINK_COLUMNS",
            form=form,
            clashes=clashes,
        )
    return pa.schema([*schema, *_ADDED[form]])


def to_changelog(
    delta: ZSet, form: ChangelogForm, *, key: Sequence[str] = (), epoch: int = 0, committed_at_us: int = 0
) -> pa.RecordBatch:
    """Write a delta down in one of the forms.

    Args:
        delta: n rows, consolidated if every line shall be a real change.
        form: see the module.
        key: columns that say which retraction and insertion are one update; looked for in this delta only.
        epoch: value of `_commit_version`.
        committed_at_us: value of `_commit_timestamp`, microseconds since 1970-01-01 UTC.

    Cost: linear; with a key, one sort of n integers per key column.

    >>> renamed = ZSet.of({"id": [1, 1], "name": ["old", "new"]}, [-1, 1])
    >>> to_changelog(renamed, "row_kind", key=["id"]).column("_row_kind").to_pylist()
    ['-U', '+U']
    """
    schema = changelog_schema(delta.schema, form)
    if form == "weight":
        return pa.RecordBatch.from_arrays([*delta.rows.columns, pa.array(delta.weights)], schema=schema)
    rows, weights = delta.rows, delta.weights
    labels = 2 * _part_of_update(delta, key) + (weights > 0)
    if (np.abs(weights) != 1).any():
        positions = np.repeat(np.arange(len(weights)), np.abs(weights))
        rows, labels = rows.take(pa.array(positions)), labels[positions]
    added = [_LABELS[form].take(pa.array(labels))]
    if form == "change_data_feed":
        count = rows.num_rows
        added.append(pa.repeat(pa.scalar(epoch, pa.int64()), count))
        added.append(pa.repeat(pa.scalar(committed_at_us, pa.timestamp("us", tz="UTC")), count))
    return pa.RecordBatch.from_arrays([*rows.columns, *added], schema=schema)


def key_ordinals(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Number the distinct keys of n rows from 0.

    Args:
        columns: the key columns, n values each, at least one column.

    Returns:
        int64[n]; equal keys, in Spark's sense, have equal numbers.

    >>> key_ordinals([pa.array([0.0, -0.0, None]), pa.array(["a", "a", "a"])]).tolist()
    [0, 0, 1]
    """
    ordinals = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = _comparable(column).dictionary_encode(null_encoding="encode")
        values = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        width = max(len(encoded.dictionary), 1)
        if ordinals.max(initial=0) >= _DENSE_LIMIT:
            ordinals = np.unique(ordinals, return_inverse=True)[1].astype(np.int64)
        ordinals = ordinals * width + values
    return np.unique(ordinals, return_inverse=True)[1].astype(np.int64)


def _part_of_update(delta: ZSet, key: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return 1 for each row whose key is both retracted and inserted."""
    if not key or not len(delta):
        return np.zeros(len(delta), np.int64)
    ordinals = key_ordinals([delta.rows.column(name) for name in key])
    count = int(ordinals.max()) + 1
    retracted, inserted = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    retracted[ordinals[delta.weights < 0]] = True
    inserted[ordinals[delta.weights > 0]] = True
    return (retracted & inserted)[ordinals].astype(np.int64)


def _comparable(column: pa.Array) -> pa.Array:
    """Return values that are equal bit for bit exactly where those of the column are equal in Spark's sense."""
    if is_nested(column.type):
        return _canonical_front(encode_nested(column))
    if pt.is_float32(column.type) or pt.is_float64(column.type):
        bits_type, bits_dtype = (pa.uint32(), np.uint32) if pt.is_float32(column.type) else (pa.uint64(), np.uint64)
        bits = column.fill_null(0.0).to_numpy(zero_copy_only=False).view(bits_dtype)
        return pa.array(canonical_floats(bits), bits_type, mask=column.is_null().to_numpy(zero_copy_only=False))
    return column


def _canonical_front(blobs: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Cut each blob after its canonical encoding (see `kernels.nested`)."""
    blobs = blobs.fill_null(b"")
    offsets = np.frombuffer(blobs.buffers()[1], np.int64)[blobs.offset : blobs.offset + len(blobs) + 1]
    content = np.frombuffer(blobs.buffers()[2] or b"", np.uint8)
    starts, ends = offsets[:-1].copy(), offsets[1:].copy()
    filled = ends > starts
    heads = content[starts[filled, None] + np.arange(4)]
    ends[filled] = starts[filled] + 4 + heads.view("<u4").ravel()
    cut = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
    target = np.empty(int(cut[-1]), np.uint8)
    copy_runs(target, cut[:-1], content, starts, ends)
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(blobs), [None, pa.py_buffer(cut), pa.py_buffer(target)])
