"""A pipeline goes over to another query: outputs get the difference once, and what is refused has changed nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zset_join.cli import main
from zset_join.core.errors import BadInputError, OptionError, SinkError
from zset_join.evolution.changed_columns import ChangeTerms
from zset_join.expressions import col
from zset_join.pipeline import FunctionSink, Pipeline, View, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.zset import ZSet

ORDERS = changes("orders", {"id": pa.int64(), "who": pa.string(), "total": pa.int64()}, keys="id")
PEOPLE = changes("people", {"who": pa.string(), "city": pa.string()}, keys="who")
SEEN = appends("seen", {"k": pa.string(), "n": pa.int64()})
JOINED = ORDERS.join(PEOPLE, on="who")
BY_CITY = JOINED.groupBy("city").agg(F.sum("total").alias("t"))
ROWS = {
    "orders": [{"id": at, "who": "ab"[at % 2], "total": at} for at in range(6)],
    "people": [{"who": "a", "city": "Oslo"}, {"who": "b", "city": "Rome"}],
}


def sink() -> tuple[FunctionSink, list[tuple[int, list[Any]]]]:
    given: list[tuple[int, list[Any]]] = []

    def take(epoch: int, delta: ZSet) -> None:
        given.append((epoch, delta.to_pylist()))

    return FunctionSink(take), given


def test_outputs_get_the_difference_once_and_the_next_epoch_behind_it() -> None:
    output, given = sink()
    pipeline = Pipeline(BY_CITY, outputs=[output])
    pipeline.step(ROWS)

    diff = pipeline.evolve(JOINED.where(col("total") > 2).groupBy("city").agg(F.sum("total").alias("t")))
    pipeline.step({"orders": [{"id": 0, "who": "a", "total": 10}]})

    assert diff.taken == 1
    assert [epoch for epoch, _ in given] == [0, 1, 2]
    assert sorted(given[1][1]) == [(("Oslo", 4), 1), (("Oslo", 6), -1), (("Rome", 8), 1), (("Rome", 9), -1)]
    assert pipeline.step(epoch=2).to_pylist() == given[2][1] == [(("Oslo", 4), -1), (("Oslo", 14), 1)]


def test_other_columns_need_a_new_output_which_is_filled() -> None:
    old, before = sink()
    pipeline = Pipeline({"v": BY_CITY}, outputs={"v": old})
    pipeline.step(ROWS)
    counted = {"v": JOINED.groupBy("city").agg(F.count().alias("n"), F.sum("total").alias("t"))}

    with pytest.raises(SinkError, match="EVOLVE_OUTPUT"):
        pipeline.evolve(counted)
    untouched = pipeline.epoch
    new, after = sink()
    diff = pipeline.evolve(counted, outputs={"v": new})

    assert (untouched, len(before)) == (1, 1)
    assert (diff.views["v"].status, sorted(after[0][1])) == ("columns", [(("Oslo", 3, 6), 1), (("Rome", 3, 9), 1)])


def test_a_source_that_a_change_brings_begins_with_given_rows(tmp_path: Path) -> None:
    first = ZSet(pa.RecordBatch.from_pylist([{"k": "x", "n": 2}], schema=SEEN.arrow_schema), np.array([2]))
    with Pipeline({"a": ORDERS}, tmp_path, keep_inputs=True) as pipeline:
        with pytest.raises(OptionError, match=r"FIRST_ROWS.*has begun"):
            pipeline.evolve_with({"a": ORDERS, "s": SEEN}, ChangeTerms(first_rows={"seen": first}))
        pipeline.step({"orders": ROWS["orders"]})
        for name, rows in (("seen", first.rows.select(["n"])), ("orders", first.rows), ("other", first.rows)):
            with pytest.raises(OptionError, match="FIRST_ROWS"):
                pipeline.evolve_with({"a": ORDERS, "s": SEEN}, ChangeTerms(first_rows={name: ZSet(rows, first.weights)}))

        by_k = SEEN.groupBy("k").agg(F.sum("n").alias("n"))
        diff = pipeline.evolve_with({"a": ORDERS, "s": SEEN, "by_k": by_k}, ChangeTerms(first_rows={"seen": first}))
        assert (diff.taken, pipeline.view("by_k").to_pylist()) == (1, [{"k": "x", "n": 4}])
    with Pipeline({"a": ORDERS, "s": SEEN, "by_k": by_k}, tmp_path, keep_inputs=True) as again:
        again.step({"seen": [{"k": "x", "n": 1}]})
        assert (again.view("by_k").to_pylist(), again.verify(view="by_k").equal) == ([{"k": "x", "n": 5}], True)


@pytest.mark.parametrize("kind", [pa.int32(), pa.decimal128(24, 2), pa.timestamp("us")], ids=str)
def test_a_key_that_was_deleted_stays_so_for_changes_from_before(kind: pa.DataType) -> None:
    versioned = changes("orders", {"id": pa.int64(), "who": pa.string(), "v": kind}, keys="id", sequence_by="v")
    joined = versioned.join(PEOPLE, on="who", how="left").select("id", "city")
    pipeline = Pipeline({"joined": joined})
    schema = versioned.bindings[0].source.relation.schema

    def change(version: int, weight: int) -> ZSet:
        when = pa.array([version], pa.int64()).cast(kind)
        return ZSet.of({"id": [1], "who": ["a"], "v": when}, [weight], schema=schema)

    for at, weight in ((4, 1), (6, -1)):
        pipeline.step({"orders": change(at, weight), "people": ROWS["people"]})

    pipeline.evolve({"joined": joined, "orders": versioned})
    pipeline.step({"orders": change(5, 1)})
    stale = pipeline.view("orders").num_rows
    pipeline.step({"orders": change(7, 1)})

    assert (stale, pipeline.view("orders").num_rows, pipeline.view("joined").num_rows) == (0, 1, 1)


def test_a_row_that_the_new_query_cannot_take_leaves_the_old_one_running() -> None:
    pipeline = Pipeline(ORDERS)
    pipeline.step({"orders": ROWS["orders"]})

    with pytest.raises(BadInputError, match="DIVIDE_BY_ZERO"):
        pipeline.evolve(ORDERS.withColumn("q", col("id") % col("total")))

    assert len(pipeline.step({"orders": [{"id": 7, "who": "c", "total": 1}]})) == 1


def test_a_report_counts_shows_and_writes_what_differs(tmp_path: Path) -> None:
    pipeline = Pipeline({"v": ORDERS.select("id", "total")})
    pipeline.step({"orders": [*ROWS["orders"], {"id": 9, "who": None, "total": 1}]})

    diff = pipeline.diff({"v": ORDERS.where(col("id") != 9).select("id", total=col("total") * 2)})
    diff.write_parquet(tmp_path)

    assert diff.views["v"].counts == {"added": 0, "removed": 1, "changed": 5}
    assert "- id=1, total=1\n+ id=1, total=2\n" in diff.to_markdown()
    assert pq.read_table(tmp_path / "v.removed.parquet").num_rows == 6
    assert pq.read_table(tmp_path / "v.added.parquet").num_rows == 5


@pytest.mark.parametrize("lasts", [False, True])
def test_a_report_estimates_state_and_seconds_and_evolve_finds_the_same_state(tmp_path: Path, lasts: bool) -> None:
    by_order = JOINED.groupBy("id").agg(F.sum("total").alias("t"))
    with Pipeline({"v": BY_CITY}, tmp_path if lasts else None) as pipeline:
        pipeline.step({**ROWS, "orders": [{"id": at, "who": "ab"[at % 2], "total": at} for at in range(10_000)]})

        diff = pipeline.diff({"v": by_order})
        taken = pipeline.evolve({"v": by_order})
        back = pipeline.diff({"v": BY_CITY})

    assert re.search(r"builds aggregate-1 \(10,000 rows, about \d+\.\d s\), drops aggregate-1; state \+[01]\.\d MB", str(diff))
    assert diff.state_bytes == taken.state_bytes > 500_000
    assert "; state -" in str(back)
    assert -back.state_bytes == pytest.approx(diff.state_bytes, rel=0.1)


def test_with_a_directory_diff_writes_nothing(tmp_path: Path) -> None:
    larger = JOINED.where(col("total") > 2).groupBy("city").agg(F.sum("total").alias("t"))
    with Pipeline(BY_CITY, tmp_path / "d") as pipeline:
        pipeline.step(ROWS)
        pipeline.step({"orders": [{"id": 9, "who": "a", "total": 5}]})
        before = committed(tmp_path / "d")

        diff = pipeline.diff(larger)

        assert (str(diff.views[pipeline.views[0]]), diff.kept) == (
            'view "orders_inner_people": adds 0 rows, removes 0, changes 2 of 2',
            ["join-0"],
        )
        assert committed(tmp_path / "d") == before
        assert pipeline.step({"orders": [{"id": 9, "who": "a", "total": 6}]}).to_pylist() == [
            (("Oslo", 11), -1),
            (("Oslo", 12), 1),
        ]


def committed(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (directory / "zset").rglob("*.json")}


def test_the_command_line_compares_a_stopped_pipeline_with_another_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pipeline({"v": BY_CITY, "w": ORDERS}, tmp_path / "d") as pipeline:
        pipeline.step(ROWS)
    before = committed(tmp_path / "d")
    program = "tests.pipeline.test_query_changes"
    monkeypatch.setattr(f"{program}.BY_CITY", JOINED.where(col("total") > 2).groupBy("city").agg(F.sum("total").alias("t")))

    code = main(["diff", str(tmp_path / "d"), f"{program}:views", "--markdown", "--all", str(tmp_path / "rows")])

    assert code == 1
    assert "- city='Oslo', t=6\n+ city='Oslo', t=4\n" in capsys.readouterr().out
    assert pq.read_table(tmp_path / "rows" / "v.added.parquet").num_rows == 2
    monkeypatch.undo()
    assert main(["diff", str(tmp_path / "d"), f"{program}:views"]) == 0
    assert committed(tmp_path / "d") == before


def views() -> dict[str, View]:
    return {"v": BY_CITY, "w": ORDERS}
