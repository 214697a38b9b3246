"""Which column types state can keep, and how.

A type is kept in the record of its row, in bytes beside it, or not at all: then it is refused by the name of its column.
Sequence columns must have an order that is not a question of taste: numbers, dates, timestamps, booleans, structs of these.

Rows that an input drops because NULL in their join key can match nothing are counted: of rows that are only added, and of a
changelog, the weight of those that live; of upserts, whose keys are not kept, how many have come so far. The count is in the
metadata of a table of a snapshot; tables that are brought together add it up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import KeyTypeError, PlanError
from zset_join.core.key_types import is_nested, refuse_unsupported, storage_type
from zset_join.core.relation import Relation

__all__ = ["MOST_NULL_KEYS", "NULL_KEYS", "KeptAs", "NullKeys", "check_kept", "count_sequence_words", "kept_as"]

KeptAs = Literal["empty", "bit", "float16", "float32", "float64", "variable", "nested", "fixed"]
_SLOT_BYTES = 16
MOST_NULL_KEYS = (1 << 63) - 1
_NARROW_DECIMAL_DIGITS = 18
_WIDE_DECIMAL_DIGITS = 38


def check_kept(relation: Relation) -> None:
    """Refuse a relation whose rows state cannot keep."""
    types = [relation.schema.field(name).type for name in relation.sequence_by]
    count_sequence_words(types, relation=relation.name, columns=relation.sequence_by)
    for field in relation.schema:
        kept_as(storage_type(field.type), column=field.name)


def kept_as(kind: pa.DataType, *, column: str) -> tuple[KeptAs, int]:
    """Return how a storage type is kept, and how many bytes of it lie inside the record."""
    if pt.is_null(kind):
        return "empty", 0
    if pt.is_boolean(kind):
        return "bit", 1
    if pt.is_float16(kind):
        return "float16", 2
    if pt.is_float32(kind):
        return "float32", 4
    if pt.is_float64(kind):
        return "float64", 8
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind):
        return "variable", _SLOT_BYTES
    if (pt.is_primitive(kind) or pt.is_fixed_size_binary(kind) or pt.is_decimal(kind)) and kind.byte_width:
        return "fixed", kind.byte_width
    if _is_storable_nested(kind):
        return "nested", _SLOT_BYTES
    raise PlanError(
        f'column "{column}" has type {kind}, which cannot be kept in state; cast it to another type first.',
        code="UNSUPPORTED_TYPE",
        column=column,
        type=str(kind),
    )


def _is_storable_nested(kind: pa.DataType) -> bool:
    if not is_nested(kind):
        return False
    try:
        refuse_unsupported(kind)
    except KeyTypeError:
        return False  # The caller refuses it by the name of its column.
    return True


def count_sequence_words(types: Sequence[pa.DataType], *, relation: str, columns: Sequence[str]) -> int:
    """Return how many words order these columns."""
    return sum(_words_of(kind, relation, column) for kind, column in zip(types, columns, strict=True))


def _words_of(kind: pa.DataType, relation: str, column: str) -> int:
    if pt.is_struct(kind):
        return sum(_words_of(kind.field(at).type, relation, f"{column}.{kind.field(at).name}") for at in range(kind.num_fields))
    if pt.is_decimal(kind) and _NARROW_DECIMAL_DIGITS < kind.precision <= _WIDE_DECIMAL_DIGITS:
        return 2
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_temporal(kind) or pt.is_boolean(kind):
        return 1
    if pt.is_decimal(kind) and kind.precision <= _NARROW_DECIMAL_DIGITS:
        return 1
    raise KeyTypeError(
        f'relation "{relation}": sequence column "{column}" has type {kind}; a sequence is a number (of up to 38 '
        "digits), a date, a timestamp or a struct of these. Cast it to one of them.",
        code="SEQUENCE_TYPE",
        relation=relation,
        column=column,
        type=str(kind),
    )


NULL_KEYS = b"zset_join.null_keys"


@dataclass(frozen=True)
class NullKeys:
    """Rows that were dropped for NULL in their key."""

    rows: int = 0
    is_counted: bool = True  # no others were dropped

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> NullKeys:
        rows, uncounted = json.loads((metadata or {}).get(NULL_KEYS, b"[0, 0]"))
        return cls(rows, not uncounted)

    @classmethod
    def summed(cls, metadata: Sequence[Mapping[bytes, bytes]]) -> NullKeys:
        return sum(map(cls.of, metadata), cls())

    def __add__(self, other: NullKeys) -> NullKeys:
        rows = self.rows + other.rows
        return NullKeys(min(rows, MOST_NULL_KEYS), self.is_counted and other.is_counted and rows < MOST_NULL_KEYS)

    @property
    def is_none(self) -> bool:
        """Return whether no row was dropped."""
        return self.is_counted and self.rows == 0

    def metadata(self) -> dict[bytes, bytes]:
        """Return it for a table of a snapshot, so that it can be added up."""
        return {NULL_KEYS: json.dumps([self.rows, int(not self.is_counted)]).encode()}
