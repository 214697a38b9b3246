"""Names of the stages of a query in receipts, commit records and directories.

A stage is what has state: a join, a route, an aggregate. They are numbered in the order of an epoch, from 0, routes omitted;
the first stage is without a number where it is a join, and a route has that of the stage it leads to.

| name | is |
|---|---|
| `join`, `join-2` | a join |
| `route-left`, `route-right-2` | the route before an input of a stage |
| `aggregate-1`, `deduplicate-0` | another stage, called by its kind |
"""

from __future__ import annotations

__all__ = ["stage_name", "stage_order"]

JOIN_STAGE = "join"
_SIDES = ("left", "right")


def stage_name(kind: str, number: int, *, side: int = 0) -> str:
    """Return the name of a stage.

    >>> stage_name("join", 0), stage_name("join", 2), stage_name("route", 0, side=1), stage_name("aggregate", 1)
    ('join', 'join-2', 'route-right', 'aggregate-1')
    """
    if kind == "route":
        before = f"route-{_SIDES[side] if side < len(_SIDES) else side}"
        return f"{before}-{number}" if number else before
    return kind if kind == JOIN_STAGE and not number else f"{kind}-{number}"


def stage_order(stage: str) -> int:
    """Return how far from the sources a stage is, as its receipts name it.

    >>> sorted(["join-2", "join", "aggregate-1", "route-left", "route-right-2"], key=stage_order)
    ['route-left', 'join', 'aggregate-1', 'route-right-2', 'join-2']
    """
    kind, _, number = stage.rpartition("-")
    if not number.isdigit():
        kind, number = stage, "0"
    return 2 * int(number) + (kind.partition("-")[0] != "route")
