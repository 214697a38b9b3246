"""Descriptions of queries as earlier versions wrote them inside Spark: a tree of joins and views instead of a plan's stages.

Such a checkpoint continues where its plan is that of the query, and is described again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["described_streams", "is_earlier", "is_reworded", "is_same_plan", "restated", "without_dropped"]

_EXPLAINED = "line "
"""What the names of lines of `explain` begin with."""
_UNUSED = frozenset({"primary_key", "event_time", "watermark_delay"})
"""Fields of the rows of groups and first rows that are not used."""


def is_earlier(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a stored description is of the earlier form."""
    return "outputs" in given and "outputs" not in stored


def is_reworded(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether two descriptions differ in lines of `explain` alone, which a version may word in another way."""
    plain, other = ({name: value for name, value in one.items() if not name.startswith(_EXPLAINED)} for one in (stored, given))
    return plain == other


def is_same_plan(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint's plan is that of a query; what the view is called does not matter."""
    if "plan" not in stored or _plain(stored["stages"]) != _plain(given["stages"]):
        return False
    known, wanted = ({**one["plan"], "keep_state": None} for one in (stored, given))  # what is kept shows in the feeds
    return bool(_plain(known) == _plain(wanted))


def without_dropped(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a written plan without the columns that it does not keep, which earlier versions listed."""
    # Some of these did not write `keep_state` down.
    if "dropped" not in plan:
        return plan
    return {"keep_state": "needed", **{name: value for name, value in plan.items() if name != "dropped"}}


def restated(stored: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an earlier description as far as baselines and functions go, stream by stream in the order of the query."""
    if not is_earlier(stored, given):
        return stored
    known = {one["name"]: one for one in described_streams(stored)}
    kept = {name: stored[name] for name in ("functions",) if name in stored}
    return {**kept, "inputs": [known.get(one["name"], {}) for one in given["inputs"]], "outputs": given["outputs"]}


def described_streams(described: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a description, in any form, about the streams of a query."""
    if isinstance(described, list):
        for one in described:
            yield from described_streams(one)
    elif isinstance(described, dict):
        if "name" in described and ("operation" in described or "join_key" in described) and "view" not in described:
            yield described
        for inner in described.values():
            yield from described_streams(inner)


def _plain(value: Any) -> Any:
    """Return what counts of a written plan."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    left_out = {"name"} if "outputs" in value else set()
    plain = {key: _plain(inner) for key, inner in value.items() if key not in left_out}
    if value.get("kind") in ("aggregate", "deduplicate") and isinstance(plain.get("source"), dict):
        plain["source"] = {key: inner for key, inner in plain["source"].items() if key not in _UNUSED}
    return plain
