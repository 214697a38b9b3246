"""From what a client returns to an Arrow table of the declared types, or an error that names the column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from zset_join.core.errors import LookupFailedError

__all__ = ["UnusableJsonError", "bounded_json", "table_of", "table_of_columns", "table_of_records"]

_MOST_BYTES = 64 << 20
_MEMORY_FACTOR, _LEAST_MEMORY = 16, 1 << 20
_BYTES_OF_CHARACTER, _BYTES_OF_OBJECT, _BYTES_OF_VALUE = 4, 200, 64


class UnusableJsonError(Exception):
    """A text that is no JSON, or whose values would take too much memory; the message completes "answered with"."""


def bounded_json(text: bytes | str, *, most_bytes: int = _MOST_BYTES) -> Any:
    """Return what a JSON text holds.

    >>> bounded_json(b'{"id": 1}', most_bytes=1000)
    {'id': 1}
    """
    written = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    values = sum(written.count(one) for one in (b",", b":", b"["))
    memory = len(written) * _BYTES_OF_CHARACTER + written.count(b"{") * _BYTES_OF_OBJECT + values * _BYTES_OF_VALUE
    if memory > max(most_bytes * _MEMORY_FACTOR, _LEAST_MEMORY):
        raise UnusableJsonError(
            f"JSON of {len(written)} bytes whose values would take about {memory} bytes of memory, more than {_MEMORY_FACTOR} "
            f"times max_answer_bytes={most_bytes}"
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableJsonError("no JSON, or JSON that is nested too deeply") from error


def table_of(schema: pa.Schema, rows: Sequence[Sequence[Any]], *, source: str = "") -> pa.Table:
    """Return rows, given as values in the order of the columns.

    >>> table_of(pa.schema({"id": pa.int64()}), [(1,), (2,)]).num_rows
    2
    """
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(schema)
    return table_of_columns(schema, columns, source=source)


def table_of_columns(schema: pa.Schema, columns: Iterable[Sequence[Any]], *, source: str = "") -> pa.Table:
    """Return rows, given as the values of each column.

    >>> table_of_columns(pa.schema({"id": pa.int64()}), [[1, 2]]).num_rows
    2
    """
    return pa.Table.from_arrays(
        [_column(field, values, source) for field, values in zip(schema, columns, strict=True)], schema=schema
    )


def table_of_records(schema: pa.Schema, records: Sequence[Mapping[str, Any]], *, source: str = "") -> pa.Table:
    """Return rows, given by the names of their columns; a name that is missing is NULL, one that is not declared is omitted."""
    columns = [_column(field, [record.get(field.name) for record in records], source) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(field: pa.Field, values: Sequence[Any], source: str) -> pa.Array:
    try:
        return pa.array(list(values), field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        try:
            return pa.array(list(values)).cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError) as error:
            raise LookupFailedError(
                f'the lookup source "{source}" answered with a value that column "{field.name}" of type {field.type} cannot '
                f"hold "
                f"({error}); the epoch was not applied. Correct the schema it was declared with.",
                code="LOOKUP_ANSWER",
                source=source,
                column=field.name,
            ) from error
