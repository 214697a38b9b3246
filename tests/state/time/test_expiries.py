"""Times by row number, and looking only at what is due."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

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
