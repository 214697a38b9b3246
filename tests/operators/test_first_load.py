"""First rows that are worked in parts emit and leave the same as one epoch: those of a join, and upserts of a table."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa
import pytest

from tests.built import built
from zset_join import Relation, Tick, ZSet
from zset_join.core.errors import StateError
from zset_join.expressions import left, right
from zset_join.operators import first_load
from zset_join.operators.first_load import LoadedJoin, LoadedLatest
from zset_join.operators.join import JOIN_TYPES, HashJoin
from zset_join.operators.upsert_table import Latest
from zset_join.state.rows.row_tables import RowArena
from zset_join.state.rows.side import SideState
from zset_join.testing.comparison import exact_tables

# ---------------------------------------------------------------- joins

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


@pytest.mark.parametrize(("lasts", "loaded"), [(False, 1), (True, 2)], ids=["in memory", "over files"])
def test_a_load_that_was_answered_is_taken_over_in_memory_and_over_files_dropped(
    lasts: bool, loaded: int, loads: list[bool], tmp_path: Path
) -> None:
    sides = [relation("l"), relation("r")]
    join = built(LoadedJoin, *sides, **SMALL, directory=str(tmp_path) if lasts else None)

    stepped(join, 0, [drawn(random.Random(1), side, ids=1000) for side in sides])

    assert loads == [True] * loaded
    join.close()


def test_a_load_that_was_answered_is_dropped_where_other_rows_are_absorbed() -> None:
    draw, sides = random.Random(1), [relation("l"), relation("r")]
    join, whole = (built(kind, *sides, **SMALL) for kind in (LoadedJoin, HashJoin))
    answered, absorbed = ([drawn(draw, side, ids=1000) for side in sides] for _ in range(2))

    list(join.answer(Tick(0), answered))
    join.absorb(Tick(0), absorbed)
    whole.absorb(Tick(0), absorbed)

    assert exact_tables(join.snapshot()) == exact_tables(whole.snapshot())


def test_a_join_that_holds_rows_works_an_epoch_at_once(loads: list[bool]) -> None:
    sides = [relation("l"), relation("r")]
    join = built(LoadedJoin, *sides, **SMALL)
    nothing = ZSet.empty(sides[1].schema)
    stepped(join, 0, [drawn(random.Random(1), sides[0], count=3), nothing])

    stepped(join, 1, [drawn(random.Random(1), side) for side in sides])

    assert loads == []


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


# ---------------------------------------------------------------- upserts

SCHEMA = pa.schema(
    {
        "name": pa.string(),
        "at": pa.int64(),
        "id": pa.int64(),
        "value": pa.float64(),
        "tags": pa.list_(pa.string()),
        "part": pa.int32(),
    }
)
ORDERS = Relation(name="orders", schema=SCHEMA, primary_key=("part", "id"), sequence_by=("at",), mode="upsert")
SMALL_TABLE = {"part_changes": 1, "hash_seed": 7, "chunk_rows": 5}  # parts of 4 rows, and at least 4 of them
VALUES = (None, 0.0, -0.0, float("nan"), 1.5)


def row(number: int, draw: random.Random, *, at: int = 0) -> dict[str, object]:
    return {
        "name": draw.choice([None, "", "a name longer than twelve letters"]),
        "at": at,
        "id": number % 10,
        "value": draw.choice(VALUES),
        "tags": draw.choice([None, [], ["a", None]]),
        "part": number // 10,
    }


def rows(numbers: range, seed: int = 1, *, at: int = 0) -> ZSet:
    draw = random.Random(seed)
    return ZSet.from_rows([row(number, draw, at=at) for number in numbers], SCHEMA)


def loaded(**options: object) -> LoadedLatest:
    return built(LoadedLatest, ORDERS, hidden=["at"], **SMALL_TABLE, **options)


def plain(**options: object) -> Latest:
    return built(Latest, ORDERS, hidden=["at"], **SMALL_TABLE, **options)


def table_stepped(table: Latest, epoch: int, delta: ZSet) -> list[tuple[str, int]]:
    """Return the rows of an epoch in order, and absorb it; its chunks are bounded."""
    chunks = list(table.answer(Tick(epoch, 5), [delta]))
    assert all(len(chunk) <= SMALL_TABLE["chunk_rows"] and chunk.schema == table.output.schema for chunk in chunks)
    table.absorb(Tick(epoch, 5), [delta])
    return sorted((repr(row), weight) for chunk in chunks for row, weight in chunk.to_pylist())


@pytest.fixture
def table_loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each epoch that was looked at was worked in parts."""
    seen: list[bool] = []
    look = LoadedLatest._has_distinct_keys
    monkeypatch.setattr(LoadedLatest, "_has_distinct_keys", lambda self, delta: seen.append(look(self, delta)) or seen[-1])
    return seen


DELETE = ZSet(rows(range(30, 31)).rows, rows(range(30, 31)).weights * -1)
NO_KEY = ZSet.from_rows([{**row(30, random.Random(1)), "id": None}], SCHEMA)
NO_SEQUENCE = ZSet.from_rows([{**row(30, random.Random(1)), "at": None}], SCHEMA)
FIRST = {
    "keys of their own": (rows(range(30)), True),
    "a key twice in one part": (rows(range(30)) + rows(range(29, 30), 2, at=1), False),
    "a key again in a later part": (rows(range(30)) + rows(range(2, 3), 2, at=1), False),
    "an older row of a key": (rows(range(30), at=1) + rows(range(2, 3), 2), False),
    "a delete": (rows(range(30)) + DELETE, False),
    "a key that is deleted": (rows(range(31)) + DELETE, False),
    "no key": (rows(range(30)) + NO_KEY, False),
    "no sequence": (rows(range(30)) + NO_SEQUENCE, False),
}


@pytest.mark.parametrize("lasts", [False, True], ids=["in memory", "over files"])
@pytest.mark.parametrize("name", FIRST)
def test_parts_emit_and_leave_what_one_epoch_does(name: str, lasts: bool, table_loads: list[bool], tmp_path: Path) -> None:
    first, is_loaded = FIRST[name]
    options = {"on_bad_input": "quarantine", "directory": str(tmp_path / "state") if lasts else None}
    parted, whole = loaded(**options), plain(on_bad_input="quarantine")
    assert parted.rejections(Tick(0), [first]).equals(whole.rejections(Tick(0), [first]))
    for epoch, delta in enumerate([first, rows(range(5, 45), 3, at=2), rows(range(3), 4, at=1), -rows(range(9), 5, at=3)]):
        assert table_stepped(parted, epoch, delta) == table_stepped(whole, epoch, delta)
        if lasts:
            parted.close()
            parted = loaded(**options)
        assert exact_tables(parted.snapshot()) == exact_tables(whole.snapshot())
        assert parted.absorbed_epoch == epoch
        assert _counts(parted) == _counts(whole)
    assert set(table_loads) == {is_loaded}
    parted.close()


def _counts(table: Latest) -> dict[str, int]:
    return {name: count for name, count in table.statistics().items() if not name.endswith("bytes")}


def test_nothing_of_a_first_load_is_copied_into_the_answer() -> None:
    first = rows(range(30))
    chunks = list(loaded().answer(Tick(0), [first]))

    whole = ZSet.concat_freeing(chunks, schema=chunks[0].schema)

    for name in ("name", "id", "value", "part"):
        taken, given = whole.rows.column(name), first.rows.column(name)
        assert taken.equals(given) or name == "value"
        assert [one and one.address for one in taken.buffers()] == [one and one.address for one in given.buffers()]


def test_files_of_upserts_that_were_being_loaded_when_the_process_ended_are_refused(tmp_path: Path) -> None:
    table = loaded(directory=str(tmp_path / "state"))
    absorb = SideState.absorb
    calls = []

    def fails(self: SideState, *given: object) -> None:
        calls.append(self.name)
        if calls.count("latest") > 2:
            raise OSError(28, "full")
        absorb(self, *given)

    with mock.patch.object(SideState, "absorb", fails), pytest.raises(OSError, match="full"):
        table.absorb(Tick(0), [rows(range(30))])
    table.close()

    with pytest.raises(StateError, match="was being written"):
        loaded(directory=str(tmp_path / "state"))


@pytest.mark.parametrize("name", ["keys of their own", "a key twice in one part"])
def test_a_table_keeps_no_delta_that_it_looked_at(name: str) -> None:
    table, delta = loaded(), ZSet(FIRST[name][0].rows, FIRST[name][0].weights)
    kept = weakref.ref(delta)
    list(table.answer(Tick(0, 5), [delta]))
    if name != "keys of their own":  # else as over files, where the next epoch absorbs it
        table.absorb(Tick(0, 5), [delta])
    del delta
    assert kept() is None
