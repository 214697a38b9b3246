"""What a change cannot be built from is counted: rows that are kept of a source, and rows that have left."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import StateError
from zset_join.expressions import col
from zset_join.lookup import ArrowSource
from zset_join.pipeline import PROCESSING_TIME, Pipeline, StateTtl, View, appends, changes, versioned
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.runners.local.checkpoint_diff import diff_of_checkpoint
from zset_join.runners.spark.driver.on_server import packed, unpacked
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet

ORDERS = changes("orders", {"id": pa.int64(), "who": pa.string(), "total": pa.int64()}, keys="id")
PEOPLE = changes("people", {"who": pa.string(), "city": pa.string()}, keys="who")
JOINED = ORDERS.join(PEOPLE, on="who")
SEEN = appends("seen", {"k": pa.string(), "n": pa.int64(), "t": pa.int64()}, watermark=("t", 0))
RATES = versioned("rates", {"k": pa.string(), "rate": pa.int64(), "at": pa.int64()}, keys="k", version_by="at", delay=0)
BY_K = SEEN.groupBy("k").agg(F.sum("n").alias("n"))
TEMPORAL = SEEN.temporal_join(RATES, on="k", as_of="t", how="left")
LIVING = SEEN.join(PEOPLE.select("city", k=col("who")), on="k", state_ttl=(StateTtl(10, by="event"), None))
FIRST: Mapping[str, list[dict[str, Any]]] = {
    "orders": [{"id": at, "who": "ab"[at % 2], "total": at} for at in range(6)],
    "people": [{"who": "x", "city": "Oslo"}, {"who": "b", "city": "Rome"}],
    "seen": [{"k": "x", "n": 2, "t": 1}, {"k": "x", "n": 1, "t": 2}, {"k": "y", "n": 3, "t": 3}],
    "rates": [{"k": "x", "rate": at, "at": at} for at in range(4)],
}
TABLE = ArrowSource(name="names", table=pa.table({"k": ["x", "y"], "name": ["Ada", "Bob"]}))
LOOKED_UP = SEEN.lookup_join(TABLE, on="k", columns=["name"])
LIVES = changes("seen", {"k": pa.string(), "n": pa.int64(), "t": pa.int64()}, keys="t")
AS_NOW = SEEN.temporal_join(PEOPLE.select("city", k=col("who")), on="k", as_of=PROCESSING_TIME)
SECOND: Mapping[str, list[dict[str, Any]]] = {
    "seen": [{"k": "x", "n": 2, "t": 30}, {"k": "z", "n": 2, "t": 1}],
    "rates": [{"k": "x", "rate": 9, "at": 20}, {"k": "x", "rate": 9, "at": 40}, {"k": None, "rate": 9, "at": 20}],
}
"""A row that ends others by time, a late one, a version that is bad input, and two that free those before."""


def filled(view: View, where: Path | None = None, **options: Any) -> Pipeline[Any]:
    pipeline = Pipeline(view, where, options=StageOptions(on_bad_input="quarantine"), **options)
    for rows in (FIRST, SECOND):
        pipeline.step({name: rows[name] for name in pipeline.sources if name in rows})
    return pipeline


CAUSES = {
    "groups alone": (BY_K, SEEN.groupBy("n").agg(F.count().alias("c")), "EVOLVE_NO_ROWS", "aggregate-0 holds 3 groups", 3, 0),
    "a condition": (SEEN.where(col("n") > 2), SEEN, "EVOLVE_NO_ROWS", 'view "seen" (1)', 1, 0),
    "rows ended by time": (
        LIVING,
        SEEN.join(PEOPLE.select("city", k=col("who")), on="k"),
        "EVOLVE_NO_ROWS",
        "holds 1 row; ended by time so far: 3",
        1,
        3,
    ),
    "versions freed": (TEMPORAL, RATES.select("rate"), "EVOLVE_NO_ROWS", "holds 2 rows; versions freed so far: 4", 2, 4),
    "answered and not kept": (TEMPORAL, SEEN.select("k", "n"), "EVOLVE_NO_ROWS", "holds 0 rows and has answered 4", 0, 0),
    "by the order of arrival": (
        ORDERS,
        ORDERS.dedup(keys="who", order_by="total"),
        "EVOLVE_BY_TIME",
        "(latest-0 holds 6 rows)",
        6,
        0,
    ),
    "by time": (TEMPORAL, SEEN.temporal_join(RATES, on="k", as_of="t"), "EVOLVE_BY_TIME", "freed so far: 4", 2, 4),
    "left out by keep_state": (
        JOINED.select("id", "city"),
        JOINED.select("id", "city", "total"),
        "EVOLVE_DROPPED",
        "(join-0 holds 6 rows)",
        6,
        0,
    ),
    "what was looked up": (
        LOOKED_UP.groupBy("name").agg(F.sum("n").alias("n")),
        LOOKED_UP.groupBy("k").agg(F.sum("n").alias("n")),
        "EVOLVE_JOURNAL",
        '"names" had when each row came',
        2,
        0,
    ),
    "other rows to look up": (
        LOOKED_UP,
        SEEN.where(col("n") > 1).lookup_join(TABLE, on="k", columns=["name"]),
        "EVOLVE_JOURNAL",
        'view "seen_lookup_names" has 4 rows',
        4,
        0,
    ),
    "lookups where none were": (
        LIVES.select("k", "n", "t"),
        LIVES.lookup_join(TABLE, on="k", columns=["name"]),
        "EVOLVE_BY_TIME",
        "(latest-0 holds 4 rows)",
        4,
        0,
    ),
    "right rows of the moment": (
        AS_NOW.groupBy("city").agg(F.sum("n").alias("n")),
        AS_NOW.groupBy("k").agg(F.sum("n").alias("n")),
        "EVOLVE_JOURNAL",
        "is needed again, and no state has all of it",
        2,
        0,
    ),
    "another source": (BY_K, changes("seen", {"k": pa.string(), "n": pa.int64()}, keys="k"), "EVOLVE_SOURCE", "3 groups", 3, 0),
}


@pytest.mark.parametrize(("before", "after", "code", "shown", "rows", "ended"), CAUSES.values(), ids=CAUSES)
def test_a_refusal_counts_what_is_kept_and_what_has_left(
    before: View, after: View, code: str, shown: str, rows: int, ended: int
) -> None:
    pipeline = filled(before, keep_state="needed" if code == "EVOLVE_DROPPED" else "all")

    with pytest.raises(StateError) as refused:
        pipeline.diff(after)

    assert (refused.value.code, refused.value.facts["rows"], refused.value.facts.get("ended_rows", 0)) == (code, rows, ended)
    assert shown in refused.value.message


BAG = changes("bag", {"who": pa.string(), "n": pa.int64()})
MET, ALL = BAG.join(PEOPLE, on="who").select("who", "n"), BAG.join(PEOPLE, on="who", how="left").select("who", "n")
SOME = BAG.join(PEOPLE, on="who", how="semi").select("who", "n")
UPSERTED = ORDERS.join(PEOPLE, on="who").select("id"), ORDERS.join(PEOPLE, on="who", how="left").select("id")


def of_bag(*lines: tuple[str | None, int]) -> dict[str, ZSet]:
    weights = [weight for _, weight in lines]
    return {"bag": ZSet.of({"who": [who for who, _ in lines], "n": [1] * len(lines)}, weights=weights, schema=BAG.arrow_schema)}


@pytest.mark.parametrize("way", ["memory", "threads", "saved", "opened again", "stopped", "runs"])
def test_an_inner_join_becomes_a_left_one_unless_a_row_with_null_in_its_key_lives(tmp_path: Path, way: str) -> None:
    place = tmp_path / "place" if way in ("opened again", "stopped", "runs") else None
    pipeline = Pipeline(MET, place, threads=3 if way == "threads" else 1, **({"snapshot_after_bytes": 1} if place else {}))
    for step in (of_bag(("a", 1), (None, 3)), of_bag((None, -1)), {"people": FIRST["people"]}, of_bag(("a", 1))):
        pipeline.step(step)
    if way == "saved":
        pipeline.save(tmp_path / "saved")
        pipeline = Pipeline(MET)
        pipeline.load(tmp_path / "saved")
    if way in ("opened again", "stopped"):
        pipeline.close()
    if way == "opened again":
        pipeline = Pipeline(MET, place)

    compare = dict.fromkeys(("stopped", "runs"), partial(diff_of_checkpoint, str(place)))
    with pytest.raises(StateError, match=r"the left rows of join-0 \(1\) lack 2 rows with NULL in \['who'\]"):
        compare.get(way, pipeline.diff)(ALL)
    pipeline = Pipeline(MET, place) if way == "stopped" else pipeline
    pipeline.step(of_bag((None, -2)))
    pipeline.evolve(ALL)

    assert pipeline.view().to_pylist() == [{"who": "a", "n": 1}] * 2
    pipeline.close()


def test_upserts_with_null_in_a_key_count_whenever_they_came() -> None:
    met, kept = UPSERTED
    pipeline = Pipeline(met)
    for who in (None, "a"):
        pipeline.step({"orders": [{"id": 1, "who": who, "total": 1}]})

    with pytest.raises(StateError, match=r"lack up to 1 row with NULL in \['who'\]"):
        pipeline.evolve(kept)


def test_a_join_that_is_built_of_no_rows_counts_those_that_the_one_before_has_dropped(tmp_path: Path) -> None:
    with Pipeline(MET, tmp_path) as pipeline:
        pipeline.step(of_bag((None, 1)))
        pipeline.evolve(SOME)

    with Pipeline(SOME, tmp_path) as again, pytest.raises(StateError, match=r"lack 1 row with NULL in \['who'\]"):
        again.evolve(ALL)


def test_a_stopped_directory_and_one_that_runs_count_the_same(tmp_path: Path) -> None:
    before, after, *_ = CAUSES["rows ended by time"]
    with filled(before, tmp_path) as pipeline:
        with pytest.raises(StateError) as expected:
            pipeline.diff(after)
        with pytest.raises(StateError) as runs:
            diff_of_checkpoint(str(tmp_path), after)
    with pytest.raises(StateError) as stopped:
        diff_of_checkpoint(str(tmp_path), after)

    assert runs.value.message == stopped.value.message == expected.value.message


def test_a_difference_counts_rows_that_stay_out(tmp_path: Path) -> None:
    views = {"t": TEMPORAL, "l": LIVING}
    with filled(views, tmp_path) as pipeline:
        there = pipeline.diff({**views, "s": TEMPORAL.select("rate")})
    runs = diff_of_checkpoint(str(tmp_path), views)

    assert "rows that have ended stay so: temporal_join-0 3 versions freed (without the last epoch)" in str(runs).splitlines()
    for diff in (there, unpacked(packed(lambda: there))):
        assert diff.late == {"seen": 1, "rates": 0}
        assert diff.set_aside == {"temporal_join-0": 1}
        assert diff.ended == {"temporal_join-0": {"versions freed": 4}, "state_ttl-1": {"ended by time": 3}}
        for line in (
            "late rows are excluded: seen 1",
            "rows set aside before stay so: temporal_join-0 1",
            "rows that have ended stay so: temporal_join-0 4 versions freed, state_ttl-1 3 ended by time",
        ):
            assert line in str(diff).splitlines()
            assert f"- {line}" in diff.to_markdown().splitlines()


@pytest.mark.parametrize("way", ["memory", "saved", "directory", "stopped"])
def test_a_dropped_source_that_returns_is_refused_with_the_rows_that_were_held(tmp_path: Path, way: str) -> None:
    place = None if way in ("memory", "saved") else tmp_path / "place"
    joined = ORDERS.join(PEOPLE, on="who", how="left")
    pipeline = filled(joined, place)
    pipeline.evolve(ORDERS.select("id"))
    if way == "saved":
        pipeline.save(tmp_path / "saved")
        pipeline = Pipeline(joined, options=StageOptions(on_bad_input="quarantine"))
        pipeline.evolve(ORDERS.select("id"))
        pipeline.load(tmp_path / "saved")
    if way == "stopped":
        pipeline.close()

    with pipeline, pytest.raises(StateError) as refused:
        diff_of_checkpoint(str(place), joined) if way == "stopped" else pipeline.diff(joined)

    assert (refused.value.code, refused.value.facts["rows"]) == ("EVOLVE_SOURCE", 2)
    assert "its rows with it (a stage held 2 of them)" in refused.value.message


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("join", ["lookup", "moment"])
def test_a_group_behind_answers_of_their_moment_is_built_from_what_was_answered(join: str, how: str) -> None:
    """The lines that retract an answer list it: a table that changed since changes no group."""
    orders = changes("orders", {"id": pa.int64(), "who": pa.string(), "total": pa.int64()}, keys="id")
    people = appends("people", {"who": pa.string(), "city": pa.string()})
    names = [{"who": "a", "city": "Oslo"}, {"who": "b", "city": "Rome"}, {"who": "b", "city": "Rome"}]
    table = ArrowSource(name="names", table=pa.Table.from_pylist(names))
    joined = (
        orders.lookup_join(table, on="who", columns=["city"], how=how)
        if join == "lookup"
        else orders.temporal_join(people, on="who", as_of=PROCESSING_TIME, how=how)
    )
    pipeline = Pipeline(joined.groupBy("city").agg(F.sum("total").alias("total")))
    first = {"orders": [{"id": at, "who": "abc"[at % 3], "total": at} for at in range(6)]}
    if join == "moment":
        copies = ZSet.of({"who": ["a", "b"], "city": ["Oslo", "Rome"]}, weights=[1, 2])
        pipeline.step({**first, "people": copies})
        pipeline.step({"people": [{"who": "a", "city": "Bonn"}]})
    else:
        pipeline.step(first)
    pipeline.step({"orders": [{"id": 3, "who": "c", "total": 30}]})

    diff = pipeline.evolve(joined.groupBy("city").agg(F.count().alias("c"), F.max("total").alias("most")))

    assert [*diff.kept] == [pipeline.plan.states[0].name]
    padded = [{"city": None, "c": 3, "most": 30}] if how == "left" else []
    assert sorted(pipeline.view().to_pylist(), key=str) == [
        {"city": "Oslo", "c": 1, "most": 0},
        {"city": "Rome", "c": 4, "most": 4},
        *padded,
    ]
    pipeline.close()


def test_a_dropped_source_that_is_read_again_returns_with_its_rows(tmp_path: Path) -> None:
    joined = ORDERS.join(PEOPLE, on="who", how="left").select("id", "city")
    with filled(joined, tmp_path) as pipeline:
        pipeline.evolve(ORDERS)
        pipeline.step({"orders": [{"id": 7, "who": "b", "total": 1}]})

        diff = pipeline.evolve(joined, reread={"people": [{"who": "a", "city": "Bonn"}, {"who": "b", "city": "Rome"}]})
        pipeline.step({"people": [{"who": "b", "city": "Pisa"}]})

        assert diff.read['the rows that were read again of "people"'] == 2
        cities = {line["id"]: line["city"] for line in pipeline.view().to_pylist()}
        assert cities == {**{at: "Pisa" if at % 2 else "Bonn" for at in range(6)}, 7: "Pisa"}


def test_rows_without_a_key_that_no_integer_counts_still_refuse_the_join_that_would_show_them() -> None:
    bag = changes("bag", {"who": pa.string(), "w": pa.int64()}, weight_column="w")
    pipeline = Pipeline(bag.join(PEOPLE, on="who"))
    for _ in range(4):
        pipeline.step({"bag": [{"who": None, "w": 1 << 62}]})

    with pytest.raises(StateError, match="EVOLVE_NO_ROWS"):
        pipeline.evolve(bag.join(PEOPLE, on="who", how="left"))
