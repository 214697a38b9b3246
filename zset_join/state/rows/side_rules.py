"""Rules of an operator for the rows of a side; split from `side` for length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SideRules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRules:
    keeps_unmatchable: bool = True  # rows whose key can never match matter (a preserved side)
    has_degree: bool = False  # rows count their matches (a preserved side with a residual predicate)
    tombstone_retention_us: int = 0
    compared: Sequence[str] | None = None  # columns in which an upsert must differ to be a change; None: all
    arranges: bool = True  # rows are looked up by join key too, not by identity only
    is_hybrid: bool = False  # some rows may lie on disk; the files are useless alone
