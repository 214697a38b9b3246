r"""A value of a column as people are to see it, in messages and statistics.

The promise: whatever bytes a column holds, showing one of its values raises nothing. Arrow holds more than Python does: dates
and timestamps outside the years 1 to 9999, and text that is not UTF-8. What Python has a value for is shown as that value, a
date or timestamp beyond as text in ISO form, the bytes that are no UTF-8 as `\xff`, and values inside of nested ones alike.

Cost: some microseconds a value; not for hot paths.

In a notebook nothing of a user becomes markup, and no value has more than `LONGEST` characters.
"""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

__all__ = [
    "LONGEST",
    "MOST_ROWS",
    "counted",
    "html_differences",
    "html_progress",
    "html_table",
    "html_text",
    "near",
    "shown_buckets",
    "shown_column",
    "shown_key",
    "shown_names",
    "shown_rows",
    "shown_value",
]

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


LONGEST = 200
MOST_ROWS = 50
_COLORS = {-1: "rgba(220, 60, 60, 0.16)", 1: "rgba(40, 160, 80, 0.16)"}


def html_text(value: Any) -> str:
    """Return a value as text between tags, cut where it is long.

    >>> html_text("<script>")
    '&lt;script&gt;'
    """
    text = "NULL" if value is None else str(value)
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"
    return html.escape(cut.encode("utf-8", "backslashreplace").decode())


def html_table(names: Iterable[str], rows: Iterable[Sequence[Any]], *, caption: str = "", signs: Sequence[int] = ()) -> str:
    """Return rows as a table."""
    head = "".join(f"<th>{html_text(name)}</th>" for name in names)
    lines = []
    for place, row in enumerate(rows):
        color = _COLORS.get(signs[place], "") if place < len(signs) else ""
        style = f' style="background: {color}"' if color else ""
        lines.append(f"<tr{style}>{''.join(f'<td>{html_text(value)}</td>' for value in row)}</tr>")
    above = f"<caption>{html_text(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def html_differences(verdict: str, differences: Sequence[tuple[Mapping[str, Any], int, int]]) -> str:
    """Return a report of a verification: its verdict, and rows with the weights that were expected and found."""
    if not differences:
        return f"<p>{html_text(verdict)}</p>"
    names = list(differences[0][0])
    rows = [[expected, actual, *(row.get(name) for name in names)] for row, expected, actual in differences[:MOST_ROWS]]
    return html_table(["expected", "actual", *names], rows, caption=verdict, signs=[-1] * len(rows))


def html_progress(progress: Mapping[str, Any] | None) -> str:
    """Return the progress of an epoch, of either runner: one line per count, and a table of its stages."""
    if not progress:
        return "<p>no epoch yet</p>"
    stages = {name: one for name, one in progress.get("stages", {}).items() if "seconds" in one}
    plain = [[name, _plain(value)] for name, value in progress.items() if name != "stages" or not stages]
    columns = list(dict.fromkeys(column for one in stages.values() for column in one))
    rows = [[name, *(one.get(column) for column in columns)] for name, one in stages.items()]
    table = html_table(["stage", *columns], rows) if rows else ""
    return html_table(["count", "value"], plain, caption=f"epoch {progress.get('epoch')}") + table


def _plain(value: Any) -> str:
    return ", ".join(f"{name}: {_plain(one)}" for name, one in value.items()) if isinstance(value, Mapping) else str(value)
