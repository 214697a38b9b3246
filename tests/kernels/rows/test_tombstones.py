"""Tombstones that leave memory and come back: the queue keeps its order, and everything still fits together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from spill.row_bytes import UnpackedRows, pack_rows, unpack_rows
from tests.epochs import delete
from tests.state.side_anatomy import absorb, anatomy, make_side
from zset_join.kernels.rows import moves
from zset_join.kernels.rows.tombstones import date_newest, drop_tombstones, insert_tombstones, list_tombstones, requeue
from zset_join.kernels.values.columns import WEIGHT
from zset_join.state.rows.side import SideState


def side_of_deleted(*watermarks: int) -> SideState:
    """Return a side of which a key was deleted at each watermark; their row numbers are 1, 2, ..."""
    side = make_side("upsert", sequenced=True, tombstone_retention_us=1_000)
    for number, watermark in enumerate(watermarks):
        absorb(side, delete((number, None, None, 1)), watermark=watermark)
    return side


def numbers_of(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, np.int64)


def hashes(side: SideState, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found = np.empty(len(numbers), np.int64)
    moves.hash_identities(side.view, numbers, side.identity_columns.address, found)
    return found


def taken_out(side: SideState, *numbers: int) -> tuple[UnpackedRows, npt.NDArray[np.int64]]:
    """Take tombstones out; return their records and the hashes of their keys."""
    chosen = numbers_of(*numbers)
    stride, variables = side.layout.stride, side.variables_address
    packed = pack_rows(side.refs_of(chosen), stride=stride, variables=variables, heap=side.arena.heap_address)
    found = hashes(side, chosen)
    drop_tombstones(side.view, chosen, found, variables)
    return unpack_rows(packed, stride=stride, variables=variables), found


def put_back(side: SideState, records: UnpackedRows, codes: npt.NDArray[np.int64]) -> None:
    side.make_room(records.count, 0)
    left_at = records.words(WEIGHT, side.layout.stride)
    numbers = np.empty(records.count, np.int64)
    insert_tombstones(side.view, records.address, side.variables_address, codes, np.argsort(left_at), numbers)


def watermarks(side: SideState) -> list[int]:
    """Return when the tombstones were left, in the order of the queue; it is checked on the way."""
    anatomy(side)
    found: list[int] = side.weights(side.tombstone_numbers()).tolist()
    return found


def test_the_oldest_are_listed_first_and_those_of_this_epoch_passed_over() -> None:
    side = side_of_deleted(10, 20, 30, 40)
    stamps = np.array([2, 4, 2, 2], np.int32)
    numbers = np.zeros(2, np.int64)

    assert list_tombstones(side.view, stamps, 4, numbers) == 2
    assert numbers.tolist() == [1, 3]


@pytest.mark.parametrize("gone", [(1,), (4,), (2, 3), (1, 2, 3, 4)])
def test_what_leaves_leaves_nothing_behind_and_comes_back_to_its_place(gone: tuple[int, ...]) -> None:
    side = side_of_deleted(10, 20, 30, 40)

    records, codes = taken_out(side, *gone)
    left = watermarks(side)
    put_back(side, records, codes)

    assert left == [10 * number for number in range(1, 5) if number not in gone]
    assert watermarks(side) == [10, 20, 30, 40]


def test_equal_watermarks_are_adjacent() -> None:
    side = side_of_deleted(10, 20, 20, 20, 30)

    put_back(side, *taken_out(side, 3, 5))

    assert watermarks(side) == [10, 20, 20, 20, 30]


def test_all_are_put_in_another_order() -> None:
    side = side_of_deleted(10, 20, 30)
    date_newest(side.view, numbers_of(7, 5))

    disordered = watermarks(side)
    requeue(side.view, numbers_of(3, 2, 1))

    assert disordered == [10, 7, 5]
    assert watermarks(side) == [5, 7, 10]
