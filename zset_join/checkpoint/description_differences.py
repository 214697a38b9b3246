"""Differences between two descriptions of a query, and what to do about them: for the message that rejects a start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["differences", "is_reworded", "is_same_plan", "keep_state_of", "what_to_do"]

_EXPLAINED = "line "
"""What the names of lines of `explain` begin with."""


def differences(stored: Any, given: Any, path: str = "") -> list[str]:
    """Return a line per place where two descriptions differ.

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


def keep_state_of(plan: Mapping[str, Any] | None) -> str:
    """Return the option that a written plan was planned with; "all" where there is none."""
    return str(((plan or {}).get("plan") or {}).get("keep_state", "all"))


def what_to_do(stored_plan: Mapping[str, Any], given_plan: Mapping[str, Any] | None) -> str:
    """Return what to do about a query that is not that of its checkpoint."""
    had, wanted = keep_state_of(stored_plan), keep_state_of(given_plan)
    if had != wanted:
        kept = f'The checkpoint was last run or changed with keep_state="{had}" (inside Spark: keepState); give the same. '
    elif had == "needed":
        kept = (
            'Versions differ in the columns that keep_state="needed" stores: if the query is as it was, keep_state="all" '
            "(inside Spark: keepState) opens the checkpoint where nothing was left out of it; elsewhere only the version that "
            "began it does. "
        )
    else:
        kept = ""
    return (
        f"{kept}Start the query as it was; change it in place with zset-join evolve or "
        "Pipeline.evolve(), which keeps the state; or take a new checkpointLocation (in process, a new directory). A restart "
        "alone accepts nothing but new columns behind the others that only selections read."
    )


def is_reworded(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether two descriptions differ in lines of `explain` alone, which depend on `keep_state` too."""
    plain, other = ({name: value for name, value in one.items() if not name.startswith(_EXPLAINED)} for one in (stored, given))
    return plain == other


def is_same_plan(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint's plan is that of a query; what the view is called does not matter."""
    if "plan" not in stored or stored["stages"] != given["stages"]:
        return False
    known, wanted = ({**one["plan"], "keep_state": None} for one in (stored, given))  # what is kept shows in the feeds
    return bool(_without_view_name(known) == _without_view_name(wanted))


def _without_view_name(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_view_name(one) for one in value]
    if not isinstance(value, dict):
        return value
    left_out = {"name"} if "outputs" in value else set()
    return {key: _without_view_name(inner) for key, inner in value.items() if key not in left_out}


def _holds_parts(listed: list[Any]) -> bool:
    """Return whether the items of a list are described one by one."""
    return any(isinstance(one, dict | list) for one in listed)
