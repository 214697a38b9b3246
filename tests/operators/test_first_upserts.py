"""First upserts that are worked in parts emit and leave the same as at once."""

from __future__ import annotations

import random
import weakref
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from tests.built import built
from zset_join import Relation, Tick, ZSet
from zset_join.core.errors import BadInputError, StateError
from zset_join.operators.first_upserts import LoadedLatest
from zset_join.operators.upsert_table import Latest
from zset_join.state.rows.side import SideState
from zset_join.testing.comparison import exact_tables

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
SMALL = {"part_changes": 1, "hash_seed": 7, "chunk_rows": 5}  # parts of 4 rows, and at least 4 of them
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
    return built(LoadedLatest, ORDERS, hidden=["at"], **SMALL, **options)


def plain(**options: object) -> Latest:
    return built(Latest, ORDERS, hidden=["at"], **SMALL, **options)


def stepped(table: Latest, epoch: int, delta: ZSet) -> list[tuple[str, int]]:
    """Return the rows of an epoch in order, and absorb it; its chunks are bounded."""
    chunks = list(table.answer(Tick(epoch, 5), [delta]))
    assert all(len(chunk) <= SMALL["chunk_rows"] and chunk.schema == table.output.schema for chunk in chunks)
    table.absorb(Tick(epoch, 5), [delta])
    return sorted((repr(row), weight) for chunk in chunks for row, weight in chunk.to_pylist())


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
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
def test_parts_emit_and_leave_what_one_epoch_does(name: str, lasts: bool, loads: list[bool], tmp_path: Path) -> None:
    first, is_loaded = FIRST[name]
    options = {"on_bad_input": "quarantine", "directory": str(tmp_path / "state") if lasts else None}
    parted, whole = loaded(**options), plain(on_bad_input="quarantine")
    assert parted.rejections(Tick(0), [first]).equals(whole.rejections(Tick(0), [first]))
    for epoch, delta in enumerate([first, rows(range(5, 45), 3, at=2), rows(range(3), 4, at=1), -rows(range(9), 5, at=3)]):
        assert stepped(parted, epoch, delta) == stepped(whole, epoch, delta)
        if lasts:
            parted.close()
            parted = loaded(**options)
        assert exact_tables(parted.snapshot()) == exact_tables(whole.snapshot())
        assert parted.absorbed_epoch == epoch
        assert _counts(parted) == _counts(whole)
    assert set(loads) == {is_loaded}
    parted.close()


def _counts(table: Latest) -> dict[str, int]:
    return {name: count for name, count in table.statistics().items() if not name.endswith("bytes")}


def test_an_answer_changes_nothing_and_another_epoch_may_be_absorbed(loads: list[bool]) -> None:
    parted, whole = loaded(), plain()
    first, other = rows(range(30)), rows(range(20, 60), 2)

    once = [chunk.to_pylist() for chunk in parted.answer(Tick(0), [first])]
    again = [chunk.to_pylist() for chunk in parted.answer(Tick(0), [first])]
    late = parted.answer(Tick(0), [first])
    next(late)
    assert repr(once) == repr(again)
    assert parted.snapshot()["latest"].num_rows == 0
    parted.absorb(Tick(0), [other])
    whole.absorb(Tick(0), [other])

    assert exact_tables(parted.snapshot()) == exact_tables(whole.snapshot())
    assert loads == [True, True]
    with pytest.raises(StateError) as refused:
        next(late)
    assert refused.value.code == "ANSWER_OUTDATED"


def test_bad_rows_are_those_of_the_whole_epoch() -> None:
    first, messages = FIRST["no key"][0], []
    for table in (loaded(), plain()):
        with pytest.raises(BadInputError) as raised:
            list(table.answer(Tick(0), [first]))
        messages.append(str(raised.value))
        assert table.absorbed_epoch == -1
    assert messages[0] == messages[1]


def test_after_the_first_rows_are_gone_large_epochs_are_worked_in_parts_again(loads: list[bool]) -> None:
    relation = Relation(name="orders", schema=SCHEMA, primary_key=("part", "id"), mode="upsert")
    table = built(LoadedLatest, relation, **SMALL)
    stepped(table, 0, rows(range(3)))
    stepped(table, 1, rows(range(30)))
    assert loads == []
    stepped(table, 2, -rows(range(30)))

    assert len(stepped(table, 3, rows(range(30)))) == 30
    assert loads == [True]


def test_rows_that_are_older_than_the_delete_of_their_key_are_ignored() -> None:
    epochs = [rows(range(3)), -rows(range(3), at=2), rows(range(30), 2, at=1)]

    answers = [[stepped(table, epoch, delta) for epoch, delta in enumerate(epochs)] for table in (loaded(), plain())]

    assert answers[0] == answers[1]
    assert len(answers[0][2]) == 27


def test_nothing_of_a_first_load_is_copied_into_the_answer() -> None:
    first = rows(range(30))
    chunks = list(loaded().answer(Tick(0), [first]))

    whole = ZSet.concat_freeing(chunks, schema=chunks[0].schema)

    for name in ("name", "id", "value", "part"):
        taken, given = whole.rows.column(name), first.rows.column(name)
        assert taken.equals(given) or name == "value"
        assert [one and one.address for one in taken.buffers()] == [one and one.address for one in given.buffers()]


def test_files_that_were_being_loaded_when_the_process_ended_are_refused(tmp_path: Path) -> None:
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
