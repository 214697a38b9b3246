"""A pipeline that is loaded continues as the one that was saved would have."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join import OptionError, StateError
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

ORDERS = {"id": pa.int64(), "customer": pa.string(), "total": pa.int64()}


def revenue():
    return changes("orders", ORDERS, keys="id").groupBy("customer").agg(F.sum("total").alias("t"), F.max("total").alias("m"))


def order(id, customer, total):  # noqa: A002 - the column's name
    return {"id": id, "customer": customer, "total": total}


def test_saving_again_replaces_the_state_as_a_whole(tmp_path):
    pipeline = Pipeline(revenue())
    pipeline.save(tmp_path / "state")
    pipeline.step({"orders": [order(1, "Ada", 30)]})
    pipeline.save(tmp_path / "state")

    loaded = Pipeline(revenue())
    loaded.load(tmp_path / "state")

    assert loaded.view().to_pylist() == [{"customer": "Ada", "t": 30, "m": 30}]
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_watermarks_are_saved(tmp_path):
    view = appends("x", {"x": pa.int64()}, watermark=("x", 1)).distinct()
    pipeline, loaded = Pipeline(view), Pipeline(view)
    pipeline.step({"x": [{"x": 9}]})
    pipeline.save(tmp_path / "state")

    loaded.load(tmp_path / "state")

    assert loaded.statistics()["source x"]["watermark_us"] == 8


def test_the_state_of_another_query_is_refused(tmp_path):
    Pipeline(revenue()).save(tmp_path / "state")

    with pytest.raises(StateError, match="another query"):
        Pipeline(revenue().drop("m")).load(tmp_path / "state")


def test_a_place_without_a_state_is_refused(tmp_path):
    with pytest.raises(StateError, match="no saved state"):
        Pipeline(revenue()).load(tmp_path)


def test_a_pipeline_with_a_directory_needs_no_saving(tmp_path):
    with Pipeline(revenue(), tmp_path / "p") as pipeline, pytest.raises(OptionError, match="has a directory"):
        pipeline.save(tmp_path / "state")
