"""The cold rows of one side: found by what names them, in one place at a time, whatever fails in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spill.cold_store import ColdRows, cold_rows
from spill.cold_stores import FileStores
from tests.epochs import Change, delete, delta_of, upsert
from tests.state.side_anatomy import absorb, anatomy, make_side
from zset_join.core.errors import ResourceError, StateError
from zset_join.core.relation import ChangelogMode
from zset_join.state.cold import cold_side as cold_sides
from zset_join.state.cold.cold_side import ColdSide, matchable_codes

LONG = "a text that is longer than twelve bytes"
ROWS: list[Change] = upsert((1, "a", LONG), (2, "a", None), (3, None, ""), (4, "b", LONG))
EVERY = np.arange(1, 5)
SPARE = 50
RETENTION = 1_000
PIECE_BYTES = 1 << 20


def cold_side(directory: Path, mode: ChangelogMode = "upsert", **options: Any) -> ColdSide:
    """Return four rows, all of them cold."""
    side = make_side(mode, **options)
    absorb(side, ROWS)
    cold = ColdSide(side, FileStores(directory))
    cold.hot.follow()
    cold.spill(EVERY)
    return cold


def whole(parts: Iterator[ColdRows]) -> ColdRows:
    """Return what is read at once."""
    found = list(parts)
    assert len(found) <= 1
    return found[0] if found else cold_rows([], [])


def take(cold: ColdSide, found: ColdRows) -> None:
    cold.take(found, 4, 0.0)


def named(cold: ColdSide, *rows: tuple[Any, ...]) -> ColdRows:
    """Find what upserts of these rows would replace."""
    prepared = cold.side.encode(delta_of(cold.side.relation, upsert(*rows)))
    return whole(cold.find_named(prepared, np.arange(len(rows))))


def key_code(cold: ColdSide, key: str | None) -> np.ndarray[Any, Any]:
    """Return the hash of a join key."""
    return np.array(cold.side.encode(delta_of(cold.side.relation, upsert((9, key, None)))).join_codes[:1])


def test_a_key_that_can_never_match_is_nobodys_partner(tmp_path: Path) -> None:
    cold = cold_side(tmp_path)

    assert len(matchable_codes(named(cold, (3, "x", None)))) == 0
    assert matchable_codes(named(cold, (1, "x", None))).tolist() == key_code(cold, "a").tolist()


def test_a_key_that_is_noted_is_not_noted_again(tmp_path: Path) -> None:
    cold = cold_side(tmp_path)
    assert cold._keys is not None
    for _ in range(3):
        take(cold, whole(cold.find_keys(key_code(cold, "a"))))
        cold.spill(np.array(anatomy(cold.side).live))

    assert cold._keys.row_count() == 4


@pytest.mark.parametrize("hash_bits", [32, 1])
def test_keys_of_rows_that_moved_are_forgotten_when_they_are_many(
    tmp_path: Path, hash_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_sides, "SPARE_ENTRIES", SPARE)
    cold = cold_side(tmp_path, hash_bits=hash_bits)
    assert cold._keys is not None
    most = 0
    for turn in range(SPARE):  # each notes two keys more
        take(cold, named(cold, (1, "x", None), (2, "x", None)))
        absorb(cold.side, upsert((1, f"moved {turn}", LONG), (2, f"moved {turn}", None)))
        cold.hot.note_written(np.array(anatomy(cold.side).live), 4, 0.0)
        cold.spill(np.array(anatomy(cold.side).live))
        cold.tidy()
        most = max(most, cold._keys.row_count())

    take(cold, named(cold, *(row for row, _ in ROWS)))
    assert (len(anatomy(cold.side).live), cold.row_count()) == (4, 0)
    assert most <= 1.5 * 4 + SPARE


@pytest.mark.parametrize(("store", "writing"), [("_rows", "put_parts"), ("_keys", "put")])
def test_a_full_disk_leaves_the_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, writing: str
) -> None:
    cold = cold_side(tmp_path)
    take(cold, whole(cold.find_keys(key_code(cold, "a"))))
    cold.hot.note_written(np.array(anatomy(cold.side).live), 4, 0.0)
    cold.hot.forget_entries()
    monkeypatch.setattr(getattr(cold, store), writing, _full)

    with pytest.raises(ResourceError):
        cold.spill(np.array(anatomy(cold.side).live))

    assert (len(anatomy(cold.side).live), cold.row_count()) == (2, 2)
    monkeypatch.undo()
    cold.spill(np.array(anatomy(cold.side).live))
    take(cold, named(cold, (1, "x", None), (2, "x", None)))
    assert (len(anatomy(cold.side).live), cold.row_count()) == (2, 2)


def _full(*_: object) -> None:
    raise ResourceError("no space is left", code="COLD_STORE_IO")


def test_the_stores_of_another_relation_are_refused(tmp_path: Path) -> None:
    cold_side(tmp_path).close()

    with pytest.raises(StateError, match="COLD_STORE"):
        ColdSide(make_side("upsert", sequenced=True), FileStores(tmp_path))


# ---------------------------------------------------------------- tombstones


def side_of_deleted(directory: Path, count: int) -> ColdSide:
    """Return a side from which so many rows were deleted, one at every tenth watermark from 10 on, all of them cold."""
    side = make_side("upsert", sequenced=True, tombstone_retention_us=RETENTION)
    for number in range(count):
        absorb(side, delete((number, None, None, 1)), watermark=10 + 10 * number)
    cold = ColdSide(side, FileStores(directory))
    for _ in range(count):
        assert cold.spill_tombstones(1, PIECE_BYTES, None) == 1
    return cold


def left_after(cold: ColdSide, watermark: int) -> int:
    """Return how many tombstones are on disk when those of this watermark have expired."""
    absorb(cold.side, [], watermark=watermark + RETENTION)
    cold.tidy()
    return cold.tombstone_count()


def test_the_disk_is_given_back_when_half_of_them_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_sides, "SPARE_TOMBSTONES", 0)
    cold = side_of_deleted(tmp_path, 8)

    assert [left_after(cold, watermark) for watermark in (20, 40, 80)] == [8, 4, 0]


def test_many_pieces_are_remembered_in_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_sides, "_MOST_PIECES", 2)
    monkeypatch.setattr(cold_sides, "SPARE_TOMBSTONES", 0)

    assert left_after(side_of_deleted(tmp_path, 3), 20) == 1
