"""Differences between two descriptions of a query, for the message that rejects a start."""

from __future__ import annotations

from typing import Any

__all__ = ["differences"]


def differences(stored: Any, given: Any, path: str = "") -> list[str]:
    """Return a line per place where two descriptions differ.

    Args:
        stored: of the checkpoint, JSON-ready.
        given: of the query that starts.
        path: where both are.

    >>> differences({"how": "inner", "keys": [1]}, {"how": "left", "keys": [1]})
    ["how was 'inner' and is 'left'"]
    """
    if isinstance(stored, dict) and isinstance(given, dict):
        names = sorted(stored.keys() | given.keys())
        return [line for name in names for line in differences(stored.get(name), given.get(name), f"{path}.{name}")]
    if isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given) and _holds_parts(stored):
        pairs = enumerate(zip(stored, given, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{path}[{at}]")]
    if stored == given:
        return []
    return [f"{path.lstrip('.')} was {stored!r} and is {given!r}"]


def _holds_parts(listed: list[Any]) -> bool:
    """Return whether the items of a list are described one by one."""
    return any(isinstance(one, dict | list) for one in listed)
