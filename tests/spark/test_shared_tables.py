"""Joins inside Spark that look up in one copy of a table: answers, one state, restarts, replay, other buckets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from zset_join.checkpoint.reading import query_plan, read_committed, stages_of
from zset_join.pipeline import PROCESSING_TIME
from zset_join.runners.any_mode import evolve_wherever
from zset_join.spark import View, appends, changes, rescale

Run = Callable[..., Any]
ORDERS = pa.schema([("id", pa.int64()), ("sold_in", pa.string()), ("paid_in", pa.string()), ("t", pa.int64())])
RATES = pa.schema([("currency", pa.string()), ("at", pa.int64()), ("rate", pa.int64())])
PRICES = pa.schema([("item", pa.string()), ("shop", pa.string()), ("price", pa.int64())])
SALES = pa.schema([("id", pa.int64()), ("item", pa.string()), ("shop", pa.string())])
ROUNDS = [
    ([(1, "EUR", "USD", 7), (2, "USD", "EUR", 8)], [("EUR", 5, 10), ("USD", 5, 11)]),
    ([(3, "USD", "USD", 9)], [("EUR", 8, 15), ("USD", 9, 12)]),
    ([(4, "EUR", "EUR", 10)], []),
    ([(5, "GBP", "EUR", 11)], [("GBP", 6, 20)]),
]
TOTAL = {(1, 10, 11): 1, (2, 11, 15): 1, (3, 12, 12): 1}


@pytest.fixture
def both(spark: SparkSession, tmp_path: Path) -> tuple[Source, Source]:
    return Source(spark, tmp_path / "orders", ORDERS), Source(spark, tmp_path / "rates", RATES)


def add(both: tuple[Source, Source], rounds: Any) -> None:
    """Append one epoch per round."""
    for orders, rates in rounds:
        both[0].add(*orders)
        both[1].add(*rates)


def chain(both: tuple[Source, Source], emit: str = "on_watermark", *, is_deduplicated: bool = False, **words: Any) -> View:
    """Return orders with the rates of two currencies: the second join looks up by another column of the first one's answer."""
    orders = appends(both[0].stream(), name="orders", watermark=("t", 0))
    rates: Any = changes(both[1].stream(), name="rates", keys=["currency"], watermark=("at", 0))
    again: Any = rates.alias("again")
    if is_deduplicated:
        stream = appends(both[1].stream(), name="rates", watermark=("at", 0))
        rates, again = (one.dedup("currency", order_by="at desc") for one in (stream, stream.alias("again")))
    sold = orders.temporal_join(rates, on=[("sold_in", "currency")], is_change_time=True, emit=emit, **words)
    sold = sold.select("id", "paid_in", "t", "rate").withColumnRenamed("rate", "sold")
    paid = sold.temporal_join(again, on=[("paid_in", "currency")], is_change_time=True, emit=emit, **words)
    return paid.select("id", "sold", "rate")


def logs(checkpoint: Path) -> set[str]:
    """Return which states have logs, buckets omitted."""
    return {path.name.rpartition("-")[0] for path in (checkpoint / "zset" / "log").iterdir()}


def test_a_chain_of_joins_keeps_one_copy_of_the_versions_and_gives_a_lost_answer_again(
    both: tuple[Source, Source], tmp_path: Path, run: Run
) -> None:
    add(both, ROUNDS)
    sink = Collected()
    sink.fails_in = 1
    with pytest.raises(Exception, match="the output failed"):
        run(chain(both, is_deduplicated=True), sink, buckets=2)
    lost = list((tmp_path / "checkpoint" / "zset" / "delta").glob("*/*1-*"))
    for path in lost:
        path.unlink()
    sink.fails_in = -1

    query = run(chain(both, is_deduplicated=True), sink, buckets=2)

    assert lost
    assert sink.total() == TOTAL
    assert logs(tmp_path / "checkpoint") == {"shared_table-0"}
    assert {path.name.rpartition("-")[0] for path in (tmp_path / "local").glob("*/*")} == {"shared_table-0"}
    assert list(stages_of(str(tmp_path / "checkpoint"))) == ["shared_table-0"]
    assert [index.readers for index in query_plan(str(tmp_path / "checkpoint")).shared] == [(0, 1)]
    assert query.verify(actual_df=emitted(both[0].spark, query, sink)).equal
    assert not query.verify(actual_df=emitted(both[0].spark, query, sink).where("id <> 1")).equal


def emitted(spark: SparkSession, query: Any, sink: Collected) -> Any:
    """Return the contents of the sink, as `verify` expects them."""
    types = {pa.int64(): "long", pa.string(): "string"}
    columns = ", ".join(f"`{field.name}` {types[field.type]}" for field in query.schema)
    rows = [(*row, weight) for row, weight in sink.total().items()]
    return spark.createDataFrame(rows, f"{columns}, _weight long")


def test_it_lasts_over_restarts_snapshots_and_other_buckets(both: tuple[Source, Source], tmp_path: Path, run: Run) -> None:
    sink, checkpoint = Collected(), str(tmp_path / "checkpoint")

    for rounds, buckets in ((ROUNDS[:2], 2), (ROUNDS[2:], 3)):
        add(both, rounds)
        run(chain(both, "eager", keep_probe_for=100, late="side_output"), sink, buckets=buckets, snapshotAfterBytes=1)
        if buckets == 2:
            rescale(checkpoint, buckets=3, session=both[0].spark, local_state_dir=str(tmp_path / "local"))

    committed = read_committed(checkpoint)
    assert committed is not None
    assert {name.partition("/")[0] for name in committed.histories} == {"shared_table-0"}
    assert any(history.snapshot is not None for history in committed.histories.values())
    assert sink.total() == {(1, 10, 11): 1, (2, 11, 15): 1, (3, 12, 12): 1, (4, 15, 15): 1, (5, 20, 15): 1}


def test_a_query_on_executors_is_changed_and_its_joins_share_as_before(
    both: tuple[Source, Source], tmp_path: Path, run: Run
) -> None:
    sink, location = Collected(), str(tmp_path / "checkpoint")
    add(both, ROUNDS[:2])
    groups = chain(both).groupBy("sold").agg(F.count("*").alias("rows"), F.max("rate").alias("rate"))
    run(groups, sink, buckets=2)
    changed = groups.where("sold <> 11")

    evolve_wherever(location, changed.writeStream)
    add(both, ROUNDS[2:])
    run(changed, sink, buckets=2)

    assert sink.total() == {(10, 1, 11): 1, (12, 1, 12): 1}


@pytest.mark.long
def test_upserts_whose_key_changes_go_through_one_route(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    sales, prices = Source(spark, tmp_path / "sales", SALES), Source(spark, tmp_path / "prices", PRICES)
    sales.add((1, "nail", "a")).add((2, "nail", "a"))
    prices.add(("nail", "a", 3), ("nail", "b", 4)).add(("screw", "a", 5))
    sold = appends(sales.stream(), name="sales")
    priced = changes(prices.stream(), name="prices", keys=["shop"])
    one = sold.temporal_join(priced, on="item", as_of=PROCESSING_TIME).select("id", "price")
    other = sold.alias("sold").temporal_join(priced.alias("priced"), on="item", as_of=PROCESSING_TIME).select("id", "price")
    sink = Collected()

    run(one.union(other), sink, buckets=2)

    assert sink.total() == {(1, 3): 2, (1, 4): 2, (2, 4): 2}
    assert logs(tmp_path / "checkpoint") == {"route-right", "shared_table-0"}


def test_explain_and_describe_name_the_index_and_the_reason_of_a_copy(
    both: tuple[Source, Source], capsys: pytest.CaptureFixture[str]
) -> None:
    orders = appends(both[0].stream(), name="orders", watermark=("t", 0))
    rates = changes(both[1].stream(), name="rates", keys=["currency"], watermark=("at", 0))
    rates = rates.create_index("currency", name="by_currency")
    sold = orders.temporal_join(rates, on=[("sold_in", "currency")], is_change_time=True)
    paid = sold.select("id", "paid_in", "t").temporal_join(
        rates.alias("again"), on=[("paid_in", "currency")], is_change_time=True, emit="eager"
    )

    paid.explain()
    reported = capsys.readouterr().out
    beside = orders.alias("beside").temporal_join(rates.alias("later"), on=[("sold_in", "currency")], as_of=PROCESSING_TIME)
    beside.select("id").union(sold.select("id")).explain()
    apart = capsys.readouterr().out

    assert "temporal_join-0 looks up in index by_currency (currency): one copy, shared with temporal_join-1" in reported
    assert "temporal_join-1 looks up in index by_currency (currency): one copy, shared with temporal_join-0" in reported
    assert str(rates.describe()).endswith("\nindex by_currency (currency)")
    assert str(sold.describe()).endswith("\nlooks up in index by_currency")
    assert "temporal_join-2 keeps a second copy of its right side: it keeps latest rows, or versions, unlike stage 1" in apart
