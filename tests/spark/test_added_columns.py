"""Inside Spark, too, a checkpoint continues with a column more: NULL for the rows that were present before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.changelog.formats.altered_tables import BAD, ROWS, altered
from tests.spark.conftest import Collected
from zset_join.core.errors import StateError
from zset_join.spark import JoinedStream, JoinQuery, changes

Run = Callable[..., JoinQuery]
RECORDS = "key string, value string, topic string, partition int, offset long"


def add(directory: Path, *rows: dict[str, object]) -> None:
    directory.mkdir(exist_ok=True)
    number = len(list(directory.iterdir()))
    lines = []
    for at, row in enumerate(rows):
        offset = number * 100 + at
        value = json.dumps({"op": "u", "after": row, "source": {"lsn": offset}})
        record = {"key": json.dumps({"id": row["id"]}), "value": value, "topic": "t", "partition": 0, "offset": offset}
        lines.append(json.dumps(record))
    (directory / f"{number}.json").write_text("\n".join(lines))


def joined(spark: SparkSession, tmp_path: Path, orders: str) -> JoinedStream:
    def table(name: str, schema: str) -> object:
        stream = spark.readStream.schema(RECORDS).json(str(tmp_path / name))
        return changes(stream, format="debezium-json", name=name, schema=schema, keys=["id"])

    return table("orders", orders).join(table("customers", "id long, city string"), on=[("customer", "id")])


def test_old_rows_have_null_in_a_column_that_was_added(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    before, after = "id long, customer long, note string", "id long, customer long, note string, paid int"
    add(tmp_path / "orders", {"id": 1, "customer": 7, "note": "a"})
    add(tmp_path / "customers", {"id": 7, "city": "Rome"})
    run(joined(spark, tmp_path, before), Collected(), buckets=2, snapshotAfterBytes=1)
    add(tmp_path / "orders", {"id": 2, "customer": 7, "note": "b"})
    run(joined(spark, tmp_path, before), Follower(1), snapshotAfterBytes=1)
    add(tmp_path / "orders", {"id": 1, "customer": 7, "note": "__debezium_unavailable_value", "paid": 5})
    add(tmp_path / "customers", {"id": 7, "city": "Oslo"})
    sink = Follower(2)

    query = run(joined(spark, tmp_path, after), sink, snapshotAfterBytes=1)

    assert sink.total() == {
        (1, 7, "a", None, 7, "Rome"): -1,
        (2, 7, "b", None, 7, "Rome"): -1,
        (1, 7, "a", 5, 7, "Oslo"): 1,
        (2, 7, "b", None, 7, "Oslo"): 1,
    }
    assert query is not None


@pytest.mark.long
def test_what_a_table_becomes_whose_columns_change_and_what_a_query_does_not_go_on_with(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "t").mkdir()
    lines = [json.dumps(line) for line in altered().to_pylist()]
    (tmp_path / "t" / "1.json").write_text("\n".join(lines))
    (tmp_path / "other").mkdir()

    def view(schema: str) -> JoinedStream:
        table = changes(
            spark.readStream.schema(RECORDS).json(str(tmp_path / "t")),
            format="debezium-json",
            name="t",
            schema=schema,
            keys=["id"],
        )
        other = changes(spark.readStream.schema("id int, w int").json(str(tmp_path / "other")), name="other", keys=["id"])
        return table.join(other, on="id", how="left")

    def refused(schema: str) -> str:
        with pytest.raises(StateError) as reported:
            run(view(schema), Follower(1))
        return reported.value.code

    sink = Collected()
    dead = str(tmp_path / "dead")

    run(view("id int, city string, n int"), sink, buckets=1, onBadInput="quarantine", deadLetterPath=dead)

    assert sink.total() == {(*row, None): 1 for row in ROWS}
    assert [row["code"] for row in spark.read.parquet(dead).collect()] == BAD
    others = ["id int, city string", "id int, town string, n int", "id int, city string, n long"]
    assert [refused(schema) for schema in others] == ["QUERY_CHANGED"] * len(others)


class Follower(Collected):
    """A sink of a later start: it continues where another one ended."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.before = epochs

    def last_epoch(self) -> int:
        return self.before + len(self.epochs) - 1

    def write(self, epoch: int, chunks: object) -> None:
        assert epoch == self.before + len(self.epochs)
        self.epochs.append([row for chunk in chunks for row in chunk.to_pylist()])
