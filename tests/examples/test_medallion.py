"""The shop of fifteen views as a user starts it."""

from __future__ import annotations

import pytest

from examples import medallion


def test_all_fifteen_views_equal_their_batch_queries_and_their_tables(capsys: pytest.CaptureFixture[str]) -> None:
    code = medallion.main(["--epochs", "3"])

    printed = capsys.readouterr().out
    assert (code, printed.count(", equal\n")) == (0, 15), printed
    assert "15 of 15 views equal their batch queries after 3 epochs" in printed
    assert (
        "serves silver_sales, gold_by_city, gold_by_day, gold_by_category, gold_by_city_and_day, gold_large_cities" in printed
    )
