"""What the rows of a hybrid join may take: what an epoch needs beside them is theirs no more, and they keep half."""

from __future__ import annotations

import pytest

from zset_join.state.cold.row_limit import RowLimit

MB = 1 << 20


def limits(
    budget_bytes: int | None, delta_rows: int, working_bytes: int, unreckoned_bytes: int = 0, index_bytes: int = 0
) -> tuple[int | None, int | None]:
    limit = RowLimit(budget_bytes)
    limit.foresee(
        delta_rows=delta_rows, working_bytes=working_bytes, unreckoned_bytes=unreckoned_bytes, index_bytes=index_bytes
    )
    return limit.rows, limit.held


def test_working_arrays_and_what_an_epoch_takes_and_frees_have_their_room() -> None:
    assert limits(128 * MB, 0, 50 * MB) == (68 * MB, 68 * MB)


def test_a_large_delta_is_foreseen_before_its_working_arrays_are_there() -> None:
    assert limits(200 * MB, 100_000, 0) == limits(200 * MB, 100_000, 200 * 100_000)


def test_rows_keep_a_third_of_the_budget_whatever_an_epoch_needs() -> None:
    assert limits(300 * MB, 10_000_000, 0) == (100 * MB, 100 * MB)


def test_what_is_not_reckoned_comes_off_what_is_reckoned_and_not_off_what_is_held() -> None:
    assert limits(128 * MB, 0, 0, 30 * MB) == (88 * MB, 118 * MB)


def test_an_index_is_looked_at_in_parts_which_have_their_room_as_far_as_there_is_one() -> None:
    assert limits(128 * MB, 0, 0, 0, 5 * MB) == (113 * MB, 113 * MB)
    assert limits(128 * MB, 0, 0, 0, 500 * MB) == (110 * MB, 110 * MB)


def test_of_a_large_budget_a_32nd_is_left_to_allocators_and_to_an_index_that_is_looked_at() -> None:
    assert limits(1280 * MB, 0, 0) == ((1280 - 10 - 36) * MB, (1280 - 10 - 36) * MB)
    assert (RowLimit(1280 * MB).spare, RowLimit(128 * MB).spare) == (40 * MB, 4 * MB)


@pytest.mark.parametrize("budget_bytes", [0, 1000, 9 * MB])
def test_small_budgets_are_all_for_rows_while_epochs_are_small(budget_bytes: int) -> None:
    assert limits(budget_bytes, 10_000, 7 * MB, 2 * MB, 10 * MB) == (budget_bytes, budget_bytes)


def test_budgets_that_share_a_process_count_together_and_so_does_what_an_epoch_takes_and_frees() -> None:
    limit = RowLimit(32 * MB)

    limit.foresee(delta_rows=0, working_bytes=0, unreckoned_bytes=0, index_bytes=500 * MB, shared_budgets=(8, 256 * MB))

    assert limit.spared == 0
    assert limit.rows == 32 * MB - 10 * MB // 8 - 8 * MB // 8 - 4 * MB // 8


def test_less_than_no_room_is_none() -> None:
    assert limits(128 * MB, 0, 0, 300 * MB) == (0, 118 * MB)


def test_no_budget_is_no_limit() -> None:
    assert limits(None, 10, 10) == (None, None)


def test_only_a_budget_below_that_of_a_whole_process_is_spared_some_of_what_an_epoch_needs() -> None:
    assert [RowLimit(budget).spared for budget in (None, 0, 40 * MB, 64 * MB, 128 * MB)] == [0, 16 * MB, 8 * MB, 0, 0]
