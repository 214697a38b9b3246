"""Stages, plans and what they are made of as JSON and back, by the fields of their classes.

The law: what is read is what was written. A schema is kept as Arrow's own bytes in base64, so every type comes back exactly;
an expression as `expressions.written` has it. Fields that do not count in a comparison are not written.
Stages that differ in names of relations alone, or in columns, have the same `text_of` without these.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.written import read_expression, write_expression

__all__ = [
    "listed_texts",
    "own_text",
    "read_fields",
    "read_relation",
    "read_schema",
    "text_of",
    "words_of",
    "write_fields",
    "write_relation",
    "write_schema",
]

_T = TypeVar("_T")


def write_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass as something JSON-ready: its fields by name."""
    return {one.name: _written(getattr(value, one.name)) for one in fields(value) if one.compare}


def read_fields(kind: type[_T], written: Any) -> _T:
    """Build a dataclass from what `write_fields` gave; other words in it are left out.

    >>> orders = Relation(name="orders", schema=pa.schema({"id": pa.int64()}), primary_key=("id",), mode="upsert")
    >>> read_fields(Relation, write_fields(orders)) == orders
    True
    """
    try:
        return msgspec.convert(written, kind, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise PlanError(
            f"a {kind.__name__} of a plan cannot be read: {error}. Use the version of the library that wrote it.",
            code="PLAN_FORMAT",
            kind=kind.__name__,
        ) from error


def _written(value: Any) -> Any:
    if isinstance(value, Expression):
        return write_expression(value)
    if isinstance(value, pa.Schema):
        return write_schema(value)
    if isinstance(value, tuple | list):
        return [_written(one) for one in value]
    return write_fields(value) if is_dataclass(value) else value


def _read(kind: type, written: Any) -> Any:
    return read_schema(written) if kind is pa.Schema else read_expression(written)


def write_schema(schema: pa.Schema) -> str:
    """Return columns as text: Arrow's own bytes, so that every type comes back exactly."""
    return base64.b64encode(schema.serialize()).decode()


def read_schema(text: str) -> pa.Schema:
    """Build from what `write_schema` gave.

    >>> read_schema(write_schema(pa.schema({"id": pa.int64()}))).names
    ['id']
    """
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def write_relation(relation: Relation) -> dict[str, Any]:
    """Return a relation as something JSON-ready."""
    return write_fields(relation)


def read_relation(written: Mapping[str, Any]) -> Relation:
    """Build from what `write_relation` gave."""
    return read_fields(Relation, written)


def text_of(written: Any, *, names: bool = False, without: Collection[str] = ()) -> str:
    """Return the result of `to_json` as a canonical text."""
    return json.dumps(written if names and not without else _unnamed(written, names, without), sort_keys=True, default=str)


def own_text(value: Any, written: str = "to_json") -> str:
    """Return the `text_of` a description that a frozen value has of itself: its method or property `written`; kept with it."""
    kept, key = vars(value), f"text of {written}"
    if key not in kept:
        given = getattr(value, written)
        kept[key] = text_of(write_relation(given) if written == "output" else given() if callable(given) else given)
    return str(kept[key])


def listed_texts(texts: Iterable[str]) -> str:
    """Return the `text_of` a list, of those of its members.

    >>> listed_texts([text_of("a"), text_of([1])]) == text_of(["a", [1]])
    True
    """
    return f"[{', '.join(texts)}]"


def words_of(written: Any) -> set[str]:
    """Return all texts in what `to_json` gave, but for the columns and the names of relations.

    >>> sorted(words_of({"kind": "aggregate", "group_by": ["city"]}))
    ['aggregate', 'city']
    """
    if isinstance(written, str):
        return {written}
    if isinstance(written, dict):
        skipped = {"name", "schema"} if _is_relation(written) else set()
        return {word for key, inner in written.items() if key not in skipped for word in words_of(inner)}
    return {word for one in written for word in words_of(one)} if isinstance(written, list | tuple) else set()


def _unnamed(written: Any, names: bool, without: Collection[str]) -> Any:
    """Return a description without the names of relations, and without some of their columns."""
    if isinstance(written, list | tuple):
        return [_unnamed(one, names, without) for one in written]
    if not isinstance(written, dict):
        return written
    is_relation = _is_relation(written)
    kept = {key: _unnamed(one, names, without) for key, one in written.items() if names or not (is_relation and key == "name")}
    if is_relation and without:
        schema = read_schema(written["schema"])
        kept["schema"] = write_schema(pa.schema([field for field in schema if field.name not in without]))
    return kept


def _is_relation(written: dict[str, Any]) -> bool:
    return {"name", "schema", "join_key"} <= written.keys()
