"""Hashes are seeded: chosen keys collide for one seed only, and state is opened with the seed it was written with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.built import built
from tests.stages.every_stage import EVENTS, QUOTES, ROWS, STAGES, VERSIONS, registered
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, StateError
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate, Distinct
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Route
from zset_join.shapes.aggregate import AggregateCall
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.shapes.timed_join import TemporalOptions
from zset_join.stages import (
    AggregateStage,
    JoinStage,
    LatestStage,
    ProcessTimeJoinStage,
    Stage,
    StateTtl,
    TemporalJoinStage,
    expiring_stage,
)
from zset_join.stages.effect import EffectStage
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.directories import SEED_FILE, choose_seed, hash_key, seed_of_query
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64()})
BAG = Relation(name="bag", schema=SCHEMA, join_key=("k",), mode="changelog")
TABLE = Relation(name="table", schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="upsert")


def codes_of(values: Any, *, seed: int) -> Any:
    """Return the hashes of whole numbers."""
    side = HashJoin(BAG, BAG, options=OperatorOptions(hash_seed=seed))._sides[0]
    prepared = side.prepare(ZSet.of({"id": np.zeros(len(values), np.int64), "k": values}))
    return prepared.join_codes[: len(values)].copy()


def test_keys_that_collide_for_one_seed_do_not_for_another() -> None:
    """The first 8 bits after the table's own multiplication are those of a slot's home."""
    values = np.arange(300_000, dtype=np.int64)
    homes = (codes_of(values, seed=0).astype(np.uint64) * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)) >> np.uint64(24)
    keys = values[homes == 0][:1000]

    spread = {seed: len(np.unique(codes_of(keys, seed=seed) >> 24)) for seed in (1, 2, 2**31, 2**32 - 1)}

    assert len(keys) == 1000
    assert all(count > 200 for count in spread.values()), spread


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_hashes_are_spread_whatever_the_seed(seed: int) -> None:
    codes = codes_of(np.arange(1 << 16, dtype=np.int64), seed=seed)

    assert len(np.unique(codes)) > 65_000
    assert abs(np.bincount(codes >> 28, minlength=16) - 4096).max() < 400


@pytest.mark.parametrize("name", ["join", "route", "aggregate", "distinct"])
def test_state_is_opened_with_the_seed_it_was_written_with(name: str, tmp_path: Path) -> None:
    operators: dict[str, Any] = {
        "join": lambda **options: built(HashJoin, BAG, BAG, directory=str(tmp_path), **options),
        "route": lambda **options: built(Route, TABLE, directory=str(tmp_path), **options),
        "aggregate": lambda **options: built(
            Aggregate, BAG, ["k"], [AggregateCall("count")], directory=str(tmp_path), **options
        ),
        "distinct": lambda **options: built(Distinct, BAG, directory=str(tmp_path), **options),
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
def test_a_damaged_seed_is_reported(written: str, tmp_path: Path) -> None:
    (tmp_path / SEED_FILE).write_text(written)

    with pytest.raises(StateError, match="delete the directory"):
        choose_seed(None, str(tmp_path))


def test_a_query_has_one_seed() -> None:
    assert seed_of_query("a") == seed_of_query("a") != seed_of_query("b")
    assert hash_key(32, 2**32 - 1) == -1


# ---------------------------------------------------------------- every stage

CHANGING = [replace(one, mode="changelog") for one in (EVENTS, QUOTES)]
CALLS = (
    AggregateCall("count"),
    AggregateCall("min", ("id",), name="least"),
    AggregateCall("count_distinct", ("id",), name="ids"),
)
VARIANTS: dict[str, Stage] = {
    **STAGES,
    "aggregate, more": AggregateStage(source=CHANGING[0], group_by=("k",), calls=CALLS),
    "join, changing": JoinStage(left=CHANGING[0], right=CHANGING[1], how="full"),
    "latest, partial": LatestStage(
        source=replace(ROWS, schema=ROWS.schema.append(pa.field("control", pa.int64()))), control="control"
    ),
    "process_time_join, changing": ProcessTimeJoinStage(left=CHANGING[0], right=VERSIONS),
    "process_time_join, shared": replace(
        STAGES["shared_table"],  # type: ignore[type-var]
        readers=(ProcessTimeJoinStage(left=EVENTS, right=VERSIONS), ProcessTimeJoinStage(left=QUOTES, right=VERSIONS)),
    ),
    "state_ttl, reads": expiring_stage(
        JoinStage(left=CHANGING[0], right=CHANGING[1]), (EVENTS, QUOTES), (StateTtl("1 day", refreshed_by="read"),) * 2
    ),
    "temporal_join, eager": TemporalJoinStage(left=CHANGING[0], right=VERSIONS, options=TemporalOptions(emit="eager")),
}
STATELESS = {"unchanged"}


def fed(stage: Stage, operator: Any, tick: Tick, keys: Any) -> list[ZSet]:
    """Return rows of these keys for every input; the external table is empty."""
    deltas = []
    for given in stage.inputs:
        names = given.relation.schema.names
        columns = {name: np.zeros(len(keys), np.int64) if name == "control" else keys for name in names}
        rows = ZSet.of({**columns, "at": np.arange(len(keys)) + tick.epoch * len(keys)}, schema=given.relation.schema)
        deltas.append(rows if given.reduce is None else given.reduce.reduce(rows))
    return stage.rehearsed(operator, tick, deltas) if isinstance(stage, EffectStage) else deltas


def live(stage: Stage, keys: Any, *, seed: int, directory: str) -> None:
    """Take the keys in one epoch and again in the next, and go on from a snapshot."""
    operator = stage.build(StageOptions(hash_seed=seed), directory)
    for epoch in range(2):
        tick = Tick(epoch, 1_000_000 * epoch, watermark_before_us=len(keys) * epoch, watermark_us=len(keys) * (epoch + 1))
        deltas = fed(stage, operator, tick, keys)
        for chunk in operator.answer(tick, deltas):
            chunk.consolidated()
        operator.absorb(tick, deltas)
    operator.restore(operator.snapshot())
    operator.close()


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the seeds of all tables that are made from here on."""
    seen: list[int] = []

    def spied(hash_bits: int, seed: int) -> int:
        seen.append(seed)
        return hash_key(hash_bits, seed)

    for name, module in list(sys.modules.items()):
        if name.startswith(("zset_join", "spill")) and getattr(module, "hash_key", None) is hash_key:
            monkeypatch.setattr(module, "hash_key", spied)
    return seen


def test_every_kind_of_stage_passes_on_its_seed() -> None:
    assert registered() - {name.partition(",")[0] for name in VARIANTS} == set()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_seed_of_a_query_reaches_every_table(name: str, seeds: list[int], tmp_path: Path) -> None:
    stage = VARIANTS[name]
    stage.build(StageOptions(hash_seed=0), None).close()  # what stages keep beside their operators has tables too
    seeds.clear()

    live(stage, np.arange(20, dtype=np.int64), seed=77, directory=str(tmp_path))

    assert set(seeds) == (set() if name in STATELESS else {77})
    assert not list(tmp_path.rglob(SEED_FILE))
