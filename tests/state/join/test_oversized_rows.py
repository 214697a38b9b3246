"""A key with more rows than the budget: its rows stay on disk and are streamed, and the answer is that of a join in memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Epochs, delete, insert, net
from zset_join.core.epochs import Tick
from zset_join.core.errors import ResourceError
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.storage.operations import Operation, observe
from zset_join.zset import ZSet

ORDERS = Relation(
    name="orders", schema=pa.schema({"id": pa.int64(), "k": pa.string()}), join_key=("k",), primary_key=("id",), mode="upsert"
)
BAGS = Relation(name="bags", schema=pa.schema({"k": pa.string(), "v": pa.int64()}), join_key=("k",), mode="changelog")
ROWS = 30_000
BUDGET = 1 << 19  # of which the key has five times as much
LONG = "a key of more than twelve bytes"


def two(how: str, relation: Relation = ORDERS, **options: Any) -> tuple[HashJoin, HashJoin]:
    """Return a join with a budget, and the same one without."""
    hybrid = built(HashJoin, relation, BAGS, how, max_hot_bytes=BUDGET, **options)
    return hybrid, built(HashJoin, relation, BAGS, how, **options)


def load(joins: tuple[HashJoin, HashJoin]) -> None:
    """Give one key far more rows than the budget, and another one a few."""
    relation = joins[0].inputs[0]
    numbers = pa.array(range(ROWS))
    keys = pa.array([LONG] * (ROWS - 5) + ["b"] * 5)
    rows = pa.RecordBatch.from_arrays([numbers, keys], schema=relation.schema)
    for join in joins:
        join.absorb(Tick(0), [ZSet.of(rows), ZSet.empty(BAGS.schema)])


def summed(join: HashJoin, deltas: list[ZSet], epoch: int) -> tuple[dict[Any, int], int, int]:
    """Return the sum of an answer, and the most rows and bytes that were in memory while it was read."""
    total: dict[Any, int] = {}
    most_rows = most_bytes = 0
    for chunk in join.answer(Tick(epoch), deltas):
        counts = join.statistics()
        most_rows = max(most_rows, counts.get("left_hot_rows", 0) + counts.get("right_hot_rows", 0))
        most_bytes = max(most_bytes, counts.get("hot_bytes", 0))
        for row, weight in chunk.to_pylist():
            total[row] = total.get(row, 0) + weight
    return {row: weight for row, weight in total.items() if weight}, most_rows, most_bytes


def rows_of(join: HashJoin) -> set[tuple[Any, ...]]:
    """Return the rows of the left side, with all that they remember."""
    return {tuple(row.values()) for row in join.snapshot()["left"].to_pylist()}


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """Let the disk be full after so many writes."""
    left_over = after

    def observed(operation: Operation, act: Callable[[], Any]) -> Any:
        nonlocal left_over
        if operation.kind == "write":
            if left_over == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            left_over -= 1
        return act()

    with observe(observed):
        yield


def deltas_of(join: HashJoin, own: list[Any], other: list[Any]) -> list[ZSet]:
    return Epochs(join).deltas(own, other)


def witness_id(hybrid: Any) -> int:
    """Return the `id` of the one order in memory that represents those on disk."""
    side = hybrid._sides[0]
    refs = side.refs_of(hybrid._hybrid.oversized._witnesses[0])
    (column,) = side.layout.gather_plan([0]).gather(int(refs.ctypes.data), len(refs), side.arena.heap_address)
    (number,) = column.to_pylist()
    return int(number)


def test_degrees_of_many_large_keys_are_written_into_few_runs() -> None:
    hybrid, unlimited = joins = two("left", residual=left("id") < right("v"))
    names = [f"one of fifty keys: {number}" for number in range(50)]
    rows = [pa.array(range(ROWS)), pa.array([names[number % 50] for number in range(ROWS)])]
    for join in joins:
        relation = join.inputs[0]
        join.absorb(Tick(0), [ZSet.of(pa.RecordBatch.from_arrays(rows, schema=relation.schema)), ZSet.empty(BAGS.schema)])
    hybrid._hybrid.oversized.least_bytes = [1, 1]  # type: ignore[union-attr]
    store = hybrid._cold[0]._rows
    runs = store.statistics()["runs"]
    tidy = []
    store.tidy = lambda: tidy.append(store.statistics()["runs"])  # type: ignore[method-assign]

    for join in joins:
        join.absorb(Tick(1), deltas_of(join, [], insert(*((name, ROWS) for name in names))))

    assert hybrid.statistics()["left_rewritten_rows"] > ROWS // 2
    assert max(tidy) <= 2 * runs + 2
    assert rows_of(hybrid) == rows_of(unlimited)


def test_a_row_that_represents_its_key_and_is_deleted_is_followed_by_another() -> None:
    fed = Epochs(HashJoin(ORDERS, BAGS, "full", options=OperatorOptions(budget=HotBudget(max_hot_bytes=0))))
    hybrid = fed.operator
    hybrid._hybrid.oversized.least_bytes = [1, 1]  # type: ignore[attr-defined]
    fed.feed(insert((0, LONG), (1, LONG), (2, LONG)))
    list(hybrid.answer(Tick(1), fed.deltas([], insert((LONG, 1)))))
    witness = witness_id(hybrid)

    answer = fed.feed(delete((witness, LONG)), insert((LONG, 1)))

    others = sorted({0, 1, 2} - {witness})
    padded = [((number, LONG, None, None), -1) for number in range(3)]
    assert net(answer) == net([*padded, *(((number, LONG, LONG, 1), 1) for number in others)])


@pytest.mark.parametrize("how", ["left", "full", "left_semi", "left_anti"])
def test_rows_that_count_their_matches_are_streamed_and_rewritten(how: str) -> None:
    hybrid, unlimited = joins = two(how, residual=left("id") < right("v"))
    load(joins)
    story = [
        ([], insert((LONG, 100), (LONG, 0))),
        (insert((3, "b"), (ROWS, LONG)), [*insert((LONG, 50)), *insert(("b", 3))]),
        (delete((9, LONG), (60, LONG)), delete((LONG, 100))),
        ([], insert((LONG, 2 * ROWS))),
        ([], delete((LONG, 2 * ROWS), (LONG, 50))),
    ]

    for epoch, changes in enumerate(story, start=1):
        deltas, others = deltas_of(hybrid, *changes), deltas_of(unlimited, *changes)
        answer, most_rows, most_bytes = summed(hybrid, deltas, epoch)
        assert answer == summed(unlimited, others, epoch)[0]
        assert (most_rows <= ROWS // 5, most_bytes <= BUDGET) == (True, True)
        hybrid.absorb(Tick(epoch), deltas)
        unlimited.absorb(Tick(epoch), others)

    counts = hybrid.statistics()
    assert counts["left_fetched_rows"] < 100
    assert counts["left_rewritten_rows"] > ROWS
    assert rows_of(hybrid) == rows_of(unlimited)


def test_a_disk_that_is_full_while_rows_are_rewritten_changes_nothing() -> None:
    hybrid, unlimited = joins = two("left", residual=left("id") < right("v"))
    load(joins)
    deltas = deltas_of(hybrid, [], insert((LONG, 2 * ROWS)))
    before, disk_bytes = rows_of(hybrid), hybrid.statistics()["left_cold_disk_bytes"]

    full = 0
    while hybrid.absorbed_epoch == 0:
        with full_disk(after=full), suppress(ResourceError):
            hybrid.absorb(Tick(1), deltas)
        if hybrid.absorbed_epoch == 0:
            full += 1
            assert rows_of(hybrid) == before
            assert hybrid.statistics()["left_cold_disk_bytes"] == disk_bytes

    unlimited.absorb(Tick(1), deltas_of(unlimited, [], insert((LONG, 2 * ROWS))))
    assert full > 5
    assert rows_of(hybrid) == rows_of(unlimited)


def test_the_largest_fan_out_is_that_of_the_streamed_key() -> None:
    joins = two("inner")
    load(joins)
    deltas = deltas_of(joins[0], [], insert((LONG, 1), ("b", 2)))

    list(joins[0].answer(Tick(1), deltas))

    assert joins[0].largest_fan_out() == (ROWS - 5, (LONG,))
