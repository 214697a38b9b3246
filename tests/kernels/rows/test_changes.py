"""From the rows of a delta to the net change of every row they touch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.epochs import Change, delete, delta_of, insert, upsert
from tests.state.side_anatomy import absorb, changes_of, make_side
from zset_join.kernels.rows import changes as ch
from zset_join.kernels.rows.epoch import CHANGE_WORDS
from zset_join.state.rows.side import PreparedSide, SideState

MOST = 2**63 - 1


def of(side: SideState, *rows: int) -> list[Change]:
    """Return upserts of rows with one id each, all of them new."""
    return upsert(*[(number, "a", "new") for number in rows])


def entries(prepared: PreparedSide) -> list[tuple[int, int]]:
    """Return the first and the decisive row of every entry."""
    count = prepared.entries
    return list(zip(prepared.first_of[:count].tolist(), prepared.last_of[:count].tolist(), strict=True))


# ---------------------------------------------------------------- rows of a delta to entries


def test_rows_of_one_identity_are_one_entry_and_the_last_decides() -> None:
    side = make_side()

    prepared = side.prepare(delta_of(side.relation, of(side, 1, 2, 1, 3, 2, 1)))

    assert entries(prepared) == [(0, 5), (1, 4), (3, 3)]


@pytest.mark.parametrize(
    ("sequences", "decisive", "stale"),
    [([1, 2, 3], 2, 0), ([3, 2, 1], 0, 2), ([1, 3, 2], 1, 1), ([2, 2, 2], 2, 0), ([2, 3, 3], 2, 0), ([-1, 0, -2], 1, 1)],
)
def test_with_a_sequence_the_largest_decides_and_of_equals_the_last(sequences: list[int], decisive: int, stale: int) -> None:
    side = make_side(sequenced=True)

    prepared = side.prepare(delta_of(side.relation, upsert(*[(1, "a", "x", place) for place in sequences])))

    assert entries(prepared) == [(0, decisive)]
    assert prepared.stale == stale


def test_without_a_primary_key_equal_rows_are_one_entry() -> None:
    side = make_side("changelog")

    prepared = side.prepare(delta_of(side.relation, insert((1, "a", "x"), (1, "a", None), (1, "a", "x"))))

    assert [first for first, _ in entries(prepared)] == [0, 1]


@pytest.mark.parametrize("hash_bits", [1, 32])
def test_identities_with_one_hash_are_several_entries(hash_bits: int) -> None:
    side = make_side(hash_bits=hash_bits)

    prepared = side.prepare(delta_of(side.relation, of(side, *range(100), *range(100))))

    assert entries(prepared) == [(number, 100 + number) for number in range(100)]


def test_a_bad_row_belongs_to_no_entry() -> None:
    side = make_side()

    prepared = side.prepare(delta_of(side.relation, upsert((None, "a", "x"), (1, "a", "x"), (None, "a", "x"))))

    assert entries(prepared) == [(1, 1)]
    assert prepared.status[:3].tolist() == [ch.NULL_PRIMARY_KEY, ch.OK, ch.NULL_PRIMARY_KEY]


# ---------------------------------------------------------------- upserts

OLD = (1, "a", "old")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(upsert((1, "a", "new")), [[1, 1, 0, 1], [0, 0, 1, 1]], id="another value"),
        pytest.param(upsert((1, "b", "old")), [[1, 1, 0, 1], [0, 0, 1, 1]], id="another key"),
        pytest.param(upsert((1, None, "old")), [[1, 1, 0, 1], [0, 0, 1, 0]], id="no key"),
        pytest.param(upsert(OLD), [], id="the same"),
        pytest.param(upsert((1, "a", "new"), OLD), [], id="the same in the end"),
        pytest.param(delete((1, None, None)), [[1, 1, 0, 1]], id="a delete"),
        pytest.param(delete((1, None, None)) + upsert(OLD), [], id="gone and back"),
        pytest.param(upsert(OLD) + delete((1, None, None)), [[1, 1, 0, 1]], id="repeated and gone"),
        pytest.param(upsert((2, "a", "new")), [[0, 0, 1, 1]], id="another identity"),
        pytest.param(delete((2, None, None)), [], id="a delete of nothing"),
    ],
)
def test_an_upsert_is_what_was_against_what_is(changes: list[Change], expected: list[list[int]]) -> None:
    side = make_side()
    absorb(side, upsert(OLD))

    assert changes_of(side, changes)[1] == expected


def test_a_row_that_was_never_shown_is_not_retracted() -> None:
    side = make_side(sequenced=True, keeps_unmatchable=False)
    absorb(side, upsert((1, None, "x", 1)))

    assert changes_of(side, upsert((1, "a", "x", 2)))[1] == [[1, 1, 0, 0], [0, 0, 1, 1]]


def test_where_null_keys_are_dropped_an_update_to_null_is_a_delete() -> None:
    side = make_side(keeps_unmatchable=False)
    absorb(side, upsert(OLD))

    assert changes_of(side, upsert((1, None, "x")))[1] == [[1, 1, 0, 1]]


def test_a_tombstone_is_no_row_to_retract() -> None:
    side = make_side(sequenced=True)
    absorb(side, delete((1, None, None, 5)))

    prepared, found = changes_of(side, upsert((1, "a", "x", 5)))

    assert (found, prepared.unknown_deletes) == ([[0, 0, 1, 1]], 0)


@pytest.mark.parametrize("count", [1, 23, 24, 25, 300])
def test_fetching_ahead_reaches_the_last_entry_and_not_beyond(count: int) -> None:
    side = make_side()
    absorb(side, upsert(*[(number, "a", "old") for number in range(count)]))

    _, found = changes_of(side, of(side, *range(count)))

    assert [line[0] for line in found[::2]] == list(range(1, count + 1))
    assert len(found) == 2 * count


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("before", "weights", "expected", "status"),
    [
        pytest.param(0, [1, 1, 1], [[0, 0, 3, 1]], [ch.OK] * 3, id="copies add up"),
        pytest.param(2, [-1], [[1, 2, 1, 1]], [ch.OK], id="a copy goes"),
        pytest.param(2, [-2], [[1, 2, 0, 1]], [ch.OK], id="all go"),
        pytest.param(0, [-1, 1], [], [ch.OK] * 2, id="insertions count first"),
        pytest.param(0, [-1, 2, -1], [], [ch.OK] * 3, id="whatever the order"),
        pytest.param(1, [-1, -1], [[1, 1, 0, 1]], [ch.OK, ch.ABSENT_ROW], id="the second retraction is one too many"),
        pytest.param(1, [-2, -1], [[1, 1, 0, 1]], [ch.ABSENT_ROW, ch.OK], id="a retraction too large leaves room for another"),
        pytest.param(0, [-1], [], [ch.ABSENT_ROW], id="absent"),
        pytest.param(MOST, [1], [], [ch.WEIGHT_OVERFLOW], id="too many copies"),
        pytest.param(MOST - 1, [1, 1, -5], [[1, MOST - 1, MOST - 5, 1]], [ch.OK, ch.WEIGHT_OVERFLOW, ch.OK], id="one too many"),
        pytest.param(0, [-MOST - 1], [], [ch.ABSENT_ROW], id="the least weight there is"),
    ],
)
def test_weights_are_netted_and_checked(before: int, weights: list[int], expected: list[list[int]], status: list[int]) -> None:
    side = make_side("changelog")
    absorb(side, insert(OLD, copies=before))

    prepared, found = changes_of(side, [(OLD, weight) for weight in weights])

    assert found == expected
    assert prepared.status[: len(weights)].tolist() == status


def test_changes_come_in_the_order_in_which_rows_came_first() -> None:
    side = make_side("changelog")
    absorb(side, insert((1, "a", "x"), (2, "a", "x")))

    _, found = changes_of(side, insert((9, "a", "x")) + delete((2, "a", "x")) + insert((1, "a", "x"), (9, "a", "x")))

    assert found == [[0, 0, 2, 1], [2, 1, 0, 1], [1, 1, 2, 1]]


# ---------------------------------------------------------------- appended rows


def test_every_accepted_row_of_an_append_is_a_change_of_its_own() -> None:
    side = make_side("append")

    prepared, found = changes_of(side, insert(OLD, OLD) + delete(OLD) + insert((2, None, "x"), copies=4) + [(OLD, 0)])

    assert found == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 4, 0]]
    assert prepared.rejected == 1


def test_changes_are_written_behind_those_of_the_other_side() -> None:
    side = make_side()
    prepared = side.prepare(delta_of(side.relation, of(side, 1, 2)))
    words = np.zeros((4, CHANGE_WORDS), np.int64)

    end = side.list_changes(prepared, 2, int(words.ctypes.data))

    assert end == 4
    assert words[:, 3].tolist() == [0, 0, 1, 1]
