"""Columns whose values a stage compares or orders, with the purpose of each.

A runner may refuse values it would compare differently: Spark refuses strings that have a collation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zset_join.core.relation import Relation
from zset_join.expressions import references

__all__ = ["Comparison", "compared_in_condition"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Name columns that a stage compares."""

    relation: Relation
    columns: Sequence[str]
    use: str


def compared_in_condition(left: Relation, right: Relation, condition: Any) -> tuple[Comparison, ...]:
    """Return the columns that a condition over two rows reads; None reads nothing."""
    if condition is None:
        return ()
    read = references(condition)
    return tuple(
        Comparison(relation=relation, columns=tuple(columns), use="part of a condition")
        for relation, columns in zip((left, right), read, strict=True)
    )
