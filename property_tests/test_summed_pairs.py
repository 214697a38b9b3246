"""Groups over a many-to-many join are the same out of sums per key as out of pairs; planted bugs are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from property_tests.bags import text_bag_of
from zset_join.expressions.rows import named
from zset_join.pipeline import Pipeline, View, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.plan.passes import sum_pairs

_SEEDS = 24
_CALLS = (
    lambda: F.count("*").alias("a"),
    lambda: F.sum("x").alias("b"),
    lambda: F.avg("y").alias("c"),
    lambda: F.min("x").alias("d"),
    lambda: F.max("y").alias("e"),
    lambda: F.count("y").alias("f"),
    lambda: F.avg("x").alias("g"),
    lambda: F.max("s").alias("h"),
)


def sides(rng: np.random.Generator) -> tuple[View, View]:
    """Return two inputs, upserts or appends, whose keys have types that differ now and then."""
    kind = pa.int32() if rng.random() < 0.3 else pa.int64()
    left = {"id": pa.int64(), "k": pa.int64(), "s": pa.string(), "x": pa.int64()}
    right = {"id": pa.int64(), "k": kind, "t": pa.string(), "y": pa.int32()}
    one = changes("l", left, keys="id") if rng.random() < 0.6 else appends("l", left)
    other = changes("r", right, keys="id") if rng.random() < 0.6 else appends("r", right)
    return one, other


def drawn(seed: int) -> View:
    """Return the groups of a seed."""
    rng = np.random.default_rng([seed, 6])
    left, right = sides(rng)
    joined = left.join(right, left["k"].eqNullSafe(right["k"]) if rng.random() < 0.3 else left["k"] == right["k"])
    by = [["k"], ["s"], ["s", "t"], ["k", "t"], ["k_right"]][seed % 5]
    calls = [_CALLS[at]() for at in rng.choice(len(_CALLS), int(rng.integers(1, 5)), replace=False)]
    return joined.groupBy(*by).agg(*calls)


def rows(rng: np.random.Generator, side: str, keyed: bool, epoch: int) -> list[dict[str, Any]]:
    """Return changes of one side."""

    def maybe(value: Any, share: float) -> Any:
        return None if rng.random() < share else value

    text, number = ("s", "x") if side == "l" else ("t", "y")
    ids = rng.choice(25, 8, replace=False) if keyed else range(epoch * 10, epoch * 10 + 6)
    return [
        {
            "id": int(identity),
            "k": maybe(int(rng.integers(4)), 0.1),
            text: maybe("ab"[int(rng.integers(2))], 0.1),
            number: maybe(int(rng.integers(-9, 9)), 0.2),
        }
        for identity in ids
    ]


def compared(seed: int) -> int:
    """Return how many rows of answers out of sums and out of pairs were compared, all equal; 0 where pairs were needed.

    Raises:
        AssertionError: they differ.
    """
    view = drawn(seed)
    pairs, sums = Pipeline(view), Pipeline(view, keep_state="needed", keep_inputs=True)
    if sum(node.stage.kind == "aggregate" for node in sums.plan.nodes) < 3:
        return 0
    rng, seen = np.random.default_rng([seed, 7]), 0
    for epoch in range(8):
        step = {name: rows(rng, name, pairs.plan.source(name).relation.mode == "upsert", epoch) for name in pairs.sources}
        expected, actual = text_bag_of(pairs.step(step)), text_bag_of(sums.step(step))
        assert actual == expected, f"seed {seed}, epoch {epoch}: {actual} instead of {expected}"
        seen += len(expected)
    assert sums.verify().equal, f"seed {seed}: {sums.verify()}"
    return seen


def test_groups_out_of_sums_are_those_of_the_pairs() -> None:
    seen = [compared(seed) for seed in range(_SEEDS)]

    assert all(seen)
    assert sum(seen) > 10 * _SEEDS


def _forgets_the_other_side(self: Any, call: Any) -> Any:
    return [(name, kind, _plain(value)) for name, kind, value in _PRODUCTS(self, call)]


def _plain(value: Any) -> Any:
    return value.operands[0] if getattr(value, "operation", "") == "multiply" else value


_PRODUCTS = sum_pairs._Pairs._products


def _counts_for_sums(call: Any) -> tuple[str, ...]:
    return ("sum", "count") if call.kind == "avg" else ("count",) if call.kind == "sum" else (call.kind,)


@pytest.mark.parametrize(
    ("place", "name", "bug"),
    [
        (sum_pairs._Pairs, "_products", _forgets_the_other_side),
        (sum_pairs, "_parts_of", _counts_for_sums),
    ],
)
def test_a_pass_that_sums_wrongly_is_found(place: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, name, bug)

    with pytest.raises((AssertionError, KeyError)):
        sum(map(compared, range(_SEEDS)))


@pytest.mark.parametrize(
    "reason",
    ["left", "condition", "floats", "filter", "unique", "global", "changelog"],
)
def test_pairs_are_made_where_sums_would_be_something_else(reason: str) -> None:
    columns = {"id": pa.int64(), "k": pa.int64(), "x": pa.float64() if reason == "floats" else pa.int64()}
    left = changes("l", columns) if reason == "changelog" else appends("l", columns)
    right = changes("r", {"k": pa.int64(), "y": pa.int64()}, keys="k" if reason == "unique" else None)
    if reason not in {"unique", "changelog"}:
        right = appends("r", {"k": pa.int64(), "y": pa.int64()})
    on = left["k"] == right["k"]
    joined = left.join(
        right, (on & (left["id"] < right["y"])) if reason == "condition" else on, "left" if reason == "left" else "inner"
    )
    summed = F.sum("x").filter(named("id") > 1) if reason == "filter" else F.sum("x")
    view = joined.agg(summed.alias("s")) if reason == "global" else joined.groupBy("k").agg(summed.alias("s"))

    plan = view.plan(keep_state="needed")

    assert [node.stage.kind for node in plan.nodes].count("aggregate") == 1
