"""Rules of an operator for the rows of a side; split from `side` for length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SideRules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRules:
    """Rules for keeping the rows of a side.

    Args:
        keeps_unmatchable: whether rows whose key can never match matter (a preserved side).
        has_degree: whether rows count their matches (a preserved side with a residual predicate).
        tombstone_retention_us: how long a deleted key remembers its sequence.
        compared: columns in which an upsert must differ from the live row to be a change; default all. The others are
            remembered as they come.
        arranges: whether rows are looked up by join key too; if not, by identity only.
        is_hybrid: some rows may lie elsewhere (`zset_join.state.join.hybrid_state`); its files are useless alone.
    """

    keeps_unmatchable: bool = True
    has_degree: bool = False
    tombstone_retention_us: int = 0
    compared: Sequence[str] | None = None
    arranges: bool = True
    is_hybrid: bool = False
