"""Shared parts of lookup sources: their description as JSON and back, and their answers as Arrow tables.

Sources register, so that a stage can be read from a checkpoint without the program that made it. A schema is written in Arrow's
own bytes, so every type comes back exactly. What a client returns becomes a table of the declared types, or an error that names
the column.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self

import pyarrow as pa

from zset_join.core.errors import LookupFailedError, PlanError
from zset_join.lookup.secret import Secret
from zset_join.lookup.source import LookupSource

__all__ = [
    "UnusableJsonError",
    "WrittenSource",
    "bounded_json",
    "read_schema",
    "read_source",
    "register_source",
    "table_of",
    "table_of_columns",
    "table_of_records",
    "write_schema",
]


def write_schema(schema: pa.Schema) -> str:
    """Return columns as text."""
    return base64.b64encode(schema.serialize()).decode()


def read_schema(text: str) -> pa.Schema:
    """Build from what `write_schema` gave.

    >>> read_schema(write_schema(pa.schema({"id": pa.int64()}))).names
    ['id']
    """
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


_readers: dict[str, Callable[[Mapping[str, Any]], LookupSource]] = {}


class WrittenSource:
    """Base of sources as dataclasses: every field is written under its name, secrets only by their origin.

    Attributes:
        kind: the name its description is stored under.
        secrets: the fields that are secrets, or None.
    """

    kind: ClassVar[str] = ""
    secrets: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **{one.name: _written(getattr(self, one.name)) for one in fields(self)}}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{name: cls._read(name, value) for name, value in fields.items() if name != "kind"})

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        if name == "schema":
            return read_schema(value)
        if name in cls.secrets:
            return None if value is None else Secret.from_json(value)
        if isinstance(value, Mapping):
            return {key: Secret.from_json(one) if isinstance(one, Mapping) else one for key, one in value.items()}
        return value


def _written(value: Any) -> Any:
    match value:
        case pa.Schema():
            return write_schema(value)
        case Secret():
            return value.to_json()
        case Mapping():
            return {key: _written(one) for key, one in value.items()}
    return value


def register_source(kind: str, read: Callable[[Mapping[str, Any]], LookupSource]) -> None:
    """Let `read_source` build sources of a kind from their JSON."""
    _readers[kind] = read


def read_source(fields: Mapping[str, Any]) -> LookupSource:
    """Build a source from what `to_json` gave."""
    kind = fields.get("kind")
    if kind not in _readers:
        raise PlanError(
            f"the plan looks rows up in a source of kind {kind!r}, which cannot be built from its stored description; "
            f"known ones are "
            f"{sorted(_readers)}. Start the query from the program that made it.",
            code="UNKNOWN_LOOKUP_SOURCE",
            kind=kind,
        )
    return _readers[kind](fields)


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
