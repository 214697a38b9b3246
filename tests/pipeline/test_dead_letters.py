"""Rows that break the contract of their source are set aside with the reason, and the rest continues."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zset_join import BadInputError, ZSet
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.stages import StageOptions

ORDERS = {"id": pa.int64(), "total": pa.int64()}
BAD = {"orders": [{"id": None, "total": 1}, {"id": 2, "total": 5}]}
QUARANTINE = StageOptions(on_bad_input="quarantine")


def orders():
    return changes("orders", ORDERS, keys="id")


def test_a_bad_row_is_put_aside_and_the_others_are_applied():
    pipeline = Pipeline(orders(), options=QUARANTINE)

    delta = pipeline.step(BAD)

    assert delta.to_pylist() == [((2, 5), 1)]
    assert [(line["epoch"], line["source"], line["row"], line["code"]) for line in pipeline.dead_letters.to_pylist()] == [
        (0, "orders", '{"id": null, "total": 1}', "NULL_PRIMARY_KEY")
    ]
    assert pipeline.progress["rejected_rows"] == 1


def test_dead_letters_last_in_the_directory(tmp_path):
    with Pipeline(orders(), tmp_path, options=QUARANTINE) as pipeline:
        pipeline.step(BAD)
        pipeline.step({"orders": [{"id": 3, "total": 1}]})
        pipeline.step(BAD)

    tables = [pq.read_table(path) for path in sorted((tmp_path / "dead-letters").glob("*.parquet"))]
    assert pa.concat_tables(tables).column("epoch").to_pylist() == [0, 2]


def test_a_retraction_from_a_source_that_only_adds_is_refused_without_any_stage():
    with pytest.raises(BadInputError, match="are only added"):
        Pipeline(appends("x", {"x": pa.int64()})).step({"x": ZSet.from_rows([(1,)], {"x": pa.int64()}, weights=[-1])})


def test_a_view_that_holds_a_row_less_than_never_is_reported():
    columns = {"x": pa.map_(pa.string(), pa.int64())}  # maps have no equality, so that nothing counts their rows
    pipeline = Pipeline(changes("x", columns))
    pipeline.step({"x": ZSet.from_rows([([("a", 1)],)], columns, weights=[-1])})

    with pytest.raises(BadInputError, match=r"holds the row \(\[\('a', 1\)\],\) -1 times"):
        pipeline.view()
