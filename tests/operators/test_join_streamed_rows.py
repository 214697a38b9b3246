"""Rows that have no room pass through memory while the answer is made: it is that of a join in memory."""

from __future__ import annotations

import weakref
from collections import Counter
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.built import built
from tests.sweeps import some_of
from zset_join.core.epochs import Tick
from zset_join.core.errors import WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, left, right
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64(), "text": pa.string()})
LEFT, RIGHT = (
    Relation(name=name, schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="upsert") for name in ("left", "right")
)
TYPES = ["inner", "left", "right", "full", "left_semi", "left_anti"]
CONDITION = left("id") < right("id")
FEW = {"max_hot_keys": 20}
SIZES: dict[str, dict[str, int]] = {
    "as they are": {},
    "small": {"chunk_rows": 7, "part_changes": 50},
    "large": {"chunk_rows": 300, "part_changes": 20},
}
SIZED = some_of(
    {f"{how}-{name}": (how, sizes) for name, sizes in SIZES.items() for how in TYPES},
    short=[f"{how}-small" for how in TYPES] + ["full-as they are", "left_anti-large"],
)


def rows(random: np.random.Generator, count: int, *, ids: int, keys: int) -> ZSet:
    """Return rows that arrive, change or go, with NULL keys among them."""
    chosen = random.choice(ids, count, replace=False)
    k = [None if number == 0 else int(number) for number in random.integers(0, keys, count)]
    texts = [f"a text that is longer than twelve bytes {number}" for number in random.integers(0, 5, count)]
    weights = np.where(random.random(count) < 0.2, -1, 1)
    return ZSet.of({"id": chosen, "k": k, "text": texts}, weights)


def history(seed: int, *, epochs: int = 6) -> list[list[ZSet]]:
    random = np.random.default_rng(seed)
    return [[rows(random, 300, ids=600, keys=60), rows(random, 60, ids=80, keys=60)] for _ in range(epochs)]


def answer(join: HashJoin, epoch: int, deltas: list[ZSet]) -> list[Any]:
    return [chunk.to_pylist() for chunk in join.answer(Tick(epoch), deltas)]


def assert_alike(in_memory: HashJoin, streaming: HashJoin, *, seed: int) -> None:
    """Run both through a history: the same changes, retractions first, and the same chunks when answered again."""
    for epoch, deltas in enumerate(history(seed=seed)):
        expected, found, again = (answer(join, epoch, deltas) for join in (in_memory, streaming, streaming))
        changes = [change for chunk in found for change in chunk]
        assert Counter(changes) == Counter(change for chunk in expected for change in chunk)
        assert [weight > 0 for _, weight in changes] == sorted(weight > 0 for _, weight in changes)
        assert again == found
        for join in (in_memory, streaming):
            join.absorb(Tick(epoch), deltas)


@pytest.mark.parametrize(("how", "sizes"), SIZED)
def test_with_streamed_rows_a_join_emits_the_same_as_in_memory(how: str, sizes: dict[str, int]) -> None:
    in_memory, streaming = HashJoin(LEFT, RIGHT, how), built(HashJoin, LEFT, RIGHT, how, **FEW, **sizes)
    assert_alike(in_memory, streaming, seed=1)

    counts = streaming.statistics()
    passed = {side for side in ("left", "right") if counts[f"{side}_streamed_rows"]}
    # A side that only decides whether the other side's rows are alone streams nothing: one row per key is in memory.
    assert passed == ({"left"} if how in ("left_semi", "left_anti") else {"left", "right"})


@pytest.mark.parametrize(("how", "sizes"), SIZED)
def test_behind_a_residual_predicate_a_join_emits_the_same_as_in_memory(how: str, sizes: dict[str, int]) -> None:
    in_memory, streaming = (
        HashJoin(LEFT, RIGHT, how, residual=CONDITION),
        built(HashJoin, LEFT, RIGHT, how, residual=CONDITION, **FEW, **sizes),
    )
    assert_alike(in_memory, streaming, seed=3)

    counts = streaming.statistics()
    assert min(counts[f"{side}_streamed_rows"] for side in ("left", "right")) > 0
    keep_degrees = {"left": how in ("left", "full", "left_semi", "left_anti"), "right": how in ("right", "full")}
    assert {side: counts[f"{side}_rewritten_rows"] > 0 for side in keep_degrees} == keep_degrees


@pytest.mark.parametrize("how", TYPES)
def test_an_epoch_behind_a_residual_predicate_may_be_absorbed_unread_or_read_in_part(how: str) -> None:
    in_memory, streaming = (
        built(HashJoin, LEFT, RIGHT, how, residual=CONDITION, chunk_rows=10, **options)
        for options in ({}, {**FEW, "part_changes": 50})
    )
    *unread, last = history(seed=4)
    for epoch, deltas in enumerate(unread):
        for join in (in_memory, streaming):
            for _ in islice(join.answer(Tick(epoch), deltas), 3 * (epoch % 2)):
                pass
            join.absorb(Tick(epoch), deltas)

    expected, found = (
        Counter(change for chunk in answer(join, len(unread), last) for change in chunk) for join in (in_memory, streaming)
    )
    assert found == expected
    assert streaming.statistics()["left_streamed_rows"] > 0


def test_a_join_that_nobody_holds_goes_at_once() -> None:
    join = built(HashJoin, LEFT, RIGHT, "full", residual=CONDITION, **FEW)
    for epoch, deltas in enumerate(history(seed=5, epochs=2)):
        answer(join, epoch, deltas)
        join.absorb(Tick(epoch), deltas)
    gone = weakref.ref(join)

    del join

    assert gone() is None


@pytest.mark.parametrize("condition", [None, left("id") == right("id")])
def test_a_weight_that_leaves_int64_is_an_error_that_changes_nothing(condition: Expression | None) -> None:
    sides = (Relation(name=name, schema=SCHEMA, join_key=("k",), mode="changelog") for name in ("left", "right"))
    join = built(HashJoin, *sides, residual=condition, **FEW)
    many = {"id": np.arange(100), "k": np.arange(100), "text": ["."] * 100}
    join.absorb(Tick(0), [ZSet.of(many, np.full(100, 1 << 40)), ZSet.empty(SCHEMA)])
    deltas = [ZSet.empty(SCHEMA), ZSet.of(many, np.full(100, 1 << 40))]

    with pytest.raises(WeightOverflowError):
        answer(join, 1, deltas)

    single = [ZSet.empty(SCHEMA), ZSet.of(many, np.full(100, 1))]
    assert sum(weight for chunk in answer(join, 1, single) for _, weight in chunk) == 100 << 40
    assert join.statistics()["left_streamed_rows"] > 0


def test_the_largest_fan_out_counts_rows_that_pass() -> None:
    join = built(HashJoin, LEFT, RIGHT, **FEW)
    keys = [7] * 50 + list(range(100, 350))
    join.absorb(Tick(0), [ZSet.of({"id": np.arange(300), "k": keys, "text": ["."] * 300}), ZSet.empty(SCHEMA)])
    everybody = ZSet.of({"id": np.arange(251), "k": [7, *range(100, 350)], "text": ["."] * 251})

    found = answer(join, 1, [ZSet.empty(SCHEMA), everybody])

    assert sum(map(len, found)) == 300
    assert join.statistics()["left_streamed_rows"] >= 270
    assert join.largest_fan_out() == (50, (7,))


@pytest.mark.parametrize("condition", [None, CONDITION])
@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_a_key_that_is_streamed_alone_does_not_pass_too(how: str, condition: Expression | None) -> None:
    in_memory, streaming = (built(HashJoin, LEFT, RIGHT, how, residual=condition, **options) for options in ({}, FEW))
    count = 30_000
    keys = np.where(np.arange(count) < 25_000, 7, np.arange(count))  # 2 MB of one key, and 5,000 others
    everybody = np.concatenate([[7], np.arange(25_000, count)])
    first = [
        ZSet.of({"id": np.arange(count), "k": keys, "text": ["a text longer than twelve bytes"] * count}),
        ZSet.empty(SCHEMA),
    ]
    names = [
        [ZSet.empty(SCHEMA), ZSet.of({"id": everybody, "k": everybody, "text": [text] * len(everybody)})] for text in ("a", "b")
    ]

    for epoch, deltas in enumerate([first, *names]):
        found = [
            Counter(change for chunk in answer(join, epoch, deltas) for change in chunk) for join in (in_memory, streaming)
        ]
        assert found[0] == found[1]
        for join in (in_memory, streaming):
            join.absorb(Tick(epoch), deltas)

    assert streaming.statistics()["left_streamed_rows"] >= 2 * count - 100


@pytest.mark.parametrize("how", ["left", "full", "left_semi", "left_anti"])
@pytest.mark.parametrize("limit", [{"max_hot_keys": 0}, {"max_hot_bytes": 0}])
def test_a_key_whose_hash_is_that_of_null_is_a_key_like_any_other(how: str, limit: dict[str, int]) -> None:
    """With one bit of hash half of the keys are neighbours of NULL; alone on a page, NULL's rows change no degree."""
    in_memory = HashJoin(LEFT, RIGHT, how, residual=CONDITION)
    hybrid = built(HashJoin, LEFT, RIGHT, how, residual=CONDITION, hash_bits=1, **limit)
    nothing = ZSet.empty(SCHEMA)
    epochs = []
    for key in range(8):
        for side, number, k, weight in [
            (0, key, None, 1),
            (0, 100 + key, key, 1),
            (1, 200 + key, key, 1),
            (1, 200 + key, key, -1),
        ]:
            row = ZSet.of(pa.table({"id": [number], "k": [k], "text": ["x"]}, schema=SCHEMA), [weight])
            epochs.append([row, nothing] if side == 0 else [nothing, row])
    for epoch, deltas in enumerate(epochs):
        found, expected = (Counter(chain(*answer(join, epoch, deltas))) for join in (hybrid, in_memory))
        assert found == expected
        for join in (in_memory, hybrid):
            join.absorb(Tick(epoch), deltas)
