"""The soak makes the comparisons it reports, and fails when it made too few."""

from __future__ import annotations

import pytest

from property_tests.soak import Tally, held_against_floors, main, soak_round


def test_a_few_rounds_hold_and_count_what_they_compared(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--seed", "0", "--rounds", "6"])

    reported = capsys.readouterr().out
    assert code == 0
    assert "seeds 0..5: 6 rounds" in reported


def test_a_round_is_repeated_by_its_seed() -> None:
    first, second = Tally(), Tally()

    soak_round(3, first)
    soak_round(3, second)

    assert first == second
    assert first.rows > 0


def test_a_soak_that_compared_too_little_fails() -> None:
    assert held_against_floors(Tally(epochs=1, rows=1), minutes=1.0) == 1
    assert held_against_floors(Tally(epochs=10**6, rows=10**9), minutes=1.0) == 0
