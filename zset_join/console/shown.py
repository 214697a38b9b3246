"""Values of rows as the page shows them: JSON, each cut to a length, so that no value can fill a browser.

The law: whatever a column holds, showing it raises nothing and has at most `LONGEST` characters and a count of the rest.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from zset_join.core import hidden_settings
from zset_join.core.errors import OptionError
from zset_join.core.shown_values import shown_column

__all__ = [
    "LONGEST",
    "MOST_ROWS",
    "row_text",
    "shown",
    "shown_columns",
    "shown_setting",
    "shown_table",
    "shown_text",
    "typed_values",
]

LONGEST = 500
MOST_ROWS = 200
_EXACT = 1 << 53


def shown(value: Any) -> Any:
    """Return a value as JSON has it: numbers, booleans and NULL as they are, all else as text.

    >>> shown("x" * 600)[495:]
    'xxxxx… (600 characters)'
    >>> shown(1 << 60)
    '1152921504606846976'
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < _EXACT else str(value)  # a browser has no larger whole numbers
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        return shown_text(raw[: LONGEST + 1].decode("utf-8", "backslashreplace"), len(raw), "bytes")
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, dict | list | tuple):
        return shown_text(json.dumps(value, default=str, ensure_ascii=False))
    return shown_text(str(value))


def shown_text(text: str, length: int | None = None, unit: str = "characters") -> str:
    """Return a text, cut where it is long; a surrogate that no encoding has is escaped."""
    whole = len(text) if length is None else length
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({whole:,} {unit})"
    return cut.encode("utf-8", "backslashreplace").decode()


def shown_setting(value: Any) -> Any:
    """Return a location or the value of an option, without the settings behind the `?` of a store's URI."""
    text = shown(value)
    return hidden_settings.shown(text) if isinstance(text, str) else text


def shown_columns(schema: pa.Schema) -> list[str]:
    return [shown_text(str(name)) for name in schema.names]


def shown_table(rows: pa.RecordBatch | pa.Table, *, most: int = MOST_ROWS) -> list[list[Any]]:
    """Return the first rows, value by value in the order of the columns."""
    few = rows.slice(0, most)
    columns = [[shown(value) for value in shown_column(column)] for column in few.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def typed_values(schema: pa.Schema, where: Mapping[str, str]) -> dict[str, Any]:
    """Return texts as values of their columns; an empty one is NULL."""
    values: dict[str, Any] = {}
    for name, text in where.items():
        if name not in schema.names:
            raise OptionError(
                f"there is no column {name!r}; the columns are {schema.names}.",
                code="ROW_QUESTION",
                column=name,
                expected=schema.names,
            )
        kind = schema.field(name).type
        try:
            values[name] = pa.scalar(text).cast(kind).as_py() if text else None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise OptionError(f"{name}={text!r}: {error}", code="ROW_QUESTION", column=name, expected=str(kind)) from error
    return values


def row_text(row: Mapping[str, Any]) -> dict[str, Any]:
    return {shown_text(str(name)): shown(value) for name, value in row.items()}
