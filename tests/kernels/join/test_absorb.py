"""Folding an epoch into the state: the only kernels that write to it, and what they write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.epochs import Change, delete, delta_of, insert, upsert
from tests.state.side_anatomy import absorb, anatomy, changes_of, live_through, make_side, pieces
from zset_join.core.relation import ChangelogMode
from zset_join.kernels.join.absorb import heap_bytes_needed
from zset_join.kernels.rows import side as s
from zset_join.kernels.values import columns as c
from zset_join.state.rows.side import SideState

LONG = "a text that is longer than twelve bytes"


def used(side: SideState) -> list[Any]:
    """Return how many records, heap bytes and blocks' bytes are or were in use."""
    return side.header[[s.H_ROWS_END, s.H_HEAP_END, s.H_HEAP_USED]].tolist()


def weights(side: SideState) -> list[int]:
    """Return the weights of all live rows."""
    return side.weights(np.array(anatomy(side).live, np.int64)).tolist()


# ---------------------------------------------------------------- heap


@pytest.mark.parametrize(
    ("texts", "expected"),
    [([None, "", "x" * 12], 0), (["x" * 13], 16), (["x" * 17, "x" * 300, None], 32 + 320)],
)
def test_the_heap_needs_room_for_long_strings_only(texts: list[str | None], expected: int) -> None:
    side = make_side()
    prepared = side.prepare(delta_of(side.relation, upsert(*[(number, "a", text) for number, text in enumerate(texts)])))
    variables = side.layout.variable_columns()

    needed = heap_bytes_needed(prepared.encoded.address, side.layout.stride, len(texts), variables.address)

    assert needed == expected


def test_a_text_that_grows_and_shrinks_moves_between_record_and_heap() -> None:
    side = make_side()
    texts = ["short", LONG, "x" * 500, None, LONG, "short"]

    live_through(side, [upsert((1, "a", text)) for text in texts])

    assert pieces(side, [1]) == [(1, "a", "short")]
    assert side.header[s.H_HEAP_USED] == 0


def test_a_stored_string_no_longer_points_into_the_batch_it_came_from() -> None:
    side = make_side()
    absorb(side, upsert((1, LONG * 2, LONG)))

    slot = side.record_words("<i8", int(side.layout.columns(["text"]).lines[0, c.OFFSET]) + 8, 1)

    assert slot[0] < 0
    assert pieces(side, [1]) == [(1, LONG * 2, LONG)]


# ---------------------------------------------------------------- records


def test_records_are_taken_one_after_the_other_and_freed_ones_first() -> None:
    side = make_side()
    live_through(
        side,
        [
            upsert((1, "a", None), (2, "a", None), (3, "a", None)),
            delete((2, None, None)),
            upsert((7, "b", None), (8, "b", None)),
        ],
    )

    assert [row[0] for row in pieces(side, [1, 2, 3, 4])] == [1, 7, 3, 8]


def test_a_row_keeps_its_record_through_all_its_updates() -> None:
    side = make_side()

    live_through(side, [upsert((1, key, text)) for key in ("a", "b", None) for text in ("x", LONG)])

    assert (used(side)[0], pieces(side, [1])) == (1, [(1, None, LONG)])


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
def test_a_table_that_is_updated_for_ever_does_not_grow(mode: ChangelogMode) -> None:
    side = make_side(mode)
    ids = range(50)
    live_through(side, [insert(*[(number, "a", LONG) for number in ids])])
    full = used(side)

    live_through(
        side,
        [
            change
            for _ in range(5)
            for change in (delete(*[(number, "a", LONG) for number in ids]), insert(*[(number, "a", LONG) for number in ids]))
        ],
    )

    assert used(side) == full


# ---------------------------------------------------------------- upserts


@pytest.mark.parametrize(
    ("then", "live", "chains"),
    [
        pytest.param(upsert((1, "a", "new")), [(1, "a", "new"), (2, "a", "x")], 1, id="an update in place"),
        pytest.param(upsert((1, "b", "new")), [(1, "b", "new"), (2, "a", "x")], 2, id="a key that moves"),
        pytest.param(upsert((1, None, "new")), [(1, None, "new"), (2, "a", "x")], 1, id="a key that becomes NULL"),
        pytest.param(delete((1, None, None)), [(2, "a", "x")], 1, id="a delete"),
        pytest.param(delete((1, None, None), (2, None, None)), [], 0, id="the last of a key"),
        pytest.param(delete((9, None, None)), [(1, "a", "x"), (2, "a", "x")], 1, id="a delete of nothing"),
        pytest.param(upsert((1, "b", "y"), (1, "a", "x")), [(1, "a", "x"), (2, "a", "x")], 1, id="there and back"),
    ],
)
def test_after_an_upsert_this_is_live(then: list[Change], live: list[tuple[Any, ...]], chains: int) -> None:
    side = make_side()

    live_through(side, [upsert((1, "a", "x"), (2, "a", "x")), then])

    found = anatomy(side)
    assert sorted(pieces(side, found.live)) == live
    assert len(found.chains) == chains


def test_a_row_that_is_repeated_keeps_its_newer_sequence() -> None:
    side = make_side(sequenced=True, compared=["id", "k", "text"])
    live_through(side, [upsert((1, "a", "x", 5)), upsert((1, "a", "x", 9))])

    prepared, found = changes_of(side, upsert((1, "b", "x", 7)))

    assert (prepared.stale, found) == (1, [])


def test_the_numbers_of_the_rows_that_were_stored_are_reported() -> None:
    side = make_side()
    absorb(side, upsert((1, "a", "x"), (2, "a", "x")))
    prepared, _ = changes_of(side, upsert((3, "a", "x"), (2, "b", "y"), (1, "a", "x")))

    side.absorb(prepared, None)

    assert prepared.numbers[:2].tolist() == [3, 2]


# ---------------------------------------------------------------- weights


def test_copies_are_counted_in_one_record() -> None:
    side = make_side("changelog")
    row = (1, "a", LONG)

    live_through(side, [insert(row, row), insert(row, copies=5), delete(row, copies=3)])

    assert (weights(side), used(side)[0]) == ([4], 1)


def test_a_row_without_copies_is_gone() -> None:
    side = make_side("changelog")

    live_through(side, [insert((1, "a", LONG), (2, "a", LONG)), delete((1, "a", LONG))])

    assert pieces(side, anatomy(side).live) == [(2, "a", LONG)]
    assert anatomy(side).free == [1]


def test_appended_rows_keep_their_weight_and_stay_apart() -> None:
    side = make_side("append")

    live_through(side, [insert((1, "a", LONG), (1, "a", LONG)) + insert((1, "a", LONG), copies=7)])

    assert weights(side) == [1, 1, 7]


# ---------------------------------------------------------------- tombstones and copies of the living


@pytest.mark.parametrize(("watermark", "left"), [(109, [1, 2, 3]), (110, [2, 3]), (114, [2, 3]), (115, []), (10**9, [])])
def test_tombstones_expire_at_their_age(watermark: int, left: list[int]) -> None:
    side = make_side(sequenced=True)
    absorb(side, delete((1, None, None, 1)), watermark=100)
    absorb(side, delete((2, None, None, 1), (3, None, None, 1)), watermark=105)

    absorb(side, [], watermark=watermark)

    assert [row[0] for row in pieces(side, anatomy(side).tombstones)] == left


def test_a_tombstone_that_is_repeated_goes_to_the_end_of_the_queue() -> None:
    side = make_side(sequenced=True)
    absorb(side, delete((1, None, None, 1), (2, None, None, 1), (3, None, None, 1)), watermark=100)

    absorb(side, delete((1, None, None, 2), (2, None, None, 0)), watermark=101)

    assert [row[0] for row in pieces(side, anatomy(side).tombstones)] == [2, 3, 1]


def test_a_row_that_comes_back_leaves_the_queue_from_wherever_it_is() -> None:
    side = make_side(sequenced=True)
    absorb(side, delete(*[(number, None, None, 1) for number in range(5)]), watermark=100)

    absorb(side, upsert((2, "a", LONG, 2), (4, "a", LONG, 1), (0, "b", LONG, 3)), watermark=101)

    assert [row[0] for row in pieces(side, anatomy(side).tombstones)] == [1, 3]
    assert sorted(row[0] for row in pieces(side, anatomy(side).live)) == [0, 2, 4]


@pytest.mark.parametrize("mode", ["append", "upsert", "changelog"])
def test_a_copy_of_the_living_has_their_weights_keys_and_places(mode: ChangelogMode) -> None:
    side = make_side(mode, null_safe=[True], hash_bits=4)
    rows = [(number, f"k{number % 5}" if number % 6 else None, LONG * (number % 3)) for number in range(60)]
    absorb(side, insert(*rows, copies=1 if mode == "upsert" else 3))
    before, chains = weights(side), len(anatomy(side).chains)

    side.compact()

    found = anatomy(side)
    assert (weights(side), len(found.chains)) == (before, chains)
    assert sorted(pieces(side, found.live), key=repr) == sorted(rows, key=repr)
