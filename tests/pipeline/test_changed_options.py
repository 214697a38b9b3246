"""Options of a query that its state outlasts: how long rows live, and names of indexes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import StateError
from zset_join.expressions import col
from zset_join.pipeline import PROCESSING_TIME, Pipeline, StateTtl, View, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

SECOND = 1_000_000
ORDERS = appends("orders", {"id": pa.int64(), "who": pa.string()})
PEOPLE = changes("people", {"who": pa.string(), "city": pa.string()}, keys="who")


def by_city(after: str, *, of: Any = None) -> View:
    joined = ORDERS.join(PEOPLE, on="who", state_ttl=(StateTtl(after, of=of), None))
    return joined.groupBy("city").agg(F.count().alias("n"))


def counted(pipeline: Pipeline[Any]) -> dict[str, int]:
    return {row["city"]: row["n"] for row in pipeline.view().to_pylist()}


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("of", ["row", "key"])
@pytest.mark.parametrize(
    ("after", "at", "expected"),
    [
        ("10 seconds", 20, {"Oslo": 1}),
        ("10 seconds", 25, {}),
        ("200 seconds", 199, {"Oslo": 1, "Rome": 1}),
        ("200 seconds", 200, {"Oslo": 1}),
        ("200 seconds", 214, {}),
    ],
)
def test_rows_live_as_long_as_the_new_query_has_it_and_downstream_is_fed_nothing(
    tmp_path: Path, after: str, at: int, expected: dict[str, int], of: str, lasts: bool
) -> None:
    where = tmp_path if lasts else None
    pipeline = Pipeline(by_city("100 seconds", of=of), where)
    people = [{"who": "a", "city": "Oslo"}, {"who": "b", "city": "Rome"}]
    pipeline.step({"orders": [{"id": 1, "who": "b"}], "people": people}, processing_time=0)
    pipeline.step({"orders": [{"id": 2, "who": "a"}]}, processing_time=14 * SECOND)

    diff = pipeline.evolve(by_city(after, of=of))
    if lasts:
        pipeline.close()
        pipeline = Pipeline(by_city(after, of=of), where)
    pipeline.step({}, processing_time=at * SECOND)

    assert (diff.is_empty, diff.rebuilt) == (True, {})
    assert counted(pipeline) == expected
    pipeline.close()


@pytest.mark.parametrize("of", ["row", "key"])
@pytest.mark.parametrize(
    ("after", "ending"), [("10 seconds", {"state_ttl-0": 1}), ("14 seconds", {"state_ttl-0": 1}), ("15 seconds", {})]
)
def test_a_difference_counts_what_a_shorter_time_ends_with_the_next_epoch(of: str, after: str, ending: dict[str, int]) -> None:
    pipeline = Pipeline(by_city("100 seconds", of=of))
    people = [{"who": "a", "city": "Oslo"}, {"who": "b", "city": "Rome"}]
    pipeline.step({"orders": [{"id": 1, "who": "b"}], "people": people}, processing_time=0)
    pipeline.step({"orders": [{"id": 2, "who": "a"}]}, processing_time=14 * SECOND)

    diff = pipeline.diff(by_city(after, of=of))
    pipeline.evolve(by_city(after, of=of))
    pipeline.step({}, processing_time=14 * SECOND)

    assert diff.ending == ending
    assert ("ends with the next epoch" in str(diff)) == bool(ending)
    assert len(counted(pipeline)) == 2 - sum(ending.values())


def test_what_has_ended_stays_so_and_undo_brings_back_the_time_not_the_rows() -> None:
    pipeline = Pipeline(by_city("100 seconds"))
    pipeline.step({"orders": [{"id": 1, "who": "a"}], "people": [{"who": "a", "city": "Oslo"}]}, processing_time=0)
    pipeline.evolve(by_city("10 seconds"))
    pipeline.step({"orders": [{"id": 2, "who": "a"}]}, processing_time=50 * SECOND)

    pipeline.undo()
    pipeline.step({}, processing_time=149 * SECOND)
    assert counted(pipeline) == {"Oslo": 1}
    pipeline.step({}, processing_time=150 * SECOND)
    assert counted(pipeline) == {}


def test_a_time_to_live_that_comes_or_goes_is_another_stage() -> None:
    pipeline = Pipeline(by_city("100 seconds"))
    pipeline.step({"orders": [{"id": 1, "who": "a"}], "people": [{"who": "a", "city": "Oslo"}]}, processing_time=0)

    with pytest.raises(StateError, match="EVOLVE"):
        pipeline.evolve(by_city("100 seconds", of="key"))


@pytest.mark.parametrize(("after", "expected"), [(5, []), (30, [1, 2])])
def test_event_time_is_moved_against_the_watermark(after: int, expected: list[int]) -> None:
    timed = appends("timed", {"id": pa.int64(), "at": pa.timestamp("ms", tz="UTC")}).versioned_by("at", delay="0 seconds")

    def query(seconds: int) -> View:
        return timed.groupBy("id").agg(F.count().alias("n"), state_ttl=StateTtl(f"{seconds} seconds", by="event"))

    pipeline = Pipeline(query(12))
    for number, seconds in ((1, 1), (2, 10)):
        pipeline.step({"timed": [{"id": number, "at": pa.scalar(seconds * 1000, pa.timestamp("ms", tz="UTC")).as_py()}]})
    pipeline.evolve(query(after))
    pipeline.step({"timed": [{"id": 3, "at": pa.scalar(30_000, pa.timestamp("ms", tz="UTC")).as_py()}]})

    assert sorted(row["id"] for row in pipeline.view().to_pylist()) == [*expected, 3]


def test_the_name_of_an_index_is_no_other_stage() -> None:
    rates = changes("rates", {"who": pa.string(), "rate": pa.int64()}, keys="who")

    def query(index: str | None) -> View:
        named = rates if index is None else rates.create_index("who", name=index)
        return ORDERS.temporal_join(named, on="who", as_of=PROCESSING_TIME, index=index)

    pipeline = Pipeline(query(None))
    pipeline.step({"rates": [{"who": "a", "rate": 3}]})
    diff = pipeline.evolve(query("by_who"))
    pipeline.step({"orders": [{"id": 1, "who": "a"}]})

    assert diff.rebuilt == {}
    assert [row["rate"] for row in pipeline.view().to_pylist()] == [3]


TIMED = appends("timed", {"id": pa.int64(), "at": pa.int64()}, watermark=("at", 0))


def by_id(after: int) -> View:
    return TIMED.groupBy("id").agg(F.count().alias("n"), state_ttl=StateTtl(after, by="event"))


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_groups_that_differ_in_how_long_rows_live_each_keeps_its_own(swapped: bool) -> None:
    """Also where views change places, and where a new view reads one of them."""
    pipeline = Pipeline({"short": by_id(5), "long": by_id(50)})
    for number, at in ((1, 0), (2, 10)):
        pipeline.step({"timed": [{"id": number, "at": at}]})
    short, long = ("long", "short") if swapped else ("short", "long")

    diff = pipeline.evolve({long: by_id(50), short: by_id(5), "new": by_id(50).where(col("n") > 0)})

    assert len(diff.kept) == 2
    assert {name: sorted(row["id"] for row in pipeline.view(name).to_pylist()) for name in pipeline.views} == {
        short: [2],
        long: [1, 2],
        "new": [1, 2],
    }


def test_one_of_two_such_groups_lives_longer_from_now_and_of_two_nothing_shows_which() -> None:
    pipeline = Pipeline({"short": by_id(5), "long": by_id(50)})
    pipeline.step({"timed": [{"id": 1, "at": 0}]})

    diff = pipeline.evolve({"short": by_id(20), "long": by_id(50)})
    pipeline.step({"timed": [{"id": 2, "at": 10}]})

    assert (len(diff.kept), diff.is_empty) == (2, True)
    assert sorted(row["id"] for row in pipeline.view("short").to_pylist()) == [1, 2]
    with pytest.raises(StateError, match="EVOLVE_BY_TIME"):
        pipeline.diff({"short": by_id(21), "long": by_id(51)})


def test_a_group_that_keeps_its_rows_goes_on_beside_a_copy_whose_rows_live_longer() -> None:
    pipeline = Pipeline({"short": by_id(5)})
    pipeline.step({"timed": [{"id": 1, "at": 0}]})
    (state,) = pipeline._memory.states.values()  # type: ignore[union-attr]

    pipeline.evolve({"long": by_id(50), "short": by_id(5)})
    pipeline.step({"timed": [{"id": 2, "at": 10}]})

    assert state in pipeline._memory.states.values()  # type: ignore[union-attr]
    assert [len(pipeline.view(name).to_pylist()) for name in ("short", "long")] == [1, 2]
