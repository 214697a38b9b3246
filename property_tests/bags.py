"""Rows of a Z-set with their weights, for comparisons."""

from __future__ import annotations

from collections import Counter
from typing import Any

from zset_join.zset import ZSet

__all__ = ["bag_of", "text_bag_of"]


def bag_of(rows: ZSet) -> Counter[Any]:
    """Return rows with the sum of their weights, without zeros."""
    return _bag(rows.to_pylist())


def text_bag_of(rows: ZSet) -> Counter[Any]:
    """Return rows by their text, in which NaN equals itself, with the sum of their weights, without zeros."""
    return _bag([(repr(row), weight) for row, weight in rows.to_pylist()])


def _bag(weighted: list[tuple[Any, int]]) -> Counter[Any]:
    bag: Counter[Any] = Counter()
    for row, weight in weighted:
        bag[row] += weight
    return Counter({row: weight for row, weight in bag.items() if weight})
