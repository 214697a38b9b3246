"""Tables of the session's catalog as outputs: exactly once across failures, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Source
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, PlanError, SinkError
from zset_join.core.relation import Relation
from zset_join.runners.spark.epoch.table_output import EPOCH, TableSink, table_sink
from zset_join.spark import appends, changes
from zset_join.zset import ZSet

_FIRST = ZSet.of({"k": [1, 2, 2], "v": ["a", "b", "c"]}, [1, -1, 1])
_VIEW = Relation(name="v", schema=_FIRST.schema, mode="changelog", primary_key=("k",))


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """Give the name of a table that does not exist."""
    yield "default.kept_table"
    spark.sql("DROP TABLE IF EXISTS default.kept_table")


def test_a_changelog_of_one_stream_goes_on_after_a_restart(
    spark: SparkSession, customers: Source, table: str, tmp_path: Path
) -> None:
    def answer() -> Any:
        rows = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts")
        writer = rows.where("ts < 9").select("customer_id", "name").writeStream.toTable(table, form="row_kind")
        writer = writer.options(
            checkpointLocation=str(tmp_path / "cp"), localStateDir=str(tmp_path / "l"), execution="executors"
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    customers.add((1, "Ann", 1), (2, "Bob", 1))
    answer()
    customers.add((1, "Anna", 2))
    answer()

    lines = Counter((row["customer_id"], row["name"], row["_row_kind"]) for row in spark.table(table).collect())
    wanted = [(1, "Ann", "+I"), (2, "Bob", "+I"), (1, "Ann", "-U"), (1, "Anna", "+U")]
    assert lines == Counter(wanted)
    assert spark.table(table).select(EPOCH).distinct().count() == 2


def test_an_epoch_whose_position_was_lost_replaces_its_own_rows(spark: SparkSession, table: str) -> None:
    sink = _opened(spark, table)
    sink.write(0, [_FIRST], link=ChainLink("a"))
    sink.write(1, [_FIRST], link=ChainLink("b", "a"))
    sink._keep_position(0, {0: "a"})  # as if it had been killed before the position of epoch 1 was set

    again = _opened(spark, table)
    replayed = again.write(0, [_FIRST], link=ChainLink("a"))
    again.write(1, [_FIRST], link=ChainLink("b", "a"))

    assert replayed.replayed
    assert spark.table(table).groupBy(EPOCH).count().orderBy(EPOCH).collect() == [(0, 3), (1, 3)]
    with pytest.raises(SinkError, match="another one than the checkpoint's") as refused:
        again.write(1, [_FIRST], link=ChainLink("x", "a"))
    assert refused.value.code == "SINK_OTHER_CHAIN"


def test_tables_of_others_are_refused(spark: SparkSession, table: str) -> None:
    _opened(spark, table)
    with pytest.raises(SinkError) as other:
        _opened(spark, table, query_id="other")
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('zset_join.position')")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1, 0)")
    with pytest.raises(SinkError) as foreign:
        _opened(spark, table)
    with pytest.raises(SinkError) as columns:
        _opened(spark, table, form="row_kind")

    assert [error.value.code for error in (other, foreign, columns)] == ["SINK_QUERY_ID", "SINK_NAME_TAKEN", "SINK_SCHEMA"]


def test_a_view_needs_a_key_and_a_format_with_merge(spark: SparkSession, customers: Source, table: str, tmp_path: Path) -> None:
    view = appends(customers.stream(), name="customers").writeStream.toTable(table, format="parquet")
    with pytest.raises(PlanError, match="Pass key=") as keyless:
        view.options(checkpointLocation=str(tmp_path / "cp"), execution="driver").trigger(availableNow=True).start()
    with pytest.raises(SinkError, match='format="delta"') as of_files:
        _opened(spark, table, form=None)
    with pytest.raises(OptionError, match="a view alone"):
        table_sink(table, form="weight", key=["k"])

    assert keyless.value.code == "MISSING_PRIMARY_KEY"
    assert of_files.value.code == "SINK_FEATURES"


def _opened(spark: SparkSession, table: str, *, form: Any = "weight", query_id: str = "q") -> TableSink:
    sink = table_sink(table, form=form, format="parquet")
    sink.session = spark
    sink.open(_VIEW, query_id)
    return sink
