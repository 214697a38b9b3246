"""A delta as cells: one per entry and value, in order, with the net weight."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from zset_join.kernels.aggregate.cells import match_cells, sort_cells

Cells = list[list[tuple[int, int]]]


def cells_of(entries: int, rows: list[tuple[int, int, int]], valid: list[int] | None = None) -> tuple[Cells, list[int]]:
    """Return the cells of every entry as `(value, net weight)`, and the cell of every row."""
    count = len(rows)
    entry_of, values, weights = (np.array([row[at] for row in rows], np.int64) for at in range(3))
    flags = np.ones(count, np.uint8) if valid is None else np.array(valid, np.uint8)
    bounds, cell_of, keys, nets = np.empty(entries + 2, np.int64), *(np.empty(count, np.int64) for _ in range(3))
    order, spare = np.empty(count, np.int64), np.empty(count, np.int64)
    sort_cells(
        entries, count, entry_of, weights, flags, int(values.ctypes.data), 1, 0, bounds, order, spare, cell_of,
        int(keys.ctypes.data), nets,
    )  # fmt: skip
    pairs = list(zip(keys.tolist(), nets.tolist(), strict=True))
    return [pairs[bounds[entry] : bounds[entry + 1]] for entry in range(entries)], cell_of.tolist()


def test_rows_of_one_value_make_one_cell() -> None:
    cells, cell_of = cells_of(2, [(0, 5, 1), (1, 5, 1), (0, 3, 2), (0, 5, -1)])

    assert cells == [[(3, 2), (5, 0)], [(5, 1)]]
    assert cell_of == [1, 2, 0, 1]


def test_nulls_and_rows_that_weigh_nothing_belong_to_no_cell() -> None:
    cells, cell_of = cells_of(1, [(0, 5, 1), (0, 6, 1), (0, 7, 0)], valid=[1, 0, 1])

    assert (cells, cell_of) == ([[(5, 1)]], [0, -1, -1])


def test_an_entry_without_values_has_no_cells() -> None:
    assert cells_of(3, [(2, 5, 1)])[0] == [[], [], [(5, 1)]]


@pytest.mark.parametrize("count", [12, 13, 24, 25, 100, 1000])
def test_long_runs_are_sorted(count: int) -> None:
    random = Random(count)
    rows = [(random.randrange(2), random.randrange(-count, count), 1) for _ in range(count)]

    cells, _ = cells_of(2, rows)

    expected = [sorted({value for entry, value, _ in rows if entry == side}) for side in range(2)]
    assert [[value for value, _ in entry] for entry in cells] == expected
    assert sum(weight for entry in cells for _, weight in entry) == count


def test_a_cell_of_an_empty_multiset_that_takes_something_is_below_nothing() -> None:
    lines, before = np.zeros((1, 4), np.int64), np.empty(1, np.int64)
    bounds, key, weights = np.array([0, 1], np.int64), np.array([5], np.int64), np.array([-1], np.int64)

    below = match_cells(0, 1, 4, 1, int(lines.ctypes.data), bounds, int(key.ctypes.data), weights, before, 1, 0)

    assert (below, before.tolist()) == (True, [0])


def test_matching_brings_the_counts_up_to_date() -> None:
    lines, before = np.zeros((1, 4), np.int64), np.empty(2, np.int64)
    bounds, key, weights = np.array([0, 2], np.int64), np.array([5, 6], np.int64), np.array([3, 1], np.int64)

    below = match_cells(0, 1, 4, 1, int(lines.ctypes.data), bounds, int(key.ctypes.data), weights, before, 1, 0)

    assert (below, lines.tolist()) == (False, [[0, 0, 2, 4]])
