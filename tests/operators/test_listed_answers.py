"""A join lists what it shows without an epoch, also in buckets; groups are filled chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, StateError, WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.join import HashJoin
from zset_join.runners.common.bucketed import in_buckets
from zset_join.runners.common.parting import parted_when_large
from zset_join.runners.common.workers import Workers
from zset_join.shapes.aggregate import AggregateCall
from zset_join.stages.join import JoinStage
from zset_join.stages.stage import StageOptions
from zset_join.testing.reference import total
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
LEFT, RIGHT = (Relation(name=name, schema=SCHEMA, join_key=("k",), mode="changelog") for name in ("l", "r"))
NOTHING = ZSet.empty(SCHEMA)
ROWS = [ZSet.of({"k": [n % 7 for n in range(40)], "v": list(range(40))}), ZSet.of({"k": [1, 1, 2, 9], "v": [1, 2, 3, 4]})]


def _counts(chunks: Iterator[ZSet]) -> dict[Any, int]:
    return dict(total(line for chunk in chunks for line in chunk.to_pylist()))


@pytest.mark.parametrize("way", ["buckets", "parted"])
def test_buckets_list_what_one_join_answers(way: str) -> None:
    stage, workers = JoinStage(left=LEFT, right=RIGHT, how="full", null_safe=(False,), row_keys=(None, None)), Workers(3)
    build = {"buckets": lambda: in_buckets(stage, StageOptions(), None, workers)}
    build["parted"] = lambda: parted_when_large(stage, StageOptions(), workers)
    operator: Any = build[way]()
    answer = _counts(operator.answer(Tick(0), ROWS))
    operator.absorb(Tick(0), ROWS)

    assert operator.lists_answer
    assert _counts(operator.listed()) == answer
    assert len(answer) > 20
    operator.close()
    workers.close()


def test_a_list_is_refused_once_the_state_has_changed() -> None:
    join = HashJoin(LEFT, RIGHT, "left")
    join.absorb(Tick(0), ROWS)
    late = join.listed()
    join.absorb(Tick(1), [ROWS[0], ZSet.empty(SCHEMA)])

    with pytest.raises(StateError, match="ANSWER_OUTDATED"):
        next(late)


def test_a_row_whose_copies_no_int64_counts_is_not_listed() -> None:
    join, rows = HashJoin(LEFT, RIGHT, "inner"), ZSet.of({"k": [1], "v": [2]}, [2**31])
    for epoch, deltas in enumerate([[rows, NOTHING], [NOTHING, rows], [rows, NOTHING]]):
        join.absorb(Tick(epoch), deltas)

    with pytest.raises(WeightOverflowError, match='join of "l" and "r"'):
        list(join.listed())


def _summed() -> Aggregate:
    relation = Relation(name="sales", schema=pa.schema({"k": pa.int64(), "v": pa.int64()}), mode="changelog")
    return Aggregate(relation, ["k"], [AggregateCall("sum", "v", "s"), AggregateCall("max", "v", "m")])


def test_groups_that_are_filled_in_chunks_go_on_like_those_of_one_epoch() -> None:
    whole, filled = _summed(), _summed()
    whole.absorb(Tick(4), [ROWS[0]])
    rows = filled.fill(Tick(4), iter([ZSet(ROWS[0].rows.slice(at, 9), ROWS[0].weights[at : at + 9]) for at in range(0, 40, 9)]))
    gone = ZSet.of({"k": [0, 1], "v": [35, 36]}, [-1, -1])

    assert (rows, filled.absorbed_epoch) == (40, 4)
    assert _counts(filled.held()) == _counts(whole.held())
    assert _counts(filled.answer(Tick(5), [gone])) == _counts(whole.answer(Tick(5), [gone]))


def test_a_sum_may_leave_its_type_between_two_chunks_and_not_at_their_end() -> None:
    most = 2**63 - 1
    chunks = [ZSet.of({"k": [1], "v": [value]}) for value in (most, most, -most, -most)]

    assert _summed().fill(Tick(0), iter(chunks)) == 4
    with pytest.raises(BadInputError, match="sales"):
        _summed().fill(Tick(0), iter(chunks[:2]))
