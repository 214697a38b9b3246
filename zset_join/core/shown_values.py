r"""A value of a column as people are to see it, in messages and statistics.

The promise: whatever bytes a column holds, showing one of its values raises nothing. Arrow holds more than Python does: dates
and timestamps outside the years 1 to 9999, and text that is not UTF-8. What Python has a value for is shown as that value, a
date or timestamp beyond as text in ISO form, the bytes that are no UTF-8 as `\xff`, and values inside of nested ones alike.

Cost: some microseconds a value; not for hot paths.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

__all__ = ["counted", "near", "shown_buckets", "shown_column", "shown_key", "shown_names", "shown_rows", "shown_value"]

_UNKNOWN_TO_PYTHON = (ArithmeticError, LookupError, TypeError, ValueError)  # UnicodeDecodeError is among them


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where there is not one of them.

    >>> counted(1, "epoch"), counted(2, "epoch"), counted(0, "key")
    ('1 epoch', '2 epochs', '0 keys')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shown_buckets(buckets: int | None, by: str) -> str:
    """Return the location of a stage's state, for `explain`.

    >>> shown_buckets(1, "group"), shown_buckets(None, "key")
    ('in 1 bucket by group', 'in one bucket per core by key')
    """
    return f"in {'one bucket per core' if buckets is None else counted(buckets, 'bucket')} by {by}"


def shown_names(names: Iterable[str]) -> list[str]:
    """Return the names of columns without those of the engine, which begin with two underscores.

    >>> shown_names(["id", "__sequence_0"])
    ['id']
    """
    return [name for name in names if not name.startswith("__")]


def shown_key(columns: Sequence[pa.Array], row: int) -> tuple[Any, ...]:
    """Return the values of one row of some columns."""
    return tuple(shown_value(column, row) for column in columns)


def shown_value(column: pa.Array | pa.ChunkedArray, row: int) -> Any:
    """Return one value of a column.

    >>> shown_value(pa.array([253402300800000000]).cast(pa.timestamp("us")), 0)
    '10000-01-01T00:00:00.000000'
    """
    return _shown(column[row])


def shown_column(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column. Cost: that of `to_pylist` where Python has all of them."""
    try:
        return list(column.to_pylist())
    except _UNKNOWN_TO_PYTHON:
        return [_shown(value) for value in column]


def shown_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows by the names of their columns.

    >>> shown_rows(pa.table({"at": pa.array([253402300800000000]).cast(pa.timestamp("us")), "n": [1]}))
    [{'at': '10000-01-01T00:00:00.000000', 'n': 1}]
    """
    columns = {name: shown_column(rows.column(at)) for at, name in enumerate(rows.schema.names)}
    return [{name: values[row] for name, values in columns.items()} for row in range(rows.num_rows)]


def _shown(value: Any) -> Any:
    try:
        return value.as_py()
    except _UNKNOWN_TO_PYTHON:
        return _without_python(value)


def _without_python(value: Any) -> Any:
    kind = value.type
    if pt.is_dictionary(kind):
        return _shown(value.dictionary[value.index.as_py()])
    if pt.is_struct(kind):
        return {name: _shown(value[name]) for name in (field.name for field in kind)}
    if pt.is_map(kind):
        return [(_shown(entry["key"]), _shown(entry["value"])) for entry in value.values]
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return [_shown(each) for each in value.values]
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return bytes(value.as_buffer()).decode("utf-8", "backslashreplace")
    if pt.is_date32(kind):
        return str(np.datetime64(value.value, "D"))
    if pt.is_date64(kind):
        return str(np.datetime64(value.value, "ms").astype("M8[D]"))
    if pt.is_timestamp(kind):
        return str(np.datetime64(value.value, kind.unit)) + ("" if kind.tz is None else "Z")
    return f"a value of type {kind}"


def near(name: str, known: Iterable[str]) -> str:
    """Return a "Did you mean" question with the nearest names; empty if none is near."""
    listed = list(dict.fromkeys(known))
    lower = {one.lower(): one for one in listed}
    close = difflib.get_close_matches(name.lower(), list(lower), n=3, cutoff=0.6)
    if close:
        return f" Did you mean {' or '.join(lower[one] for one in close)}?"
    is_one = len(listed) == 1
    return f" There {'is' if is_one else 'are'} {', '.join(listed[:12])}." if listed else ""
