from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from zset_join.errors import KeyTypeError, OptionError, PlanError
from zset_join.expressions import left, right
from zset_join.plan import InputNode, JoinNode, RouteNode, explain, needs_route
from zset_join.relation import Relation
from zset_join.shapes.join import join_type

ORDERS = Relation(
    name="orders",
    schema=pa.schema({"order_id": pa.int64(), "customer_id": pa.int32(), "ts": pa.int64()}),
    join_key=("customer_id",),
    primary_key=("order_id",),
    sequence_by=("ts",),
    mode="upsert",
)
CUSTOMERS = Relation(
    name="customers",
    schema=pa.schema({"customer_id": pa.int64(), "name": pa.string(), "tags": pa.map_(pa.string(), pa.string())}),
    join_key=("customer_id",),
)


def node(left_relation: Relation = ORDERS, right_relation: Relation = CUSTOMERS, **changed: Any) -> JoinNode:
    arguments: dict[str, Any] = {"how": "left", "null_safe": (False,), "using": True, **changed}
    source = InputNode(relation=left_relation, hidden=("ts",) if left_relation is ORDERS else ())
    first = RouteNode(source=source) if needs_route(left_relation) else source
    return JoinNode(left=first, right=InputNode(relation=right_relation), **arguments)


def replaced(relation: Relation, **changed: Any) -> Relation:
    fields = {name: getattr(relation, name) for name in relation.__dataclass_fields__}
    return Relation(**{**fields, **changed})


@pytest.mark.parametrize(
    ("spellings", "plain"),
    [
        (["inner", "INNER"], "inner"),
        (["left", "leftouter", "left_outer", "leftOuter"], "left"),
        (["right", "rightouter", "right_outer"], "right"),
        (["full", "outer", "fullouter", "full_outer"], "full"),
        (["semi", "leftsemi", "left_semi"], "left_semi"),
        (["anti", "leftanti", "left_anti"], "left_anti"),
    ],
)
def test_every_spelling_of_pyspark_is_understood(spellings: list[str], plain: str) -> None:
    assert {join_type(spelling) for spelling in spellings} == {plain}


@pytest.mark.parametrize(("how", "cure"), [("cross", "join on a key"), ("asof", "use one of inner")])
def test_an_unknown_join_type_is_refused_with_a_cure(how: str, cure: str) -> None:
    with pytest.raises(OptionError, match=f"how='{how}'.*{cure}"):
        join_type(how)


def test_only_an_upsert_whose_join_key_can_move_needs_a_route() -> None:
    assert needs_route(ORDERS)
    assert not needs_route(replaced(ORDERS, join_key=("order_id",)))
    assert not needs_route(replaced(ORDERS, mode="changelog", sequence_by=()))
    assert not needs_route(CUSTOMERS)


def test_behind_a_route_sequences_are_settled() -> None:
    assert node().left.relation.sequence_by == ()
    assert node().left.relation.primary_key == ("order_id",)


def test_keys_of_different_width_can_be_compared() -> None:
    assert node().key_pairs == (("customer_id", "customer_id"),)


@pytest.mark.parametrize(
    ("right_relation", "changed", "error", "complaint"),
    [
        (replaced(CUSTOMERS, name="orders"), {}, OptionError, 'both sides of the join are called "orders"'),
        (replaced(CUSTOMERS, join_key=("name",)), {}, KeyTypeError, "cast one of them"),
        (replaced(CUSTOMERS, join_key=("tags",)), {}, KeyTypeError, "maps"),
        (replaced(CUSTOMERS, join_key=("customer_id", "name")), {}, PlanError, 'and 1 null_safe flags|2 for "customers"'),
        (CUSTOMERS, {"null_safe": ()}, PlanError, "0 null_safe flags"),
    ],
)
def test_a_join_that_cannot_run_is_refused_when_it_is_described(
    right_relation: Relation, changed: dict[str, Any], error: type[PlanError], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        node(right_relation=right_relation, **changed)


def test_a_join_without_a_key_is_a_cross_join_and_refused() -> None:
    with pytest.raises(PlanError, match="cross join has no bounded change"):
        node(replaced(CUSTOMERS, name="a", join_key=()), replaced(CUSTOMERS, join_key=()), null_safe=())


def test_explain_says_what_each_node_remembers() -> None:
    text = explain(node(residual=left("ts") < right("customer_id")), buckets=4, output="view v")

    assert text.splitlines() == [
        "Output to view v",
        "Join left on customer_id = customer_id and left.ts < right.customer_id",
        '  remembers: all live rows of "orders", live rows with a complete key of "customers"; in 4 buckets by join key',
        '  shuffles: changes of "orders" by primary key, then by join key, changes of "customers" by join key',
        "├─ Route by primary key (order_id)",
        "│    why: customer_id may change, and only a table kept by primary key knows where the row was",
        '│    remembers: primary key -> customer_id, ts, one entry per key of "orders"',
        '│  └─ Input "orders" upsert keys=[order_id] sequence_by=[ts] columns=[order_id, customer_id]',
        '└─ Input "customers" append columns=[customer_id, name, tags]',
    ]


def test_a_side_with_a_baseline_says_so() -> None:
    found = replace(node(), right=InputNode(relation=CUSTOMERS, has_baseline=True))

    assert explain(found).splitlines()[-1].endswith("columns=[customer_id, name, tags] from a baseline")
    assert found.fingerprint()["right"] == {**node().fingerprint()["right"], "baseline": True}
    assert "baseline" not in found.fingerprint()["left"]


def test_a_fingerprint_is_json_and_tells_queries_apart() -> None:
    same, other = node().fingerprint(), node(how="inner").fingerprint()

    assert json.loads(json.dumps(same)) == node().fingerprint()
    assert same != other
    assert node(residual=left("ts") < 5).fingerprint() != node(residual=left("ts") < 6).fingerprint()


@pytest.mark.parametrize(
    "changed", [{}, {"residual": left("ts") < right("customer_id")}, {"how": "full", "null_safe": (True,)}]
)
def test_a_join_that_was_written_down_can_be_built_again(changed: dict[str, Any]) -> None:
    found = replace(node(**changed), right=InputNode(relation=CUSTOMERS, has_baseline=True))

    again = JoinNode.from_json(json.loads(json.dumps(found.to_json())))

    assert again.fingerprint() == found.fingerprint()
    assert [side.relation for side in again.sides] == [side.relation for side in found.sides]
    assert again.to_json() == found.to_json()
