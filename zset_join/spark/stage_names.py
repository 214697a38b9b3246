"""What the stages of a query are called in notes, commit records and directories.

A stage is what has state, or sends rows on: a join, an aggregate, the route of a side. Joins and aggregates are numbered in the
order of an epoch, from 0; the first join is `join`, and whatever belongs to a stage carries its number.

| stage | is |
|---|---|
| `join`, `join-2` | a join |
| `route-left`, `route-right-2` | the route of a side of a join |
| `pass-0`, `pass-1-2` | a side that passes through the route stage of the other one |
| `aggregate-1` | an aggregate |
| `rows-0` | the expressions behind a stage |
"""

from __future__ import annotations

__all__ = ["JOIN_STAGE", "aggregate_stage", "join_stage", "pass_stage", "route_stage", "rows_stage", "stage_order"]

JOIN_STAGE = "join"
_SIDES = ("left", "right")
_RANKS = {"route": 0, "pass": 0, "join": 1, "aggregate": 1, "rows": 2}


def join_stage(number: int) -> str:
    """Return the stage of a join.

    >>> join_stage(0), join_stage(2)
    ('join', 'join-2')
    """
    return f"{JOIN_STAGE}-{number}" if number else JOIN_STAGE


def route_stage(side: int, number: int = 0) -> str:
    """Return the stage of the route before a side of a join.

    >>> route_stage(0), route_stage(1, 2)
    ('route-left', 'route-right-2')
    """
    return f"route-{_SIDES[side]}-{number}" if number else f"route-{_SIDES[side]}"


def pass_stage(side: int, number: int = 0) -> str:
    """Return what the notes of a side are called that only passes through the route stage of a join."""
    return f"pass-{side}-{number}" if number else f"pass-{side}"


def aggregate_stage(number: int) -> str:
    """Return the stage of an aggregate."""
    return f"aggregate-{number}"


def rows_stage(number: int) -> str:
    """Return what the notes of the function behind the expressions of a stage are called."""
    return f"rows-{number}"


def stage_order(stage: str) -> int:
    """Return how far from the sources a stage is, as its notes name it.

    >>> sorted(["rows-1", "join-2", "join", "aggregate-1", "route-left", "rows-0", "route-right-2"], key=stage_order)
    ['route-left', 'join', 'rows-0', 'aggregate-1', 'rows-1', 'route-right-2', 'join-2']
    """
    kind, *rest = stage.split("-")
    number = rest[1:] if kind in ("route", "pass") else rest
    return 3 * (int(number[0]) if number else 0) + _RANKS[kind]
