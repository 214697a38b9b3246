"""Times by row number, and looking only at what is due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.rows.keyed_rows import KeyedRows
from zset_join.state.time.expiries import Expiries

KEYS = pa.schema({"k": pa.int64()})


@pytest.fixture
def kept() -> Iterator[KeyedRows]:
    rows = KeyedRows("rows", KEYS, ("k",))
    yield rows
    rows.close()


def add(kept: KeyedRows, expiries: Expiries, keys: list[int], times: list[int]) -> np.ndarray:
    numbers = kept.add(pa.record_batch({"k": keys}, schema=KEYS))
    expiries.begin(numbers)
    expiries.raise_to(numbers, np.array(times, np.int64))
    return numbers


def test_only_what_is_due_is_named(kept: KeyedRows) -> None:
    expiries = Expiries(kept.side, directory=None, name="rows")
    add(kept, expiries, [1, 2, 3], [5, 7, 9])

    assert expiries.first() == 5
    assert expiries.due(7).tolist() == [1, 2]


def test_a_row_whose_time_moved_on_is_put_back_once_it_was_looked_at(kept: KeyedRows) -> None:
    expiries = Expiries(kept.side, directory=None, name="rows")
    numbers = add(kept, expiries, [1], [5])
    expiries.raise_to(numbers, np.array([20]))

    due = expiries.due(6)
    expiries.settle(6, due, expiries.times(due))

    assert (due.tolist(), expiries.first(), expiries.due(19).tolist(), expiries.due(20).tolist()) == ([1], 20, [], [1])


def test_a_number_that_is_used_again_has_the_time_of_its_new_row(kept: KeyedRows) -> None:
    expiries = Expiries(kept.side, directory=None, name="rows")
    numbers = add(kept, expiries, [1], [5])
    expiries.forget(numbers)
    kept.remove(numbers)
    again = add(kept, expiries, [2], [30])

    assert again.tolist() == numbers.tolist()
    assert expiries.due(5).tolist() == []
    assert expiries.due(30).tolist() == [1]


def test_times_follow_rows_that_get_other_numbers(kept: KeyedRows) -> None:
    expiries = Expiries(kept.side, directory=None, name="rows")
    numbers = add(kept, expiries, list(range(100)), list(range(100)))
    expiries.forget(numbers[:99])
    kept.remove(numbers[:99])
    behind = expiries._line(0)[101:1_000]
    before = behind.copy()

    kept.side.compact()

    assert behind.tolist() == before.tolist()  # room that is only reserved is not touched
    assert expiries.due(98).tolist() == []
    assert expiries.due(99).tolist() == [1]


def test_files_are_found_again(tmp_path: Path) -> None:
    kept = KeyedRows("rows", KEYS, ("k",), tables=HashTables(directory=str(tmp_path)))
    expiries = Expiries(kept.side, directory=str(tmp_path), name="rows")
    add(kept, expiries, [1, 2], [5, 7])
    expiries.count(0, 3)
    kept.side.end_absorb(0)
    kept.close()
    expiries.close()

    kept = KeyedRows("rows", KEYS, ("k",), tables=HashTables(directory=str(tmp_path)))
    expiries = Expiries(kept.side, directory=str(tmp_path), name="rows")

    assert (expiries.due(5).tolist(), expiries.counts(1), expiries.is_current()) == ([1], [3], True)
    kept.close()
    expiries.close()
