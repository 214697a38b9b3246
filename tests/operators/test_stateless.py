"""Views without memory by example: SELECT, UNION ALL, WHERE (HAVING behind an aggregate), and rows that are passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.epochs import Epochs, delete, insert
from zset_join.aggregates import AggregateCall
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, PlanError, StateError
from zset_join.core.relation import Relation
from zset_join.expressions import left
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.stateless import Select, Unchanged, Union, Where
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

# ---------------------------------------------------------------- SELECT

PRODUCTS = Relation(
    name="sales",
    schema=pa.schema({"id": pa.int64(), "shop": pa.string(), "price": pa.int64()}),
    primary_key=("id",),
    mode="changelog",
)


def test_columns_have_the_requested_order_and_names() -> None:
    prices = Epochs(Select(PRODUCTS, {"amount": "price", "where": "shop", "again": "price"}))

    assert prices.feed(insert((1, "A", 9))) == [((9, "A", 9), 1)]
    assert prices.operator.output.schema.names == ["amount", "where", "again"]


def test_rows_that_become_equal_add_up() -> None:
    shops = Epochs(Select(PRODUCTS, ["shop"]))

    assert shops.feed(insert((1, "A", 9), (2, "A", 8))) == [(("A",), 2)]
    assert shops.feed(delete((1, "A", 9))) == [(("A",), -1)]


@pytest.mark.parametrize(
    ("columns", "key"), [({"number": "id", "shop": "shop"}, ("number",)), ({"id": "id"}, ("id",)), ({"shop": "shop"}, ())]
)
def test_the_key_stays_as_long_as_its_columns_do(columns: dict[str, str], key: tuple[str, ...]) -> None:
    assert Select(PRODUCTS, columns).output.primary_key == key


@pytest.mark.parametrize("columns", [[], ["town"]])
def test_no_column_or_an_unknown_one_is_refused(columns: list[str]) -> None:
    with pytest.raises(PlanError, match="its columns are"):
        Select(PRODUCTS, columns)


# ---------------------------------------------------------------- UNION ALL

SCHEMA = pa.schema({"x": pa.int64(), "s": pa.string()})
A = Relation(name="a", schema=SCHEMA, mode="changelog")
B = Relation(name="b", schema=pa.schema({"y": pa.int64(), "t": pa.string()}), mode="changelog")


def test_copies_of_both_inputs_add_up_under_the_names_of_the_first() -> None:
    both = Epochs(Union([A, B]))

    assert both.feed(insert((1, "a")), insert((1, "a"), (2, None))) == [((1, "a"), 2), ((2, None), 1)]
    assert both.operator.output.schema.names == ["x", "s"]


def test_append_only_inputs_make_an_append_only_output() -> None:
    relations = [Relation(name=name, schema=SCHEMA) for name in "ab"]

    assert (Union(relations).output.mode, Union([A, relations[1]]).output.mode) == ("append", "changelog")


def test_inputs_of_other_types_are_refused() -> None:
    other = Relation(name="b", schema=pa.schema({"x": pa.int32(), "s": pa.string()}))

    with pytest.raises(PlanError, match="a union goes by position"):
        Union([A, other])


@pytest.mark.parametrize("relations", [[A], [A, A]], ids=["one", "one name"])
def test_one_input_or_two_of_one_name_are_refused(relations: list[Relation]) -> None:
    with pytest.raises(PlanError, match="two inputs or more, of different names"):
        Union(relations)


# ---------------------------------------------------------------- WHERE

SALES = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.int64()}), mode="changelog")


def test_rows_pass_in_both_directions_and_null_does_not() -> None:
    dear = Epochs(Where(SALES, left("price") > 5))

    assert dear.feed(insert(("A", 9), ("B", 3), ("C", None))) == [(("A", 9), 1)]
    assert dear.feed([*delete(("A", 9), ("B", 3)), *insert(("A", 7))]) == [(("A", 9), -1), (("A", 7), 1)]


def test_having_shows_a_group_when_it_qualifies_and_retracts_it_when_it_does_not() -> None:
    totals = Aggregate(SALES, ["shop"], [AggregateCall("sum", "price", name="total")])
    groups, large = Epochs(totals), Epochs(Where(totals.output, left("total") > 10))

    answers = [
        large.feed(groups.feed(changes)) for changes in (insert(("A", 9)), insert(("A", 9)), insert(("A", 1)), delete(("A", 9)))
    ]

    assert answers == [[], [(("A", 18), 1)], [(("A", 18), -1), (("A", 19), 1)], [(("A", 19), -1)]]


def test_a_condition_over_other_columns_is_refused() -> None:
    with pytest.raises(PlanError, match='no column "cost"'):
        Where(SALES, left("cost") > 5)


def test_an_append_only_input_takes_no_retraction() -> None:
    dear = Where(Relation(name="sales", schema=SALES.schema), left("price") > 5)

    with pytest.raises(BadInputError, match=r'"sales", epoch 0: the change with key \(\'A\', 9\) and weight -1'):
        Epochs(dear).feed(delete(("A", 9)))


def test_under_quarantine_retractions_from_an_append_only_input_are_listed_and_left_out() -> None:
    relation = Relation(name="sales", schema=SALES.schema)
    dear = Epochs(Where(relation, left("price") > 5, on_bad_input="quarantine"))
    changes = [*insert(("A", 9)), *delete(("A", 8))]

    listed = dear.operator.rejections(Tick(0), dear.deltas(changes)).to_pylist()

    assert [(line["row"], line["weight"], line["code"]) for line in listed] == [(1, -1, "RETRACTION_IN_APPEND")]
    assert dear.feed(changes) == [(("A", 9), 1)]
    assert dear.operator.statistics() == {"rejected_rows": 1}  # type: ignore[attr-defined]


# ---------------------------------------------------------------- rows that are passed on

CLICKS = Relation(name="clicks", schema=pa.schema({"page": pa.string()}), mode="changelog")


def test_rows_come_out_netted_and_retractions_first() -> None:
    same = Epochs(Unchanged(CLICKS))

    assert same.feed([*insert(("b",), ("b",), ("c",)), *delete(("a",), ("c",))]) == [(("a",), -1), (("b",), 2)]


def test_it_goes_on_after_its_last_epoch(tmp_path: Path) -> None:
    first = Unchanged(CLICKS, directory=str(tmp_path))
    first.absorb(Tick(4), [ZSet.of({"page": ["a"]})])

    again = Unchanged(CLICKS, directory=str(tmp_path))

    assert again.is_current()
    with pytest.raises(StateError, match="4"):
        again.absorb(Tick(4), [ZSet.of({"page": ["a"]})])


@pytest.mark.parametrize(
    "operator", [Select(PRODUCTS, ["shop"]), Union([A, B]), Where(SALES, left("price") > 5), Unchanged(CLICKS)]
)
def test_a_view_without_memory_is_an_operator_whose_snapshot_is_its_epoch(operator: Any) -> None:
    assert isinstance(operator, Operator)
    nothing = [ZSet.empty(one.schema) for one in operator.inputs]
    operator.absorb(Tick(3), nothing)

    operator.restore(operator.snapshot())

    assert (operator.absorbed_epoch, sum(table.num_rows for table in operator.snapshot().values())) == (3, 0)
    with pytest.raises(StateError, match="epoch 3 was absorbed before"):
        operator.absorb(Tick(3), nothing)
