"""Rows leave memory and come back: nothing but their numbers differs, and what they weigh and were requested is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spill.cold_store import ColdRows
from tests.epochs import Change, delta_of, insert, upsert
from tests.state.side_anatomy import absorb, anatomy, make_side, pieces
from zset_join.core.relation import ChangelogMode
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.heap import block_bytes
from zset_join.state.cold.hot_rows import HotRows
from zset_join.state.rows.side import SideState

LONG = "a text that is longer than twelve bytes"
ROWS: list[Change] = [(row, 1) for row in [(1, "a", LONG), (2, "a", None), (3, None, ""), (4, "b", LONG * 9), (5, "a", "x")]]
STAMP, CLOCK = 4, 0.0


def filled(mode: ChangelogMode = "upsert", **options: Any) -> tuple[SideState, HotRows]:
    """Return a side with five rows."""
    side = make_side(mode, **options)
    absorb(side, ROWS)
    hot = HotRows(side)
    hot.follow()
    return side, hot


def rows_of(side: SideState) -> list[Any]:
    """Return all live rows, in a fixed order, and check that everything fits together."""
    return sorted(pieces(side, anatomy(side).live), key=repr)


def numbers_of(side: SideState) -> dict[Any, int]:
    """Return the number of each live row, by what it holds."""
    return {repr(pieces(side, [number])): number for number in anatomy(side).live}


def candidates(hot: HotRows, below_stamp: int | None = None) -> tuple[Any, Any, Any]:
    """Return number, score and bytes of the rows that may go."""
    scores, sizes = hot.measure(below_stamp)
    positions = np.flatnonzero(sizes >= 0)
    return positions + 1, scores[positions], sizes[positions]


def reported(hot: HotRows, number: int) -> tuple[int, float, bool]:
    """Return the place and the score of a row, and whether the epoch has touched it."""
    numbers, scores, _ = candidates(hot)
    return int(hot.places(np.array([number]))[0]), float(scores[numbers == number][0]), number in candidates(hot, STAMP)[0]


def packed_rows(hot: HotRows, numbers: list[int]) -> ColdRows:
    """Return rows as a cold store takes them."""
    which = np.array(numbers, np.int64)
    return hot.pack(which, *hot.hashes(which))


def leave(hot: HotRows, numbers: list[int]) -> ColdRows:
    """Move rows out of memory."""
    packed = packed_rows(hot, numbers)
    hot.drop(np.array(numbers, np.int64), packed.subcodes)
    return ColdRows(packed.codes, packed.subcodes, packed.rows, np.arange(70, 70 + len(packed)))


def come_back(hot: HotRows, rows: ColdRows) -> None:
    """Move rows into memory."""
    unpacked = hot.unpack(rows)
    hot.make_room(unpacked)
    hot.insert(unpacked, rows, STAMP, CLOCK)


@pytest.mark.parametrize("mode", ["append", "upsert", "changelog"])
@pytest.mark.parametrize("hash_bits", [32, 1])
@pytest.mark.parametrize("gone", [[1], [4], [3, 1, 5], [1, 2, 3, 4, 5]])
def test_rows_that_leave_and_come_back_are_the_same_rows(mode: ChangelogMode, hash_bits: int, gone: list[int]) -> None:
    side, hot = filled(mode, hash_bits=hash_bits)
    before = rows_of(side)

    cold = leave(hot, gone)
    assert len(rows_of(side)) == 5 - len(gone)
    come_back(hot, cold)

    assert rows_of(side) == before


def test_weights_sequences_and_degrees_travel_with_the_row() -> None:
    side = make_side(sequenced=True, has_degree=True)
    absorb(side, upsert((1, "a", LONG, 9)))
    side.store_degrees(np.array([1]), np.array([5]))
    hot = HotRows(side)
    hot.follow()

    come_back(hot, leave(hot, [1]))
    absorb(side, upsert((1, "a", "late", 8)))

    assert (side.degrees(np.array([1])).tolist(), side.weights(np.array([1])).tolist()) == ([5], [1])
    assert side.ignored[0] == 1


def test_a_tombstone_is_no_candidate() -> None:
    side = make_side(sequenced=True)
    absorb(side, upsert((1, "a", "x", 1), (2, "a", "x", 1)))
    absorb(side, [((1, None, None, 2), -1)])
    hot = HotRows(side)
    hot.follow()

    assert candidates(hot)[0].tolist() == [2]


def test_the_size_of_a_row_is_its_record_its_blocks_and_what_is_beside_it() -> None:
    side, hot = filled()
    numbers, _, sizes = candidates(hot)

    beside = hot.bytes_per_row()
    assert numbers.tolist() == [1, 2, 3, 4, 5]
    assert sizes.tolist() == [
        beside + block_bytes(len(LONG)),
        beside,
        beside,
        beside + block_bytes(9 * len(LONG)),
        beside,
    ]
    assert hot.row_bytes() == sizes.sum()
    assert int(side.header[s.H_HEAP_USED]) == sizes.sum() - 5 * beside


def test_probing_finds_rows_by_identity_and_touches_them() -> None:
    side, hot = filled()
    prepared = side.encode(delta_of(side.relation, upsert((3, "z", None), (9, "a", None), (1, "b", None))))

    numbers, hashes = hot.probe(prepared, STAMP, CLOCK)

    codes = packed_rows(hot, [1]).codes.tolist()
    assert numbers.tolist() == [3, 0, 1]
    assert hashes.tolist() == [-1, -1, *codes]
    assert candidates(hot, STAMP)[0].tolist() == [2, 4, 5]


def test_touching_a_key_touches_its_whole_chain_once() -> None:
    _, hot = filled()
    codes = packed_rows(hot, [5]).codes

    hot.touch_chains(np.repeat(codes, 3), STAMP, CLOCK)

    assert candidates(hot, STAMP)[0].tolist() == [3, 4]
    assert candidates(hot)[1].tolist() == [0.0, 0.0, -np.inf, -np.inf, 0.0]


@pytest.mark.parametrize(("per_code", "per_row"), [(1000, 1), (0, 1000)], ids=["many keys", "long chains"])
def test_many_keys_and_long_chains_touch_the_same_rows_in_one_pass(
    per_code: int, per_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = []
    for limits in ((0, 1), (per_code, per_row)):
        monkeypatch.setattr("zset_join.state.cold.hot_rows._PASSED_PER_CODE", limits[0])
        monkeypatch.setattr("zset_join.state.cold.hot_rows._PASSED_PER_ROW", limits[1])
        _, hot = filled()
        hot.note_written(np.array([1, 4]), STAMP, CLOCK)
        one, other = packed_rows(hot, [5]).codes, packed_rows(hot, [4]).codes
        for epoch in range(4):  # scores were never, equal and different before
            codes = np.concatenate([np.repeat(one, 3), other[: epoch % 2]])
            hot.touch_chains(codes, STAMP + 2 * epoch + 2, CLOCK + epoch)
        touched.append([reported(hot, number) for number in range(1, 6)])

    assert touched[0] == touched[1]
    assert len({score for _, score, _ in touched[0]}) == 4


def test_touches_of_later_epochs_add_up_by_the_policy() -> None:
    _, hot = filled()
    hot.note_written(np.array([1]), STAMP, 0.0)

    hot.note_written(np.array([0, 1, 2]), STAMP + 2, 1.0)

    scores = candidates(hot)[1]
    assert scores[:2].tolist() == pytest.approx([1.0 + np.log2(1.5), 1.0])


def test_a_row_lies_where_it_was_until_it_is_written() -> None:
    _, hot = filled()
    come_back(hot, leave(hot, [1, 2]))
    assert packed_rows(hot, [1, 2, 3]).places.tolist() == [71, 70, -1]

    hot.note_written(np.array([1]), STAMP, CLOCK)

    assert hot.places(np.array([1, 2])).tolist() == [-1, 70]


def test_compacting_gives_rows_other_numbers_and_nothing_else() -> None:
    side, hot = filled()
    come_back(hot, leave(hot, [1, 4]))
    hot.note_written(np.array([2]), STAMP, 7.0)
    known = {row: reported(hot, number) for row, number in numbers_of(side).items()}

    side.compact()

    assert {row: reported(hot, number) for row, number in numbers_of(side).items()} == known
    assert {place for place, _, _ in known.values()} == {-1, 70, 71}


def test_rows_that_moved_into_holes_keep_their_places_and_what_they_are_worth() -> None:
    side, hot = filled()
    come_back(hot, leave(hot, [4, 5]))  # they get each other's numbers
    known = {row: reported(hot, number) for row, number in numbers_of(side).items()}
    absorb(side, [((number, None, None), -1) for number in (1, 2)])
    hot.note_written(np.array([1, 2]), None, CLOCK)

    side.compact()

    left = {row: reported(hot, number) for row, number in numbers_of(side).items()}
    assert left == {row: known[row] for row in left}
    assert sorted(place for place, _, _ in left.values()) == [-1, 70, 71]


def test_a_cleared_side_has_no_rows_to_follow() -> None:
    side, hot = filled()
    come_back(hot, leave(hot, [1]))
    side.clear()
    absorb(side, ROWS)

    hot.follow()

    assert (hot.places(np.arange(1, 6)) == -1).all()
    assert np.isneginf(candidates(hot)[1]).all()


def test_changelog_rows_keep_their_copies() -> None:
    side = make_side("changelog")
    absorb(side, insert((1, "a", LONG), copies=7))
    hot = HotRows(side)
    hot.follow()

    come_back(hot, leave(hot, [1]))

    assert side.weights(np.array([1])).tolist() == [7]
