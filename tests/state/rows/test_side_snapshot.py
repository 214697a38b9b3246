"""A side as a plain table, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.epochs import delete, insert, upsert
from tests.state.side_anatomy import absorb, anatomy, make_side
from zset_join.core.errors import StateError
from zset_join.core.relation import ChangelogMode
from zset_join.state.rows import side_snapshot
from zset_join.state.rows.row_tables import SlotTable
from zset_join.state.rows.side import SideState
from zset_join.state.rows.side_snapshot import (
    SNAPSHOT_WATERMARK,
    _facts,
    restore_side,
    side_reader,
    snapshot_counts,
    snapshot_epoch,
)
from zset_join.testing.comparison import exact_tables

LONG = "a text that is longer than twelve bytes"


def snapshot_side(side: SideState) -> pa.Table:
    """Return the rows of a side in memory as one table."""
    return side_reader(side).read_all()


def full_of_life(mode: ChangelogMode, **options: Any) -> SideState:
    """Return a side with rows, holes, copies and, where it is sequenced, tombstones."""
    side = make_side(mode, **options)
    last = (1,) if options.get("sequenced") else ()
    later = (2,) if options.get("sequenced") else ()
    absorb(
        side, insert(*[(number, f"k{number % 3}" if number % 7 else None, LONG * (number % 2), *last) for number in range(20)])
    )
    gone = [4, 9, 11] if mode == "upsert" else []
    absorb(side, delete(*[(number, None, None, *later) for number in gone]), watermark=55)
    return side


def test_tombstones_come_last_with_their_age_and_their_sequence() -> None:
    side = full_of_life("upsert", sequenced=True)

    tail = snapshot_side(side).slice(17)

    assert tail.select(["id", "k", "_zset_weight", "_zset_watermark", "_zset_sequence_0"]).to_pylist() == [
        {"id": number, "k": None, "_zset_weight": 0, "_zset_watermark": 55, "_zset_sequence_0": 2} for number in (4, 9, 11)
    ]


@pytest.mark.parametrize("part", [3, 100])
@pytest.mark.parametrize(
    ("mode", "options", "again"),
    [
        pytest.param("upsert", {"sequenced": True}, slice(17, 20), id="tombstones"),
        pytest.param("upsert", {"has_degree": True}, slice(0, 4), id="keys"),
        pytest.param("upsert", {"sequenced": True}, slice(0, 4), id="keys with a sequence"),
        pytest.param("changelog", {"has_degree": True}, slice(0, 4), id="rows"),
    ],
)
def test_a_snapshot_has_each_row_once(
    mode: ChangelogMode, options: dict[str, bool], again: slice, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_snapshot, "_SNAPSHOT_ROWS", part)
    table = snapshot_side(full_of_life(mode, **options))

    with pytest.raises(StateError, match=r'the snapshot of "rows" holds [1-4] rows that contradict each other') as caught:
        restore_side(make_side(mode, **options), pa.concat_tables([table, table[again]]))

    assert caught.value.code == "SNAPSHOT_CONTRADICTION"


def test_a_side_without_a_sequence_has_no_tombstones() -> None:
    table = snapshot_side(full_of_life("upsert")).drop(["_zset_weight"]).append_column("_zset_weight", pa.array([0] * 17))

    with pytest.raises(StateError, match="holds 17 rows that contradict each other"):
        restore_side(make_side(), table)


def test_the_rows_of_a_key_are_in_the_order_they_came_to_it() -> None:
    side = make_side("upsert")
    absorb(side, insert((1, "a", None), (2, "a", None), (3, "b", None), (4, "a", None)))
    absorb(side, upsert((2, "b", None), (1, "a", "changed in place")))
    absorb(side, delete((4, None, None)))
    absorb(side, insert((5, "b", None), (6, "a", None)))  # one of them gets the record of row 4
    absorb(side, upsert((2, "a", None)))

    table = snapshot_side(side)
    again = make_side("upsert")
    restore_side(again, table)

    rows = list(zip(*(table.column(at).to_pylist() for at in (0, 1)), strict=True))
    assert [number for number, key in rows if key == "a"] == [1, 6, 2]
    assert [number for number, key in rows if key == "b"] == [3, 5]
    assert snapshot_side(again).column(0).to_pylist() == table.column(0).to_pylist()


@pytest.mark.parametrize("mode", ["changelog", "upsert"])
def test_without_their_order_the_same_rows_and_tombstones_are_listed_as_they_lie(mode: ChangelogMode) -> None:
    side = full_of_life(mode, sequenced=mode == "upsert")

    listed, snapshot = side_reader(side, keeps_order=False).read_all(), snapshot_side(side)

    assert sorted(listed.to_pylist(), key=repr) == sorted(snapshot.to_pylist(), key=repr)
    numbers = [number for number, weight in zip(*(listed.column(at).to_pylist() for at in (0, 3)), strict=True) if weight]
    assert numbers == sorted(numbers) != [number for number in snapshot.column(0).to_pylist() if number in numbers]


def test_rows_of_several_snapshots_become_one_whose_oldest_tombstones_wait_first() -> None:
    parts = []
    for number in (0, 1):
        side = make_side("upsert", sequenced=True)
        absorb(side, insert((10 * number, "a", "", 1), (10 * number + 1, "b", "", 1)))
        absorb(side, delete((10 * number, None, None, 2)), watermark=50 - number)
        parts.append(snapshot_side(side).replace_schema_metadata(None))

    whole = pa.concat_tables(parts).replace_schema_metadata(_facts(7, (1, 2, 3)))
    again = make_side("upsert", sequenced=True)
    restore_side(again, whole)

    assert len(anatomy(again).tombstones) == 2
    assert snapshot_side(again).column(0).to_pylist() == [1, 11, 10, 0]
    assert snapshot_side(again).column(SNAPSHOT_WATERMARK).to_pylist() == [None, None, 49, 50]
    assert (snapshot_epoch(whole), snapshot_counts(whole)) == (7, (1, 2, 3))
    assert again.ignored == (1, 2, 3)
    assert exact_tables({"": snapshot_side(again)}) == exact_tables({"": whole})


def test_room_for_the_rows_of_a_snapshot_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    side = make_side()
    absorb(side, upsert(*((number, "a", "x") for number in range(5_000))))
    table = snapshot_side(side)
    monkeypatch.setattr(side_snapshot, "_SNAPSHOT_ROWS", 1_000)
    sizes: list[int] = []
    monkeypatch.setattr(
        SlotTable, "_resize", lambda self, bits, resize=SlotTable._resize: sizes.append(bits) or resize(self, bits)
    )

    for rows in (table, side_snapshot.counted_reader(table.to_reader(), table.num_rows)):
        again = make_side()
        restore_side(again, rows)

        assert [again.primary_keys.bits, again.arrangement.bits] == [13, 11]
        assert sorted(sizes) == [11, 13]
        assert snapshot_side(again) == table
        sizes.clear()
