"""The state of one side: a delta's changes are returned first and written afterwards, and everything stays consistent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.epochs import Change, delete, delta_of, insert, upsert
from tests.state.side_anatomy import absorb, anatomy, changes_of, live_through, make_side, pieces
from zset_join.core.errors import StateError
from zset_join.core.relation import ChangelogMode
from zset_join.kernels.rows import side as s
from zset_join.state.rows.side import SideState

LONG = "a text that is longer than twelve bytes"


def contents(side: SideState) -> list[tuple[Any, ...]]:
    """Return the live rows, in the order of their numbers."""
    return pieces(side, anatomy(side).live)


# ---------------------------------------------------------------- preparing returns what changes


@pytest.mark.parametrize(
    ("mode", "changes", "expected"),
    [
        ("append", insert((1, "a", "x"), (1, "a", "x")), [[0, 0, 1, 1], [0, 0, 1, 1]]),
        ("append", insert((1, None, "x"), copies=3), [[0, 0, 3, 0]]),
        ("upsert", upsert((1, "a", "x"), (1, "a", "y")), [[0, 0, 1, 1]]),
        ("upsert", upsert((1, "a", "x")) + delete((1, None, None)), []),
        ("upsert", upsert((1, None, "x")), [[0, 0, 1, 0]]),
        ("changelog", insert((1, "a", "x"), (1, "a", "x")) + insert((2, "a", "x"), copies=4), [[0, 0, 2, 1], [0, 0, 4, 1]]),
        ("changelog", insert((1, "a", "x")) + delete((1, "a", "x")), []),
    ],
)
def test_a_delta_is_netted_to_one_change_per_row(mode: ChangelogMode, changes: list[Change], expected: list[list[int]]) -> None:
    _, found = changes_of(make_side(mode), changes)

    assert found == expected


def test_an_upsert_of_a_live_row_retracts_it_by_its_number_before_it_inserts_the_new_one() -> None:
    side = make_side()
    absorb(side, upsert((1, "a", "x"), (2, "b", "x")))

    _, found = changes_of(side, upsert((2, "b", "y")))

    assert found == [[2, 1, 0, 1], [0, 0, 1, 1]]


def test_a_weight_that_grows_is_one_change() -> None:
    side = make_side("changelog")
    absorb(side, insert((1, "a", "x"), copies=2))

    _, found = changes_of(side, insert((1, "a", "x"), copies=3))

    assert found == [[1, 2, 5, 1]]


@pytest.mark.parametrize("mode", ["append", "upsert", "changelog"])
def test_preparing_changes_nothing(mode: ChangelogMode) -> None:
    side = make_side(mode)
    absorb(side, insert((1, "a", LONG), (2, "b", "x")))
    header, before = side.header.tolist(), contents(side)

    changes_of(side, insert((1, "c", LONG * 2), (3, "c", LONG)))

    assert (side.header.tolist(), contents(side)) == (header, before)


def test_what_is_too_old_or_unknown_is_counted() -> None:
    side = make_side(sequenced=True)
    absorb(side, upsert((1, "a", "x", 10)))

    prepared, found = changes_of(
        side, upsert((1, "b", "x", 9)) + delete((2, None, None, 1)) + upsert((3, "a", "x", 5), (3, "a", "x", 4))
    )

    assert (prepared.stale, prepared.unknown_deletes, prepared.rejected) == (2, 1, 0)
    assert found == [[0, 0, 1, 1]]


# ---------------------------------------------------------------- absorbing writes it

STORIES: dict[str, tuple[ChangelogMode, list[list[Change]], list[tuple[Any, ...]]]] = {
    "append": (
        "append",
        [insert((1, "a", LONG), (1, "a", LONG)), insert((2, None, None))],
        [(1, "a", LONG)] * 2 + [(2, None, None)],
    ),
    "upsert": (
        "upsert",
        [
            upsert((1, "a", LONG), (2, "a", "x"), (3, "b", None)),
            upsert((1, "b", "x"), (2, "a", LONG * 3)),
            delete((3, None, None)) + upsert((4, None, LONG)),
            upsert((4, "a", LONG), (5, "a", "")),
        ],
        [(1, "b", "x"), (2, "a", LONG * 3), (4, "a", LONG), (5, "a", "")],
    ),
    "changelog": (
        "changelog",
        [
            insert((1, "a", LONG), (2, "a", "x"), (1, "b", LONG)),
            delete((1, "a", LONG)) + insert((2, "a", "x")),
            delete((2, "a", "x")),
            insert((3, None, LONG)),
        ],
        [(3, None, LONG), (2, "a", "x"), (1, "b", LONG)],
    ),
}


@pytest.mark.parametrize("hash_bits", [32, 4, 1])
@pytest.mark.parametrize("story", STORIES)
def test_after_every_epoch_all_parts_fit_together(story: str, hash_bits: int) -> None:
    mode, epochs, expected = STORIES[story]
    side = make_side(mode, hash_bits=hash_bits)

    live_through(side, epochs)

    assert sorted(contents(side), key=repr) == sorted(expected, key=repr)


def random_epochs(seed: int, *, sequenced: bool) -> list[list[Change]]:
    """Return thirty epochs of forty upserts and deletes of a hundred ids, with short, long and missing texts."""
    drawn = np.random.default_rng(seed).integers(0, (100, 7, 5, 60), (30, 40, 4)).tolist()
    texts = [None, "short", LONG]
    return [
        [
            (
                (
                    number,
                    f"k{key}" if key else None,
                    "x" * length if kind == 4 else texts[kind % 3],
                    *([epoch] if sequenced else []),
                ),
                -1 if kind == 3 else 1,
            )
            for number, key, kind, length in changes
        ]
        for epoch, changes in enumerate(drawn)
    ]


def last_of_each(epochs: list[list[Change]]) -> list[tuple[Any, ...]]:
    """Return what is left of upserts and deletes that arrived in order."""
    last = {row[0]: (row, weight) for changes in epochs for row, weight in changes}
    return [row for row, weight in last.values() if weight > 0]


@pytest.mark.parametrize("sequenced", [False, True], ids=["arrival", "sequence"])
@pytest.mark.parametrize("hash_bits", [32, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_random_life_leaves_nothing_inconsistent(seed: int, hash_bits: int, sequenced: bool) -> None:
    side = make_side(hash_bits=hash_bits, sequenced=sequenced)
    epochs = random_epochs(seed, sequenced=sequenced)

    live_through(side, epochs)

    assert sorted(contents(side)) == sorted(last_of_each(epochs))


def test_an_update_that_keeps_its_key_keeps_its_number_and_its_place_in_the_chain() -> None:
    side = make_side()
    absorb(side, upsert((1, "a", "x"), (2, "a", "x"), (3, "a", "x")))
    (chain,) = anatomy(side).chains

    absorb(side, upsert((2, "a", LONG)))

    assert anatomy(side).chains == [chain]
    assert pieces(side, [2]) == [(2, "a", LONG)]


def test_freed_records_and_blocks_are_the_first_to_be_used_again() -> None:
    side = make_side()
    absorb(side, upsert((1, "a", LONG), (2, "b", LONG)))
    absorb(side, delete((1, None, None)))
    header = side.header.copy()

    absorb(side, upsert((9, "c", LONG)))

    assert anatomy(side).free == []
    assert side.header[s.H_ROWS_END] == header[s.H_ROWS_END] == 2
    assert side.header[s.H_HEAP_END] == header[s.H_HEAP_END]


# ---------------------------------------------------------------- tombstones


def test_deleted_rows_queue_up_and_leave_in_the_order_they_came() -> None:
    side = make_side(sequenced=True)
    absorb(side, upsert((1, "a", LONG, 1), (2, "a", "x", 1), (3, "b", "x", 1)))
    absorb(side, delete((2, None, None, 5)), watermark=100)
    absorb(side, delete((1, None, None, 5), (7, None, None, 5)), watermark=105)
    queue = pieces(side, anatomy(side).tombstones)

    absorb(side, [], watermark=112)

    assert [row[0] for row in queue] == [2, 1, 7]
    assert [row[0] for row in pieces(side, anatomy(side).tombstones)] == [1, 7]


def test_a_tombstone_keeps_its_key_and_its_sequence_and_frees_the_rest() -> None:
    side = make_side(sequenced=True)
    absorb(side, upsert((1, "a", LONG, 1)))

    absorb(side, delete((1, "b", LONG, 5)))

    assert pieces(side, anatomy(side).tombstones) == [(1, None, None, None)]
    assert side.header[s.H_HEAP_USED] == 0


# ---------------------------------------------------------------- compacting


@pytest.mark.parametrize("directory", [False, True], ids=["memory", "files"])
def test_compacting_keeps_what_lives_and_drops_what_is_dead(directory: bool, tmp_path: Path) -> None:
    side = make_side(sequenced=True, directory=str(tmp_path) if directory else None)
    absorb(side, upsert(*[(number, f"k{number % 3}", f"{LONG} {number}", 1) for number in range(2_000)]))
    absorb(side, delete(*[(number, None, None, 2) for number in range(1_900)]), watermark=100)
    absorb(side, [], watermark=200)
    absorb(side, delete((1_999, None, None, 3)), watermark=200)
    before = sorted(contents(side))

    side.compact()

    after = anatomy(side)
    assert sorted(contents(side)) == before
    assert [row[0] for row in pieces(side, after.tombstones)] == [1_999]
    assert (after.free, side.arena.record_bytes()) == ([], 100 * side.layout.stride)
    assert side.header[s.H_HEAP_USED] == side.header[s.H_HEAP_END]
    assert side.absorbed_epoch == 3


def test_compacting_takes_no_memory_and_gives_that_of_the_dead_back() -> None:
    side = make_side()
    side.compact()  # whatever a first time loads
    absorb(side, upsert(*[(number, f"k{number % 70}", f"{LONG} {number:09}") for number in range(60_000)]))
    side.header[s.H_DIRTY] = 1
    prepared, _ = changes_of(side, delete(*[(number, None, None) for number in range(60_000) if number % 10 > 2]))
    side.absorb(prepared, None)
    held = side.arena.record_bytes() + side.arena.heap_bytes()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status_bytes("VmRSS")

    side.compact()

    assert status_bytes("VmHWM") - before < held / 10
    assert before - status_bytes("VmRSS") > held / 2
    assert len(anatomy(side).live) == 18_000


def status_bytes(name: str) -> int:
    """Return a size of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def test_a_compacted_side_goes_on_as_before(tmp_path: Path) -> None:
    compacted, untouched = make_side(sequenced=True, directory=str(tmp_path)), make_side(sequenced=True)
    first = upsert(*[(number, f"k{number % 5}", LONG, 5) for number in range(50)]) + delete((77, None, None, 5))
    absorb(compacted, first)
    absorb(untouched, first)

    compacted.compact()
    compacted.end_absorb(0)

    then = upsert((77, "late", "x", 4), (3, "k0", "new", 6)) + delete((4, None, None, 6))
    absorb(compacted, then)
    absorb(untouched, then)
    assert sorted(contents(compacted)) == sorted(contents(untouched))


def test_files_of_a_compacted_side_are_where_they_were(tmp_path: Path) -> None:
    side = make_side(directory=str(tmp_path))
    absorb(side, upsert((1, "a", LONG)))
    names = {path.name for path in tmp_path.iterdir()}

    side.compact()
    side.end_absorb(1)
    side.close()

    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == names
    assert contents(make_side(directory=str(tmp_path))) == [(1, "a", LONG)]


# ---------------------------------------------------------------- files


def test_a_side_in_files_has_these(tmp_path: Path) -> None:
    make_side(directory=str(tmp_path), name="left").close()

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "left.header",
        "left.heap",
        "left.identity.slots9",
        "left.join.slots9",
        "left.lock",
        "left.rows",
    ]


def test_a_side_that_is_being_written_is_not_opened_by_anyone_else(tmp_path: Path) -> None:
    side = make_side(directory=str(tmp_path))
    side.begin_absorb()
    side._release()  # as when its process dies

    with pytest.raises(StateError, match="was being written") as caught:
        make_side(directory=str(tmp_path))

    assert caught.value.code == "STATE_HALF_WRITTEN"


@pytest.mark.parametrize(
    "other",
    [
        {"mode": "changelog"},
        {"sequenced": True},
        {"hash_bits": 31},
        {"null_safe": [True]},
        {"has_degree": True},
        {"key_types": [pa.large_string()]},
    ],
)
def test_a_side_of_another_layout_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    make_side(directory=str(tmp_path)).close()

    with pytest.raises(StateError, match="was written for another relation") as caught:
        make_side(directory=str(tmp_path), **other)

    assert caught.value.code == "STATE_FINGERPRINT"


def test_clearing_forgets_everything_but_the_place(tmp_path: Path) -> None:
    side = make_side(directory=str(tmp_path))
    absorb(side, upsert((1, "a", LONG)))

    side.clear()

    assert (contents(side), side.absorbed_epoch) == ([], -1)
    absorb(side, upsert((2, "b", LONG)))
    assert contents(side) == [(2, "b", LONG)]


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize(
    ("mode", "sequenced", "kept"),
    [("append", False, 0), ("changelog", False, 0), ("upsert", False, 0), ("upsert", True, 1)],
)
def test_where_a_null_key_is_never_shown_its_row_is_kept_only_for_its_sequence(
    mode: ChangelogMode, sequenced: bool, kept: int
) -> None:
    side = make_side(mode, sequenced=sequenced, keeps_unmatchable=False)
    row = (1, None, "x", 1) if sequenced else (1, None, "x")

    absorb(side, insert(row))

    assert (len(anatomy(side).live), anatomy(side).chains) == (kept, [])


def test_statistics_name_their_side() -> None:
    side = make_side(sequenced=True, name="left")
    absorb(side, upsert((1, "a", "x", 1), (2, "a", "x", 1)) + delete((3, None, None, 1)))

    counts = side.statistics()

    assert (counts["left_rows"], counts["left_keys"], counts["left_tombstones"]) == (2, 1, 1)
    assert counts["left_bytes"] == side.resident_bytes()


def test_an_empty_delta_is_nothing() -> None:
    side = make_side()
    header = side.header.tolist()

    prepared = side.prepare(delta_of(side.relation, []))
    side.absorb(prepared, None)
    side.absorb(None, None)

    assert (prepared.count, prepared.rejected, side.header.tolist()) == (0, 0, header)


def test_compacting_keeps_the_order_of_a_chain() -> None:
    side = make_side()
    absorb(side, upsert(*[(number, "ab"[number % 2], "x") for number in range(20)]))
    absorb(side, delete(*[(number, None, None) for number in range(0, 20, 3)]))
    absorb(side, upsert((1, "a", "moved"), (4, "a", "kept")))
    before = [pieces(side, chain) for chain in anatomy(side).chains]

    side.compact()

    assert sorted(pieces(side, chain) for chain in anatomy(side).chains) == sorted(before)
