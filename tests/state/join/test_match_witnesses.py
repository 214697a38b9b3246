"""Where only matters whether a side has rows of a key, one that stays is in memory for each key, and no more come for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spill.run import Runs
from zset_join.core.epochs import Tick
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.cold.cold_side import ColdSide
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64(), "text": pa.string()})
LEFT, RIGHT = (
    Relation(name=name, schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="upsert") for name in ("left", "right")
)


def in_memory(join: HashJoin, number: int) -> set[int]:
    """Return the ids of the rows of one side that are in memory."""
    side = join._sides[number]
    refs, _ = side.live_refs()
    (column,) = side.layout.gather_plan([0]).gather(int(refs.ctypes.data), len(refs), side.arena.heap_address)
    return set(column.to_pylist())


def fetch(join: HashJoin, epoch: int, deltas: list[ZSet]) -> int:
    """Answer an epoch; return how many rows arrived into memory."""
    before = join.statistics()
    assert sum(1 for _ in join.answer(Tick(epoch), deltas))
    after = join.statistics()
    return sum(after[f"{side}_fetched_rows"] - before[f"{side}_fetched_rows"] for side in ("left", "right"))


def test_one_row_comes_for_many_and_none_where_one_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    find_some, requested = ColdSide.find_some, []

    def noted(side: ColdSide, codes: Callable[[], Any]) -> Any:
        return find_some(side, lambda: (requested.append(len(found := codes())), found)[1])

    monkeypatch.setattr(ColdSide, "find_some", noted)
    join = HashJoin(LEFT, RIGHT, "left_semi", options=OperatorOptions(budget=HotBudget(max_hot_keys=10)))
    rights = ZSet.of({"id": range(1_000), "k": [number % 20 for number in range(1_000)], "text": ["x"] * 1_000})
    join.absorb(Tick(0), [ZSet.empty(SCHEMA), rights])
    lefts = ZSet.of({"id": range(20), "k": range(20), "text": ["x"] * 20})
    here = {number % 20 for number in in_memory(join, 1)}

    came = fetch(join, 1, [lefts, ZSet.empty(SCHEMA)])

    assert 0 < came == requested[0] == 20 - len(here) < 20
    assert join.statistics()["right_streamed_rows"] == 0


@pytest.mark.parametrize("how", ["left", "right", "full"])
def test_where_many_rows_pass_their_representatives_have_room_soon(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Runs.find.__kwdefaults__, "group_bytes", 1 << 12)  # rows arrive a hundred at a time
    limit, rows, keys, changes = 3_000, 20_000, 1_000, 300
    join = HashJoin(LEFT, RIGHT, how, options=OperatorOptions(budget=HotBudget(max_hot_keys=limit)))
    first = ZSet.of({"id": range(rows), "k": [number % keys for number in range(rows)], "text": ["x"] * rows})
    join.absorb(Tick(0), [first, first])
    random = np.random.default_rng(1)
    most, streamed = [], 0
    for epoch in range(1, 8):
        deltas = [
            ZSet.of({"id": range(at, at + changes), "k": random.choice(keys, changes, replace=False), "text": ["x"] * changes})
            for at in (rows * (2 * epoch + side) for side in (1, 2))
        ]
        fetch(join, epoch, deltas)
        counts = join.statistics()
        most.append(counts["left_hot_rows"] + counts["right_hot_rows"])
        assert counts["left_streamed_rows"] + counts["right_streamed_rows"] > streamed + 2 * changes
        streamed = counts["left_streamed_rows"] + counts["right_streamed_rows"]
        join.absorb(Tick(epoch), deltas)

    assert max(most[3:]) <= limit + 100, most  # as many were expected as came in the epochs before
