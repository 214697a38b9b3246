"""SELECT by example."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.epochs import Epochs, delete, insert
from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.operators.stateless import Select
from zset_join.zset.protocol import Operator

SALES = Relation(
    name="sales",
    schema=pa.schema({"id": pa.int64(), "shop": pa.string(), "price": pa.int64()}),
    primary_key=("id",),
    mode="changelog",
)


def test_select_is_an_operator() -> None:
    assert isinstance(Select(SALES, ["shop"]), Operator)


def test_columns_have_the_requested_order_and_names() -> None:
    prices = Epochs(Select(SALES, {"amount": "price", "where": "shop", "again": "price"}))

    assert prices.feed(insert((1, "A", 9))) == [((9, "A", 9), 1)]
    assert prices.operator.output.schema.names == ["amount", "where", "again"]


def test_rows_that_become_equal_add_up() -> None:
    shops = Epochs(Select(SALES, ["shop"]))

    assert shops.feed(insert((1, "A", 9), (2, "A", 8))) == [(("A",), 2)]
    assert shops.feed(delete((1, "A", 9))) == [(("A",), -1)]


def test_an_update_of_another_column_emits_nothing() -> None:
    shops = Epochs(Select(SALES, ["shop"]))
    shops.feed(insert((1, "A", 9)))

    assert shops.feed([*delete((1, "A", 9)), *insert((1, "A", 7))]) == []


@pytest.mark.parametrize(("columns", "key"), [({"number": "id", "shop": "shop"}, ("number",)), ({"shop": "shop"}, ())])
def test_the_key_stays_as_long_as_its_columns_do(columns: dict[str, str], key: tuple[str, ...]) -> None:
    assert Select(SALES, columns).output.primary_key == key


@pytest.mark.parametrize("columns", [[], ["town"]])
def test_no_column_or_an_unknown_one_is_refused(columns: list[str]) -> None:
    with pytest.raises(PlanError, match="its columns are"):
        Select(SALES, columns)
