"""A client of Spark Connect compares a query with another one, changes it while it runs, and goes back; all by jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.connect.conftest import Client
from tests.spark.connect.test_served import filled, lines, read, streams, write
from zset_join.core.errors import ZsetJoinError
from zset_join.lookup import ParquetSource

SIZES = pa.table({"name": ["ben"], "size": ["big"]})


def _sums(spark: SparkSession, place: Path, least: int, *, is_sized: bool = False) -> Any:
    from zset_join.spark import functions as Z  # noqa: N812

    orders, names = streams(spark, place)
    joined = names.join(orders, on="cust") if least else orders.join(names, on="cust")  # the order of the checkpoint stays
    if is_sized:
        sizes = ParquetSource(name="sizes", path=str(place / "sizes.parquet"), schema=SIZES.schema)
        joined = joined.lookup_join(sizes, on="name", how="left")
    return joined.where(f"total >= {least}").groupBy("name").agg(Z.sum("total").alias("s"))


def _writer(view: Any, place: Path) -> Any:
    options = {"checkpointLocation": str(place / "cp"), "localStateDir": str(place / "local"), "undoEpochs": 1}
    writer = view.writeStream.options(**options).toDuckDB(place / "out.duckdb", "v").to("parquet", path=str(place / "out"))
    return writer.foreachBatch(_Appended(str(place / "given")))


class _Appended:
    """Append what it is given to a file; travels to the server."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, batch: Any, epoch: int) -> None:
        with Path(self.path).open("a") as file:
            file.writelines(f"{epoch} {row['name']} {row['s']} {row['_weight']}\n" for row in batch.collect())


def _arrives(place: Path, touched: list[str], number: int, cust: str) -> None:
    """Write an order, as another program would."""
    before = list(touched)
    write(place / "orders", {"op": "u", "id": number, "cust": cust, "total": 7, "t": 20})
    touched[:] = before


def _refusal(change: Any) -> str:
    try:
        change()
    except ZsetJoinError as error:
        return str(error.code)
    return ""


def _changed(spark: SparkSession, place: Path) -> dict[str, Any]:
    touched: list[str] = []
    names = ("open", "os.listdir", "os.mkdir", "os.rename", "os.remove", "os.scandir")
    sys.addaudithook(lambda event, given: touched.append(event) if event in names and str(place) in str(given) else None)
    found: dict[str, Any] = {"touched": touched}
    before, after = _sums(spark, place, 0), _sums(spark, place, 5)
    orders, _ = streams(spark, place)
    query = _writer(before, place).start()
    query.processAllAvailable()
    differs = query.diff(after)
    found["refused"] = [
        _refusal(query.undo),
        _refusal(lambda: query.evolve(orders)),
        _refusal(lambda: query.evolve(after.writeStream.foreachBatch(print))),
    ]
    run = query.runId
    changed = query.evolve(after)
    found["runs"] = (query.isActive, query.runId != run)
    found["same"] = str(differs) == str(changed)
    found["samples"] = differs.views[next(iter(differs.views))].samples()
    found["taken"] = (differs.epoch, changed.taken)
    _arrives(place, touched, 9, "a")
    query.processAllAvailable()
    progress = query.lastProgress
    found["batch"] = (progress["batchId"], progress["join"]["epoch"], progress["join"]["batch"])
    found["back"] = query.undo().taken
    query.evolve(after.writeStream.toDuckDB(place / "fresh.duckdb", "v"))  # no batch has come: no process holds the outputs
    _arrives(place, touched, 10, "nobody")
    query.processAllAvailable()
    query.evolve(_sums(spark, place, 5, is_sized=True), as_now=True)
    query.stop()
    with _writer(_sums(spark, place, 5, is_sized=True), place).attach() as stored:
        found["stopped"] = str(stored.diff(before))
    return found


def test_a_running_query_is_compared_changed_and_undone_from_its_client(client: Client, tmp_path: Path) -> None:
    filled(tmp_path)
    pq.write_table(SIZES, tmp_path / "sizes.parquet")
    found = client(_changed, tmp_path)

    epoch, taken = found["taken"]
    assert found["touched"] == []
    assert found["refused"] == ["NOTHING_TO_UNDO", "EVOLVE_STREAM", "NOT_FROM_HERE"]
    assert (found["runs"], found["same"]) == ((True, True), True)
    assert found["samples"] == [({"name": "ann", "s": 4}, None)]
    assert taken == epoch + 1
    assert found["batch"] == (taken, taken + 1, taken)
    assert found["back"] == taken + 2
    assert "adds 0 rows, removes 0, changes 1 of 2" in found["stopped"]
    for file, table in (("out", {("ann", 11): 1, ("ben", 6): 1}), ("fresh", {("ann", 7): 1, ("ben", 6): 1})):
        with duckdb.connect(str(tmp_path / f"{file}.duckdb"), read_only=True) as connection:
            assert dict.fromkeys(connection.sql("SELECT name, s FROM v").fetchall(), 1) == table
    given: dict[tuple[str, int], int] = {}
    for line in (tmp_path / "given").read_text().splitlines():
        _, name, total, weight = line.split()
        given[name, int(total)] = given.get((name, int(total)), 0) + int(weight)
    assert {row: count for row, count in given.items() if count} == dict(lines(tmp_path / "out"))


def _with_columns(spark: SparkSession, place: Path, execution: str) -> list[Any]:
    from zset_join.spark import changes
    from zset_join.spark import functions as Z  # noqa: N812

    orders, names = streams(spark, place)
    rows = read(spark, place / "orders", "op string, id long, cust string, price long, t long, size long")
    sized = changes(rows, name="orders", keys="id", sequence_by="t", apply_as_deletes="op = 'd'")
    before = orders.join(names, on="cust").where("total > 3").groupBy("name").agg(Z.sum("total").alias("s"))
    after = sized.join(names, on="cust").where("price > 3").groupBy("name").agg(Z.sum("size").alias("s"))
    writer = before.writeStream.options(checkpointLocation=str(place / "cp"), execution=execution)
    query = writer.to("parquet", path=str(place / "out")).start()
    query.processAllAvailable()
    query.evolve(after, renamed={"orders": {"total": "price"}}, defaults={"orders": {"size": 5}})
    write(place / "orders", {"op": "u", "id": 9, "cust": "a", "price": 7, "t": 20, "size": 2})
    query.processAllAvailable()
    between = dict(lines(place / "out"))
    query.undo()
    query.stop()
    return [between, dict(lines(place / "out"))]


@pytest.mark.parametrize("execution", ["driver", "executors"])
def test_a_column_is_renamed_and_one_added_from_a_client(client: Client, tmp_path: Path, execution: str) -> None:
    filled(tmp_path)
    assert client(_with_columns, tmp_path, execution) == [{("ann", 7): 1, ("ben", 5): 1}, {("ann", 11): 1, ("ben", 6): 1}]
