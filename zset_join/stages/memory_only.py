"""Stages whose state has no cold part refuse a budget instead of ignoring it."""

from __future__ import annotations

from zset_join.core.errors import OptionError
from zset_join.core.options import HotBudget

__all__ = ["refuse_hybrid"]


def refuse_hybrid(budget: HotBudget | None, *, title: str, option: str) -> None:
    """Refuse a budget of hybrid state."""
    if budget is not None:
        raise OptionError(
            f'{option}="hybrid" is not supported for "{title}": what it remembers is in memory, or in mapped files. '
            f'Leave it at "memory", and bound the state by a watermark, a state_ttl or fewer rows.',
            code="HYBRID_NOT_OFFERED",
            option=option,
            stage=title,
        )
