"""The mart equals DuckDB after every epoch; a bound that the user sets is refused, not passed over."""

from __future__ import annotations

import pytest

from examples.orders_mart import Mart, main
from zset_join.core.errors import BadInputError


def test_every_view_of_the_mart_equals_duckdb_after_every_epoch() -> None:
    assert main(12) == 0


def test_a_change_behind_the_bound_of_a_mart_is_refused() -> None:
    with pytest.raises(BadInputError, match="LATE_"):
        main(12, "SET 'keep_probe_for' = '1 day';")


def test_a_difference_is_found() -> None:
    mart = Mart()
    mart.tables["orders"][1] = (1, "EUR", 5, None)

    assert mart.wrong() == {"priced": 0, "revenue": 0, "with_fees": 1}
