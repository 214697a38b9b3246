"""A shared table that loses some of its joins; the others keep their state.

    before: shared_table of a, b, c: right, left, left_1, left_2        after: shared_table of a, c: right, left, left_1

The law: the state of a join is the same whatever other joins look up in its table, so a part of a snapshot is the snapshot
of the joins that stay. Tables are called by the place of a join; columns of the table as its first join calls them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from zset_join.stages.stage import Stage

__all__ = ["part_of_tables", "places_of", "under_names"]

_Table = TypeVar("_Table")


def places_of(joins: Sequence[str], there: Sequence[str]) -> tuple[int, ...] | None:
    """Return the places of joins among those of a shared table, by their fingerprints; None where one is absent."""
    known = {text: place for place, text in enumerate(there)}
    return tuple(known[text] for text in joins) if set(joins) <= known.keys() else None


def part_of_tables(joins: Sequence[Stage], places: Sequence[int], tables: Mapping[str, _Table]) -> dict[str, _Table]:
    """Return the tables of a snapshot that some joins have, as they are called where no other join is present."""
    found = {"right": tables["right"]}
    for place, (join, before) in enumerate(zip(joins, places, strict=True)):
        found |= {_called(name, place): tables[_called(name, before)] for name in join.state_tables if name != "right"}
    return found


def under_names(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table whose columns are called as in a schema of the same types; it counts what it counted."""
    return pa.table(table.columns, schema=schema.with_metadata(table.schema.metadata))


def _called(name: str, place: int) -> str:
    return name if place == 0 else f"{name}_{place}"
