"""Added columns that a kept output can accept: they follow the present ones."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["adds_columns", "with_added_nullable"]


def adds_columns(before: pa.Schema, after: pa.Schema) -> bool:
    """Return whether columns are those of before with one or more behind them.

    >>> one, two = pa.schema({"k": pa.int64()}), pa.schema({"k": pa.int64(), "n": pa.int64()})
    >>> adds_columns(one, two), adds_columns(one, one), adds_columns(two, one)
    (True, False, False)
    """
    count = len(before)
    same = before.names == after.names[:count] and before.types == after.types[:count]
    return same and len(after) > count


def with_added_nullable(before: int, after: pa.Schema) -> pa.Schema:
    """Return columns of which those behind the first ones may be NULL, as they are in the rows before they came."""
    return pa.schema([field if at < before else field.with_nullable(True) for at, field in enumerate(after)])
