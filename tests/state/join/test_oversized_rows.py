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
from zset_join.core.errors import ResourceError, WeightOverflowError
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
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


@pytest.mark.parametrize("how", ["inner", "full"])
def test_a_key_with_five_times_the_budget_is_answered_within_the_budget(how: str) -> None:
    hybrid, unlimited = joins = two(how)
    load(joins)
    story = [
        ([], insert((LONG, 1))),
        (insert((7, "b"), (ROWS, LONG)), [*insert((LONG, 2)), *insert(("b", 3))]),
        (delete((9, LONG)), [*delete((LONG, 1)), *delete((LONG, 2))]),
    ]

    for epoch, changes in enumerate(story, start=1):
        deltas = deltas_of(hybrid, *changes)
        answer, most_rows, most_bytes = summed(hybrid, deltas, epoch)
        expected, _, _ = summed(unlimited, deltas_of(unlimited, *changes), epoch)
        assert answer == expected
        assert (most_rows <= ROWS // 5, most_bytes <= BUDGET) == (True, True)
        hybrid.absorb(Tick(epoch), deltas)
        unlimited.absorb(Tick(epoch), deltas_of(unlimited, *changes))
        assert hybrid.statistics()["hot_bytes"] <= BUDGET

    counts = hybrid.statistics()
    assert counts["left_streamed_rows"] > 2 * ROWS
    assert counts["left_fetched_rows"] < 100


@pytest.mark.parametrize("how", ["inner", "full"])
def test_keys_that_have_no_room_together_are_answered_within_the_budget(how: str) -> None:
    hybrid, unlimited = joins = two(how)
    names = [f"one of twelve keys that have no room together: {number}" for number in range(12)]
    rows = [pa.array(range(ROWS)), pa.array([names[number % 12] for number in range(ROWS)])]
    for join in joins:
        relation = join.inputs[0]
        join.absorb(Tick(0), [ZSet.of(pa.RecordBatch.from_arrays(rows, schema=relation.schema)), ZSet.empty(BAGS.schema)])

    story = [insert(*((name, 1) for name in names)), delete(*((name, 1) for name in names[:8])), insert((names[0], 2))]
    for epoch, changes in enumerate(story, start=1):
        deltas, others = deltas_of(hybrid, [], changes), deltas_of(unlimited, [], changes)
        answer, _, most_bytes = summed(hybrid, deltas, epoch)
        assert answer == summed(unlimited, others, epoch)[0]
        assert most_bytes <= BUDGET
        hybrid.absorb(Tick(epoch), deltas)
        unlimited.absorb(Tick(epoch), others)

    assert hybrid.statistics()["left_streamed_rows"] > ROWS


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


def test_a_repeated_answer_has_the_same_chunks_and_brings_nothing_more_in() -> None:
    hybrid, _ = joins = two("full")
    load(joins)
    changes = (delete((9, LONG)), insert((LONG, 1)))

    def requested() -> list[list[Any]]:
        return [chunk.to_pylist() for chunk in hybrid.answer(Tick(1), deltas_of(hybrid, *changes))]

    first, fetched = requested(), hybrid.statistics()["left_fetched_rows"]
    for part in (changes, ([], changes[1]), (changes[0], [])):
        list(hybrid.answer(Tick(1), deltas_of(hybrid, *part)))
        assert requested() == first

    assert (fetched, hybrid.statistics()["left_fetched_rows"]) == (2, 2)


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


def test_the_largest_fan_out_is_that_of_the_streamed_key() -> None:
    joins = two("inner")
    load(joins)
    deltas = deltas_of(joins[0], [], insert((LONG, 1), ("b", 2)))

    list(joins[0].answer(Tick(1), deltas))

    assert joins[0].largest_fan_out() == (ROWS - 5, (LONG,))


def test_a_residual_predicate_is_evaluated_on_the_rows_that_are_streamed() -> None:
    hybrid, unlimited = joins = two("right", residual=left("id") < right("v"))
    load(joins)

    for epoch, changes in enumerate([([], insert((LONG, 100), (LONG, 0))), (delete((50, LONG)), delete((LONG, 100)))], start=1):
        deltas, others = deltas_of(hybrid, *changes), deltas_of(unlimited, *changes)
        answer, most_rows, _ = summed(hybrid, deltas, epoch)
        assert answer == summed(unlimited, others, epoch)[0]
        assert most_rows < ROWS // 5
        hybrid.absorb(Tick(epoch), deltas)
        unlimited.absorb(Tick(epoch), others)

    assert hybrid.statistics()["left_streamed_rows"] > 0


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


def test_a_weight_that_streaming_cannot_multiply_is_refused_by_name() -> None:
    fed = Epochs(HashJoin(BAGS, BAGS, options=OperatorOptions(budget=HotBudget(max_hot_bytes=0))))
    fed.operator._hybrid.oversized.least_bytes = [1, 1]  # type: ignore[attr-defined]
    fed.feed(insert(("a", 1), copies=1 << 40))

    with pytest.raises(WeightOverflowError, match="epoch 1"):
        fed.feed([], insert(("a", 2), copies=1 << 40))


def test_an_answer_that_is_read_on_too_late_reads_no_disk() -> None:
    joins = two("inner", chunk_rows=1000)
    load(joins)
    deltas = deltas_of(joins[0], [], insert((LONG, 1)))
    reading = joins[0].answer(Tick(1), deltas)
    next(reading)
    joins[0].absorb(Tick(1), deltas)

    with pytest.raises(Exception, match="ANSWER_OUTDATED"):
        list(reading)


def test_keys_below_the_bound_come_whole() -> None:
    joins = two("inner")
    load(joins)

    answer = net(
        line for chunk in joins[0].answer(Tick(1), deltas_of(joins[0], [], insert(("b", 1)))) for line in chunk.to_pylist()
    )

    assert len(answer) == 5
    assert joins[0].statistics()["left_streamed_rows"] == 0
