"""The three kinds of output, each read back and verified against Spark's batch join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Source
from zset_join.errors import OptionError
from zset_join.spark import JoinedStream, JoinQuery, JoinStreamWriter, changes


@pytest.fixture
def joined(orders: Source, customers: Source) -> JoinedStream:
    """Give a join of three epochs: inserts, then updates that move a key, then a delete."""
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1)).add(("u", 1, 20, "pen", 2)).add(("d", 2, None, None, 3))
    customers.add((10, "Ann", 1), (20, "Bob", 1)).add((20, "Bobby", 2))
    return changes(
        orders.stream(),
        name="orders",
        keys=["order_id"],
        sequence_by="ts",
        apply_as_deletes="op = 'd'",
        except_column_list=["op", "ts"],
    ).join(
        changes(customers.stream(), name="customers", keys=["customer_id"], except_column_list=["ts"]),
        on="customer_id",
        how="left",
    )


def finished(writer: JoinStreamWriter, tmp_path: Path) -> JoinQuery:
    writer = writer.option("checkpointLocation", str(tmp_path / "cp")).option("localStateDir", str(tmp_path / "local"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_a_duckdb_view_holds_the_join_and_verifies(joined: JoinedStream, tmp_path: Path) -> None:
    query = finished(joined.writeStream.toDuckDB(tmp_path / "view.duckdb", "v"), tmp_path)

    with duckdb.connect(str(tmp_path / "view.duckdb"), read_only=True) as connection:
        assert connection.sql("from v").fetchall() == [(20, 1, "pen", "Bobby")]
    report = query.verify()
    assert (report.equal, report.expected_rows, report.epoch) == (True, 1, 2)


def test_the_final_tables_can_be_given_to_verify(spark: SparkSession, joined: JoinedStream, tmp_path: Path) -> None:
    query = finished(joined.writeStream.toDuckDB(tmp_path / "view.duckdb", "v"), tmp_path)
    tables = spark.sql("select 1 order_id, 20 customer_id, 'pen' item"), spark.sql("select 20 customer_id, 'Bobby' name")

    report = query.verify(*tables)

    assert report.equal, str(report)
    assert report.basis == {"orders": "given", "customers": "given"}


def test_a_difference_is_reported_row_by_row(spark: SparkSession, joined: JoinedStream, tmp_path: Path) -> None:
    query = finished(joined.writeStream.toDuckDB(tmp_path / "view.duckdb", "v"), tmp_path)
    wrong = spark.sql("select 20 customer_id, 'Robert' name")

    report = query.verify(right_df=wrong)

    assert not report.equal
    assert report.different_rows == 2
    row = {"customer_id": 20, "order_id": 1, "item": "pen"}
    assert sorted(report.differences, key=str) == [({**row, "name": "Bobby"}, 0, 1), ({**row, "name": "Robert"}, 1, 0)]
    assert "2 rows differ" in str(report)


@pytest.mark.parametrize("form", ["weight", "row_kind", "change_data_feed"])
def test_a_parquet_changelog_sums_up_to_the_join(spark: SparkSession, joined: JoinedStream, tmp_path: Path, form: str) -> None:
    query = finished(joined.writeStream.toParquet(tmp_path / "changes", form), tmp_path)

    report = query.verify()
    assert (report.equal, report.expected_rows) == (True, 1), str(report)
    assert sorted(path.name for path in (tmp_path / "changes").glob("epoch=*")) == [f"epoch={n:08d}" for n in range(3)]


def test_a_function_gets_the_form_it_asked_for(joined: JoinedStream, tmp_path: Path) -> None:
    seen: list[tuple[int, list[Any]]] = []

    def collect(delta: DataFrame, epoch: int) -> None:
        seen.append((epoch, sorted(tuple(row) for row in delta.select("order_id", "name", "_row_kind").collect())))

    query = finished(joined.writeStream.foreachBatch(collect, form="row_kind").option("buckets", 1), tmp_path)

    assert seen == [
        (0, [(1, "Ann", "+I"), (2, "Bob", "+I")]),
        (1, [(1, "Ann", "-U"), (1, "Bobby", "+U"), (2, "Bob", "-U"), (2, "Bobby", "+U")]),
        (2, [(2, "Bobby", "-D")]),
    ]
    with pytest.raises(OptionError, match="pass verify\\(actual_df"):
        query.verify()


def test_a_verification_needs_all_columns_of_a_table(spark: SparkSession, joined: JoinedStream, tmp_path: Path) -> None:
    query = finished(joined.writeStream.toDuckDB(tmp_path / "view.duckdb", "v"), tmp_path)

    with pytest.raises(OptionError, match=r"lacks the columns \['name'\]"):
        query.verify(right_df=spark.sql("select 20 customer_id"))
