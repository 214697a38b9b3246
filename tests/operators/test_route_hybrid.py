"""A route with a budget: keys on disk are found by their primary key, and the answers are those of a route in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Epochs, delete, delta_of, upsert
from zset_join.core.errors import StateError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.upsert_table import Route
from zset_join.shapes.operator_options import OperatorOptions

ORDERS = Relation(
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
    route = Epochs(built(Route, ORDERS, directory=None if directory is None else str(directory), **NOTHING))
    route.feed(upsert((1, "ann", 0), (2, "bob", 0)) + delete((3, None, 5)))
    return route


def counts(route: Epochs) -> dict[str, int]:
    found: dict[str, int] = route.operator.statistics()  # type: ignore[attr-defined]
    return found


def test_keys_and_tombstones_are_on_disk_between_epochs() -> None:
    state = counts(cold_route())

    assert (state["route_hot_rows"], state["route_cold_rows"], state["route_rows"]) == (0, 2, 2)
    assert (state["route_hot_tombstones"], state["route_cold_tombstones"]) == (0, 1)


def test_a_move_leaves_the_old_join_key_which_is_on_disk() -> None:
    assert cold_route().feed(upsert((1, "cid", 1))) == [((1, "ann", None), -1), ((1, "cid", 1), +1)]


def test_a_change_that_is_older_than_a_delete_on_disk_is_ignored() -> None:
    route = cold_route()

    assert route.feed(upsert((3, "ann", 4))) == []
    assert route.feed(upsert((3, "ann", 5))) == [((3, "ann", 5), +1)]


def test_only_what_a_delta_names_comes_into_memory() -> None:
    route = cold_route()

    list(route.operator.answer(Tick(1), [delta_of(ORDERS, upsert((1, "ann", 1), (9, "ann", 1)))]))

    assert (counts(route)["route_hot_rows"], counts(route)["route_cold_rows"]) == (1, 1)


def test_a_snapshot_holds_the_keys_on_disk_and_a_route_in_memory_goes_on_from_it() -> None:
    again = Epochs(Route(ORDERS), first_epoch=1)

    again.operator.restore(cold_route().operator.snapshot())

    assert again.feed(upsert((2, "cid", 1), (3, "ann", 4))) == [((2, "bob", None), -1), ((2, "cid", 1), +1)]


def test_a_hybrid_route_is_restored_within_its_budget() -> None:
    again = Epochs(built(Route, ORDERS, **NOTHING), first_epoch=1)

    again.operator.restore(cold_route().operator.snapshot())

    assert (counts(again)["route_hot_rows"], counts(again)["route_cold_rows"]) == (0, 2)
    assert again.feed(delete((2, None, 1))) == [((2, "bob", None), -1)]


def test_a_route_in_files_is_reopened_with_its_keys_on_disk(tmp_path: Path) -> None:
    cold_route(tmp_path).operator.close()  # type: ignore[attr-defined]

    again = Epochs(built(Route, ORDERS, directory=str(tmp_path), **NOTHING), first_epoch=1)

    assert again.feed(upsert((1, "cid", 1))) == [((1, "ann", None), -1), ((1, "cid", 1), +1)]


def test_files_of_a_hybrid_route_are_no_route_in_memory(tmp_path: Path) -> None:
    cold_route(tmp_path).operator.close()  # type: ignore[attr-defined]

    with pytest.raises(StateError, match="written for another relation"):
        Route(ORDERS, options=OperatorOptions(directory=str(tmp_path)))


def test_an_answer_cannot_be_read_on_after_the_next_one_had_begun() -> None:
    route = built(Route, ORDERS, chunk_rows=1, **NOTHING)
    route.absorb(Tick(0), [delta_of(ORDERS, upsert((1, "ann", 0), (2, "bob", 0)))])
    answer = iter(route.answer(Tick(1), [delta_of(ORDERS, delete((1, None, 1), (2, None, 1)))]))
    next(answer)
    list(route.answer(Tick(1), [delta_of(ORDERS, delete((1, None, 1)))]))

    with pytest.raises(StateError, match="read on after the next one had begun"):
        next(answer)
