"""A first load in parts emits and leaves the same as one load at once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tests.built import built
from zset_join import Relation, Tick, ZSet
from zset_join.core.errors import BadInputError, StateError
from zset_join.expressions import left, right
from zset_join.operators import first_load
from zset_join.operators.first_load import LoadedJoin
from zset_join.operators.join import JOIN_TYPES, HashJoin
from zset_join.state.rows.row_arena import RowArena
from zset_join.testing.comparison import exact_tables

COLUMNS = {"id": pa.int64(), "k": pa.int64(), "v": pa.string()}
LONG = "a value that is longer than twelve letters "
SMALL = {"part_changes": 1, "hash_seed": 7}  # parts of 4 rows


def relation(name: str, *, sequence: bool = False, mode: str = "upsert") -> Relation:
    schema = pa.schema({**COLUMNS, **({"at": pa.int64()} if sequence else {})})
    by = ("at",) if sequence else ()
    return Relation(name=name, schema=schema, join_key=("k",), primary_key=("id",), mode=mode, sequence_by=by)


def drawn(draw: random.Random, of: Relation, *, count: int = 40, ids: int = 25) -> ZSet:
    """Draw upserts of which some change a row again, and some delete it; NULL keys among them."""
    rows, weights, live = [], [], set()
    for at in range(count):
        row = {"id": draw.randrange(ids), "k": draw.choice([None, 1, 2, 3, 4]), "v": LONG + str(draw.randrange(3)), "at": at}
        rows.append({name: row[name] for name in of.schema.names})
        weights.append(-1 if row["id"] in live and draw.random() < 0.3 else 1)
        (live.discard if weights[-1] < 0 or row["k"] is None else live.add)(row["id"])
    return ZSet.from_rows(rows, of.schema, weights=weights)


def stepped(join: HashJoin, epoch: int, deltas: list[ZSet]) -> Counter:
    """Return the summed rows of an epoch, which must be consolidated with retractions first, and absorb it."""
    chunks = list(join.answer(Tick(epoch, 5), deltas))
    signs = [int(weight > 0) for chunk in chunks for weight in chunk.weights]
    lines = Counter()
    for chunk in chunks:
        for row, weight in chunk.to_pylist():
            lines[row] += weight
    assert signs == sorted(signs)
    assert len(lines) == len(signs)
    join.absorb(Tick(epoch, 5), deltas)
    return lines


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each epoch that was due in parts was worked in parts."""
    seen: list[bool] = []
    load = LoadedJoin._load

    def noted(self: LoadedJoin, *arguments, **whether):
        chunks = load(self, *arguments, **whether)
        seen.append(chunks is not None)
        return chunks

    monkeypatch.setattr(LoadedJoin, "_load", noted)
    monkeypatch.setattr(first_load, "_LISTED_AT_ONCE", 8)
    monkeypatch.setattr(first_load, "_GATHERED_ROWS", 24)
    return seen


@pytest.mark.parametrize("how", JOIN_TYPES)
@pytest.mark.parametrize("kind", ["plain", "sequence", "residual"])
def test_parts_leave_what_one_epoch_leaves(how: str, kind: str, loads: list[bool]) -> None:
    sides = [relation(name, sequence=kind == "sequence") for name in ("l", "r")]
    hidden = (("at",), ("at",)) if kind == "sequence" else ((), ())
    residual = left("id") < right("id") if kind == "residual" else None
    for seed in range(6):
        draw = random.Random(seed)
        parted, whole = (built(join, *sides, how, residual=residual, hidden=hidden, **SMALL) for join in (LoadedJoin, HashJoin))
        for epoch, count in enumerate((40, 6, 40)):
            deltas = [drawn(draw, side, count=count) for side in sides]
            assert stepped(parted, epoch, deltas) == stepped(whole, epoch, deltas)
            assert exact_tables(parted.snapshot()) == exact_tables(whole.snapshot())
            assert parted.absorbed_epoch == epoch
    assert any(loads)


def test_an_answer_changes_nothing_and_may_be_dropped_or_left_unread(loads: list[bool]) -> None:
    sides = [relation("l"), relation("r")]
    first, other = ([drawn(random.Random(seed), side, ids=1000) for side in sides] for seed in (1, 2))
    parted, whole = built(LoadedJoin, *sides, **SMALL), built(HashJoin, *sides, **SMALL)

    once = Counter(row for chunk in parted.answer(Tick(0), first) for row in chunk.to_pylist())
    assert once == Counter(row for chunk in parted.answer(Tick(0), first) for row in chunk.to_pylist())
    next(parted.answer(Tick(0), first))
    assert parted.snapshot()["left"].num_rows == 0
    parted.absorb(Tick(0), other)
    whole.absorb(Tick(0), other)

    assert exact_tables(parted.snapshot()) == exact_tables(whole.snapshot())
    assert loads == [True] * 4


@pytest.mark.parametrize("policy", ["error", "quarantine"])
def test_bad_rows_are_those_of_the_whole_epoch(policy: str, loads: list[bool]) -> None:
    sides = [relation("l"), relation("r")]
    deltas = [drawn(random.Random(3), side, ids=1000) for side in sides]
    bad = ZSet.from_rows([{"id": None, "k": 1, "v": "x"}] * 2, sides[0].schema)
    deltas[0] = deltas[0] + bad
    parted, whole = (built(join, *sides, on_bad_input=policy, **SMALL) for join in (LoadedJoin, HashJoin))

    if policy == "error":
        with pytest.raises(BadInputError) as raised:
            list(parted.answer(Tick(0), deltas))
        with pytest.raises(BadInputError) as wanted:
            list(whole.answer(Tick(0), deltas))
        assert str(raised.value) == str(wanted.value)
        assert parted.absorbed_epoch == -1
    else:
        assert stepped(parted, 0, deltas) == stepped(whole, 0, deltas)
        assert parted.rejections(Tick(1), deltas).equals(whole.rejections(Tick(1), deltas))
        assert parted.statistics() == whole.statistics()
    assert not any(loads)


def test_a_join_that_holds_rows_works_an_epoch_at_once(loads: list[bool]) -> None:
    sides = [relation("l"), relation("r")]
    join = built(LoadedJoin, *sides, **SMALL)
    nothing = ZSet.empty(sides[1].schema)
    stepped(join, 0, [drawn(random.Random(1), sides[0], count=3), nothing])

    stepped(join, 1, [drawn(random.Random(1), side) for side in sides])

    assert loads == []


def test_weights_stay_with_their_rows_in_every_chunk(loads: list[bool]) -> None:
    sides = [replace(relation("l", mode="append"), primary_key=()), relation("r")]
    bag = ZSet.from_rows([{"id": at, "k": at % 3, "v": ""} for at in range(30)], sides[0].schema, weights=range(1, 31))
    deltas = [bag, drawn(random.Random(2), sides[1], ids=1000)]
    parted, whole = (built(join, *sides, chunk_rows=5, **SMALL) for join in (LoadedJoin, HashJoin))

    assert max(map(len, parted.answer(Tick(0, 5), deltas))) == 5
    assert stepped(parted, 0, deltas) == stepped(whole, 0, deltas)
    assert loads == [True, True]


def test_rows_that_retract_others_are_worked_at_once(loads: list[bool]) -> None:
    sides = [relation("l", mode="changelog"), relation("r")]
    rows = drawn(random.Random(1), sides[0], ids=1000)
    deltas = [ZSet(rows.rows, abs(rows.weights)) + ZSet(rows.rows, -abs(rows.weights)), drawn(random.Random(2), sides[1])]

    assert not stepped(built(LoadedJoin, *sides, **SMALL), 0, deltas)
    assert loads == []


@pytest.mark.parametrize("how", ["inner", "left_anti", "full"])
@pytest.mark.parametrize("kind", ["plain", "sequence", "residual"])
def test_over_files_parts_leave_what_one_epoch_leaves(how: str, kind: str, loads: list[bool], tmp_path: Path) -> None:
    sides = [relation(name, sequence=kind == "sequence") for name in ("l", "r")]
    terms = {"hidden": (("at",), ("at",))} if kind == "sequence" else {}
    terms |= {"residual": left("id") < right("id")} if kind == "residual" else {}
    for seed in range(1):
        draw = random.Random(seed)
        parted = built(LoadedJoin, *sides, how, **terms, directory=str(tmp_path / f"{seed}"), **SMALL)
        whole = built(HashJoin, *sides, how, **terms, **SMALL)
        for epoch, count in enumerate((400, 40, 6)):
            deltas = [drawn(draw, side, count=count, ids=10**6 if epoch == 0 else 25) for side in sides]
            assert stepped(parted, epoch, deltas) == stepped(whole, epoch, deltas)
            assert exact_tables(parted.snapshot()) == exact_tables(whole.snapshot())
            parted.close()
            parted = built(LoadedJoin, *sides, how, **terms, directory=str(tmp_path / f"{seed}"), **SMALL)
            assert all(own.table_bytes() <= side.table_bytes() for own, side in zip(parted._sides, whole._sides, strict=True))
            assert parted.absorbed_epoch == epoch
        parted.close()
    assert loads == [True, True]


def test_files_that_were_being_loaded_when_the_process_ended_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides, directory = [relation("l"), relation("r")], str(tmp_path / "state")
    deltas = [drawn(random.Random(1), side, ids=1000) for side in sides]
    join = built(LoadedJoin, *sides, directory=directory, **SMALL)
    monkeypatch.setattr(RowArena, "copy", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))

    with pytest.raises(OSError, match="full"):
        join.absorb(Tick(0), deltas)
    join.close()

    with pytest.raises(StateError, match="was being written"):
        built(LoadedJoin, *sides, directory=directory, **SMALL)


def test_the_memory_of_a_load_is_given_back_when_callers_have_dropped_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    sides, given_back = [relation("l"), relation("r")], []
    join = built(LoadedJoin, *sides, **SMALL)
    pool = SimpleNamespace(release_unused=lambda: given_back.append(join.absorbed_epoch))
    monkeypatch.setattr(first_load, "pa", SimpleNamespace(default_memory_pool=lambda: pool))

    for epoch, count in enumerate((40, 40, 4, 4, 4)):
        join.absorb(Tick(epoch), [drawn(random.Random(epoch), side, count=count, ids=1000) for side in sides])

    assert given_back == [1]


@pytest.mark.parametrize("count", [40, 1])
def test_an_answer_that_is_read_first_after_the_load_is_refused(count: int) -> None:
    join = built(LoadedJoin, relation("l"), relation("r"), "inner", **SMALL)
    rows = {"id": list(range(count)), "k": [1] * count, "v": ["a"] * count}
    deltas = [ZSet.of(rows, schema=one.schema) for one in join.inputs]
    answer = join.answer(Tick(0, 5), deltas)

    join.absorb(Tick(0, 5), deltas)

    with pytest.raises(StateError) as refused:
        next(answer)
    assert refused.value.code == "ANSWER_OUTDATED"
