"""The working arrays of a delta are kept, and their addresses are in the view."""

from __future__ import annotations

import numpy as np
import pytest

from zset_join.kernels.rows import delta as d
from zset_join.state.rows.side import DeltaArrays, table_bits


def test_what_is_written_at_an_address_of_the_view_is_in_the_line() -> None:
    arrays = DeltaArrays(stride=64)

    d.put(int(arrays.words[d.D_FOUND]), 3, 77)

    assert arrays.line(d.D_FOUND)[3] == 77


def test_room_that_is_there_is_kept() -> None:
    arrays = DeltaArrays(stride=64)
    arrays.make_room(1000)
    before = arrays.words.copy()

    arrays.make_room(10)
    arrays.make_room(1000)

    assert arrays.words.tolist() == before.tolist()


def test_room_at_least_doubles() -> None:
    arrays = DeltaArrays(stride=64)
    arrays.make_room(1000)

    arrays.make_room(1001)

    assert len(arrays.line(d.D_FIRST_OF)) == 2000


@pytest.mark.parametrize("rows", [256, 1000, 100_000])
def test_every_line_has_room_for_every_row(rows: int) -> None:
    arrays = DeltaArrays(stride=40)

    arrays.make_room(rows)

    lines = [arrays.line(place) for place in (d.D_STATUS, d.D_JOIN_CODES, d.D_AFTER_OF, d.D_OTHERS_LIST, d.D_ENTRY_OF)]
    assert min(len(line) for line in lines) >= rows
    assert arrays.records.nbytes >= 40 * rows


def test_the_bytes_are_those_of_all_arrays() -> None:
    arrays = DeltaArrays(stride=64)

    arrays.make_room(10_000)

    per_row = 10 * 8 + 3 + 64
    assert arrays.resident_bytes() == 10_000 * per_row + (8 << table_bits(10_000))


def test_arrays_that_were_made_for_more_rows_count_as_far_as_they_were_used() -> None:
    arrays, small = DeltaArrays(stride=64), DeltaArrays(stride=64)
    arrays.make_room(10_000)
    arrays.shrink(900)
    small.make_room(900)

    arrays.make_room(900)

    assert arrays.resident_bytes() == small.resident_bytes() == 900 * 147 + (8 << table_bits(900))


def test_lines_that_are_used_together_do_not_overlap() -> None:
    arrays = DeltaArrays(stride=64)
    upsert_lines = (d.D_FIRST_OF, d.D_LAST_OF, d.D_FOUND, d.D_AFTER_OF, d.D_INSERTED_DELETED, d.D_MOVED_OVERWRITTEN)
    lines = [arrays.line(place) for place in upsert_lines]

    shared = [np.shares_memory(one, other) for at, one in enumerate(lines) for other in lines[at + 1 :]]

    assert not any(shared)
