"""A delta as rows that go and rows that arrive, each with its copies, beside the numbers of the rows that changed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.epochs import delete, delta_of, insert
from tests.state.side_anatomy import absorb, make_side
from zset_join.state.rows.side_changes import NetChanges, SideChanges


def counted(rows: pa.RecordBatch, copies: Any) -> list[tuple[Any, int]]:
    """Return the first column of rows with the copies of each, ascending."""
    return sorted(zip(rows.column(0).to_pylist(), copies.tolist(), strict=True))


def resolved(mode: Any, before: Any, then: Any) -> tuple[SideChanges, NetChanges]:
    side = make_side(mode)
    absorb(side, before)
    changes = SideChanges(side, stores=True)
    return changes, changes.resolve(delta_of(side.relation, then))


def test_copies_are_listed_beside_the_rows_that_gain_and_lose_them() -> None:
    before = insert((1, "a", "x"), (3, "a", "x")) + insert((2, "a", "x"), copies=3)
    then = insert((1, "a", "x"), (4, "a", "x")) + insert((5, "a", "x"), copies=2) + delete((2, "a", "x"), (3, "a", "x"))

    changes, net = resolved("changelog", before, then)

    assert counted(net.new, net.new_copies) == [(1, 1), (4, 1), (5, 2)]
    assert counted(net.lost, net.lost_copies) == [(2, 1), (3, 1)]
    assert sorted(zip(net.touched.tolist(), net.touched_copies.tolist(), net.touched_gains.tolist(), strict=True)) == [
        (1, 2, True),
        (2, 0, False),
        (3, 2, False),
    ]
    assert counted(changes.rows_of(net.after_refs), net.after_copies) == [(1, 2), (2, 2), (4, 1), (5, 2)]
