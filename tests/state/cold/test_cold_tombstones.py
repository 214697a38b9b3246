"""Tombstones on disk: the oldest go first, each comes back to its place in the queue, and what expired leaves the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spill.cold_stores import FileStores
from tests.epochs import Change, delete, delta_of, upsert
from zset_join.core.errors import StateError
from zset_join.core.relation import Relation
from zset_join.kernels.rows.epoch import CHANGE_WORDS
from zset_join.state.cold import cold_tombstones
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.rows.side import SideRules, SideState

RELATION = Relation(
    name="rows",
    schema=pa.schema({"id": pa.string(), "at": pa.int64()}),
    join_key=("id",),
    primary_key=("id",),
    mode="upsert",
    sequence_by=("at",),
)
RETENTION = 1_000
LONG = "an id that is longer than twelve bytes"
PIECE_BYTES = 1 << 20


def make_side(directory: Path | None = None) -> SideState:
    """Return an empty side whose tombstones are kept for `RETENTION`."""
    return SideState(
        RELATION,
        key_types=[pa.string()],
        null_safe=[False],
        tables=HashTables(directory=None if directory is None else str(directory), hash_seed=0),
        name="rows",
        rules=SideRules(keeps_unmatchable=False, tombstone_retention_us=RETENTION, is_hybrid=True),
    )


def absorb(side: SideState, changes: list[Change], watermark: int) -> None:
    """Fold changes in."""
    prepared = side.prepare(delta_of(RELATION, changes))
    listed = np.empty((2 * len(changes), CHANGE_WORDS), np.int64)
    side.list_changes(prepared, 0, int(listed.ctypes.data))
    side.begin_absorb()
    side.absorb(prepared, watermark)
    side.end_absorb(side.absorbed_epoch + 1)


def side_of_deleted(directory: Path | None, *deleted: tuple[str, int]) -> SideState:
    """Return a side from which ids were deleted, each at a watermark."""
    side = make_side(directory)
    for number, (name, watermark) in enumerate(deleted):
        absorb(side, delete((name, number)), watermark)
    return side


def in_memory(side: SideState) -> list[str]:
    """Return the ids of the tombstones in memory, oldest first."""
    _, dead = side.live_refs()
    heap = side.arena.heap_address
    found: list[str] = side.layout.gather_plan([0]).gather(int(dead.ctypes.data), len(dead), heap)[0].to_pylist()
    return found


def take(cold: ColdSide, *names: str) -> None:
    """Bring those in that a delta with these ids names."""
    prepared = cold.side.encode(delta_of(RELATION, upsert(*((name, 0) for name in names))))
    for found in cold.find_tombstones(prepared, np.arange(len(names))):
        cold.take_tombstones(found, 2)


def test_the_oldest_go_to_disk_first(tmp_path: Path) -> None:
    side = side_of_deleted(None, (LONG, 10), ("b", 20), ("c", 30))
    cold = ColdSide(side, FileStores(tmp_path))

    spilled = cold.spill_tombstones(2, PIECE_BYTES, None)

    assert (spilled, cold.tombstone_count(), in_memory(side)) == (2, 2, ["c"])


def test_those_that_the_epoch_names_stay_until_it_is_over(tmp_path: Path) -> None:
    side = side_of_deleted(None, ("a", 10), ("b", 20), ("c", 30))
    cold = ColdSide(side, FileStores(tmp_path))
    cold.spill_tombstones(1, PIECE_BYTES, None)
    take(cold, "a")

    cold.spill_tombstones(3, PIECE_BYTES, 2)

    assert in_memory(side) == ["a"]


def test_one_that_comes_back_waits_where_it_waited_before(tmp_path: Path) -> None:
    side = side_of_deleted(None, ("a", 10), (LONG, 20), ("c", 30), ("d", 40))
    cold = ColdSide(side, FileStores(tmp_path))
    cold.spill_tombstones(3, PIECE_BYTES, None)

    take(cold, LONG, "a")
    absorb(side, upsert(("z", 0)), 20 + RETENTION)

    assert in_memory(side) == ["d"]
    assert cold.tombstone_count() == 1


def test_it_still_has_its_sequence(tmp_path: Path) -> None:
    side = side_of_deleted(None, ("a", 10), (LONG, 20))
    cold = ColdSide(side, FileStores(tmp_path))
    cold.spill_tombstones(2, PIECE_BYTES, None)
    take(cold, LONG)

    absorb(side, upsert((LONG, 0)), 30)

    assert side.ignored == (1, 2, 0)  # both deletes found nothing to delete
    assert int(side.statistics()["rows_rows"]) == 0


def test_one_that_expired_does_not_come_back(tmp_path: Path) -> None:
    side = side_of_deleted(None, ("a", 10), ("b", 20))
    cold = ColdSide(side, FileStores(tmp_path))
    cold.spill_tombstones(2, PIECE_BYTES, None)
    absorb(side, upsert(("z", 0)), 10 + RETENTION)

    take(cold, "a", "b")

    assert in_memory(side) == ["b"]
    assert cold.tombstone_count() == 0


def test_the_disk_is_given_back_when_half_of_them_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_tombstones, "SPARE_TOMBSTONES", 0)
    side = side_of_deleted(None, *((str(number), 10 * number) for number in range(8)))
    cold = ColdSide(side, FileStores(tmp_path))
    for _ in range(4):
        cold.spill_tombstones(2, PIECE_BYTES, None)
    counts = []
    for number in (1, 3, 7):
        absorb(side, upsert(("z", number)), 10 * number + RETENTION)
        cold.tidy()
        counts.append(cold.tombstone_count())

    assert counts == [8, 4, 0]


def test_a_snapshot_leaves_out_what_expired_on_disk(tmp_path: Path) -> None:
    side = side_of_deleted(None, ("a", 10), ("b", 20))
    cold = ColdSide(side, FileStores(tmp_path))
    cold.spill_tombstones(2, PIECE_BYTES, None)
    absorb(side, upsert(("z", 0)), 10 + RETENTION)

    assert sum(rows.count for rows in cold.scan_tombstones()) == 1


def test_many_pieces_are_remembered_in_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_tombstones, "_MOST_PIECES", 2)
    monkeypatch.setattr(cold_tombstones, "SPARE_TOMBSTONES", 0)
    side = side_of_deleted(None, ("a", 10), ("b", 20), ("c", 30))
    cold = ColdSide(side, FileStores(tmp_path))
    for _ in range(3):
        cold.spill_tombstones(1, PIECE_BYTES, None)
    absorb(side, upsert(("z", 0)), 20 + RETENTION)

    cold.tidy()

    assert cold.tombstone_count() == 1


def test_they_are_there_when_the_state_is_opened_again(tmp_path: Path) -> None:
    side = side_of_deleted(tmp_path, ("a", 10), (LONG, 20))
    cold = ColdSide(side, FileStores(tmp_path / "cold"))
    cold.spill_tombstones(2, PIECE_BYTES, None)
    cold.commit(1)
    cold.close()
    side.close()

    side = make_side(tmp_path)
    cold = ColdSide(side, FileStores(tmp_path / "cold"))
    take(cold, LONG)

    assert (in_memory(side), cold.tombstone_count(), side.horizon) == ([LONG], 1, 20 - RETENTION)


def test_a_store_of_another_relation_is_refused(tmp_path: Path) -> None:
    ColdSide(make_side(), FileStores(tmp_path)).close()
    path = tmp_path / "rows.tombstones" / "store.json"
    path.write_text(path.read_text().replace('"relation": "rows"', '"relation": "others"'))

    with pytest.raises(StateError, match="made for something else"):
        ColdSide(make_side(), FileStores(tmp_path))
