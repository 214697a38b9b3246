"""Rows of several tables under one code, and which groups are worth their memory."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.options import HotBudget
from zset_join.state.cold.cold_tables import BusyGroups, ColdTables

KEYS = pa.schema({"k": pa.string(), "n": pa.int64()})
VALUES = pa.schema({"k": pa.string(), "v": pa.float64(), "block": pa.binary()})
LONG = "a key that is longer than a record has room for"


def codes(*found: int) -> np.ndarray:
    return np.array(found, np.int64)


@pytest.fixture
def cold() -> ColdTables:
    """Give two groups: one with two values, one without any."""
    made = ColdTables("sales", [KEYS, VALUES], budget=HotBudget(max_hot_keys=0))
    groups = pa.RecordBatch.from_pylist([{"k": LONG, "n": 1}, {"k": None, "n": 2}], schema=KEYS)
    values = pa.RecordBatch.from_pylist(
        [{"k": LONG, "v": -0.0, "block": None}, {"k": LONG, "v": math.inf, "block": b"\x00" * 304}], schema=VALUES
    )
    made.store([made.packed(0, groups, codes(7, 8)), made.packed(1, values, codes(7, 7))])
    return made


def test_what_was_stored_is_found_by_table(cold: ColdTables) -> None:
    found = cold.find(codes(7, 7, 9))

    assert found is not None
    groups, values = found.rows
    assert groups.to_pylist() == [{"k": LONG, "n": 1}]
    assert sorted(map(repr, values.to_pylist())) == sorted(
        map(repr, [{"k": LONG, "v": -0.0, "block": None}, {"k": LONG, "v": math.inf, "block": b"\x00" * 304}])
    )
    assert cold.find(codes(9)) is None
    assert cold.find(codes()) is None


def test_what_was_taken_is_gone_and_the_rest_stays(cold: ColdTables) -> None:
    found = cold.find(codes(7))
    assert found is not None

    cold.take(found)

    assert cold.find(codes(7)) is None
    assert [sum(batch.num_rows for batch in cold.scan(table)) for table in (0, 1)] == [1, 0]
    assert (cold.statistics()["spilled_groups"], cold.statistics()["fetched_groups"]) == (2, 1)
    cold.clear()
    assert list(cold.scan(0)) == []
    cold.close()


def test_the_group_that_is_touched_most_stays_and_new_records_start_over() -> None:
    busy, first, second = BusyGroups(HotBudget(max_hot_keys=2)), object(), object()
    sizes = np.array([10, 10, 10])
    for _ in range(3):
        busy.touch(first, np.array([2]))
    busy.touch(first, np.array([0, 1, 3]))

    assert busy.exceeds(3, 0)
    assert not busy.exceeds(2, 1 << 40)
    assert 1 not in busy.victims(first, sizes)
    assert busy.victims(second, sizes).tolist() == [0, 1]


def test_another_limit_of_bytes_holds_from_then_on() -> None:
    busy = BusyGroups(HotBudget(max_hot_bytes=100))

    assert (busy.exceeds(1, 60), busy.exceeds(1, 101)) == (False, True)
    busy.limit_bytes(50)
    assert busy.exceeds(1, 60)
    assert busy.victims(object(), np.array([30, -1, 30])).tolist() == [0]
