"""Sources as JSON and back: a registry, so that a stage can be read from a checkpoint without the program that made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zset_join.core.errors import PlanError
from zset_join.lookup.source import LookupSource

__all__ = ["read_source", "register_source"]

_readers: dict[str, Callable[[Mapping[str, Any]], LookupSource]] = {}


def register_source(kind: str, read: Callable[[Mapping[str, Any]], LookupSource]) -> None:
    """Let `read_source` build sources of a kind from their JSON."""
    _readers[kind] = read


def read_source(fields: Mapping[str, Any]) -> LookupSource:
    """Build a source from what `to_json` gave.

    Raises:
        PlanError: a kind that this version does not have, or that only the program can make.
    """
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
