"""Hashes are seeded: chosen keys collide for one seed only, and state is opened with the seed it was written with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.aggregates.calls import AggregateCall
from zset_join.errors import OptionError, StateError
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.distinct import Distinct
from zset_join.operators.join import HashJoin
from zset_join.operators.route import Route
from zset_join.relation import Relation
from zset_join.state.rows.hash_seed import SEED_FILE, choose_seed, hash_key, seed_of_query
from zset_join.tick import Tick
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64()})
BAG = Relation(name="bag", schema=SCHEMA, join_key=("k",), mode="changelog")
TABLE = Relation(name="table", schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="upsert")


def codes_of(values: Any, *, seed: int) -> Any:
    """Return the hashes of whole numbers."""
    side = HashJoin(BAG, BAG, hash_seed=seed)._sides[0]
    prepared = side.prepare(ZSet.of({"id": np.zeros(len(values), np.int64), "k": values}))
    return prepared.join_codes[: len(values)].copy()


def chosen_keys(count: int) -> Any:
    """Return keys whose hashes with seed 0 begin with the same 8 bits after the table's own multiplication."""
    values = np.arange(300 * count, dtype=np.int64)
    homes = (codes_of(values, seed=0).astype(np.uint64) * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)) >> np.uint64(24)
    return values[homes == 0][:count]


def absorbed_in(join: HashJoin, keys: Any) -> float:
    started = time.perf_counter()
    join.absorb(Tick(join.absorbed_epoch + 1), [ZSet.of({"id": np.arange(len(keys)), "k": keys}), ZSet.empty(SCHEMA)])
    return time.perf_counter() - started


def test_keys_that_collide_for_one_seed_do_not_for_another() -> None:
    keys = chosen_keys(1000)

    spread = {seed: len(np.unique(codes_of(keys, seed=seed) >> 24)) for seed in (1, 2, 2**31, 2**32 - 1)}

    assert len(keys) == 1000
    assert all(count > 200 for count in spread.values()), spread


def test_chosen_keys_cost_what_others_do() -> None:
    keys = chosen_keys(20_000)
    absorbed_in(HashJoin(BAG, BAG, "left"), keys[:10])
    plain = min(absorbed_in(HashJoin(BAG, BAG, "left"), np.arange(20_000)) for _ in range(3))

    chosen = min(absorbed_in(HashJoin(BAG, BAG, "left"), keys) for _ in range(3))

    assert chosen < 10 * plain + 0.05


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_hashes_are_spread_whatever_the_seed(seed: int) -> None:
    codes = codes_of(np.arange(1 << 16, dtype=np.int64), seed=seed)

    assert len(np.unique(codes)) > 65_000
    assert abs(np.bincount(codes >> 28, minlength=16) - 4096).max() < 400


@pytest.mark.parametrize("name", ["join", "route", "aggregate", "distinct"])
def test_state_is_opened_with_the_seed_it_was_written_with(name: str, tmp_path: Path) -> None:
    operators: dict[str, Any] = {
        "join": lambda **options: HashJoin(BAG, BAG, directory=str(tmp_path), **options),
        "route": lambda **options: Route(TABLE, directory=str(tmp_path), **options),
        "aggregate": lambda **options: Aggregate(BAG, ["k"], [AggregateCall("count")], directory=str(tmp_path), **options),
        "distinct": lambda **options: Distinct(BAG, directory=str(tmp_path), **options),
    }
    rows = ZSet.of({"id": range(100), "k": range(100)})
    first = operators[name]()
    first.absorb(Tick(0), [rows] * len(first.inputs))
    before = first.snapshot()
    first.close()

    again = operators[name]()
    assert again.snapshot() == before
    again.close()
    written = int((tmp_path / SEED_FILE).read_text())
    operators[name](hash_seed=written).close()
    with pytest.raises(StateError, match="STATE_FINGERPRINT"):
        operators[name](hash_seed=written ^ 1)


def test_a_seed_is_drawn_where_none_is_given(tmp_path: Path) -> None:
    assert len({choose_seed(None, None) for _ in range(10)}) > 1
    assert choose_seed(None, str(tmp_path / "new")) == choose_seed(None, str(tmp_path / "new"))
    assert choose_seed(7, str(tmp_path)) == 7
    assert not (tmp_path / SEED_FILE).exists()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_has_32_bits(seed: int) -> None:
    with pytest.raises(OptionError, match="hash_seed"):
        choose_seed(seed, None)


@pytest.mark.parametrize("written", ["", "twelve", "99999999999"])
def test_a_damaged_seed_is_told(written: str, tmp_path: Path) -> None:
    (tmp_path / SEED_FILE).write_text(written)

    with pytest.raises(StateError, match="delete the directory"):
        choose_seed(None, str(tmp_path))


def test_a_query_has_one_seed() -> None:
    assert seed_of_query("a") == seed_of_query("a") != seed_of_query("b")
    assert hash_key(32, 2**32 - 1) == -1
