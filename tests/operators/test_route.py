"""The route by example: every change is sent where its join key lives, and where its old join key lived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.epochs import Change, Epochs, delete, delta_of, insert, upsert
from zset_join.core.errors import BadInputError, KeyTypeError, OptionError, PlanError, StateError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Route
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "customer": pa.string(), "price": pa.int64()}),
    join_key=("customer",),
    primary_key=("id",),
    mode="upsert",
)
VERSIONED = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "customer": pa.string(), "price": pa.int64(), "seq": pa.int64()}),
    join_key=("customer",),
    primary_key=("id",),
    sequence_by=("seq",),
    mode="upsert",
)
CUSTOMERS = Relation(
    name="customers", schema=pa.schema({"name": pa.string()}), join_key=("name",), primary_key=("name",), mode="upsert"
)


@pytest.fixture
def route() -> Epochs:
    """Give the route of orders after two of them have come."""
    route = Epochs(Route(ORDERS))
    route.feed(upsert((1, "ann", 10), (2, "bob", 20)))
    return route


# ---------------------------------------------------------------- where a change has to go


def test_a_new_row_goes_to_its_join_key(route: Epochs) -> None:
    assert route.feed(upsert((3, "cid", 30))) == [((3, "cid", 30), +1)]


def test_an_update_that_stays_at_its_key_is_passed_on(route: Epochs) -> None:
    assert route.feed(upsert((1, "ann", 11))) == [((1, "ann", 11), +1)]


def test_an_update_of_nothing_is_passed_on_too_the_payload_is_not_remembered(route: Epochs) -> None:
    assert route.feed(upsert((1, "ann", 10))) == [((1, "ann", 10), +1)]


def test_a_row_that_moves_leaves_its_old_key_and_arrives_at_its_new_one(route: Epochs) -> None:
    assert route.feed(upsert((1, "bob", 10))) == [((1, "ann", None), -1), ((1, "bob", 10), +1)]


def test_a_delete_goes_where_its_row_is(route: Epochs) -> None:
    assert route.feed(delete((1, None, None))) == [((1, "ann", None), -1)]


def test_a_delete_that_names_another_key_still_goes_where_its_row_is(route: Epochs) -> None:
    assert route.feed(delete((1, "zoe", 99))) == [((1, "ann", None), -1)]


def test_a_delete_of_an_unknown_row_goes_nowhere(route: Epochs) -> None:
    assert route.feed(delete((9, None, None))) == []


def test_a_null_join_key_is_a_place_like_any_other(route: Epochs) -> None:
    assert route.feed(upsert((1, None, 10))) == [((1, "ann", None), -1), ((1, None, 10), +1)]
    assert route.feed(upsert((1, None, 11))) == [((1, None, 11), +1)]
    assert route.feed(upsert((1, "ann", 11))) == [((1, None, None), -1), ((1, "ann", 11), +1)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            upsert((1, "bob", 1), (1, "cid", 2)), [((1, "ann", None), -1), ((1, "cid", 2), +1)], id="only the last stop"
        ),
        pytest.param(upsert((1, "bob", 1), (1, "ann", 2)), [((1, "ann", 2), +1)], id="there and back"),
        pytest.param(upsert((1, "bob", 1)) + delete((1, None, None)), [((1, "ann", None), -1)], id="moved and deleted"),
        pytest.param(
            delete((1, None, None)) + upsert((1, "bob", 1)),
            [((1, "ann", None), -1), ((1, "bob", 1), +1)],
            id="deleted and back",
        ),
        pytest.param(upsert((3, "bob", 1)) + delete((3, None, None)), [], id="came and went"),
    ],
)
def test_per_key_and_epoch_at_most_one_delete_and_one_upsert_come_out(
    route: Epochs, changes: list[Change], expected: list[Change]
) -> None:
    assert route.feed(changes) == expected


def test_deletes_come_before_upserts_over_all_chunks() -> None:
    route = Epochs(Route(ORDERS, options=OperatorOptions(chunk_rows=2)))
    route.feed(upsert(*[(number, "ann", 0) for number in range(5)]))

    chunks = route.chunks(upsert(*[(number, "bob", 0) for number in range(5)]))

    assert [len(chunk) for chunk in chunks] == [2, 2, 1, 2, 2, 1]
    assert [weight for chunk in chunks for _, weight in chunk] == [-1] * 5 + [+1] * 5


def test_upserts_come_out_in_the_order_of_arrival(route: Epochs) -> None:
    (chunk,) = route.chunks(upsert((9, "a", 1), (7, "b", 2), (8, "c", 3), (9, "d", 4)))

    assert [row[0] for row, _ in chunk] == [7, 8, 9]


# ---------------------------------------------------------------- sequences end here


def test_an_older_change_goes_nowhere() -> None:
    route = Epochs(Route(VERSIONED))
    route.feed(upsert((1, "ann", 10, 5)))

    assert route.feed(upsert((1, "bob", 9, 4))) == []
    assert route.feed(delete((1, None, None, 4))) == []
    assert route.feed(upsert((1, "bob", 11, 6))) == [((1, "ann", None, None), -1), ((1, "bob", 11, 6), +1)]


def test_a_change_of_payload_and_sequence_alone_is_passed_on() -> None:
    route = Epochs(Route(VERSIONED))
    route.feed(upsert((1, "ann", 10, 5)))

    assert route.feed(upsert((1, "ann", 12, 7))) == [((1, "ann", 12, 7), +1)]
    assert route.feed(upsert((1, "ann", 11, 6))) == []


def test_a_deleted_row_is_remembered_until_its_retention_is_over() -> None:
    route = Epochs(Route(VERSIONED, options=OperatorOptions(tombstone_retention_seconds=10)))
    route.feed(upsert((1, "ann", 10, 5)), watermark=0)
    route.feed(delete((1, None, None, 8)), watermark=0)

    assert route.feed(upsert((1, "bob", 10, 7)), watermark=9_000_000) == []
    route.feed([], watermark=10_000_000)
    assert route.feed(upsert((1, "bob", 10, 7)), watermark=10_000_000) == [((1, "bob", 10, 7), +1)]


def test_the_output_needs_no_sequence_any_more() -> None:
    output = Route(VERSIONED).output

    assert (output.mode, output.sequence_by, output.primary_key, output.join_key) == ("upsert", (), ("id",), ("customer",))
    assert output.schema.names == VERSIONED.schema.names


def test_columns_that_a_delete_leaves_empty_are_nullable_in_the_output() -> None:
    strict = pa.schema([field.with_nullable(False) for field in ORDERS.schema])
    route = Epochs(Route(Relation(name="o", schema=strict, join_key=("customer",), primary_key=("id",), mode="upsert")))
    route.feed(upsert((1, "ann", 10)))

    assert route.feed(delete((1, "ann", 10))) == [((1, "ann", None), -1)]
    assert all(field.nullable for field in route.operator.output.schema)


# ---------------------------------------------------------------- the join behind it

STORY = [
    upsert((1, "ann", 10), (2, "bob", 20)),
    upsert((1, "bob", 10), (2, "ann", 21)),
    delete((2, None, None)) + upsert((3, None, 30)),
    upsert((3, "ann", 31), (1, "bob", 10)),
]


def behind_route(how: str, buckets: int) -> tuple[dict[Any, int], dict[Any, int]]:
    """Return the sum of one join over the story, and of as many joins as buckets behind a route."""
    whole = Epochs(HashJoin(ORDERS, CUSTOMERS, how))
    route = Epochs(Route(ORDERS))
    parts = [Epochs(HashJoin(route.operator.output, CUSTOMERS, how)) for _ in range(buckets)]
    names: list[Change] = insert(("ann",), ("bob",))

    def bucket(key: Any) -> int:
        return len(key or "") and ord(key[0]) % buckets

    for epoch, changes in enumerate(STORY):
        whole.feed(changes, names if epoch == 0 else [])
        routed = route.feed(changes)
        for number, part in enumerate(parts):
            own = [change for change in names if bucket(change[0][0]) == number] if epoch == 0 else []
            part.feed([change for change in routed if bucket(change[0][1]) == number], own)
    total: dict[Any, int] = {}
    for part in parts:
        total.update(part.sum())
    return whole.sum(), total


@pytest.mark.parametrize("how", ["inner", "left", "full", "left_anti"])
@pytest.mark.parametrize("buckets", [1, 2])
def test_joins_split_by_join_key_behind_a_route_sum_up_to_the_whole_join(how: str, buckets: int) -> None:
    whole, parts = behind_route(how, buckets)

    assert parts == whole


# ---------------------------------------------------------------- the operator protocol


def test_a_route_is_an_operator_that_answers_purely(route: Epochs) -> None:
    deltas = route.deltas(upsert((1, "bob", 10)) + delete((2, None, None)))
    before = route.operator.snapshot()

    once = [chunk.to_pylist() for chunk in route.operator.answer(Tick(1), deltas)]
    twice = [chunk.to_pylist() for chunk in route.operator.answer(Tick(1), deltas)]

    assert isinstance(route.operator, Operator)
    assert once == twice == [[((1, "ann", None), -1), ((2, "bob", None), -1)], [((1, "bob", 10), 1)]]
    assert route.operator.snapshot() == before


def test_nothing_in_nothing_out(route: Epochs) -> None:
    assert route.chunks() == []


def test_an_epoch_is_absorbed_once(route: Epochs) -> None:
    with pytest.raises(StateError, match="epoch 0 was absorbed before") as caught:
        route.operator.absorb(Tick(0), route.deltas([]))

    assert caught.value.code == "EPOCH_ABSORBED"


def test_a_route_remembers_keys_and_no_payload(route: Epochs) -> None:
    snapshot = route.operator.snapshot()

    assert list(snapshot) == ["route"]
    assert snapshot["route"].schema.names == ["id", "customer", "_zset_weight", "_zset_watermark"]
    assert route.operator.statistics()["route_rows"] == 2  # type: ignore[attr-defined]


def test_a_restored_route_goes_on_where_it_was(route: Epochs) -> None:
    again = Epochs(Route(ORDERS), first_epoch=1)

    again.operator.restore(route.operator.snapshot())

    assert again.operator.absorbed_epoch == 0  # type: ignore[attr-defined]
    assert again.feed(upsert((1, "bob", 10))) == [((1, "ann", None), -1), ((1, "bob", 10), +1)]


def test_a_route_in_files_is_reopened_where_it_was_left(tmp_path: Path) -> None:
    first = Epochs(Route(ORDERS, options=OperatorOptions(directory=str(tmp_path))))
    first.feed(upsert((1, "ann", 10)))
    first.operator.close()  # type: ignore[attr-defined]

    again = Epochs(Route(ORDERS, options=OperatorOptions(directory=str(tmp_path))), first_epoch=1)

    assert again.feed(upsert((1, "bob", 10))) == [((1, "ann", None), -1), ((1, "bob", 10), +1)]


def test_ids_that_collide_are_distinguished() -> None:
    route = Epochs(Route(ORDERS, options=OperatorOptions(hash_bits=1)))
    route.feed(upsert(*[(number, f"k{number}", 0) for number in range(50)]))

    answer = route.feed(upsert(*[(number, "moved", 0) for number in range(0, 50, 10)]))

    assert [row[1] for row, weight in answer if weight < 0] == ["k0", "k10", "k20", "k30", "k40"]


# ---------------------------------------------------------------- bad input and bad plans


def test_a_null_primary_key_fails_the_epoch_and_applies_nothing(route: Epochs) -> None:
    before = route.operator.snapshot()

    with pytest.raises(BadInputError, match=r'relation "orders", epoch 1: .* NULL in its primary key \[\'id\'\]') as caught:
        route.feed(upsert((3, "cid", 1), (None, "cid", 2)))

    assert caught.value.code == "NULL_PRIMARY_KEY"
    assert route.operator.snapshot() == before


def test_in_quarantine_the_rest_is_routed() -> None:
    route = Epochs(Route(VERSIONED, options=OperatorOptions(on_bad_input="quarantine")))
    changes = upsert((1, "ann", 10, 1), (None, "cid", 2, 1), (2, "bob", 2, None))

    rejected = route.operator.rejections(Tick(0), route.deltas(changes))

    assert rejected.select(["input", "row", "code"]).to_pylist() == [
        {"input": "orders", "row": 1, "code": "NULL_PRIMARY_KEY"},
        {"input": "orders", "row": 2, "code": "NULL_SEQUENCE"},
    ]
    assert route.feed(changes) == [((1, "ann", 10, 1), +1)]


@pytest.mark.parametrize(
    ("relation", "code"),
    [
        (Relation(name="clicks", schema=ORDERS.schema, join_key=("customer",)), "ROUTE_NOT_NEEDED"),
        (Relation(name="clicks", schema=ORDERS.schema, join_key=("customer",), mode="changelog"), "ROUTE_NOT_NEEDED"),
        (Relation(name="clicks", schema=ORDERS.schema, primary_key=("id",), mode="upsert"), "ROUTE_NOT_NEEDED"),
    ],
)
def test_only_upserts_with_a_join_key_need_a_route(relation: Relation, code: str) -> None:
    with pytest.raises(PlanError, match='relation "clicks" is in') as caught:
        Route(relation)

    assert caught.value.code == code


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(OptionError, match='use "error" or "quarantine"'):
        Route(ORDERS, options=OperatorOptions(on_bad_input="skip"))


def test_a_map_cannot_be_routed_by() -> None:
    schema = pa.schema({"id": pa.int64(), "m": pa.map_(pa.string(), pa.int64())})

    with pytest.raises(KeyTypeError):
        Route(Relation(name="o", schema=schema, join_key=("m",), primary_key=("id",), mode="upsert"))


def test_a_delta_with_other_types_than_its_relation_is_refused() -> None:
    narrow = ZSet.of({"id": pa.array([1, 2, 3], pa.int32()), "customer": ["a", "b", "c"], "price": [1, 2, 3]})

    with pytest.raises(PlanError, match=r'"id".*int64.*int32'):
        list(Route(ORDERS).answer(Tick(0), [narrow]))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.large_string()])
def test_keys_of_any_string_type_can_be_routed(kind: pa.DataType) -> None:
    relation = Relation(
        name="o", schema=pa.schema({"id": pa.int64(), "k": kind}), join_key=("k",), primary_key=("id",), mode="upsert"
    )
    route = Route(relation)
    route.absorb(Tick(0), [delta_of(relation, upsert((1, "a")))])

    lines = [line for chunk in route.answer(Tick(1), [delta_of(relation, upsert((1, "b")))]) for line in chunk.to_pylist()]

    assert lines == [((1, "a"), -1), ((1, "b"), +1)]
