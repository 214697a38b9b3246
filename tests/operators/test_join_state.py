"""What a join remembers: memory that comes back, files that are reopened, snapshots, and state that is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Change, Epochs, delete, delta_of, insert, upsert
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.expressions import left
from zset_join.kernels.rows import side as s
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet

ITEMS = Relation(
    name="items",
    schema=pa.schema({"id": pa.int64(), "k": pa.string(), "text": pa.string(), "seq": pa.int64()}),
    join_key=("k",),
    primary_key=("id",),
    sequence_by=("seq",),
    mode="upsert",
)
KINDS = Relation(name="kinds", schema=pa.schema({"k": pa.string(), "name": pa.string()}), join_key=("k",), mode="changelog")
A_LONG_TEXT = "a text that is longer than twelve bytes"
STORY: list[tuple[list[Change], list[Change]]] = [
    (upsert((1, "a", A_LONG_TEXT, 1), (2, "b", "short", 1), (3, None, None, 1)), insert(("a", "A"), ("b", A_LONG_TEXT))),
    (upsert((1, "b", A_LONG_TEXT, 2)) + delete((2, None, None, 2)), insert(("c", "C"), copies=2)),
    (upsert((4, "c", "", 1)), delete(("a", "A"))),
]
NEXT: list[tuple[list[Change], list[Change]]] = [
    (upsert((2, "late", "late", 1), (1, "c", "moved", 3)), insert(("d", "D")) + delete(("c", "C"))),
    (delete((4, None, None, 5), (3, None, None, 5)), delete(("b", A_LONG_TEXT), ("c", "C"))),
]


def items_join(how: str = "full", **options: Any) -> HashJoin:
    return built(HashJoin, ITEMS, KINDS, how, **options)


# ---------------------------------------------------------------- memory comes back

WIDE = pa.schema({"id": pa.int64(), "k": pa.string(), "text": pa.string()})
ROWS, EPOCHS = 200_000, 40


def many(epoch: int, weight: int) -> ZSet:
    ids = np.arange(epoch * ROWS // EPOCHS, (epoch + 1) * ROWS // EPOCHS)
    text = pa.array([f"row number {number} of a table" for number in ids])
    return ZSet.of({"id": ids, "k": text, "text": text}, np.full(len(ids), weight, np.int64), schema=WIDE)


def fill_and_empty(mode: ChangelogMode, directory: str | None) -> tuple[HashJoin, int, int]:
    """Insert 200,000 rows and delete them; return the join and its bytes at the top and at the end."""
    left_side = Relation(name="l", schema=WIDE, join_key=("k",), primary_key=("id",), mode=mode)
    right_side = Relation(name="r", schema=WIDE, join_key=("k",), mode="append")
    join = HashJoin(left_side, right_side, "inner", options=OperatorOptions(chunk_rows=4096, directory=directory))
    nothing = ZSet.empty(WIDE)
    for epoch in range(EPOCHS):
        join.absorb(Tick(epoch), [many(epoch, +1), nothing])
    full = join.resident_bytes()
    for epoch in range(EPOCHS):
        join.absorb(Tick(EPOCHS + epoch), [many(epoch, -1), nothing])
    return join, full, join.resident_bytes()


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
def test_deleted_rows_give_their_memory_back(mode: ChangelogMode) -> None:
    join, full, empty = fill_and_empty(mode, None)

    assert join.statistics()["left_rows"] == join.statistics()["left_keys"] == 0
    assert empty < full / 2


def test_deleted_rows_give_their_disk_back(tmp_path: Path) -> None:
    join, full, empty = fill_and_empty("upsert", str(tmp_path))

    files = {path.name: 512 * path.stat().st_blocks for path in tmp_path.iterdir() if path.is_file()}
    assert empty < full / 2
    assert files["left.rows"] < ROWS * join._sides[0].layout.stride / 2
    assert join.statistics()["left_rows"] == 0


def test_a_compacted_directory_is_reopened_like_any_other(tmp_path: Path) -> None:
    join, _, _ = fill_and_empty("upsert", str(tmp_path))
    join.absorb(Tick(99), [many(3, +1), ZSet.empty(WIDE)])
    join.close()

    again = HashJoin(*join.inputs, "inner", options=OperatorOptions(directory=str(tmp_path)))

    assert (again.absorbed_epoch, again.statistics()["left_rows"]) == (99, ROWS // EPOCHS)
    (answer,) = again.answer(Tick(100), [ZSet.empty(WIDE), ZSet.of(many(3, +1).rows.slice(7, 1))])
    assert answer.to_pylist()[0][0][0] == 3 * ROWS // EPOCHS + 7


def test_updating_for_ever_takes_no_more_memory_than_updating_once() -> None:
    join = Epochs(HashJoin(ITEMS, KINDS, "left"))
    rows = [(number, f"k{number % 10}", A_LONG_TEXT) for number in range(500)]
    join.feed(upsert(*[(*row, 0) for row in rows]), [])
    join.feed(upsert(*[(*row, 1) for row in rows]), [])
    once = join.operator.resident_bytes()

    join.feed_all((upsert(*[(*row, turn) for row in rows]), []) for turn in range(2, 30))

    assert join.operator.resident_bytes() == once


def test_a_row_costs_its_record_its_long_strings_and_its_places_in_two_tables() -> None:
    left_side = Relation(name="l", schema=WIDE, join_key=("k",), primary_key=("id",), mode="upsert")
    join = HashJoin(left_side, Relation(name="r", schema=WIDE, join_key=("k",)))
    join.absorb(Tick(0), [many(0, +1), ZSet.empty(WIDE)])

    state, rows = join._sides[0], ROWS // EPOCHS
    assert state.arena.record_bytes() == rows * state.layout.stride == rows * 64
    assert state.arena.heap_bytes() == 2 * 32 * rows
    assert state.arrangement.table_bytes() + state.primary_keys.table_bytes() <= 2 * 26 * rows


# ---------------------------------------------------------------- files


def test_another_process_can_take_the_directory_over(tmp_path: Path) -> None:
    join = Epochs(items_join(directory=str(tmp_path)))
    join.feed_all(STORY)
    join.operator.close()
    code = "import sys; from tests.operators.test_join_state import *; print(items_join(directory=sys.argv[1]).absorbed_epoch)"

    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "2"


def test_opening_reads_the_header_and_not_the_rows(tmp_path: Path) -> None:
    left_side = Relation(name="l", schema=WIDE, join_key=("k",), primary_key=("id",), mode="upsert")
    join = HashJoin(left_side, left_side, options=OperatorOptions(directory=str(tmp_path)))
    join.absorb(Tick(0), [many(0, +1), many(1, +1)])
    join.close()
    rows = tmp_path / "left.rows"
    rows.write_bytes(bytes(rows.stat().st_size))

    again = HashJoin(left_side, left_side, options=OperatorOptions(directory=str(tmp_path)))

    assert again.statistics()["left_rows"] == ROWS // EPOCHS


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            lambda where: HashJoin(ITEMS, KINDS, null_safe=[True], options=OperatorOptions(directory=where)), id="null-safe"
        ),
        pytest.param(
            lambda where: HashJoin(ITEMS, KINDS, options=OperatorOptions(hash_bits=8, directory=where)), id="hash bits"
        ),
        pytest.param(lambda where: HashJoin(KINDS, ITEMS, options=OperatorOptions(directory=where)), id="sides swapped"),
        pytest.param(
            lambda where: HashJoin(ITEMS, KINDS, "left", residual=left("id") > 1, options=OperatorOptions(directory=where)),
            id="a residual with degrees",
        ),
        pytest.param(
            lambda where: HashJoin(
                ITEMS,
                Relation(name="kinds", schema=KINDS.schema, join_key=("name",), mode="changelog"),
                options=OperatorOptions(directory=where),
            ),
            id="another join key",
        ),
        pytest.param(
            lambda where: HashJoin(
                ITEMS, Relation(name="kinds", schema=KINDS.schema, join_key=("k",)), options=OperatorOptions(directory=where)
            ),
            id="another mode",
        ),
        pytest.param(
            lambda where: HashJoin(
                ITEMS,
                Relation(name="sorts", schema=KINDS.schema, join_key=("k",), mode="changelog"),
                options=OperatorOptions(directory=where),
            ),
            id="another name",
        ),
    ],
)
def test_state_of_another_layout_is_refused_with_the_cure(other: Any, tmp_path: Path) -> None:
    join = Epochs(HashJoin(ITEMS, KINDS, options=OperatorOptions(directory=str(tmp_path))))
    join.feed_all(STORY)
    join.operator.close()  # type: ignore[attr-defined]

    with pytest.raises(StateError, match="delete the directory and it is rebuilt from the checkpoint") as caught:
        other(str(tmp_path))

    assert caught.value.code == "STATE_FINGERPRINT"
    assert caught.value.facts["directory"] == str(tmp_path)


@pytest.mark.parametrize("side", [0, 1])
def test_state_that_was_being_written_when_its_process_died_is_refused(side: int, tmp_path: Path) -> None:
    join = items_join(directory=str(tmp_path))
    Epochs(join).feed_all(STORY)
    join._sides[side].begin_absorb()
    join.close()

    with pytest.raises(StateError, match="was being written when its process died") as caught:
        items_join(directory=str(tmp_path))

    assert caught.value.code == "STATE_HALF_WRITTEN"
    assert caught.value.facts["relation"] == ["items", "kinds"][side]


def test_a_process_that_dies_between_the_sides_leaves_state_that_is_refused(tmp_path: Path) -> None:
    join = items_join(directory=str(tmp_path))
    Epochs(join).feed_all(STORY)
    join._sides[0].header[s.H_ABSORBED_EPOCH] = 3
    join.close()

    with pytest.raises(StateError, match="are at epochs 3 and 2") as caught:
        items_join(directory=str(tmp_path))

    assert caught.value.code == "STATE_HALF_WRITTEN"


def test_a_wiped_directory_is_filled_from_a_snapshot(tmp_path: Path) -> None:
    join = Epochs(items_join(directory=str(tmp_path)))
    join.feed_all(STORY)
    snapshot = join.operator.snapshot()
    join.operator.close()  # type: ignore[attr-defined]
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()

    again = Epochs(items_join(directory=str(tmp_path)), first_epoch=3)
    again.operator.restore(snapshot)

    stays = Epochs(items_join())
    stays.feed_all(STORY)
    assert again.operator.absorbed_epoch == 2  # type: ignore[attr-defined]
    assert again.feed_all(NEXT) == stays.feed_all(NEXT)


def test_an_epoch_that_was_absorbed_before_is_refused_after_reopening_too(tmp_path: Path) -> None:
    join = Epochs(items_join(directory=str(tmp_path)))
    join.feed_all(STORY)
    join.operator.close()  # type: ignore[attr-defined]
    again = items_join(directory=str(tmp_path))

    with pytest.raises(StateError, match="epoch 2 was absorbed before") as caught:
        again.absorb(Tick(2), [delta_of(ITEMS, []), delta_of(KINDS, [])])

    assert (caught.value.code, caught.value.facts) == ("EPOCH_ABSORBED", {"epoch": 2, "absorbed_epoch": 2})


# ---------------------------------------------------------------- snapshots


def test_a_snapshot_is_plain_rows_with_what_they_remember() -> None:
    join = Epochs(items_join())
    join.feed_all(STORY)

    snapshot = join.operator.snapshot()

    assert sorted(snapshot) == ["left", "right"]
    assert snapshot["left"].schema.names == [*ITEMS.schema.names, "_zset_weight", "_zset_watermark", "_zset_sequence_0"]
    assert sorted(snapshot["right"].select(["k", "name", "_zset_weight"]).to_pylist(), key=repr) == [
        {"k": "b", "name": A_LONG_TEXT, "_zset_weight": 1},
        {"k": "c", "name": "C", "_zset_weight": 2},
    ]
    tombstone = snapshot["left"].to_pylist()[-1]
    assert (tombstone["id"], tombstone["k"], tombstone["_zset_weight"], tombstone["_zset_sequence_0"]) == (2, None, 0, 2)


def test_tombstones_keep_their_age_over_a_snapshot() -> None:
    reported = Epochs(items_join(tombstone_retention_seconds=10))
    reported.feed(delete((1, None, None, 5)), [], watermark=100_000_000)
    reported.feed(delete((2, None, None, 5)), [], watermark=105_000_000)
    again = Epochs(items_join(tombstone_retention_seconds=10), first_epoch=2)
    again.operator.restore(reported.operator.snapshot())

    again.feed([], [], watermark=112_000_000)

    assert again.operator.snapshot()["left"].column("id").to_pylist() == [2]


# ---------------------------------------------------------------- counting


def test_statistics_count_what_there_is_and_what_was_ignored() -> None:
    join = Epochs(items_join("inner", on_bad_input="quarantine"))
    join.feed_all(STORY)
    join.feed(upsert((1, "a", "old", 0)) + delete((77, None, None, 1), (None, None, None, 1)), delete(("nobody", "x")))

    counts = join.operator.statistics()  # type: ignore[attr-defined]

    assert (counts["stale_rows"], counts["unknown_deletes"], counts["rejected_rows"]) == (1, 1, 2)
    assert (counts["left_rows"], counts["left_keys"], counts["left_tombstones"]) == (3, 2, 2)
    assert (counts["right_rows"], counts["right_keys"], counts["right_tombstones"]) == (2, 2, 0)
    assert counts["left_bytes"] + counts["right_bytes"] <= join.operator.resident_bytes()
