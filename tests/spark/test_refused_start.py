"""Inside Spark, too, a start that is refused leaves every file of ours as it was, and the program before it continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected
from zset_join.core.errors import SinkError, ZsetJoinError
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


class Refusing(Collected):
    """An output that refuses when it is opened, or when its last epoch is read."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def open(self, output: Any, query_id: str) -> None:
        if self.where == "open":
            raise SinkError("the columns are others", code="SINK_SCHEMA")
        super().open(output, query_id)

    def last_epoch(self) -> int | None:
        if self.where == "last_epoch":
            raise SinkError("the output is away", code="SINK_OPEN")
        return super().last_epoch()


def with_baseline(spark: SparkSession, tmp_path: Path) -> JoinedStream:
    """Return a view whose start needs a source of ours."""
    known = spark.createDataFrame([(7, "Rome")], "id long, city string")
    stream = spark.readStream.schema("id long, city string").json(str(tmp_path / "customers"))
    customers = changes(stream, name="customers", keys=["id"], baseline=known)
    return customers.join(changes(stream, name="again", keys=["id"]), on="id")


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_a_refused_start_leaves_every_file_of_ours_and_the_program_before_it_goes_on(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    add(tmp_path / "orders", {"id": 1, "customer": 7, "note": "a"})
    add(tmp_path / "customers", {"id": 7, "city": "Rome"})
    place, sink, columns = tmp_path / "checkpoint", Collected(), "id long, customer long"
    view = joined(spark, tmp_path, f"{columns}, note string")
    narrower, wider = (joined(spark, tmp_path, columns + more) for more in ("", ", note string, paid int"))

    def to_new_files() -> None:
        writer = view.writeStream.options(checkpointLocation=str(place)).trigger(availableNow=True)
        writer.to("parquet", path=tmp_path / "new output").start()

    def beside(broken: Path, start: Callable[[], object], body: bytes | None) -> None:
        """Start while a file is gone, or holds something else."""
        hidden = {path: path.read_bytes() for path in (broken, broken.with_name(f".{broken.name}.crc")) if path.exists()}
        for path in hidden:
            path.unlink()
        if body is not None:
            broken.write_bytes(body)
        try:
            start()
        finally:
            broken.with_name(f".{broken.name}.crc").unlink(missing_ok=True)
            for path, was in hidden.items():
                path.write_bytes(was)

    refusals: list[tuple[str, Callable[[], object]]] = [
        ("QUERY_CHANGED", lambda: run(narrower, sink)),
        ("QUERY_CHANGED", lambda: run(wider, sink)),
        ("BASELINE_TOO_LATE", lambda: run(with_baseline(spark, tmp_path), sink)),
        ("SINK_SCHEMA", lambda: run(view, Refusing("open"))),
        ("SINK_OPEN", lambda: run(view, Refusing("last_epoch"))),
        (
            "SINK_EPOCH_GAP",
            to_new_files,
        ),  # files of the tasks, and of the driver: the next epoch would be committed for neither
        ("SINK_EPOCH_GAP", lambda: run(view, Collected())),
        ("BUCKETS_CHANGED", lambda: run(view, sink, buckets=3)),
        ("UNKNOWN_OPTION", lambda: run(view, sink, bukets=2)),
        ("OPTION_VALUE", lambda: run(view, sink, chunkRows=0)),
        ("DAMAGED_FILE", lambda: beside(max((place / "zset/commits").glob("*.json")), lambda: run(view, sink), b"{")),
        ("STREAMING_CHECKPOINT_MISSING_METADATA_FILE", lambda: beside(place / "metadata", lambda: run(view, sink), None)),
    ]
    with pytest.raises(SinkError, match="are others"):
        run(view, Refusing("open"), buckets=2)
    run(view, sink, buckets=2)
    before = files_below(place / "zset")
    add(tmp_path / "orders", {"id": 2, "customer": 7, "note": "b"})

    for code, start in refusals:
        with pytest.raises((ZsetJoinError, SparkRuntimeException)) as refused:
            start()
        assert code in str(refused.value)
        assert files_below(place / "zset") == before, code
    writer = view.writeStream.options(checkpointLocation=str(place)).trigger(availableNow=True).to(sink)
    called: list[int] = []
    writer.foreachBatch(lambda _rows, epoch: called.append(epoch)).start().awaitTermination()

    assert sink.total() == {(1, 7, "a", 7, "Rome"): 1, (2, 7, "b", 7, "Rome"): 1}
    assert (len(sink.epochs), called) == (2, [1])  # a function keeps no epochs: it may come in the middle
