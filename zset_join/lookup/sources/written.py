"""Sources as JSON and back: a registry, so that a stage can be read from a checkpoint without the program that made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Self

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.lookup.secret import Secret
from zset_join.lookup.source import LookupSource
from zset_join.lookup.written_schema import read_schema, write_schema

__all__ = ["WrittenSource", "read_source", "register_source"]

_readers: dict[str, Callable[[Mapping[str, Any]], LookupSource]] = {}


class WrittenSource:
    """Base of sources as dataclasses: every field is written under its name, secrets only by their origin.

    Attributes:
        kind: the name its description is stored under.
        secrets: the fields that are secrets, or None.
    """

    kind: ClassVar[str]
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
