"""What plans hold as text, without what relations are called: two stages may differ in those names alone."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["text_of"]


def text_of(written: Any, *, names: bool = False) -> str:
    """Return what `to_json` gave as text that is equal for equal things.

    Args:
        written: JSON-ready.
        names: keep what relations are called.
    """
    return json.dumps(written if names else _unnamed(written), sort_keys=True, default=str)


def _unnamed(written: Any) -> Any:
    """Return what was written without what relations are called."""
    if isinstance(written, list | tuple):
        return [_unnamed(one) for one in written]
    if not isinstance(written, dict):
        return written
    is_relation = {"name", "columns", "join_key"} <= written.keys()
    return {key: _unnamed(inner) for key, inner in written.items() if not (is_relation and key == "name")}
