"""Changes that share a join key are one group, whichever side they come from."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.epochs import Change, delete, delta_of, insert
from tests.state.side_anatomy import absorb, make_side
from zset_join.kernels.join.groups import in_changed_set, partition_changes
from zset_join.kernels.rows import epoch as e
from zset_join.kernels.rows.side import H_ROWS_END
from zset_join.kernels.rows.slots import home_of
from zset_join.kernels.values.columns import NEXT
from zset_join.state.join.changed_groups import ChangedGroups
from zset_join.state.rows.side import SideState

Listed = tuple[list[int], list[int], int, int]


class Matched:
    """Two sides after an epoch's changes have been grouped."""

    def __init__(
        self, before: tuple[list[Change], list[Change]], changes: tuple[list[Change], list[Change]], *, hash_bits: int = 32
    ) -> None:
        self.sides: list[SideState] = [make_side("changelog", hash_bits=hash_bits) for _ in range(2)]
        for side, known in zip(self.sides, before, strict=True):
            absorb(side, known)
        self._prepared = [side.prepare(delta_of(side.relation, new)) for side, new in zip(self.sides, changes, strict=True)]
        self._groups = ChangedGroups(self.sides, (1, 1), part_changes=1_000_000, residual=False)
        self._groups.list_changes(self._prepared)
        self._groups.enter(0)
        self.epoch = self._groups._epoch

    def word(self, position: int) -> int:
        """Return a word of the epoch view."""
        return ctypes.c_int64.from_address(self.epoch + 8 * position).value

    def side_words(self, side: int, what: int, count: int) -> list[int]:
        """Return the array that a word of a side points to."""
        address = int(e.side_word(self.epoch, side, what))
        return list((ctypes.c_int64 * count).from_address(address))

    def listed(self, side: int, group: int) -> list[int]:
        """Return the changes of a side of a group."""
        change = self.side_words(side, e.S_FIRST, group + 1)[group]
        found = []
        while change >= 0:
            found.append(change)
            change = int(e.of_change(self.word(e.E_NEXT_CHANGE), change))
        return found

    def groups(self) -> list[Listed]:
        """Return of every group its left and right changes, and how many rows its chains have."""
        count = self.word(e.E_GROUPS)
        chains = [self._chain_lengths(side, count) for side in (0, 1)]
        return [(self.listed(0, group), self.listed(1, group), chains[0][group], chains[1][group]) for group in range(count)]

    def _chain_lengths(self, side: int, count: int) -> list[int]:
        following = self.sides[side].record_words("<u4", NEXT, int(self.sides[side].header[H_ROWS_END])).tolist()
        lengths = []
        for head in self.side_words(side, e.S_HEAD, count):
            length = 0
            while head:
                length, head = length + 1, following[head - 1]
            lengths.append(length)
        return lengths


def rows(key: str | None, *ids: int) -> list[Change]:
    """Return insertions of rows with one key."""
    return insert(*[(number, key, None) for number in ids])


@pytest.mark.parametrize("hash_bits", [32, 1])
def test_changes_of_both_sides_meet_in_the_group_of_their_key(hash_bits: int) -> None:
    matched = Matched(
        ([], []), (rows("a", 1) + rows("b", 2) + rows("a", 3), rows("b", 8, 9) + rows("c", 7)), hash_bits=hash_bits
    )

    assert matched.groups() == [([0, 2], [], 0, 0), ([1], [3, 4], 0, 0), ([], [5], 0, 0)]


@pytest.mark.parametrize("hash_bits", [32, 1])
def test_a_group_has_the_rows_of_its_key_in_either_state(hash_bits: int) -> None:
    matched = Matched(
        (rows("a", 1, 2) + rows("x", 3), rows("b", 7) + rows("a", 8)), (rows("a", 4), rows("b", 9)), hash_bits=hash_bits
    )

    assert matched.groups() == [([0], [], 2, 1), ([], [1], 0, 1)]


def test_a_row_that_leaves_is_still_in_its_chain() -> None:
    matched = Matched((rows("a", 1), []), (delete((1, "a", None)), rows("a", 9)))

    assert matched.groups() == [([0], [1], 1, 0)]


def test_changes_that_can_never_match_are_in_two_groups_behind_the_others() -> None:
    matched = Matched(([], []), (rows(None, 1) + rows("a", 2) + rows(None, 3), rows(None, 9)))
    count = matched.word(e.E_GROUPS)

    assert count == 1
    assert [matched.listed(0, count), matched.listed(1, count)] == [[0, 2], []]
    assert [matched.listed(0, count + 1), matched.listed(1, count + 1)] == [[], [3]]


@pytest.mark.parametrize(
    ("before", "changes", "expected"),
    [
        pytest.param([], rows("a", 1), (0, 1), id="the first comes"),
        pytest.param(rows("a", 1), rows("a", 2), (1, 1), id="another comes"),
        pytest.param(rows("a", 1, 2), delete((1, "a", None)), (1, 1), id="one of two goes"),
        pytest.param(rows("a", 1), delete((1, "a", None)), (1, 0), id="the last goes"),
        pytest.param(rows("a", 1, 2), delete((1, "a", None), (2, "a", None)), (1, 0), id="both go"),
        pytest.param(rows("a", 1), delete((1, "a", None)) + rows("a", 2), (1, 1), id="one is replaced"),
        pytest.param(insert((1, "a", None), copies=2), delete((1, "a", None)), (1, 1), id="a copy goes"),
    ],
)
def test_a_group_shows_whether_its_side_has_rows_before_and_after(
    before: list[Change], changes: list[Change], expected: tuple[int, int]
) -> None:
    matched = Matched((before, []), (changes, []))

    degrees = [matched.side_words(0, what, 1)[0] for what in (e.S_DEGREES_BEFORE, e.S_DEGREES_AFTER)]
    assert tuple(degrees) == expected


def test_the_rows_that_change_are_remembered_and_no_others() -> None:
    matched = Matched((rows("a", *range(1, 41)), []), (delete(*[(number, "a", None) for number in range(1, 41, 4)]), []))
    marks = int(e.side_word(matched.epoch, 0, e.S_CHANGED))

    assert [number for number in range(1, 41) if in_changed_set(number, marks)] == list(range(1, 41, 4))


@pytest.mark.parametrize("count", [1, 23, 24, 25, 26, 500])
def test_looking_up_ahead_reaches_the_last_group_and_not_beyond(count: int) -> None:
    state = [change for number in range(count) for change in rows(f"k{number}", number)]
    changes = [change for number in range(count) for change in rows(f"k{number}", 1_000 + number)]

    matched = Matched((state, []), ([], changes))

    assert matched.groups() == [([], [number], 1, 0) for number in range(count)]


# ---------------------------------------------------------------- parts


def partitioned(left: list[int], right: list[int], bits: int) -> tuple[list[int], list[int]]:
    """Return the references of changes with these hashes after they were sorted into parts, and the bounds of the parts."""
    hashes = [*left, *right]
    source = np.zeros((len(hashes), e.CHANGE_WORDS), np.int64)
    source[:, 0] = np.arange(len(hashes))
    source[:, 4] = hashes
    target: npt.NDArray[Any] = np.full_like(source, -1)
    bounds = np.zeros((2 << bits) + 1, np.int64)
    partition_changes(len(left), len(hashes), bits, int(source.ctypes.data), int(target.ctypes.data), bounds)
    assert target[:, 4].tolist() == [hashes[ref] for ref in target[:, 0].tolist()]
    return target[:, 0].tolist(), bounds.tolist()


def test_parts_are_made_by_home_and_keep_the_order_of_changes() -> None:
    front = [code for code in range(100) if home_of(code, 1) == 0]
    back = [code for code in range(100) if home_of(code, 1) == 1]

    refs, bounds = partitioned([back[0], front[0], back[1], front[1]], [back[0], front[2], front[2]], 1)

    assert refs == [1, 3, 5, 6, 0, 2, 4]
    assert bounds == [0, 2, 4, 6, 7]


@pytest.mark.parametrize("bits", [1, 3, 6])
def test_every_change_is_in_one_part_the_left_ones_first(bits: int) -> None:
    hashes = np.random.default_rng(bits).integers(0, 1 << 32, 400).tolist()

    refs, bounds = partitioned(hashes[:250], hashes[250:], bits)

    expected = sorted(range(400), key=lambda ref: (home_of(hashes[ref], bits), ref >= 250, ref))
    assert refs == expected
    assert (bounds[0], bounds[-1], bounds) == (0, 400, sorted(bounds))


def test_no_changes_make_empty_parts() -> None:
    assert partitioned([], [], 2) == ([], [0] * 9)
