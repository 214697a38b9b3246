"""The shape of a join is known, or rejected, before it runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import KeyTypeError, OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.shapes.join import JOIN_TYPES, check_join, joined_schema, output_key

ORDERS = Relation(
    name="orders",
    schema=pa.schema([pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("price", pa.int64())]),
    join_key=("customer",),
    primary_key=("id",),
    mode="upsert",
)
CUSTOMERS = Relation(
    name="customers",
    schema=pa.schema([pa.field("customer", pa.string(), nullable=False), ("city", pa.string()), ("id", pa.int64())]),
    join_key=("customer",),
    primary_key=("customer",),
    mode="upsert",
)
GOOD: dict[str, Any] = {
    "how": "inner",
    "null_safe": None,
    "using": False,
}


def checked(left: Relation = ORDERS, right: Relation = CUSTOMERS, **changed: Any) -> tuple[bool, ...]:
    """Check a join with good arguments but for those given."""
    return check_join(left, right, *{**GOOD, **changed}.values())


def columns(how: str, *, using: bool = False, left: Relation = ORDERS, right: Relation = CUSTOMERS) -> list[str]:
    """Return the output's columns, each with a ? where it may be NULL."""
    schema, _ = joined_schema(left, right, how, using=using, output_names=None)
    return [f"{field.name}{'?' if field.nullable else ''}" for field in schema]


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_every_join_type_is_accepted(how: str) -> None:
    assert checked(how=how) == (False,)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"how": "outer"}, "UNKNOWN_JOIN_TYPE"),
        ({"how": "cross"}, "UNKNOWN_JOIN_TYPE"),
        ({"null_safe": [True, False]}, "NULL_SAFE_LENGTH"),
        ({"left": Relation(name="l", schema=ORDERS.schema)}, "JOIN_KEY_LENGTH"),
        ({"right": Relation(name="r", schema=ORDERS.schema, join_key=("id", "customer"))}, "JOIN_KEY_LENGTH"),
        ({"right": Relation(name="r", schema=CUSTOMERS.schema, join_key=("city",)), "using": True}, "USING_NAMES"),
    ],
)
def test_arguments_that_make_no_join_are_refused(changed: dict[str, Any], code: str) -> None:
    with pytest.raises(PlanError) as caught:
        checked(**changed)

    assert caught.value.code == code


def test_a_wrong_option_names_those_there_are() -> None:
    with pytest.raises(OptionError, match="use one of inner, left, right, full, left_semi, left_anti"):
        checked(how="outer")


def test_a_key_without_equality_is_refused() -> None:
    maps = Relation(name="m", schema=pa.schema({"customer": pa.map_(pa.string(), pa.string())}), join_key=("customer",))

    with pytest.raises(KeyTypeError):
        checked(right=maps)


def test_null_safe_flags_are_one_per_key_column() -> None:
    assert checked(null_safe=[True]) == (True,)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", ["id", "customer?", "price?", "customer_right", "city?", "id_right?"]),
        ("left", ["id", "customer?", "price?", "customer_right?", "city?", "id_right?"]),
        ("right", ["id?", "customer?", "price?", "customer_right", "city?", "id_right?"]),
        ("full", ["id?", "customer?", "price?", "customer_right?", "city?", "id_right?"]),
        ("left_semi", ["id", "customer?", "price?"]),
        ("left_anti", ["id", "customer?", "price?"]),
    ],
)
def test_the_columns_are_those_of_the_left_then_those_of_the_right(how: str, expected: list[str]) -> None:
    assert columns(how) == expected


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", ["customer?", "id", "price?", "city?", "id_right?"]),
        ("left", ["customer?", "id", "price?", "city?", "id_right?"]),
        ("right", ["customer", "id?", "price?", "city?", "id_right?"]),
        ("full", ["customer?", "id?", "price?", "city?", "id_right?"]),
        ("left_semi", ["customer?", "id", "price?"]),
        ("left_anti", ["customer?", "id", "price?"]),
    ],
)
def test_with_using_the_key_comes_first_from_the_side_that_is_always_there(how: str, expected: list[str]) -> None:
    assert columns(how, using=True) == expected


def test_every_output_column_has_its_origin() -> None:
    _, sources = joined_schema(ORDERS, CUSTOMERS, "full", using=True, output_names=None)

    assert sources == [("both", "customer"), ("left", "id"), ("left", "price"), ("right", "city"), ("right", "id")]


def test_a_merged_key_has_the_common_type() -> None:
    narrow = Relation(name="l", schema=pa.schema({"k": pa.decimal128(10, 2)}), join_key=("k",))
    wide = Relation(name="r", schema=pa.schema({"k": pa.decimal128(20, 4)}), join_key=("k",))

    schema, _ = joined_schema(narrow, wide, "full", using=True, output_names=None)

    assert schema.field("k").type == pa.decimal128(20, 4)


BAG = Relation(name="bag", schema=CUSTOMERS.schema, join_key=("customer",), mode="changelog")


@pytest.mark.parametrize(
    ("left", "right", "how", "using", "expected"),
    [
        pytest.param(ORDERS, CUSTOMERS, "inner", False, ("id",), id="each order meets at most one customer"),
        pytest.param(ORDERS, CUSTOMERS, "left", False, ("id",), id="and is there in any case"),
        pytest.param(ORDERS, CUSTOMERS, "right", False, ("id", "customer_right"), id="a customer alone has no order"),
        pytest.param(ORDERS, CUSTOMERS, "full", True, ("id", "customer"), id="merged, the key still identifies customers"),
        pytest.param(CUSTOMERS, ORDERS, "right", False, ("id_right",), id="the other way round"),
        pytest.param(CUSTOMERS, ORDERS, "left", False, ("customer", "id_right"), id="a customer has many orders"),
        pytest.param(ORDERS, BAG, "left_semi", False, ("id",), id="semi joins show the left only"),
        pytest.param(ORDERS, BAG, "inner", False, (), id="a bag has no key"),
        pytest.param(BAG, CUSTOMERS, "inner", False, (), id="nor has it on the left"),
        pytest.param(ORDERS, CUSTOMERS, "inner", True, ("id",), id="using"),
    ],
)
def test_the_key_of_the_output_is_as_short_as_the_inputs_allow(
    left: Relation, right: Relation, how: str, using: bool, expected: tuple[str, ...]
) -> None:
    schema, sources = joined_schema(left, right, how, using=using, output_names=None)

    assert output_key(left, right, how, schema, sources) == expected
