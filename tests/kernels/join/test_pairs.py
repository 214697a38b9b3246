"""The rows of an answer are the same however often the output fills up on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.epochs import Change, delete, delta_of, insert
from tests.state.side_anatomy import absorb, make_side
from zset_join.kernels.join.pairs import SHOWN_MATCHED, SHOWN_UNMATCHED, partition_by_sign
from zset_join.kernels.rows.epoch import BLOCK_ROWS
from zset_join.state.join.changed_groups import ChangedGroups, OutputArrays

Line = tuple[int, int, int]


def numbered(key: str | None, ids: Any, *, copies: int = 1) -> list[Change]:
    """Return insertions of rows with one key."""
    return insert(*[(number, key, None) for number in ids], copies=copies)


def taken_out(key: str | None, ids: Any) -> list[Change]:
    """Return retractions of rows with one key."""
    return delete(*[(number, key, None) for number in ids])


class Hot:
    """The changes of an epoch over two states, in one part."""

    def __init__(self, left: tuple[list[Change], list[Change]], right: tuple[list[Change], list[Change]]) -> None:
        self._sides = [make_side("changelog") for _ in range(2)]
        absorb(self._sides[0], left[0])
        absorb(self._sides[1], right[0])
        self._prepared = [
            side.prepare(delta_of(side.relation, changes))
            for side, changes in zip(self._sides, (left[1], right[1]), strict=True)
        ]
        self._groups = ChangedGroups(self._sides, (SHOWN_UNMATCHED, SHOWN_UNMATCHED), part_changes=1_000_000, residual=False)
        self._groups.list_changes(self._prepared)
        self._groups.enter(0)

    def lines(self, sign: int, capacity: int, *, one_sided: tuple[int, int] | None = None) -> list[Line]:
        """Return (left id, right id, weight) of all pairs or one-sided rows, -1 for a side that is missing."""
        output = OutputArrays(capacity)
        step = (
            self._groups.pair_step(sign, output) if one_sided is None else self._groups.one_sided_step(*one_sided, sign, output)
        )
        found: list[Line] = []
        done = False
        while not done:
            filled, done = step(0)
            assert done or filled == capacity
            ids = [self._ids(side, output.words[side, :filled]) for side in (0, 1)]
            found += zip(ids[0], ids[1], output.weights[:filled].tolist(), strict=True)
        return found

    def _ids(self, side: int, refs: Any) -> list[int]:
        kept = np.ascontiguousarray(refs)
        (column,) = self._sides[side].layout.gather_plan([0]).gather(int(kept.ctypes.data), len(kept), 0)
        return [-1 if value is None else value for value in column.to_pylist()]


HOT = Hot(
    (
        numbered("a", range(12)) + numbered("b", [50]) + numbered("c", [60, 61]) + numbered("d", [70]),
        taken_out("a", [0, 5]) + numbered("a", [20, 21], copies=2) + numbered("d", [71]) + taken_out("d", [70]),
    ),
    (
        numbered("a", range(100, 109)) + numbered("b", [150]) + numbered("c", [160]),
        taken_out("a", [103, 108]) + numbered("a", [120]) + taken_out("c", [160]) + numbered("b", [151]),
    ),
)


def by_hand(sign: int) -> list[Line]:
    """Return the result of the join formula for `HOT`."""
    left_a = {number: (1, 0 if number in (0, 5) else 1) for number in range(12)} | {20: (0, 2), 21: (0, 2)}
    right_a = {number: (1, 0 if number in (103, 108) else 1) for number in range(100, 109)} | {120: (0, 1)}
    lines = [
        (left, right, after * right_after - before * right_before)
        for left, (before, after) in left_a.items()
        for right, (right_before, right_after) in right_a.items()
    ]
    lines += [(50, 151, 1), (60, 160, -1), (61, 160, -1)]
    return sorted(line for line in lines if line[2] * sign > 0 or (sign == 0 and line[2]))


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_every_changed_pair_comes_once_with_the_weight_of_the_formula(sign: int) -> None:
    assert sorted(HOT.lines(sign, 1_000)) == by_hand(sign)


@pytest.mark.parametrize("sign", [-1, 0, 1])
@pytest.mark.parametrize("capacity", [*range(1, 14), 40, 41])
def test_pairs_do_not_depend_on_the_room_for_them(capacity: int, sign: int) -> None:
    assert HOT.lines(sign, capacity) == HOT.lines(sign, 1_000)


@pytest.mark.parametrize("one_sided", [(0, SHOWN_UNMATCHED), (1, SHOWN_UNMATCHED), (0, SHOWN_MATCHED)])
@pytest.mark.parametrize("sign", [-1, 0, 1])
@pytest.mark.parametrize("capacity", [1, 2, 3, 5])
def test_one_sided_rows_do_not_depend_on_the_room_for_them(capacity: int, sign: int, one_sided: tuple[int, int]) -> None:
    assert HOT.lines(sign, capacity, one_sided=one_sided) == HOT.lines(sign, 1_000, one_sided=one_sided)


def test_one_sided_rows_of_a_key_that_lost_its_matches_are_reported() -> None:
    assert sorted(HOT.lines(0, 1_000, one_sided=(0, SHOWN_UNMATCHED))) == [(60, -1, 1), (61, -1, 1), (70, -1, -1), (71, -1, 1)]
    assert sorted(HOT.lines(0, 1_000, one_sided=(0, SHOWN_MATCHED))) == [
        (0, -1, -1),
        (5, -1, -1),
        (20, -1, 2),
        (21, -1, 2),
        (60, -1, -1),
        (61, -1, -1),
    ]


@pytest.mark.parametrize("rows", [BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 7])
@pytest.mark.parametrize("capacity", [1_000, 100_000])
def test_a_chain_of_several_blocks_meets_every_change(rows: int, capacity: int) -> None:
    hot = Hot((numbered("a", range(rows)), taken_out("a", [0, rows - 1])), ([], numbered("a", [-7, -8, -9])))

    lines = hot.lines(0, capacity)

    assert len(lines) == len(set(lines)) == 3 * (rows - 2)
    assert {left for left, _, _ in lines} == set(range(1, rows - 1))


def test_of_a_chain_all_of_whose_rows_change_nothing_is_unchanged() -> None:
    hot = Hot((numbered("a", range(100)), taken_out("a", range(100))), ([], numbered("a", [-7])))

    assert hot.lines(0, 10) == []


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(
            ([], numbered("a", [1], copies=2**32)), (numbered("a", [2], copies=2**31), []), id="a change and the chain"
        ),
        pytest.param(
            (numbered("a", [1], copies=2**31), []), ([], numbered("a", [2], copies=2**32)), id="the chain and a change"
        ),
        pytest.param(([], numbered("a", [1], copies=2**32)), ([], numbered("a", [2], copies=2**31)), id="two changes"),
    ],
)
def test_a_product_of_2_to_the_63_stops_it(left: Any, right: Any) -> None:
    with pytest.raises(OverflowError):
        Hot(left, right).lines(0, 10)


def test_a_product_just_below_is_exact() -> None:
    hot = Hot(([], numbered("a", [1], copies=2**32 - 1)), (numbered("a", [2], copies=2**31), []))

    assert hot.lines(0, 10) == [(1, 2, 2**63 - 2**31)]


@pytest.mark.parametrize("weights", [[], [1], [-1], [1, -1], [1, 2, -3, 4, -5, -6, 7], [-1, -2, 3], [3, 4, -1, -2]], ids=str)
def test_retractions_are_brought_to_the_front_and_both_keep_their_order(weights: list[int]) -> None:
    lines = np.array([[10 * weight for weight in weights], [100 * weight for weight in weights], weights], np.int64)
    spare = np.zeros((3, len(weights) + 1), np.int64)

    kept = partition_by_sign(
        *(int(line.ctypes.data) for line in lines), len(weights), *(int(line.ctypes.data) for line in spare)
    )

    expected = sorted(weights, key=lambda weight: weight > 0)
    assert kept == sum(weight < 0 for weight in weights)
    assert lines.tolist() == [[10 * weight for weight in expected], [100 * weight for weight in expected], expected]
