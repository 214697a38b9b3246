"""How many rows an input has dropped because NULL in their join key can match nothing.

The law: a total of 0 means that no live row of the input has such a key. Of rows that are only added, and of a changelog, it is
the weight of those that live; of upserts, whose keys are not kept, it is how many have come so far.

It is in the metadata of a table of a snapshot, and tables that are brought together add it up. A table of an earlier commit has
counts and not this one: then it is unknown, and stays so.

Known limit: a changelog that retracts a row with a NULL key which never came, and has one that did, adds up to 0. A join that
drops both cannot reject it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["IGNORED", "NULL_KEYS", "NullKeys"]

NULL_KEYS = b"zset_join.null_keys"
IGNORED = b"zset_join.ignored_rows"
"""Counts that every table with rows of an input has, those of earlier commits too."""


@dataclass(frozen=True)
class NullKeys:
    """Rows that were dropped for NULL in their key."""

    rows: int = 0
    is_counted: bool = True  # no others were dropped

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> NullKeys:
        """Return what a table of a snapshot has of it."""
        facts = metadata or {}
        rows, uncounted = json.loads(facts.get(NULL_KEYS, b"[0, 1]" if IGNORED in facts else b"[0, 0]"))
        return cls(rows, not uncounted)

    @classmethod
    def summed(cls, metadata: Sequence[Mapping[bytes, bytes]]) -> NullKeys:
        """Return what tables have of it together."""
        return sum(map(cls.of, metadata), cls())

    def __add__(self, other: NullKeys) -> NullKeys:
        return NullKeys(self.rows + other.rows, self.is_counted and other.is_counted)

    @property
    def is_none(self) -> bool:
        """Return whether no row was dropped."""
        return self.is_counted and self.rows == 0

    def metadata(self) -> dict[bytes, bytes]:
        """Return it for a table of a snapshot, so that it can be added up."""
        return {NULL_KEYS: json.dumps([self.rows, int(not self.is_counted)]).encode()}
