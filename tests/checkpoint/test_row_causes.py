"""Which of the changes of an epoch a row of a join follows from."""

from __future__ import annotations

from math import nan
from typing import Any

import pyarrow as pa
import pytest

from zset_join.checkpoint.row_causes import CauseFinder, frozen
from zset_join.checkpoint.row_history import InputChange
from zset_join.core.relation import Relation
from zset_join.shapes.join import joined_schema

ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "k": pa.float64(), "note": pa.string()}),
    join_key=("k",),
    primary_key=("id",),
    mode="upsert",
)
PRICES = Relation(name="prices", schema=pa.schema({"k": pa.float64(), "price": pa.int64()}), join_key=("k",), mode="changelog")


def order(number: int, key: float | None, note: str = "", weight: int = 1) -> InputChange:
    return InputChange("orders", {"id": number, "k": key, "note": note}, weight)


def price(key: float | None, value: int, weight: int = 1) -> InputChange:
    return InputChange("prices", {"k": key, "price": value}, weight)


def row(number: int | None, key: float | None, note: str | None, value: int | None) -> dict[str, Any]:
    return {"k": key, "id": number, "note": note, "price": value}


def find(
    rows: list[dict[str, Any]], changes: list[InputChange], how: str = "full", *, null_safe: bool = False
) -> list[list[int]]:
    schema, sources = joined_schema(ORDERS, PRICES, how, using=True, output_names=None)
    shown = dict(zip(sources, schema.names, strict=True))
    return CauseFinder((ORDERS, PRICES), shown, [null_safe]).find(rows, changes)


def test_a_pair_follows_from_the_changes_of_its_own_rows() -> None:
    changes = [order(1, 7.0, "pen"), order(2, 7.0, "cap"), price(7.0, 3), price(7.0, 4), price(8.0, 3)]

    assert find([row(1, 7.0, "pen", 3), row(2, 7.0, "cap", 4)], changes) == [[0, 2], [1, 3]]


def test_a_padded_row_follows_from_everything_with_its_join_key_on_the_other_side() -> None:
    changes = [order(1, 7.0), price(7.0, 3), price(7.0, 4, -1), price(8.0, 3)]

    assert find([row(1, 7.0, "", None), row(None, 8.0, None, 3)], changes) == [[0, 1, 2], [3]]


def test_an_upsert_is_found_by_its_primary_key_wherever_it_moves() -> None:
    changes = [order(1, 7.0, "", -1), order(1, 8.0, "new"), order(2, 8.0, "other")]

    assert find([row(1, 7.0, "old", 3), row(1, 8.0, "new", 5)], changes) == [[0, 1], [0, 1]]


@pytest.mark.parametrize(("null_safe", "found"), [(False, [[0]]), (True, [[0, 1]])])
def test_behind_a_null_key_nothing_meets_unless_null_equals_null(null_safe: bool, found: list[list[int]]) -> None:
    assert find([row(1, None, "", None)], [order(1, None), price(None, 3)], null_safe=null_safe) == found


def test_the_side_that_a_semi_join_does_not_show_is_known_by_the_join_key() -> None:
    assert find([row(1, 7.0, "", None)], [price(7.0, 3), price(8.0, 3)], "left_semi") == [[0]]


def test_nan_equals_nan_and_nested_values_can_be_compared() -> None:
    assert find([row(None, nan, None, 3)], [price(nan, 3)]) == [[0]]
    assert frozen({"a": [1, nan]}) == frozen({"a": [1, nan]})
    assert hash(frozen([{"a": 1}])) != hash(frozen([{"a": 2}]))


def test_two_equal_changes_are_two_and_one_reported_twice_is_one() -> None:
    once, again = price(7.0, 3), price(7.0, 3)
    views = [InputChange("view", {"n": at}, 1, causes=(once, again)) for at in (1, 2)]

    assert [id(change) for view in views for change in view.sources] == 2 * [id(once), id(again)]
    assert InputChange("both", {}, 1, causes=tuple(views)).sources == (once, again)
    assert InputChange("view", {}, 1, missing_reason="it is too old").sources == ()
