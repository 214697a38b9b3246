"""Queries that a client of Spark Connect starts: their answers, their progress at the client, and how they end."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.connect import conftest
from tests.spark.connect.conftest import Client
from zset_join.core.errors import ZsetJoinError
from zset_join.sinks.parquet_changelog import read_changelog

ORDERS = "op string, id long, cust string, total long, t long"
NAMES = "cust string, name string, at long"

Lines = Counter[tuple[Any, ...]]


def write(directory: Path, *rows: Mapping[str, Any]) -> None:
    """Add a file, which is an epoch of its own."""
    directory.mkdir(exist_ok=True)
    number = len(list(directory.iterdir()))
    path = directory / f"{number:03d}.json"
    path.with_name(f".{path.name}").write_text("\n".join(map(json.dumps, rows)))
    path.with_name(f".{path.name}").rename(path)
    os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))


def read(spark: SparkSession, directory: Path, schema: str) -> DataFrame:
    """Return the stream of a directory, one file per epoch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(directory))


def filled(place: Path) -> None:
    """Write the inputs of most tests: two epochs of orders, two of names."""
    write(place / "orders", *(_order(1, "a", 3, 1), _order(2, "b", 5, 2), _order(3, "a", 4, 3)))
    write(place / "orders", _order(1, "b", 6, 4), {**_order(2, "b", 5, 5), "op": "d"})
    write(place / "names", {"cust": "a", "name": "ann", "at": 0}, {"cust": "b", "name": "bob", "at": 1})
    write(place / "names", {"cust": "b", "name": "ben", "at": 3})


def _order(number: int, cust: str, total: int, at: int) -> dict[str, Any]:
    return {"op": "u", "id": number, "cust": cust, "total": total, "t": at}


def lines(path: Path | str) -> Lines:
    """Return the rows of a changelog that are present at its end, with how often."""
    table = read_changelog(path).drop_columns(["epoch"])
    found: Lines = Counter()
    names = [name for name in table.column_names if name != "_weight"]
    for row in table.to_pylist():
        found[tuple(row[name] for name in names)] += row["_weight"]
    return Counter({row: weight for row, weight in found.items() if weight})


def streams(spark: SparkSession, place: Path) -> tuple[Any, Any]:
    """Return orders and names as streams of changes."""
    from zset_join.spark import changes

    orders = changes(
        read(spark, place / "orders", ORDERS), name="orders", keys="id", sequence_by="t", apply_as_deletes="op = 'd'"
    )
    return orders, changes(read(spark, place / "names", NAMES), name="names", keys="cust", sequence_by="at")


def run(view: Any, place: Path, **options: Any) -> Any:
    """Run a query until it has answered what there is."""
    writer = view.writeStream.options(checkpointLocation=str(place / "cp"), **options).trigger(availableNow=True)
    query = writer.to("parquet", path=str(place / "out")).start()
    query.awaitTermination()
    return query


def _views(spark: SparkSession, place: Path) -> dict[str, Any]:
    """Return views of two tables, and of the same files as rows that come and as versions."""
    from pyspark.sql import functions as F  # noqa: N812

    from zset_join.spark import appends
    from zset_join.spark import functions as Z  # noqa: N812

    orders, names = streams(spark, place)
    chosen = names.where(F.col("name").startswith("b") | (F.length("name") > 2)).select("cust", F.upper("name").alias("name"))
    grouped = orders.where("total > 3").withColumn("twice", F.col("total") * 2).join(chosen, on="cust").groupBy("name")
    texts = orders.selectExpr("cust", "total + 1 AS more").where("more BETWEEN 1 AND 100").groupBy("cust")
    twice = F.udf(lambda value: value * 2, "long")
    came = appends(read(spark, place / "orders", ORDERS), name="came", watermark=("t", 0))
    versions = appends(read(spark, place / "names", NAMES), name="versions", watermark=("at", 0))
    versions = versions.dedup("cust", order_by="at desc")
    return {
        "joined": orders.join(names, on="cust", how="left").select("id", "total", "name"),
        "columns": grouped.agg(F.sum("total").alias("s"), F.count("*").alias("n"), F.max("twice").alias("m")),
        "texts": texts.agg(F.expr("sum(more)").alias("s"), F.expr("min(more)").alias("least")),
        "own_functions": orders.select("cust", twice("total").alias("total")).groupBy("cust").agg(Z.sum("total").alias("s")),
        "newest": came.dedup("cust", order_by="t desc").select("cust", "id"),
        "temporal": came.temporal_join(versions, on="cust", emit="eager", keep_probe_for=100).select("id", "t", "name"),
    }


EXPECTED: dict[str, dict[tuple[Any, ...], int]] = {
    "joined": {(3, 4, "ann"): 1, (1, 6, "ben"): 1},
    "columns": {("ANN", 4, 1, 8): 1, ("BEN", 6, 1, 12): 1},
    "texts": {("a", 5, 5): 1, ("b", 7, 7): 1},
    "own_functions": {("a", 8): 1, ("b", 12): 1},
    "newest": {("a", 3): 1, ("b", 2): 1},
    "temporal": {(1, 1, "ann"): 1, (2, 2, "bob"): 1, (3, 3, "ann"): 1, (1, 4, "ben"): 1, (2, 5, "ben"): 1},
}


def _run_views(spark: SparkSession, place: Path) -> dict[str, Any]:
    """Run several views as one query, each into a changelog of its name."""
    from zset_join.spark import writeStream

    writer = writeStream(_views(spark, place)).options(checkpointLocation=str(place / "cp")).trigger(availableNow=True)
    for name in EXPECTED:
        writer = writer.view(name).to("parquet", path=str(place / name))
    query = writer.start()
    query.awaitTermination()
    return {"error": query.exception(), "progress": query._runner.progress.of_epoch(0)}


def test_a_client_starts_any_query_and_several_views_are_one(client: Client, tmp_path: Path) -> None:
    filled(tmp_path)

    reported = client(_run_views, tmp_path)

    assert {name: lines(tmp_path / name) for name in EXPECTED} == EXPECTED
    assert reported["error"] is None
    assert reported["progress"]["epoch"] == 0


def _failing(spark: SparkSession, place: Path, options: Mapping[str, str]) -> dict[str, Any]:
    orders, _ = streams(spark, place)
    writer = orders.select("id", "cust").writeStream.options(checkpointLocation=str(place / "cp"), **options)
    query = writer.trigger(availableNow=True).to("parquet", path=str(place / "out")).start()
    try:
        query.awaitTermination()
    except ZsetJoinError as error:
        awaited = (type(error).__name__, error.code, error.message)
    found = query.exception()
    return {"awaited": awaited, "exception": getattr(found, "code", None), "active": query.isActive}


def test_what_stops_a_query_reaches_the_client_with_its_code(client: Client, tmp_path: Path) -> None:
    write(tmp_path / "orders", {**_order(1, "a", 1, 1), "id": None})

    reported = client(_failing, tmp_path, {"onBadInput": "error"})

    kind, code, message = reported["awaited"]
    assert (kind, code, reported["exception"]) == ("BadInputError", "NULL_PRIMARY_KEY", "NULL_PRIMARY_KEY")
    assert '"orders"' in message
    assert "JVM stacktrace" not in message
    assert not reported["active"]


def _code(spark: SparkSession, place: Path, options: Mapping[str, str]) -> str:
    orders, _ = streams(spark, place)
    try:
        run(orders.select("id"), place, **options)
    except ZsetJoinError as error:
        return error.code
    return ""


def _snapshot_of(spark: SparkSession) -> DataFrame:
    rows = [("u", 7, "c", 70, 0), ("u", 1, "c", 10, 0)]
    return spark.createDataFrame(rows, ORDERS).where("total > 0")


def _started_from(spark: SparkSession, place: Path, baseline: DataFrame | None) -> Any:
    from zset_join.spark import changes

    orders = read(spark, place / "orders", ORDERS)
    given = _snapshot_of(spark) if baseline is None else baseline
    stream = changes(orders, name="orders", keys="id", sequence_by="t", apply_as_deletes="op = 'd'", baseline=given)
    return run(stream.select("id", "total"), place, retainInputLog=True)


def _from_a_snapshot(spark: SparkSession, place: Path) -> tuple[Lines, str, bool, int]:
    """Start from a snapshot, without a row in the stream, and from one that has changed; verify what the Parquet files hold."""
    _started_from(spark, place, None)
    first = lines(place / "out")
    filled(place)
    query = _started_from(spark, place, _snapshot_of(spark).where("id < 0"))
    emitted = spark.read.parquet(str(place / "out" / "epoch=*"))
    report = query.verify(actual_df=emitted)
    return first, str(report), report.equal, query.verify(actual_df=emitted.where("id <> 7")).different_rows


def test_a_query_starts_from_a_snapshot_which_is_an_epoch_without_a_row_in_the_stream(client: Client, tmp_path: Path) -> None:
    first, reported, is_equal, differing = client(_from_a_snapshot, tmp_path)

    assert first == {(7, 70): 1, (1, 10): 1}
    assert lines(tmp_path / "out") == {(7, 70): 1, (1, 6): 1, (3, 4): 1}
    assert is_equal, reported
    assert differing == 1


def _sampled(spark: SparkSession, place: Path) -> None:
    from zset_join.spark import changes

    stream = spark.readStream.text(str(place / "records"))
    people = changes(stream, name="people", format="debezium-json", keys="cust")
    orders, _ = streams(spark, place)
    run(orders.join(people, on="cust").select("id", "name"), place)


def test_records_are_sampled_by_the_server(client: Client, tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    row = {"cust": "a", "name": "ann"}
    (tmp_path / "records" / "0.json").write_text(json.dumps({"op": "c", "before": None, "after": row}) + "\n")
    write(tmp_path / "orders", _order(1, "a", 3, 1))

    client(_sampled, tmp_path)

    assert lines(tmp_path / "out") == {(1, "ann"): 1}


def _to_table(spark: SparkSession, place: Path) -> list[tuple[Any, ...]]:
    """Write a view into a table of the session's catalog, and return its rows."""
    orders, _ = streams(spark, place)
    writer = orders.select("id", "total").writeStream.toTable("spark_catalog.default.served", form="row_kind")
    query = writer.options(checkpointLocation=str(place / "cp")).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.table("spark_catalog.default.served").select("id", "total", "_row_kind").collect()
    return [tuple(row) for row in rows]


def test_a_table_of_the_catalog_takes_every_epoch_once(client: Client, tmp_path: Path) -> None:
    write(tmp_path / "orders", _order(1, "a", 3, 1), _order(2, "b", 5, 2))
    write(tmp_path / "orders", _order(1, "a", 4, 3))

    rows = Counter(client(_to_table, tmp_path))

    assert rows == Counter([(1, 3, "+I"), (2, 5, "+I"), (1, 3, "-U"), (1, 4, "+U")])


@pytest.mark.long  # a server of its own
def test_a_server_whose_python_lacks_the_package_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacks").mkdir()
    (tmp_path / "lacks" / "sitecustomize.py").write_text(_LACKS)
    monkeypatch.setattr(conftest, "ROOT", tmp_path / "lacks")
    server = conftest.Server(tmp_path)
    process = conftest.ClientProcess(server.start().url)
    write(tmp_path / "orders", _order(1, "a", 1, 1))
    try:
        assert process(_code, tmp_path, {}) == "WORKER_PYTHON"
    finally:
        process.close()
        server.kill()
    assert not (tmp_path / "out").exists()


_LACKS = """
import sys


class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "zset_join":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Lacks())
"""
