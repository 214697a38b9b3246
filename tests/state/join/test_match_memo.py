"""What a row was joined with is remembered; what cannot be found of it is damage."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import StateError
from zset_join.state.join.lookup_rows import JOINED, MatchMemo


def test_more_copies_than_were_remembered_are_damage() -> None:
    memo = MatchMemo("orders", pa.schema({"id": pa.int64()}), ("id",))
    rows = pa.record_batch({"id": pa.array([1, 1], pa.int64())})
    memo.add(rows, np.array([2, 3]), np.full(2, JOINED), np.zeros(2, np.int64), due_us=0)

    with pytest.raises(StateError, match="has 2 of the 6 copies"):
        memo.retract(rows.slice(1), np.array([6]))
