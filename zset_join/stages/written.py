"""Schemas and relations as JSON and back, for stages and plans that are written down.

The law: what is read is what was written. A schema is kept as Arrow's own bytes in base64, so every type comes back exactly.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from zset_join.core.relation import Relation

__all__ = ["read_relation", "read_schema", "write_relation", "write_schema"]


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
