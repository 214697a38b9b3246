"""What the page may do besides reading, where `--allow-actions` permits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Action"]


@dataclass(frozen=True)
class Action:
    title: str
    run: Callable[[], str]
