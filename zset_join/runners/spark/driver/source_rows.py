"""Rows of one source in an epoch: readable and unreadable ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zset_join.zset import ZSet

__all__ = ["SourceRows"]


@dataclass(frozen=True)
class SourceRows:
    delta: ZSet
    rejected: ZSet
    raw: Sequence[str]
