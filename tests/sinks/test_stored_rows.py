"""Which stored rows a change takes away."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.core.errors import SinkError
from zset_join.sinks.delta_view import RetractedRows, StoredRowsChange
from zset_join.zset import ZSet

FIRST = pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]})
SECOND = pa.table({"k": [1, 4], "v": ["a", "d"]})


def change(rows: list[tuple[int, str, int]], key: tuple[str, ...] = ()) -> StoredRowsChange:
    ids, values, weights = zip(*rows, strict=True)
    return StoredRowsChange("view", 7, ZSet.of({"k": list(ids), "v": list(values)}, list(weights)), key)


def matched(made: StoredRowsChange, *files: pa.Table) -> list[RetractedRows]:
    return made.match([made.candidates(file.select(list(made.identity))) for file in files])


def test_of_equal_rows_those_that_lie_first_go() -> None:
    first, second = matched(change([(1, "a", -1)]), FIRST, SECOND)

    assert (first.positions.tolist(), second.positions.tolist()) == ([0], [])


def test_as_many_rows_go_as_the_weight() -> None:
    first, second = matched(change([(1, "a", -2), (2, "b", -1)]), FIRST, SECOND)

    assert (first.positions.tolist(), second.positions.tolist()) == ([0, 1], [0])


def test_each_row_that_goes_has_its_retraction() -> None:
    (retracted,) = matched(change([(9, "n", 1), (3, "c", -1), (2, "b", -1)]), FIRST)

    assert (retracted.positions.tolist(), retracted.retractions.tolist()) == ([1, 2], [2, 1])


def test_rows_that_agree_in_one_column_only_stay() -> None:
    with pytest.raises(SinkError, match=r"retracts row \{'k': 1, 'v': 'b'\} 1 time and the view holds it 0 times"):
        matched(change([(1, "b", -1)]), FIRST)


def test_insertions_of_a_bag_need_no_look_at_what_is_stored() -> None:
    assert change([(1, "a", 1)]).is_blind


def test_insertions_of_a_keyed_view_need_a_look_at_what_is_stored() -> None:
    assert not change([(1, "a", 1)], key=("k",)).is_blind


def test_a_second_row_for_a_key_is_refused_naming_it() -> None:
    with pytest.raises(SinkError, match=r"two live rows claim the key \{'k': 4\} in epoch 7"):
        matched(change([(4, "n", 1)], key=("k",)), FIRST, SECOND.slice(1))


def test_a_key_that_holds_another_row_is_refused_when_the_row_is_read() -> None:
    made = change([(1, "x", -1)], key=("k",))
    (retracted,) = matched(made, FIRST)

    with pytest.raises(SinkError, match=r"its key holds \{'k': 1, 'v': 'a'\}"):
        made.verify(retracted, FIRST.take(pa.array(retracted.positions)))


def test_bounds_are_reported_of_whole_numbers_without_null_only() -> None:
    made = change([(1, "a", -1), (5, "b", -1)])

    assert made.bounds() == {"k": (1, 5)}


def test_a_null_key_may_lie_in_any_file() -> None:
    delta = ZSet.of({"k": pa.array([None, 1], pa.int64())}, [-1, -1])

    assert StoredRowsChange("view", 7, delta, ()).bounds() == {}
