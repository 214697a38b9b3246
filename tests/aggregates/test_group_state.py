"""Groups in files and their values: refused where they do not belong, no larger than what lives, and right however they grow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.aggregates import AggregateCall
from zset_join.aggregates.accumulators import WorkingArrays
from zset_join.aggregates.group_state import GroupState
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.relation import Relation
from zset_join.kernels.rows import side as s
from zset_join.operators.aggregate import Aggregate
from zset_join.state.rows.directories import HashTables
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.string()})


def state(directory: Path | None = None, *, meaning: str = "counts", hash_bits: int = 32) -> GroupState:
    """Give a state of groups that only count rows."""
    place = None if directory is None else str(directory)
    return GroupState(
        "t",
        SCHEMA,
        [],
        fingerprint=meaning,
        tables=HashTables(directory=place, hash_bits=hash_bits, hash_seed=0),
        name="groups",
    )


def add(groups: GroupState, keys: list[str | None], rows: int, epoch: int) -> None:
    lines = groups.load(pa.record_batch({"k": pa.array(keys, pa.string())}), len(keys))
    lines.after[:, 0] += rows
    groups.begin()
    groups.store(lines)
    groups.end(epoch)


def counts(groups: GroupState) -> dict[str | None, int]:
    refs, lines = groups.live_lines()
    return dict(zip(groups.gather_keys(refs)[0].to_pylist(), lines[:, 0].tolist(), strict=True))


def test_a_group_without_rows_gives_everything_back() -> None:
    groups = state()
    add(groups, ["a key that does not fit its slot"], 1, 0)
    add(groups, ["a key that does not fit its slot"], -1, 1)

    header = groups._arena.header
    assert (counts(groups), groups.groups) == ({}, 0)
    assert (int(header[s.H_HEAP_USED]), int(header[s.H_JOIN_COUNT])) == (0, 0)


def test_a_directory_that_was_being_written_is_refused(tmp_path: Path) -> None:
    dying = state(tmp_path)
    dying.begin()
    dying.close()

    with pytest.raises(StateError, match="was being written when its process died") as caught:
        state(tmp_path)

    assert caught.value.code == "STATE_HALF_WRITTEN"


def test_a_state_whose_groups_have_gone_is_rewritten(tmp_path: Path) -> None:
    groups = state(tmp_path)
    keys = [f"group {number} with a long name" for number in range(70_000)]
    add(groups, keys, 1, 0)
    full = groups.resident_bytes()

    add(groups, keys[10:], -1, 1)
    groups.close()

    reopened = state(tmp_path)
    assert counts(reopened) == dict.fromkeys(keys[:10], 1)
    assert reopened.resident_bytes() * 2 < full
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(
        f"groups.{kind}" for kind in ("header", "heap", "lock", "rows", f"join.slots{reopened._table.bits}")
    )


def test_a_global_group_has_a_line_even_without_rows() -> None:
    groups = GroupState("t", pa.schema([]), [], fingerprint="", tables=HashTables(hash_seed=0), name="all")

    lines = groups.load(pa.record_batch({"x": pa.array([], pa.int64())}), 0)

    assert lines.entries == 1
    assert np.array_equal(lines.after, [[0]])


# ---------------------------------------------------------------- working arrays


def test_a_larger_array_takes_the_place_of_a_smaller_one() -> None:
    arrays = WorkingArrays()
    arrays.array("a", 300)

    grown = arrays.array("a", 400)

    assert len(grown) == 600
    assert arrays.address("a") == grown.ctypes.data


def test_a_table_is_zeroed_and_has_room() -> None:
    arrays = WorkingArrays()
    arrays.array("t", 1024)[:] = 7

    address, bits = arrays.table("t", 100)

    assert (1 << bits) > 100
    assert not arrays.array("t", 1 << bits)[: 1 << bits].any()
    assert address == arrays.address("t")


def test_the_bytes_kept_are_counted() -> None:
    arrays = WorkingArrays()
    arrays.array("a", 1000)
    arrays.array("b", 1000, np.uint8)

    assert arrays.resident_bytes() == 9000


# ---------------------------------------------------------------- ordered multisets in the heap of the groups

Live = dict[int, Counter[Any]]
CALLS = [
    AggregateCall("min", "v"),
    AggregateCall("max", "v"),
    AggregateCall("count_distinct", "v"),
    AggregateCall("collect_list", "v", limit=10**6),
]
KINDS = {
    "number": (pa.int64(), lambda number: number),
    "text": (pa.string(), lambda number: "the same bytes, " * (number % 2) + f"{number:05d}" + " and a tail" * (number % 3)),
}


class Multisets:
    """An aggregate over groups of values, and the same in Counters."""

    def __init__(self, kind: str, seed: int) -> None:
        data_type, self.value = KINDS[kind]
        self.relation = Relation(name="t", schema=pa.schema({"k": pa.int64(), "v": data_type}), mode="changelog")
        self.aggregate = Aggregate(self.relation, ["k"], CALLS)
        self.random = Random(seed)
        self.live: Live = {}
        self.shown: dict[Any, Any] = {}
        self.epoch = 0

    def churn(self, changes: int, *, growing: bool) -> None:
        """Insert and retract at random; while shrinking, mostly the smallest values."""
        lines = [self._change(0.2 if growing else 0.85) for _ in range(changes)]
        self.feed(lines)

    def _change(self, retraction: float) -> tuple[int, Any, int]:
        group = self.random.choice((0, 0, 0, 1, 2, 3))
        values = self.live.setdefault(group, Counter())
        if values and self.random.random() < retraction:
            value = min(values) if self.random.random() < 0.02 else next(iter(values))
            values[value] -= 1
            if not values[value]:
                del values[value]
            return group, value, -1
        value, copies = self.value(self.random.randrange(6000)), self.random.choice((1, 1, 3))
        values[value] += copies
        return group, value, copies

    def take_all(self) -> None:
        lines = [(group, value, -copies) for group, values in self.live.items() for value, copies in values.items()]
        self.live.clear()
        self.feed(lines)

    def feed(self, lines: list[tuple[int, Any, int]]) -> None:
        groups, values, weights = zip(*lines, strict=True)
        deltas = [ZSet.of({"k": groups, "v": values}, list(weights), schema=self.relation.schema)]
        for chunk in self.aggregate.answer(Tick(self.epoch), deltas):
            for row, weight in chunk.to_pylist():
                if weight < 0:
                    assert self.shown.pop(row[0]) == row
                else:
                    self.shown[row[0]] = row
        self.aggregate.absorb(Tick(self.epoch), deltas)
        self.epoch += 1

    def expected(self) -> dict[Any, Any]:
        """Return what the groups must show."""
        return {
            group: (group, min(values), max(values), len(values), sorted(values.elements()))
            for group, values in self.live.items()
            if values
        }

    def compact(self) -> None:
        state = self.aggregate._input.state
        state.begin()
        state.compact()
        state.end(self.epoch - 1)

    def reload(self) -> None:
        snapshot = self.aggregate.snapshot()
        self.aggregate = Aggregate(self.relation, ["k"], CALLS)
        self.aggregate.restore(snapshot)

    def heap_used(self) -> int:
        return int(self.aggregate._input.state._arena.header[s.H_HEAP_USED])


def _run(multisets: Multisets, act: Any) -> bool:
    act()
    return multisets.shown == multisets.expected()


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("seed", [1, 2])
def test_multisets_hold_what_counters_hold_while_they_grow_and_shrink(kind: str, seed: int) -> None:
    multisets = Multisets(kind, seed)
    sizes = [
        (1, True),
        (40, True),
        (3000, True),
        (3000, True),
        (5000, True),
        (2000, False),
        (4000, False),
        (9000, False),
        (30, True),
    ]

    same = [_run(multisets, lambda size=size, grows=grows: multisets.churn(size, growing=grows)) for size, grows in sizes]  # type: ignore[misc]

    assert same == [True] * len(sizes)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_compacting_and_restoring_keep_every_value(kind: str) -> None:
    multisets = Multisets(kind, 3)
    multisets.churn(6000, growing=True)

    same = [
        _run(multisets, act)
        for act in (
            multisets.compact,
            lambda: multisets.churn(3000, growing=False),
            multisets.reload,
            lambda: multisets.churn(3000, growing=True),
        )
    ]

    assert same == [True] * 4


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_heap_is_empty_when_all_values_are_gone(kind: str) -> None:
    multisets = Multisets(kind, 4)
    multisets.churn(6000, growing=True)
    multisets.churn(2000, growing=False)

    multisets.take_all()

    assert multisets.heap_used() == 0
    assert multisets.shown == {}


def test_values_that_come_in_order_and_go_in_order_leave_no_sparse_leaves() -> None:
    multisets = Multisets("number", 5)
    multisets.feed([(0, number, 1) for number in range(20_000)])
    before = multisets.heap_used()

    multisets.feed([(0, number, -1) for number in range(19_000)])

    assert multisets.shown[0][1:4] == (19_000, 19_999, 1000)
    assert multisets.heap_used() * 10 < before
