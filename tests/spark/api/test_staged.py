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
from zset_join.checkpoint.log import read_log
from zset_join.checkpoint.plan import stages_of
from zset_join.checkpoint.reading import read_committed
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


def test_its_own_log_is_enough_to_verify_it_and_to_replay_it(rates: Source, run: Run, tmp_path: Path) -> None:
    rates.add(("EUR", 500, 1.1)).add(("EUR", 800, 1.2), ("USD", 1, 1.0))
    sink, location = Collected(), str(tmp_path / "checkpoint")
    query = run(latest(rates), sink, buckets=2)
    emitted = rates.spark.createDataFrame(
        [("EUR", 800, 1.2, 1), ("USD", 1, 1.0, 1)], "currency string, at long, rate double, _weight long"
    )

    committed = read_committed(location)

    assert query.verify(actual_df=emitted).equal
    assert committed is not None
    (stage,) = stages_of(location).values()
    logged = [
        row
        for key, history in committed.histories.items()
        for log in history.logs
        for epoch in read_log(committed.files, log, schemas=[stage.inputs[0].relation.schema])
        for row in epoch.deltas[0].to_pylist()
    ]
    assert {row[0] for row, _ in logged} == {"EUR", "USD"}


def test_it_feeds_a_join_in_its_own_buckets(rates: Source, run: Run, spark: SparkSession, tmp_path: Path) -> None:
    names = Source(spark, tmp_path / "names", pa.schema([("currency", pa.string()), ("name", pa.string())]))
    names.add(("EUR", "euro")).add(("USD", "dollar"))
    rates.add(("EUR", 500, 1.1)).add(("EUR", 800, 1.2), ("USD", 1, 1.0))
    named = latest(rates).join(changes(names.stream(), name="names", keys=["currency"]), on="currency")
    sink = Collected()

    run(named, sink, buckets=2)

    assert sink.total() == {("EUR", 800, 1.2, "euro"): 1, ("USD", 1, 1.0, "dollar"): 1}
    assert "fused: rows of" in named.placed.explanation()
    assert [one.name for one in named.placed.planned_stages] == ["deduplicate-0", "join-1"]


def test_rows_of_a_view_are_deduplicated_and_retracted(rates: Source, run: Run) -> None:
    rates.add(("EUR", 500, 1.1), ("EUR", 600, 1.3), ("USD", 1, 1.0)).add(("EUR", 700, 1.2))
    best = latest(rates).select("at", "rate").dedup("at", order_by="rate desc")
    sink = Collected()

    run(best, sink, buckets=2)

    assert sink.total() == {(700, 1.2): 1, (1, 1.0): 1}
