"""A relation checks itself when it is described, before the first row flows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.relation import Relation

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.string(), "at": pa.timestamp("us")})


def test_a_relation_is_append_only_by_default() -> None:
    orders = Relation(name="orders", schema=ORDERS)

    assert (orders.mode, orders.join_key, orders.primary_key, orders.sequence_by) == ("append", (), (), ())


def test_columns_are_found_by_their_place_in_the_schema() -> None:
    orders = Relation(name="orders", schema=ORDERS, join_key=("customer",))

    assert orders.field_indices(("at", "id")) == (2, 0)
    assert orders.field_indices(orders.join_key) == (1,)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ({"mode": "retract"}, "UNKNOWN_MODE", r"mode='retract' is unknown; use one of append, upsert, changelog"),
        ({"mode": "upsert"}, "MISSING_PRIMARY_KEY", r"pass keys="),
        ({"join_key": ("custommer",)}, "UNKNOWN_COLUMN", r"join_key=\['custommer'\].*its columns \['id', 'customer', 'at'\]"),
        ({"primary_key": ("uid",)}, "UNKNOWN_COLUMN", r"primary_key=\['uid'\]"),
        ({"sequence_by": ("ts",)}, "UNKNOWN_COLUMN", r"sequence_by=\['ts'\]"),
        ({"join_key": ("id", "id")}, "DUPLICATE_KEY_COLUMN", r"names a column twice"),
        ({"sequence_by": ("at",)}, "SEQUENCE_WITHOUT_UPSERT", r'needs mode="upsert", not "append"'),
        (
            {"sequence_by": ("at",), "primary_key": ("id",), "mode": "changelog"},
            "SEQUENCE_WITHOUT_UPSERT",
            r'not "changelog"',
        ),
    ],
)
def test_a_description_that_cannot_run_names_the_argument_and_the_cure(
    arguments: dict[str, Any], code: str, expected: str
) -> None:
    with pytest.raises(PlanError, match=expected) as caught:
        Relation(name="orders", schema=ORDERS, **arguments)

    assert caught.value.code == code
    assert caught.value.facts["relation"] == "orders"
    assert 'relation "orders"' in str(caught.value)


def test_an_unknown_mode_is_a_wrong_option() -> None:
    with pytest.raises(OptionError):
        Relation(name="orders", schema=ORDERS, mode="cdc")  # type: ignore[arg-type]


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pa.schema([pa.field("id", pa.int64()), pa.field("id", pa.string())])

    with pytest.raises(PlanError, match=r"more than one column named \['id'\]; rename them first"):
        Relation(name="orders", schema=twice)


def test_a_relation_does_not_change_but_can_be_derived() -> None:
    orders = Relation(name="orders", schema=ORDERS, primary_key=("id",), mode="upsert")

    with pytest.raises(dataclasses.FrozenInstanceError):
        orders.mode = "append"  # type: ignore[misc]
    assert dataclasses.replace(orders, name="renamed").primary_key == ("id",)


def test_a_derived_relation_is_checked_again() -> None:
    orders = Relation(name="orders", schema=ORDERS, primary_key=("id",), mode="upsert")

    with pytest.raises(PlanError, match="MISSING_PRIMARY_KEY"):
        dataclasses.replace(orders, primary_key=())
