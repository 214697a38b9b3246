"""Schemas and relations as JSON and back, for stages and plans that are written down.

The law: what is read is what was written. A schema is kept as Arrow's own bytes in base64, so every type comes back exactly.
Stages that differ in names of relations alone, or in columns, have the same `text_of` without these.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from zset_join.core.relation import Relation

__all__ = ["read_relation", "read_schema", "text_of", "words_of", "write_relation", "write_schema"]


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
    return {
        "name": relation.name,
        "columns": write_schema(relation.schema),
        "join_key": list(relation.join_key),
        "primary_key": list(relation.primary_key),
        "sequence_by": list(relation.sequence_by),
        "mode": relation.mode,
        "event_time": relation.event_time,
        "watermark_delay": relation.watermark_delay,
    }


def read_relation(written: Mapping[str, Any]) -> Relation:
    """Build from what `write_relation` gave.

    >>> orders = Relation(name="orders", schema=pa.schema({"id": pa.int64()}), primary_key=("id",), mode="upsert")
    >>> read_relation(write_relation(orders)) == orders
    True
    """
    return Relation(
        name=written["name"],
        schema=read_schema(written["columns"]),
        join_key=tuple(written["join_key"]),
        primary_key=tuple(written["primary_key"]),
        sequence_by=tuple(written["sequence_by"]),
        mode=written["mode"],
        event_time=written["event_time"],
        watermark_delay=written["watermark_delay"],
    )


def text_of(written: Any, *, names: bool = False, without: Collection[str] = ()) -> str:
    """Return the result of `to_json` as a canonical text."""
    return json.dumps(written if names and not without else _unnamed(written, names, without), sort_keys=True, default=str)


def words_of(written: Any) -> set[str]:
    """Return all texts in what `to_json` gave, but for the columns and the names of relations.

    >>> sorted(words_of({"kind": "aggregate", "group_by": ["city"]}))
    ['aggregate', 'city']
    """
    if isinstance(written, str):
        return {written}
    if isinstance(written, dict):
        skipped = {"name", "columns"} if _is_relation(written) else set()
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
        schema = read_schema(written["columns"])
        kept["columns"] = write_schema(pa.schema([field for field in schema if field.name not in without]))
    return kept


def _is_relation(written: dict[str, Any]) -> bool:
    return {"name", "columns", "join_key"} <= written.keys()
