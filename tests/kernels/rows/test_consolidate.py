"""Summing the weights of equal rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from zset_join.kernels.rows.consolidate import sum_weights
from zset_join.zset.row_layout import RowLayout

MOST = 2**63 - 1


def summed(values: list[str | None], weights: list[int]) -> tuple[list[int], list[int], bool]:
    """Return first positions, sums and whether one left int64."""
    rows = pa.RecordBatch.from_pydict({"x": pa.array(values, pa.string())})
    layout = RowLayout(rows.schema)
    target = np.empty(max(1, len(values)) * layout.stride, np.uint8)
    records = layout.encode(rows, [], target, int(target.ctypes.data))
    columns = layout.visible_columns()
    bits = max(4, (2 * len(values)).bit_length())
    table = np.zeros(1 << bits, np.int64)
    first, sums, lows = (np.empty(len(values), np.int64) for _ in range(3))
    entries, overflow = sum_weights(
        records.address, layout.stride, len(values), columns.address, 0, np.array(weights, np.int64), table, bits,
        first, sums, lows,
    )  # fmt: skip
    return first[:entries].tolist(), sums[:entries].tolist(), bool(overflow)


def test_each_distinct_row_is_at_its_first_place() -> None:
    assert summed(["b", "a", None, "b", None], [1, 2, 3, 4, -3]) == ([0, 1, 2], [5, 2, 0], False)


def test_nothing_sums_to_nothing() -> None:
    assert summed([], []) == ([], [], False)


@pytest.mark.parametrize(
    ("weights", "total", "overflow"),
    [
        ([MOST, 0], MOST, False),
        ([-MOST - 1, 0], -MOST - 1, False),
        ([MOST, 1, -1], MOST, False),
        ([MOST, MOST, -MOST, -MOST, 7], 7, False),
        ([-MOST - 1, MOST, 1], 0, False),
        ([-1, -1, 2**32, -(2**32)], -2, False),
        ([2**31, 2**31, 2**31], 3 * 2**31, False),
        ([MOST, 1], None, True),
        ([-MOST, -2], None, True),
        ([MOST, MOST, MOST], None, True),
    ],
)
def test_only_the_final_sum_must_fit(weights: list[int], total: int | None, overflow: bool) -> None:
    _, sums, overflowed = summed(["x"] * len(weights), weights)

    assert overflowed is overflow
    assert overflow or sums == [total]


def test_an_overflow_of_one_row_is_reported_whatever_the_others_do() -> None:
    assert summed(["a", "b", "b", "c"], [1, MOST, 1, -1])[2] is True
