"""The queue of the oldest rows: made from the ages in the records, made again when it is used up or the rows have moved."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.state.side_anatomy import anatomy
from zset_join.core.options import BufferLimit
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.join import append_buffer
from zset_join.state.join.append_buffer import with_distinct_ages
from zset_join.state.rows.side_snapshot import SNAPSHOT_SEQUENCE
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
LEFT = Relation(name="left", schema=SCHEMA, join_key=("k",))
RIGHT = Relation(name="right", schema=SCHEMA, join_key=("k",))
SIZE = 56


@pytest.fixture(autouse=True)
def short_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_buffer, "_QUEUED_LEAST", 3)


def join_of(rows: int) -> HashJoin:
    return HashJoin(
        LEFT, RIGHT, options=OperatorOptions(buffer_limit=BufferLimit.of(max_bytes=rows * SIZE + 1, policy="evict_oldest"))
    )


def rows(begin: int, end: int) -> ZSet:
    """Return rows with the numbers from `begin` to `end` as values."""
    numbers = range(begin, end)
    return ZSet.of(pa.table([[number % 7 for number in numbers], [str(number) for number in numbers]], schema=SCHEMA))


def feed(join: HashJoin, epoch: int, left: tuple[int, int], right: tuple[int, int] = (0, 0)) -> None:
    deltas = [rows(*left), rows(*right)]
    for _ in join.answer(Tick(epoch), deltas):
        pass
    join.absorb(Tick(epoch), deltas)
    for side in join._sides:
        anatomy(side)


def kept(join: HashJoin) -> tuple[list[int], ...]:
    """Return the values that are kept, of either side."""
    return tuple(sorted(int(value) for value in table.column("v").to_pylist()) for table in join.snapshot().values())


def test_the_newest_rows_of_both_sides_are_kept_however_often_the_queue_is_made() -> None:
    join = join_of(20)

    for epoch in range(30):
        feed(join, epoch, (5 * epoch, 5 * epoch + 2), (5 * epoch + 2, 5 * epoch + 5))

    assert kept(join) == (
        [number for number in range(130, 150) if number % 5 < 2],
        [number for number in range(130, 150) if number % 5 >= 2],
    )


def test_the_queue_may_be_as_long_as_there_are_rows() -> None:
    join = join_of(3)
    feed(join, 0, (0, 3))

    feed(join, 1, (3, 4))

    assert kept(join) == ([1, 2, 3], [])


def test_freed_records_are_used_again_and_age_does_not_follow_their_order() -> None:
    join = join_of(4)
    feed(join, 0, (0, 4))
    feed(join, 1, (4, 6))

    feed(join, 2, (6, 9))

    assert kept(join)[0] == [5, 6, 7, 8]


def test_a_delta_larger_than_the_limit_leaves_its_newest_rows() -> None:
    join = join_of(4)
    feed(join, 0, (0, 2))

    feed(join, 1, (10, 17))

    assert kept(join)[0] == [13, 14, 15, 16]
    assert join.statistics()["evicted_rows"] == 5


def test_after_compaction_the_oldest_rows_still_leave_first() -> None:
    join = join_of(6)
    feed(join, 0, (0, 6))
    feed(join, 1, (6, 7))
    for side in join._sides:
        side.compact()

    feed(join, 2, (7, 9))

    assert kept(join)[0] == [3, 4, 5, 6, 7, 8]


def test_the_queue_is_part_of_what_the_operator_holds() -> None:
    join = join_of(6)
    feed(join, 0, (0, 6))
    before = join.resident_bytes()

    feed(join, 1, (6, 7))

    assert join.resident_bytes() - before >= 25


def test_counting_does_not_change_what_an_answer_costs_in_memory() -> None:
    join = HashJoin(LEFT, RIGHT)
    feed(join, 0, (0, 100))
    buffer: Any = join._buffer

    assert buffer.resident_bytes() == 0


def test_rows_of_several_buckets_get_ages_of_their_own_in_the_order_they_came() -> None:
    first = (1 << 32) + 7  # the only row of the epoch before
    ages = [(3 << 32) + 5, (2 << 32) + 9, (3 << 32) + 5, 2 << 32, (3 << 32) + 4, first]  # of two buckets, one after the other
    table = pa.table({"k": [1, 2, 3, 4, 5, 6], f"{SNAPSHOT_SEQUENCE}0": pa.array(ages, pa.int64())})

    left, right = (with_distinct_ages(table, side).column(1).to_pylist() for side in (0, 1))

    assert left == [(3 << 32) + 1, (2 << 32) + 1, (3 << 32) + 2, 2 << 32, 3 << 32, 1 << 32]
    assert sorted(left + right) == sorted({*left, *right})
    assert all(ours < theirs for ours, theirs in zip(left, right, strict=True))
    assert with_distinct_ages(table.select(["k"]), 0).equals(table.select(["k"]))
