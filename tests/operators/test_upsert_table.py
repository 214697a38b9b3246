"""Tables of upserts: the route sends every change where its join key lives, and lived; the latest rows are emitted with those they replace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Change, Epochs, delete, delta_of, upsert
from zset_join.core.epochs import Tick
from zset_join.core.errors import PlanError, StateError
from zset_join.core.relation import Relation
from zset_join.operators.upsert_table import Latest, Route
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet

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


@pytest.fixture
def route() -> Epochs:
    """Give the route of orders after two of them have come."""
    route = Epochs(Route(ORDERS))
    route.feed(upsert((1, "ann", 10), (2, "bob", 20)))
    return route


# ---------------------------------------------------------------- where a change has to go


def test_an_update_of_nothing_is_passed_on_too_the_payload_is_not_remembered(route: Epochs) -> None:
    assert route.feed(upsert((1, "ann", 10))) == [((1, "ann", 10), +1)]


def test_a_row_that_moves_leaves_its_old_key_and_arrives_at_its_new_one(route: Epochs) -> None:
    assert route.feed(upsert((1, "bob", 10))) == [((1, "ann", None), -1), ((1, "bob", 10), +1)]


def test_a_delete_that_names_another_key_still_goes_where_its_row_is(route: Epochs) -> None:
    assert route.feed(delete((1, "zoe", 99))) == [((1, "ann", None), -1)]


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


# ---------------------------------------------------------------- sequences


def test_a_deleted_row_is_remembered_until_its_retention_is_over() -> None:
    route = Epochs(Route(VERSIONED, options=OperatorOptions(tombstone_retention_seconds=10)))
    route.feed(upsert((1, "ann", 10, 5)), watermark=0)
    route.feed(delete((1, None, None, 8)), watermark=0)

    assert route.feed(upsert((1, "bob", 10, 7)), watermark=9_000_000) == []
    route.feed([], watermark=10_000_000)
    assert route.feed(upsert((1, "bob", 10, 7)), watermark=10_000_000) == [((1, "bob", 10, 7), +1)]


def test_a_delete_carries_the_sequence_of_the_change_that_moved_the_row() -> None:
    route = Epochs(Route(VERSIONED))
    route.feed(upsert((1, "ann", 10, 5), (2, "ann", 10, 5)))

    moved = route.feed(upsert((1, "bob", 10, 7)) + delete((2, None, None, 9)))

    assert moved == [((1, "ann", None, 7), -1), ((2, "ann", None, 9), -1), ((1, "bob", 10, 7), +1)]


def test_columns_that_a_delete_leaves_empty_are_nullable_in_the_output() -> None:
    strict = pa.schema([field.with_nullable(False) for field in ORDERS.schema])
    route = Epochs(Route(Relation(name="o", schema=strict, join_key=("customer",), primary_key=("id",), mode="upsert")))
    route.feed(upsert((1, "ann", 10)))

    assert route.feed(delete((1, "ann", 10))) == [((1, "ann", None), -1)]
    assert all(field.nullable for field in route.operator.output.schema)


# ---------------------------------------------------------------- the operator protocol


def test_a_route_remembers_keys_and_no_payload(route: Epochs) -> None:
    snapshot = route.operator.snapshot()

    assert list(snapshot) == ["route"]
    assert snapshot["route"].schema.names == ["id", "customer", "_zset_weight", "_zset_watermark"]
    assert route.operator.statistics()["route_rows"] == 2  # type: ignore[attr-defined]


# ---------------------------------------------------------------- bad input and bad plans


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


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.large_string()])
def test_keys_of_any_string_type_can_be_routed(kind: pa.DataType) -> None:
    relation = Relation(
        name="o", schema=pa.schema({"id": pa.int64(), "k": kind}), join_key=("k",), primary_key=("id",), mode="upsert"
    )
    route = Route(relation)
    route.absorb(Tick(0), [delta_of(relation, upsert((1, "a")))])

    lines = [line for chunk in route.answer(Tick(1), [delta_of(relation, upsert((1, "b")))]) for line in chunk.to_pylist()]

    assert lines == [((1, "a"), -1), ((1, "b"), +1)]


# ---------------------------------------------------------------- keys on disk

COLD_ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "customer": pa.string(), "seq": pa.int64()}),
    join_key=("customer",),
    primary_key=("id",),
    sequence_by=("seq",),
    mode="upsert",
)
NOTHING: dict[str, Any] = {"max_hot_bytes": 0}


def cold_route(directory: Path | None = None) -> Epochs:
    """Return the route of two orders and one that was deleted, with nothing in memory."""
    route = Epochs(built(Route, COLD_ORDERS, directory=None if directory is None else str(directory), **NOTHING))
    route.feed(upsert((1, "ann", 0), (2, "bob", 0)) + delete((3, None, 5)))
    return route


def counts(route: Epochs) -> dict[str, int]:
    found: dict[str, int] = route.operator.statistics()  # type: ignore[attr-defined]
    return found


def test_keys_and_tombstones_are_on_disk_between_epochs() -> None:
    state = counts(cold_route())

    assert (state["route_hot_rows"], state["route_cold_rows"], state["route_rows"]) == (0, 2, 2)
    assert (state["route_hot_tombstones"], state["route_cold_tombstones"]) == (0, 1)


def test_only_what_a_delta_names_comes_into_memory() -> None:
    route = cold_route()

    list(route.operator.answer(Tick(1), [delta_of(COLD_ORDERS, upsert((1, "ann", 1), (9, "ann", 1)))]))

    assert (counts(route)["route_hot_rows"], counts(route)["route_cold_rows"]) == (1, 1)


def test_files_of_a_hybrid_route_are_no_route_in_memory(tmp_path: Path) -> None:
    cold_route(tmp_path).operator.close()  # type: ignore[attr-defined]

    with pytest.raises(StateError, match="written for another relation"):
        Route(COLD_ORDERS, options=OperatorOptions(directory=str(tmp_path)))


def test_an_answer_cannot_be_read_on_after_the_next_one_had_begun() -> None:
    route = built(Route, COLD_ORDERS, chunk_rows=1, **NOTHING)
    route.absorb(Tick(0), [delta_of(COLD_ORDERS, upsert((1, "ann", 0), (2, "bob", 0)))])
    answer = iter(route.answer(Tick(1), [delta_of(COLD_ORDERS, delete((1, None, 1), (2, None, 1)))]))
    next(answer)
    list(route.answer(Tick(1), [delta_of(COLD_ORDERS, delete((1, None, 1)))]))

    with pytest.raises(StateError, match="read on after the next one had begun"):
        next(answer)


# ---------------------------------------------------------------- the latest rows

LATEST = pa.schema({"id": pa.int64(), "name": pa.string(), "v": pa.int64()})
LONG = "a name that does not fit into twelve bytes"


def latest(**options):
    relation = Relation(name="customers", schema=LATEST, primary_key=("id",), sequence_by=("v",), mode="upsert")
    return built(Latest, relation, hidden=["v"], **options)


def rows(*lines, weights=None):
    return [ZSet.from_rows(lines, LATEST, weights=weights)]


def reported(operator, epoch, delta):
    return [row for chunk in operator.answer(Tick(epoch), delta) for row in chunk.to_pylist()]


def test_an_update_emits_the_old_row_first():
    operator = latest()
    operator.absorb(Tick(0), rows((1, LONG, 1), (2, "Bob", 1)))

    assert reported(operator, 1, rows((1, LONG + "!", 2), (2, None, 2))) == [
        ((1, LONG), -1),
        ((2, "Bob"), -1),
        ((1, LONG + "!"), 1),
        ((2, None), 1),
    ]


def test_rows_that_are_no_upserts_need_no_such_table():
    with pytest.raises(PlanError, match="only upserts"):
        Latest(Relation(name="x", schema=LATEST, mode="changelog"))
