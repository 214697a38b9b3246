"""What is in memory: how large rows are, which are worth it, and how much room they have in a budget.

That rows leave memory and come back unchanged is shown in `tests/state/rows/test_side.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spill.cold_store import ColdRows
from tests.epochs import Change, delta_of, upsert
from tests.state.side_anatomy import absorb, anatomy, make_side, pieces
from zset_join.core.options import HotBudget
from zset_join.core.relation import ChangelogMode
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.side import block_bytes
from zset_join.state.cold.cold_tables import BusyGroups
from zset_join.state.cold.hot_rows import HotRows, RowLimit
from zset_join.state.rows.side import SideState

LONG = "a text that is longer than twelve bytes"
ROWS: list[Change] = [(row, 1) for row in [(1, "a", LONG), (2, "a", None), (3, None, ""), (4, "b", LONG * 9), (5, "a", "x")]]
STAMP, CLOCK = 4, 0.0
MB = 1 << 20


def filled(mode: ChangelogMode = "upsert", **options: Any) -> tuple[SideState, HotRows]:
    side = make_side(mode, **options)
    absorb(side, ROWS)
    hot = HotRows(side)
    hot.follow()
    return side, hot


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


def test_compacting_gives_rows_other_numbers_and_nothing_else() -> None:
    side, hot = filled()
    come_back(hot, leave(hot, [1, 4]))
    hot.note_written(np.array([2]), STAMP, 7.0)
    known = {row: reported(hot, number) for row, number in numbers_of(side).items()}

    side.compact()

    assert {row: reported(hot, number) for row, number in numbers_of(side).items()} == known
    assert {place for place, _, _ in known.values()} == {-1, 70, 71}


# ---------------------------------------------------------------- groups


def test_the_group_that_is_touched_most_stays_and_new_records_start_over() -> None:
    busy, first, second = BusyGroups(HotBudget(max_hot_keys=2)), object(), object()
    sizes = np.array([10, 10, 10])
    for _ in range(3):
        busy.touch(first, np.array([2]))
    busy.touch(first, np.array([0, 1, 3]))

    assert busy.exceeds(3, 0)
    assert not busy.exceeds(2, 1 << 40)
    assert 1 not in busy.victims(first, sizes)
    assert busy.victims(second, sizes).tolist() == [0, 1]


def test_another_limit_of_bytes_holds_from_then_on() -> None:
    busy = BusyGroups(HotBudget(max_hot_bytes=100))

    assert (busy.exceeds(1, 60), busy.exceeds(1, 101)) == (False, True)
    busy.limit_bytes(50)
    assert busy.exceeds(1, 60)
    assert busy.victims(object(), np.array([30, -1, 30])).tolist() == [0]


# ---------------------------------------------------------------- what rows may take


@pytest.mark.parametrize(
    ("budget_bytes", "needs", "expected"),
    [
        pytest.param(128 * MB, (0, 50 * MB), (68 * MB, 68 * MB), id="working arrays, and what an epoch takes and frees"),
        pytest.param(
            200 * MB, (100_000, 0), (200 * MB - 10 * MB - 50_000_000 - 9 * MB // 4,) * 2, id="a large delta is foreseen"
        ),
        pytest.param(300 * MB, (10_000_000, 0), (100 * MB, 100 * MB), id="rows keep a third, whatever an epoch needs"),
        pytest.param(128 * MB, (0, 0, 30 * MB), (88 * MB, 118 * MB), id="what is not reckoned is held, and not of rows"),
        pytest.param(128 * MB, (0, 0, 300 * MB), (0, 118 * MB), id="less than no room is none"),
        pytest.param(128 * MB, (0, 0, 0, 5 * MB), (113 * MB, 113 * MB), id="an index is looked at in parts"),
        pytest.param(128 * MB, (0, 0, 0, 500 * MB), (110 * MB, 110 * MB), id="which have room as far as there is one"),
        pytest.param(1280 * MB, (0, 0), (1234 * MB, 1234 * MB), id="a 32nd of a large budget is left to allocators"),
        pytest.param(9 * MB, (10_000, 7 * MB, 2 * MB, 10 * MB), (9 * MB, 9 * MB), id="a small budget is all for rows"),
        pytest.param(0, (10_000, 7 * MB, 2 * MB, 10 * MB), (0, 0), id="and so is none"),
        pytest.param(None, (10, 10), (None, None), id="no budget is no limit"),
    ],
)
def test_what_an_epoch_needs_is_no_room_for_rows(
    budget_bytes: int | None, needs: tuple[int, ...], expected: tuple[int | None, int | None]
) -> None:
    limit = RowLimit(budget_bytes)
    given = dict.fromkeys(("delta_rows", "working_bytes", "unreckoned_bytes", "index_bytes"), 0)

    limit.foresee(**given | dict(zip(given, needs, strict=False)))

    assert (limit.rows, limit.held) == expected


def test_budgets_that_share_a_process_count_together_and_so_does_what_an_epoch_takes_and_frees() -> None:
    limit = RowLimit(32 * MB)

    limit.foresee(delta_rows=0, working_bytes=0, unreckoned_bytes=0, index_bytes=500 * MB, shared_budgets=(8, 256 * MB))

    assert limit.spared == 0
    assert limit.rows == 32 * MB - 10 * MB // 8 - 8 * MB // 8 - 4 * MB // 8


def test_only_a_budget_below_that_of_a_whole_process_is_spared_some_of_what_an_epoch_needs() -> None:
    assert [RowLimit(budget).spared for budget in (None, 0, 40 * MB, 64 * MB, 128 * MB)] == [0, 16 * MB, 8 * MB, 0, 0]
    assert (RowLimit(1280 * MB).spare, RowLimit(128 * MB).spare) == (40 * MB, 4 * MB)
