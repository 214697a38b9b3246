"""Text of a plan without the names of relations, since two stages may differ in these names alone, or in columns."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from zset_join.stages.written import read_schema, write_schema

__all__ = ["text_of", "words_of"]


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
