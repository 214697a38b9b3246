"""Rules of an operator for the rows of a side; split from `side` for length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SideRules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRules:
    """Rules for keeping the rows of a side."""

    keeps_unmatchable: bool = True
    has_degree: bool = False
    tombstone_retention_us: int = 0
    compared: Sequence[str] | None = None
    arranges: bool = True
    is_hybrid: bool = False
