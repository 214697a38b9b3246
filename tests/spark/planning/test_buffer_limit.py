"""The limit of an append-only join inside Spark: exact for the query, whatever bucket the rows are in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from tests.sweeps import for_each
from zset_join.checkpoint.record import BucketHistory
from zset_join.core.errors import OptionError, ResourceError
from zset_join.core.options import BufferLimit
from zset_join.runners.spark.planning.buffer_limit import QueryBuffer
from zset_join.spark import JoinedStream, JoinQuery, appends, changes

Run = Callable[..., JoinQuery]
CLICKS = pa.schema([("page", pa.int64()), ("user", pa.int64())])
LOADS = pa.schema([("page", pa.int64()), ("ms", pa.int64())])
ROW = 40
AGED = 48
NOTHING_HOT = {"default_hash_join": "hybrid", "max_hot_bytes": 0}


@pytest.fixture
def clicks(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "clicks", CLICKS)


@pytest.fixture
def loads(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "loads", LOADS)


def joined(clicks: Source, loads: Source, how: str = "inner") -> JoinedStream:
    left, right = appends(clicks.stream(), name="clicks"), appends(loads.stream(), name="loads")
    return left.join(right, on="page", how=how)


def fill(clicks: Source, loads: Source, epochs: int) -> None:
    """Add epochs of two clicks and one load each, of pages in several buckets; page 3 has the most rows."""
    for epoch in range(epochs):
        clicks.add((epoch, 1), (3, epoch))
        loads.add((epoch, 100 + epoch))


def counts(query: JoinQuery) -> list[Any]:
    return [progress["join"]["buffered"] for progress in query.recentProgress if progress["join"] is not None]


def test_the_epoch_that_reaches_the_limit_over_all_buckets_is_not_committed_and_a_higher_one_goes_on_there(
    clicks: Source, loads: Source, run: Run, tmp_path: Path
) -> None:
    fill(clicks, loads, 4)
    sink = Collected()
    stopped = run(joined(clicks, loads), sink, wait=False, buckets=4, join_max_buffered_bytes=9 * ROW, **NOTHING_HOT)
    with pytest.raises(ResourceError, match=r"240 . 120 bytes after epoch 2") as refused:
        stopped.awaitTermination()
    facts = refused.value.facts
    assert (facts["left_bytes"], facts["right_bytes"], facts["limit"]) == (6 * ROW, 3 * ROW, 9 * ROW)
    assert (facts["key"], facts["key_rows"], facts["key_bytes"]) == ((3,), 3, 3 * ROW)
    assert sink.last_epoch() == 1
    shutil.rmtree(tmp_path / "local")

    query = run(joined(clicks, loads), sink, join_max_buffered_bytes=12 * ROW + 1, **NOTHING_HOT)

    assert counts(query)[-1] == {
        "left_bytes": 8 * ROW,
        "right_bytes": 4 * ROW,
        "limit": 12 * ROW + 1,
    }
    assert sink.total() == {(0, 1, 100): 1, (1, 1, 101): 1, (2, 1, 102): 1, (3, 1, 103): 1} | {
        (3, epoch, 103): (2 if epoch == 1 else 1) for epoch in range(4)
    }


@for_each(
    ("options", "kept"),
    [
        ({}, "524,288,000 bytes .*stops before an epoch that reaches it .*=abort"),
        (NOTHING_HOT, None),
        ({"join_max_buffered_bytes": 0}, None),
        ({"join_max_buffered_bytes": 77, "join_buffer_policy": "spill"}, None),
    ],
)
def test_explain_reports_the_limit_before_anything_runs(
    clicks: Source, loads: Source, capsys: pytest.CaptureFixture[str], options: dict[str, Any], kept: str | None
) -> None:
    fill(clicks, loads, 1)

    joined(clicks, loads).writeStream.options(**options).explain()

    found = re.findall(r'^Limit: "clicks" and "loads" .*$', capsys.readouterr().out, re.MULTILINE)
    assert len(found) == (kept is not None)
    assert kept is None or re.search(kept, found[0])


def test_buckets_of_a_record_that_does_not_report_their_bytes_are_counted_again(clicks: Source, loads: Source) -> None:
    buffer = QueryBuffer(joined(clicks, loads).placed.planned_stages[0], BufferLimit(), 4)
    histories = dict.fromkeys(("join/0", "join/2", "route-left/1"), BucketHistory())

    assert buffer.uncounted(histories, {"0": (10, 20)}) == {2}
    assert buffer.uncounted({}, {}) == frozenset()


def test_a_limit_is_refused_where_rows_have_keys(orders: Source, customers: Source, run: Run) -> None:
    left = changes(orders.stream(), name="orders", keys=["order_id"], except_column_list=["op", "ts"])
    right = appends(customers.stream(), name="customers")

    with pytest.raises(OptionError, match='"orders" and "customers" are not both'):
        run(left.join(right, on="customer_id"), Collected(), join_max_buffered_bytes=1000)
