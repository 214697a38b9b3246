"""Turning any row into a change that is legal at that point of a history.

A history is made row by row against a model of what is live: a retraction takes a row that is present, a change of a row with a
primary key retracts the old one first. So every prefix of a history is legal, and so is every way to cut it into epochs.

Edge cases are the point: duplicates, key moves, deletes of unknown keys and without payload, several copies, weight 0,
retractions whose floats have other bits than the row they retract.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from zset_join.core.relation import Relation
from zset_join.testing.reference import row_identity
from zset_join.testing.values import other_bits

__all__ = ["Line", "LiveRows", "Values"]

Values = tuple[Any, ...]
Line = tuple[Values, int]
_Identity = tuple[Hashable, ...]


class LiveRows:
    """Track the live rows of one input while a history is made."""

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._names = relation.schema.names
        self._key_positions = relation.field_indices(relation.primary_key)
        self._live: dict[_Identity, list[Any]] = {}  # row identity -> [row, weight], changelog mode only
        self._by_primary_key: dict[_Identity, list[Any]] = {}  # the same entries, where there is a primary key
        self._previous: Values | None = None

    def change(self, row: Values, *, operation: int, pick: int = 0, copies: int = 0, bits: int = 0) -> list[Line]:
        """Return the change or changes that a row and a few small numbers represent."""
        if self._relation.mode == "append":
            repeated = self._previous if operation >= 12 and self._previous is not None else row
            self._previous = repeated
            return [(repeated, 1)]
        if self._relation.mode == "upsert":
            return [self._upsert(row, operation)]
        return self._changelog(row, operation, pick, copies, bits)

    def _upsert(self, row: Values, operation: int) -> Line:
        if operation < 12:
            return row, 1
        if operation % 2:  # the usual delete: primary key and sequence, nothing else
            kept = {*self._relation.primary_key, *self._relation.sequence_by}
            row = tuple(value if name in kept else None for name, value in zip(self._names, row, strict=True))
        return row, -1

    def _changelog(self, row: Values, operation: int, pick: int, copies: int, bits: int) -> list[Line]:
        if operation == 15:
            return [(row, 0)]
        if operation >= 9 and self._live:
            return [self._retract(list(self._live.values())[pick % len(self._live)], copies, bits)]
        old = self._by_primary_key.get(self._primary_key(row))
        changes = [] if old is None else [self._retract(old, 0, bits)]
        weight = 1 if self._key_positions or operation < 7 else 1 + operation % 3
        entry = self._live.setdefault(row_identity(row), [row, 0])
        entry[1] += weight
        if self._key_positions:
            self._by_primary_key[self._primary_key(row)] = entry
        return [*changes, (row, weight)]

    def _primary_key(self, row: Values) -> _Identity:
        return row_identity(row[position] for position in self._key_positions)

    def _retract(self, entry: list[Any], copies: int, bits: int) -> Line:
        weight = 1 + copies % entry[1]
        row = tuple(other_bits(value) for value in entry[0]) if bits % 2 else entry[0]
        entry[1] -= weight
        if not entry[1]:
            del self._live[row_identity(entry[0])]
            self._by_primary_key.pop(self._primary_key(entry[0]), None)
        return row, -weight
