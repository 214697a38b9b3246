"""A pipeline with a directory continues where it was, whatever happened to its process."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pyarrow as pa
import pytest

from tests.open_files import open_below
from zset_join import OptionError, StateError
from zset_join.core.options import HotBudget
from zset_join.expressions import col
from zset_join.lookup import ArrowSource
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.stages import StageOptions
from zset_join.storage.operations import observe

ORDERS = {"id": pa.int64(), "customer": pa.string(), "total": pa.int64()}
CUSTOMERS = {"name": pa.string(), "city": pa.string()}


def revenue():
    orders, customers = changes("orders", ORDERS, keys="id"), changes("customers", CUSTOMERS, keys="name")
    return orders.join(customers, [("customer", "name")], "left").groupBy("city").agg(F.sum("total").alias("revenue"))


def order(id, customer, total):  # noqa: A002 - the column's name
    return {"id": id, "customer": customer, "total": total}


def refuse(record):
    raise OSError(errno.ENOSPC, "No space left on device")


FIRST = {"orders": [order(1, "Ada", 30), order(2, "Bob", 5)], "customers": [{"name": "Ada", "city": "London"}]}
SECOND = {"orders": [order(1, "Ada", 40)], "customers": [{"name": "Bob", "city": "Paris"}]}


def reported(delta):
    return sorted(delta.to_pylist(), key=repr)


def test_hashes_are_seeded_by_what_the_checkpoint_is_called_so_that_a_rebuilt_state_has_the_same(tmp_path):
    with Pipeline(revenue(), tmp_path) as pipeline:
        pipeline.step(FIRST)

    assert list(tmp_path.rglob("state"))
    assert not list(tmp_path.rglob("hash_seed"))


def test_the_local_state_is_a_cache(tmp_path):
    with Pipeline(revenue(), tmp_path) as pipeline:
        pipeline.step(FIRST)
    shutil.rmtree(tmp_path / "local")

    with Pipeline(revenue(), tmp_path) as again:
        assert (("London", 40), 1) in again.step(SECOND).to_pylist()


@contextmanager
def left_alone(path):
    yield


@contextmanager
def damaged(path):
    path.write_bytes(bytes(20_000))
    yield


@contextmanager
def open_elsewhere(path):
    code = f"import duckdb, sys; held = duckdb.connect({str(path)!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        yield
        holder.communicate()


@pytest.mark.parametrize("becomes", [left_alone, damaged, open_elsewhere])
def test_cold_rows_in_duckdb_are_a_cache_too(tmp_path, becomes):
    budget = HotBudget(max_hot_keys=0, cold_store="duckdb")
    options = StageOptions(hot_budget=budget, table_budget=budget)
    with Pipeline(revenue(), tmp_path, options=options, keep_inputs=True) as pipeline:
        pipeline.step(FIRST)
        pipeline.step(SECOND)
        cold_rows_reported = pipeline.explanation()
    files = sorted((tmp_path / "local").rglob("cold.duckdb"))

    with becomes(files[0]), Pipeline(revenue(), tmp_path, options=options, keep_inputs=True) as again:
        again.step({"customers": [{"name": "Ada", "city": "Rome"}]})
        outcome = again.verify()

    assert outcome.equal, outcome
    assert len(files) == 2, "one of the join, one of the groups"
    assert cold_rows_reported.count('cold_store="duckdb"') == 2


def test_a_log_that_has_outgrown_the_rows_becomes_a_snapshot(tmp_path):
    with Pipeline(revenue(), tmp_path, snapshot_after_bytes=0) as pipeline:
        for total in range(5):
            pipeline.step({"orders": [order(1, "Ada", total)]})
    shutil.rmtree(tmp_path / "local")

    with Pipeline(revenue(), tmp_path) as again:
        assert any((tmp_path / "zset" / "snapshot").rglob("*.parquet"))
        assert again.view().to_pylist() == [{"city": None, "revenue": 4}]
        assert reported(again.step({"orders": [order(1, "Ada", 9)]})) == [((None, 4), -1), ((None, 9), 1)]


def test_an_epoch_that_is_not_the_next_one_is_refused(tmp_path):
    with Pipeline(revenue(), tmp_path) as pipeline, pytest.raises(StateError, match="the next epoch of this pipeline is 0"):
        pipeline.step(FIRST, epoch=2)


@pytest.mark.parametrize("place", ["", "/dev/null", "/dev/null/below"])
def test_a_directory_that_cannot_be_used_is_reported(place):
    with pytest.raises(OptionError) as raised:
        Pipeline(revenue(), place)
    assert raised.value.code == "DIRECTORY"


def test_an_epoch_that_raises_before_its_record_leaves_no_trace(tmp_path, monkeypatch):
    with Pipeline(revenue(), tmp_path) as pipeline:
        pipeline.step(FIRST)
        directory = pipeline._directory
        monkeypatch.setattr(directory.checkpoint, "commit", refuse)
        with pytest.raises(StateError, match="No space left") as raised:
            pipeline.step(SECOND)
        assert raised.value.code == "STORAGE_FAILED"
        monkeypatch.undo()

        assert (("London", 40), 1) in pipeline.step(SECOND).to_pylist()


def test_a_column_more_of_a_source_is_a_change_of_the_query(tmp_path):
    older, newer = (
        appends("clicks", f"user BIGINT, page BIGINT{more}").groupBy("user").count() for more in ("", ", at BIGINT")
    )
    with Pipeline(older, tmp_path, keep_state="needed") as pipeline:
        pipeline.step({"clicks": [{"user": 1, "page": 2}]})

    with pytest.raises(StateError, match=r"QUERY_CHANGED.*evolve"):
        Pipeline(newer, tmp_path, keep_state="needed")
    with Pipeline(older, tmp_path, keep_state="needed") as pipeline:
        pipeline.evolve(newer)
        pipeline.step({"clicks": [{"user": 1, "page": 2, "at": 3}]})
        assert pipeline.view().to_pylist() == [{"user": 1, "count": 2}]


def test_an_epoch_of_a_wide_plan_opens_no_state_again_and_closing_releases_all(tmp_path):
    orders, kinds = changes("orders", ORDERS, keys="id"), []
    wide = {f"above_{n}": orders.where(col("total") > n).groupBy("customer").agg(F.sum("total")) for n in range(10)}

    with Pipeline(wide, tmp_path) as pipeline:
        for total in (20, 30):
            pipeline.step({"orders": [{"id": 1, "customer": "Ada", "total": total}]})
        with observe(lambda operation, act: (kinds.append(operation.kind), act())[1]):
            pipeline.step({"orders": [{"id": 1, "customer": "Ada", "total": 40}]})

    assert ("map" in kinds, "lock" in kinds, open_below(tmp_path)) == (False, True, [])


@pytest.mark.parametrize("column", ["name", "keep_state"])
def test_columns_that_are_called_like_fields_of_a_plan_count(tmp_path, column):
    source = ArrowSource(name="names", table=pa.table({"k": [1, 1], column: [0, 1]}))

    def view(value: int):
        return appends("rows", {"k": pa.int64()}).lookup_join(source, on="k", constants={column: value})

    with Pipeline(view(0), tmp_path) as pipeline:
        pipeline.step({"rows": [{"k": 1}]})

    with pytest.raises(StateError, match="QUERY_CHANGED"):
        Pipeline(view(1), tmp_path)
