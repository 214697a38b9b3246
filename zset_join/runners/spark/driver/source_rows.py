"""Rows of one source in an epoch: readable and unreadable ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zset_join.zset import ZSet

__all__ = ["SourceRows"]


@dataclass(frozen=True)
class SourceRows:
    """Rows of one source in an epoch.

    Args:
        delta: the rows that could be read.
        rejected: the others.
        raw: per rejected row its code, or "code:text" where there was a text.
    """

    delta: ZSet
    rejected: ZSet
    raw: Sequence[str]
