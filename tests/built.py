"""Operators from flat words, for tests that draw or share them: those of `OperatorOptions` beside the operator's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from zset_join.core.options import BufferLimit, HotBudget
from zset_join.shapes.operator_options import OperatorOptions

__all__ = ["built", "options_of"]

T = TypeVar("T")
_LIMIT = {"join_max_buffered_bytes": "max_bytes", "join_buffer_policy": "policy"}
_BUDGET = tuple(field.name for field in fields(HotBudget))
_OWN = tuple(field.name for field in fields(OperatorOptions))


def options_of(**words: Any) -> OperatorOptions:
    """Return the options that these words give: fields of `OperatorOptions`, of its budget and of its limit."""
    budget = {name: words.pop(name) for name in _BUDGET if name in words}
    limit = {name: words.pop(word) for word, name in _LIMIT.items() if word in words}
    if budget:
        words["budget"] = HotBudget(**budget)
    if limit:
        words["buffer_limit"] = BufferLimit.of(**limit)
    return OperatorOptions(**words)


def built(kind: Callable[..., T], *arguments: Any, **words: Any) -> T:
    """Return an operator, its options among the words."""
    shared = {name: words.pop(name) for name in (*_OWN, *_BUDGET, *_LIMIT) if name in words}
    return kind(*arguments, options=options_of(**shared), **words)
