"""With a residual predicate every preserved row counts its own partners: rows that are present, never messages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.epochs import delta_of, insert, upsert
from tests.state.side_anatomy import absorb, make_side, pieces
from zset_join.kernels.join.pairs import SHOWN_MATCHED, SHOWN_UNMATCHED
from zset_join.state.join.residual_degrees import ResidualDegrees, live_flags
from zset_join.state.rows.side import PreparedSide, SideState


def words(*numbers: int) -> npt.NDArray[np.int64]:
    """Return int64 words."""
    return np.array(numbers, np.int64)


def flags(*values: int) -> npt.NDArray[np.bool_]:
    """Return booleans."""
    return np.array(values, np.bool_)


def side_with(*degrees: int) -> SideState:
    """Return a side whose rows 1, 2, ... (ids 1, 2, ...) have these degrees."""
    side = make_side(has_degree=True)
    rows = len(degrees)
    absorb(side, insert(*[(number, "a", None) for number in range(1, rows + 1)]))
    side.store_degrees(np.arange(1, rows + 1), words(*degrees))
    return side


def refs(side: SideState, *numbers: int) -> npt.NDArray[np.int64]:
    """Return the record addresses of rows by number."""
    return words(*[side.first_record + (number - 1) * side.layout.stride for number in numbers])


def changed(side: SideState, kind: int, numbers: list[int], before: list[int], after: list[int]) -> ResidualDegrees:
    """Return the degrees of an epoch that changes these rows; number 0 is a new row."""
    addresses = refs(side, *[max(number, 1) for number in numbers])
    return ResidualDegrees(side, kind, 10, np.stack([addresses, words(*numbers), words(*before), words(*after)]))


def shown(side: SideState, degrees: ResidualDegrees) -> list[tuple[int, int]]:
    """Return what the join emits for single rows, as (id, weight)."""
    addresses, weights = degrees.one_sided_rows
    numbers = ((addresses - side.first_record) // side.layout.stride + 1).tolist()
    return sorted(zip((row[0] for row in pieces(side, numbers)), weights.tolist(), strict=True))


def test_an_unchanged_partner_is_there_both_times_and_a_changed_one_by_its_weight() -> None:
    before, after = words(0, 2, 1), words(1, 0, 1)

    was, is_now = live_flags(words(-1, 0, 1, 2), before, after)

    assert was.tolist() == [True, False, True, True]
    assert is_now.tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("degree", "was", "is_now", "expected"),
    [
        pytest.param(0, [0], [1], [(1, -1)], id="the first partner comes"),
        pytest.param(1, [1], [0], [(1, +1)], id="the last partner goes"),
        pytest.param(1, [1, 0], [0, 1], [], id="a partner is replaced"),
        pytest.param(2, [1], [0], [], id="one of two goes"),
        pytest.param(1, [0], [1], [], id="a second one comes"),
    ],
)
def test_an_unchanged_row_is_padded_or_not_by_its_degree_before_and_after(
    degree: int, was: list[int], is_now: list[int], expected: list[tuple[int, int]]
) -> None:
    side = side_with(degree)
    degrees = changed(side, SHOWN_UNMATCHED, [], [], [])

    degrees.add(words(*[-1] * len(was)), refs(side, *[1] * len(was)), flags(*was), flags(*is_now))
    degrees.finish()

    assert shown(side, degrees) == expected


@pytest.mark.parametrize(
    ("kind", "partners", "expected"),
    [(SHOWN_UNMATCHED, 0, [(1, 3)]), (SHOWN_UNMATCHED, 2, []), (SHOWN_MATCHED, 0, []), (SHOWN_MATCHED, 2, [(1, 3)])],
)
def test_a_new_row_counts_the_partners_there_are_after_the_epoch(
    kind: int, partners: int, expected: list[tuple[int, int]]
) -> None:
    side = side_with(0)
    degrees = changed(side, kind, [0], [0], [3])

    degrees.add(words(*[10] * partners), refs(side, *[1] * partners), flags(*[1] * partners), flags(*[1] * partners))
    degrees.finish()

    assert shown(side, degrees) == expected
    assert degrees.degrees_after.tolist() == [partners]


@pytest.mark.parametrize(
    ("kind", "degree", "expected"), [(SHOWN_UNMATCHED, 0, [(1, -2)]), (SHOWN_UNMATCHED, 1, []), (SHOWN_MATCHED, 1, [(1, -2)])]
)
def test_a_row_that_goes_retracts_its_output(kind: int, degree: int, expected: list[tuple[int, int]]) -> None:
    side = side_with(degree)
    degrees = changed(side, kind, [1], [2], [0])

    degrees.finish()

    assert shown(side, degrees) == expected


def test_copies_that_come_to_a_padded_row_are_padded() -> None:
    side = side_with(0)
    degrees = changed(side, SHOWN_UNMATCHED, [1], [2], [5])

    degrees.finish()

    assert shown(side, degrees) == [(1, 3)]


def test_pairs_may_come_in_several_portions() -> None:
    side = side_with(0, 1)
    degrees = changed(side, SHOWN_UNMATCHED, [], [], [])

    degrees.add(words(-1), refs(side, 1), flags(0), flags(1))
    degrees.add(words(-1, -1), refs(side, 2, 1), flags(1, 0), flags(0, 1))
    degrees.finish()

    assert degrees.touched.tolist() == [1, 2]
    assert degrees.touched_after.tolist() == [2, 0]
    assert shown(side, degrees) == [(1, -1), (2, +1)]


def test_storing_writes_the_degrees_of_touched_and_of_new_rows() -> None:
    side = side_with(0, 4)
    prepared: PreparedSide = side.prepare(delta_of(side.relation, upsert((3, "a", None))))
    changes = np.zeros((4, 8), np.int64)
    side.list_changes(prepared, 0, int(changes.ctypes.data))
    new = changes[:1]
    degrees = ResidualDegrees(side, SHOWN_UNMATCHED, 0, new[:, :4].T)
    degrees.add(words(0, -1), np.append(new[:, 0], refs(side, 2)), flags(0, 1), flags(1, 0))
    degrees.finish()

    side.absorb(prepared, None)
    degrees.store(prepared)

    assert side.degrees(words(1, 2, 3)).tolist() == [0, 3, 1]
