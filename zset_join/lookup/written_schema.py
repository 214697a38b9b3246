"""A schema as text, in Arrow's own bytes, so that every type comes back exactly."""

from __future__ import annotations

import base64

import pyarrow as pa

__all__ = ["read_schema", "write_schema"]


def write_schema(schema: pa.Schema) -> str:
    """Return columns as text."""
    return base64.b64encode(schema.serialize()).decode()


def read_schema(text: str) -> pa.Schema:
    """Build from what `write_schema` gave.

    >>> read_schema(write_schema(pa.schema({"id": pa.int64()}))).names
    ['id']
    """
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
