"""Which rows the groups take: insertions first, retractions in order, all or nothing per row."""

from __future__ import annotations

import numpy as np

from zset_join.kernels.aggregate.groups import add_rows, resolve_rows
from zset_join.kernels.rows.changes import ABSENT_ROW, OK, RETRACTION_IN_APPEND, WEIGHT_OVERFLOW

MOST = 2**63 - 1


def resolved(weights: list[int], *constraints: tuple[list[int], list[int]], status: list[int] | None = None) -> list[int]:
    """Return the status of every row, given the cell of each and the copies of the cells."""
    arrays = [tuple(np.array(part, np.int64) for part in pair) for pair in constraints]
    places = np.array([[int(part.ctypes.data) for part in pair] for pair in arrays], np.int64)
    made = np.array(status or [OK] * len(weights), np.int8)
    resolve_rows(len(weights), np.array(weights), made, len(arrays), int(places.ctypes.data))
    return made.tolist()


def test_a_retraction_takes_what_is_there_in_order_of_arrival() -> None:
    assert resolved([-1, -1, -1], ([0, 0, 0], [2])) == [OK, OK, ABSENT_ROW]


def test_an_insertion_of_the_same_epoch_counts_first() -> None:
    assert resolved([-1, 1], ([0, 0], [0])) == [OK, OK]


def test_a_row_is_taken_by_all_its_cells_or_by_none() -> None:
    rows, values = ([0, 0], [2]), ([0, 1], [0, 1])

    assert resolved([-1, -1], rows, values) == [ABSENT_ROW, OK]


def test_a_row_without_a_cell_is_not_looked_up() -> None:
    assert resolved([-1], ([0], [1]), ([-1], [])) == [OK]


def test_what_is_refused_takes_nothing() -> None:
    assert resolved([-3, -2], ([0, 0], [2])) == [ABSENT_ROW, OK]


def test_a_sum_of_weights_past_int64_is_refused() -> None:
    assert resolved([1, 1], ([0, 0], [MOST - 1])) == [OK, WEIGHT_OVERFLOW]


def test_rows_that_are_bad_already_stay_out() -> None:
    assert resolved([-1, -1], ([0, 0], [1]), status=[RETRACTION_IN_APPEND, OK]) == [RETRACTION_IN_APPEND, OK]


def test_row_counts_are_added_and_suspicion_is_reported() -> None:
    after = np.zeros((2, 3), np.int64)

    calm = add_rows(2, np.array([0, 1]), np.array([2, 3]), 3, int(after.ctypes.data))
    below = add_rows(1, np.array([0]), np.array([-5]), 3, int(after.ctypes.data))

    assert (calm, below, after[:, 0].tolist()) == (False, True, [-3, 3])
