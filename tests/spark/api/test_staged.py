"""A stage that is neither join nor aggregate, inside Spark: deduplication. The runner does not depend on its class."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.spark import appends, changes, rescale
from zset_join.tools.inspection import open_state

Run = Callable[..., Any]
RATES = pa.schema([("currency", pa.string()), ("at", pa.int64()), ("rate", pa.float64())])


@pytest.fixture
def rates(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "rates", RATES)


def latest(rates: Source) -> Any:
    return appends(rates.stream(), name="rates").dedup("currency", order_by="at", keep="last")


def test_the_last_row_of_every_key_through_snapshots_other_buckets_and_a_lost_host(
    rates: Source, run: Run, tmp_path: Path
) -> None:
    rates.add(("EUR", 500, 1.1), ("USD", 500, 1.0), (None, 3, 0.5)).add(("EUR", 800, 1.2), ("EUR", 700, 9.9))
    sink, location = Collected(), str(tmp_path / "checkpoint")
    run(latest(rates), sink, buckets=2, snapshotAfterBytes=1)
    moved = rescale(location, buckets=3, local_state_dir=str(tmp_path / "local"))
    shutil.rmtree(tmp_path / "local")
    rates.add(("USD", 900, 1.01), ("EUR", 600, 7.7)).add((None, 4, 0.6), ("JPY", 1, 0.01))

    query = run(latest(rates), sink, snapshotAfterBytes=1)

    expected = {("EUR", 800, 1.2): 1, ("USD", 900, 1.01): 1, (None, 4, 0.6): 1, ("JPY", 1, 0.01): 1}
    assert sink.total() == expected
    assert sink.epochs[1] == [(("EUR", 500, 1.1), -1), (("EUR", 800, 1.2), 1)]
    assert moved.rows == 3
    emitted = rates.spark.createDataFrame(
        [(*row, weight) for row, weight in expected.items()], "currency string, at long, rate double, _weight long"
    )
    table = rates.spark.read.parquet(str(rates.directory))
    assert query.verify(tables={"rates": table}, actual_df=emitted).equal
    assert not query.verify(tables={"rates": table.where("currency <> 'JPY'")}, actual_df=emitted).equal
    assert query.lastProgress["join"]["rows_in"] == {"rates": 2}
    with open_state(location) as state:
        shown = state.sql('SELECT currency, "at" FROM deduplicate_0_rows ORDER BY "at"').fetchall()
    assert shown == [("JPY", 1), (None, 4), ("EUR", 800), ("USD", 900)]


def test_it_feeds_a_join_in_its_own_buckets_and_is_verified_by_its_log(
    rates: Source, run: Run, spark: SparkSession, tmp_path: Path
) -> None:
    names = Source(spark, tmp_path / "names", pa.schema([("currency", pa.string()), ("name", pa.string())]))
    names.add(("EUR", "euro")).add(("USD", "dollar"))
    rates.add(("EUR", 500, 1.1)).add(("EUR", 800, 1.2), ("USD", 1, 1.0))
    named = latest(rates).join(changes(names.stream(), name="names", keys=["currency"]), on="currency")
    sink = Collected()

    query = run(named, sink, buckets=2)

    assert sink.total() == {("EUR", 800, 1.2, "euro"): 1, ("USD", 1, 1.0, "dollar"): 1}
    emitted = spark.createDataFrame([(*row, 1) for row in sink.total()], named.schema.add("_weight", "long"))
    assert query.verify(actual_df=emitted).equal  # by its log
    assert not query.verify(actual_df=emitted.limit(1)).equal
    assert "fused: rows of" in named.placed.explanation()
    assert [one.name for one in named.placed.planned_stages] == ["deduplicate-0", "join-1"]
