"""The latest rows of a table that several joins may look up in: one copy, found by its join key.

The law: `resolve` returns what a delta changes, once per delta for all callers, and changes nothing; `absorb` does it.

Remembers every live row with a complete key, as a `SideState` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.rows.keyed_rows import KeyFinder
from zset_join.state.rows.side import SideRules, SideState
from zset_join.state.rows.side_changes import NetChanges, SideChanges
from zset_join.zset import ZSet

__all__ = ["LatestTable"]


class LatestTable:
    """Own the rows of the right side of joins by processing time."""

    def __init__(
        self,
        relation: Relation,
        key_types: Sequence[pa.DataType],
        *,
        null_safe: Sequence[bool],
        tombstone_retention_us: int,
        tables: HashTables,
    ) -> None:
        self.side = SideState(
            replace(relation, event_time=None, watermark_delay=None),
            key_types=key_types,
            null_safe=null_safe,
            tables=tables,
            name="right",
            rules=SideRules(keeps_unmatchable=False, tombstone_retention_us=tombstone_retention_us),
        )
        self.changes = SideChanges(self.side, stores=True)
        self.finder = KeyFinder(self.side, key_types, null_safe)
        self._delta: ZSet | None = None
        self._resolved: NetChanges | None = None

    def resolve(self, delta: ZSet) -> NetChanges | None:
        """Return the changes of a delta; None where it has no rows. Cost: its rows, for the first caller."""
        if self._delta is not delta:
            self._resolved = self.changes.resolve(delta) if len(delta) else None
            self._delta = delta
        return self._resolved

    def absorb(self, changes: NetChanges | None, processing_time_us: int | None) -> None:
        self._delta = self._resolved = None
        self.changes.absorb(changes, processing_time_us)

    def forget_epoch(self) -> None:
        self._delta = self._resolved = None
