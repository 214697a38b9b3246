from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import StateError
from zset_join.state.join.match_memo import JOINED, PARKED, MatchMemo, Retracted, first_arrival

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})


def _memo() -> MatchMemo:
    memo = MatchMemo("orders", SCHEMA, ("id",))
    _add(memo, 0, ids=[1, 1], values=["first", "first too"], copies=[2, 2], arrivals=[0, 0])
    _add(memo, 1, ids=[1], values=["second"], copies=[3], arrivals=[first_arrival(1)])
    return memo


def _add(memo: MatchMemo, epoch: int, *, ids, values, copies, arrivals, kind=JOINED, due_us=0) -> None:
    rows = pa.record_batch([pa.array(ids), pa.array(values, pa.string())], schema=SCHEMA)
    memo.add(rows, np.array(copies), np.full(len(ids), kind), np.array(arrivals), due_us=due_us)
    memo.end_absorb(epoch)


def _ids(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(values, pa.int64())})


def _rows_of(memo: MatchMemo, taken: Retracted) -> list[tuple[str, int]]:
    return list(zip(memo.rows(taken.numbers).column("v").to_pylist(), taken.copies.tolist(), strict=True))


def test_the_oldest_arrival_goes_first_with_all_its_lines():
    memo = _memo()
    assert _rows_of(memo, memo.retract(_ids(1), np.array([3]))) == [("first", 2), ("first too", 2), ("second", 1)]


def test_what_was_taken_is_gone_and_the_rest_stays():
    memo = _memo()
    memo.remove(memo.retract(_ids(1), np.array([3])))
    assert _rows_of(memo, memo.retract(_ids(1), np.array([2]))) == [("second", 2)]


def test_more_copies_than_were_remembered_are_damage():
    with pytest.raises(StateError, match="has 5 of the 6 copies"):
        _memo().retract(_ids(1), np.array([6]))


def test_parked_lines_are_due_in_the_order_they_came_and_found_again_after_a_restore():
    memo = MatchMemo("orders", SCHEMA, ())
    _add(memo, 0, ids=[1], values=["later"], copies=[1], arrivals=[5], kind=PARKED, due_us=30)
    _add(memo, 1, ids=[2, 3], values=["b", "a"], copies=[1, 1], arrivals=[7, 6], kind=PARKED, due_us=20)
    other = MatchMemo("orders", SCHEMA, ())
    other.restore(memo.lines.reader().read_all())
    for one in (memo, other):
        assert (one.parked_rows, one.next_due_us, one.due(19).tolist()) == (3, 20, [])
        assert one.rows(one.due(20)).column("v").to_pylist() == ["a", "b"]
        assert one.rows(one.due(30)).column("v").to_pylist() == ["later", "a", "b"]


def test_a_row_number_that_was_given_away_again_is_not_due_twice():
    memo = MatchMemo("orders", SCHEMA, ())
    _add(memo, 0, ids=[1], values=["x"], copies=[1], arrivals=[0], kind=PARKED, due_us=20)
    due = memo.due(20)
    memo.remove(Retracted(due, np.array([1])))
    _add(memo, 1, ids=[2], values=["y"], copies=[1], arrivals=[1], kind=PARKED, due_us=20)
    assert memo.rows(memo.due(20)).column("v").to_pylist() == ["y"]
