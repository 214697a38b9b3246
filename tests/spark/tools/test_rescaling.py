"""Another number of buckets for a checkpoint in the middle of a stream: the answers stay the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import Run, emitted, join_of
from tests.spark.conftest import Collected, Source
from tests.sweeps import for_each, some_of
from zset_join.checkpoint.files import CHECKPOINT_FORMAT
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder, read_committed, stored_buckets, stored_plan
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.core.errors import OptionError, StateError
from zset_join.spark import JoinedStream, appends, changes, rescale
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F
from zset_join.state.rows.side_snapshot import snapshot_counts
from zset_join.storage.operations import Operation, observe
from zset_join.storage.trusted_files import seal

Step = Callable[[], None]


def first(orders: Source, customers: Source) -> None:
    orders.add(*(("i", n, n % 7 if n % 5 else None, f"item {n}", 10) for n in range(40)))
    customers.add(*((n, f"name {n}", 1) for n in range(5)))


def moves_and_deletes(orders: Source, customers: Source) -> None:
    orders.add(*(("u", n, (n + 3) % 9 if n % 4 else None, f"moved {n}", 20) for n in range(0, 40, 3)))
    orders.add(*(("d", n, None, None, 20) for n in range(1, 40, 6)))
    customers.add((2, "renamed", 2), (8, "new", 2)).add()


def late_and_new(orders: Source, customers: Source) -> None:
    # Older than the deletes: only the tombstones show that these came too late.
    orders.add(*(("u", n, 4, f"late {n}", 15) for n in range(1, 40, 6)))
    orders.add(*(("u", n, 8, "again", 30) for n in range(1, 40, 12)), ("i", 99, None, "nobody", 30))
    customers.add((4, "four", 3)).add((0, "zero", 3))


STEPS = (first, moves_and_deletes, late_and_new)


@pytest.mark.parametrize("how", some_of(["full", "left_anti"], short=["full"]))
def test_the_answers_stay_those_of_sparks_batch_join(
    orders: Source, customers: Source, run: Run, tmp_path: Path, how: str
) -> None:
    sink, location = Collected(), str(tmp_path / "checkpoint")
    moved, unchanged = [], False

    for step, buckets in zip(STEPS, (3, 1, 5), strict=True):
        step(orders, customers)
        run(join_of(orders, customers, how), sink, snapshotAfterBytes=2_000)
        unchanged = unchanged or check_failures(location)
        moved.append(str(rescale(location, buckets=buckets, local_state_dir=str(tmp_path / "local"))))
    orders.add(("d", 99, None, None, 40), ("u", 2, 4, "last", 40))
    customers.add()
    query = run(join_of(orders, customers, how), sink)
    report = query.verify(*final_tables(orders, customers), actual_df=emitted(query, sink))

    assert report.equal, str(report)
    assert report.expected_rows > 3
    assert [text.partition(":")[0] for text in moved] == ["2 buckets became 3", "3 buckets became 1", "1 bucket became 5"]
    assert query.lastProgress["join"]["state"]["buckets"] <= 5  # type: ignore[index]
    assert stored_buckets(location) == 5
    assert unchanged


def check_failures(location: str) -> bool:
    """Return whether a rescaling that fails before its record changes nothing."""
    before = read_committed(location)
    found = []
    for folder in ("owners/", "rescalings/"):

        def fail(seen: Operation, act: Callable[[], Any], folder: str = folder) -> Any:
            if folder in seen.path and seen.kind == "link":
                raise OSError(5, "Input/output error", seen.path)
            return act()

        with observe(fail), pytest.raises(StateError, match=r"STORAGE_FAILED.*Input/output"):
            rescale(location, buckets=3)
        found.append(read_committed(location))
    return (
        before is not None
        and [(one.buckets, one.histories) for one in found if one] == [(before.buckets, before.histories)] * 2
    )


def final_tables(orders: Source, customers: Source) -> tuple[Any, Any]:
    """Return both tables as plain Python makes them of the files."""
    spark = orders.spark
    rows: dict[int, Any] = {}
    for op, key, customer, item, ts in read_files(orders):
        if key not in rows or ts >= rows[key][3]:
            rows[key] = (key, None if op == "d" else customer, item, ts, op)
    live = [row[:3] for row in rows.values() if row[4] != "d"]
    people = {key: name for key, name, _ in read_files(customers)}
    return (
        spark.createDataFrame(live, "order_id long, customer_id long, item string"),
        spark.createDataFrame(list(people.items()), "customer_id long, name string"),
    )


def read_files(source: Source) -> list[tuple[Any, ...]]:
    import pyarrow.parquet as pq

    files = sorted(source.directory.glob("*.parquet"))
    return [tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.long
def test_what_was_ignored_and_what_was_deleted_is_remembered(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    sink, location = Collected(), str(tmp_path / "checkpoint")
    keyed = changes(
        orders.stream(), name="orders", keys=["order_id", "customer_id"], sequence_by="ts", apply_as_deletes="op = 'd'"
    )
    joined = keyed.join(appends(customers.stream(), name="customers"), on="customer_id")
    orders.add(("i", 1, 10, "pen", 5), ("i", 2, 20, "ink", 5)).add(("d", 1, 10, None, 6)).add(("u", 2, 20, "old", 1))
    customers.add((10, "Ann", 1)).add().add((20, "Bob", 1))
    run(joined, sink)

    rescale(location, buckets=4)
    committed = read_committed(location)
    assert committed is not None
    snapshots = [history.snapshot for history in committed.histories.values()]
    tables = [read_snapshot(committed.files, snapshot)["left"] for snapshot in snapshots if snapshot is not None]
    orders.add(("u", 1, 10, "late", 2), ("u", 2, 20, "late", 2))
    customers.add((10, "Cas", 2), (20, "Dan", 2))
    run(joined, sink)

    assert [sum(counts) for counts in zip(*map(snapshot_counts, tables), strict=True)] == [1, 0, 0]
    weights = sorted(weight for table in tables for weight in table.column("_zset_weight").to_pylist())
    assert (len(tables), weights) == (4, [0, 1])
    assert sum(sink.total().values()) == 2
    assert {row[3] for row in sink.total()} == {"ink"}


def groups_of_groups(joined: JoinedStream) -> JoinedStream:
    """Give a view with three aggregates: one that only counts, one that keeps single values, and the row of all rows."""
    rows = joined.select("customer_id", "item", "name").distinct()
    per_customer = rows.groupBy("customer_id").agg(
        ZF.count().alias("n"), ZF.max("item").alias("last"), ZF.count_distinct("name").alias("names")
    )
    shares = per_customer.withColumn("share", F.col("n") / 3)
    return shares.agg(ZF.count("names"), ZF.stddev("share"), ZF.collect_list("last"), ZF.max_by("n", "customer_id"))


def test_groups_move_with_all_that_they_remember(orders: Source, customers: Source, run: Run, tmp_path: Path) -> None:
    sink, local = Collected(), str(tmp_path / "local")
    first(orders, customers)
    run(groups_of_groups(join_of(orders, customers, "full")), sink)

    report = rescale(tmp_path / "checkpoint", buckets=3, local_state_dir=local)
    orders.add(*(("u", n, (n + 3) % 9 if n % 4 else None, f"moved {n}", 20) for n in range(0, 40, 3)), ("d", 1, None, None, 20))
    customers.add((2, "renamed", 2))
    query = run(groups_of_groups(join_of(orders, customers, "full")), sink)
    verified = query.verify(*final_tables(orders, customers), actual_df=emitted(query, sink))

    assert verified.equal, str(verified)
    assert report.rows > 3 * 40
    assert [len(epoch) for epoch in sink.epochs] == [1, 2]
    committed = read_committed(str(tmp_path / "checkpoint"))
    assert committed is not None
    assert {key for key in committed.histories if key.startswith("aggregate-")} == {
        f"aggregate-{number}/{bucket}" for number in (1, 2, 3) for bucket in (0, 1, 2)
    }


def test_an_epoch_that_spark_requests_again_is_answered_from_the_buckets_it_was_committed_in(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    first(orders, customers)
    run(join_of(orders, customers, "full"), sink)
    moves_and_deletes(orders, customers)
    run(join_of(orders, customers, "full"), sink)
    whole = sink.total()
    last = len(sink.epochs) - 1
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    sink.epochs.pop()
    shutil.rmtree(checkpoint / "zset" / "delta")

    rescale(checkpoint, buckets=3)
    run(join_of(orders, customers, "full"), sink)
    replayed = sink.total()
    late_and_new(orders, customers)
    query = run(join_of(orders, customers, "full"), sink)

    assert replayed == whole
    assert query.verify(*final_tables(orders, customers), actual_df=emitted(query, sink)).equal


def damaged(checkpoint: Path) -> None:
    log = next((checkpoint / "zset" / "log").glob("join-0/*.arrows"))
    log.write_bytes(log.read_bytes()[:-1] + b"\x7f")


def newer(checkpoint: Path) -> None:
    (checkpoint / "zset" / "format.json").write_bytes(b'{"format":99,"crc32":"00000000","body":{}}')


def without_plan(checkpoint: Path) -> None:
    (checkpoint / "zset" / "stages.json").unlink()


def without_a_stage(checkpoint: Path) -> None:
    described = [one for one in stored_plan(str(checkpoint))["stages"] if one["name"] != "aggregate-1"]
    plan = seal({"stages": described}, version=CHECKPOINT_FORMAT, name="stages.json")
    (checkpoint / "zset" / "stages.json").write_bytes(plan)


UNFIT: dict[str, tuple[Callable[[Path], None], str]] = {
    "DAMAGED_FILE": (damaged, "does not have the checksum"),
    "STATE_FORMAT": (newer, "STATE_FORMAT"),
    "PLAN_MISSING": (without_plan, "Start the query once"),
    "UNKNOWN_STAGE": (without_a_stage, r"\['aggregate-1'\]"),
    "NO_CHECKPOINT": (shutil.rmtree, "no checkpoint of a query"),
}


def records_of(checkpoint: Path) -> dict[Path, bytes]:
    """Return what a checkpoint records, but for who owns it."""
    found = [path for path in (checkpoint / "zset").rglob("*.json") if "owners" not in path.parts]
    return {path: path.read_bytes() for path in found}


def test_a_checkpoint_that_cannot_get_another_number_is_refused_and_left_alone(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    first(orders, customers)
    run(join_of(orders, customers).groupBy("name").count(), Collected())

    for code, (spoil, reported) in UNFIT.items():
        spoiled = tmp_path / code
        shutil.copytree(tmp_path / "checkpoint", spoiled)
        spoil(spoiled)
        before = records_of(spoiled)
        with pytest.raises(StateError, match=reported) as refused:
            rescale(spoiled, buckets=3, local_state_dir=str(tmp_path / code / "local"))
        assert refused.value.code == code
        assert records_of(spoiled) == before
    unchanged = rescale(tmp_path / "checkpoint", buckets=2)
    committed = read_committed(str(tmp_path / "checkpoint"))
    assert committed is not None
    running = Ownership.claim(checkpoint_folder(str(tmp_path / "checkpoint")), committed.files.query_id)
    with pytest.raises(StateError, match="in use by process") as in_use:
        rescale(tmp_path / "checkpoint", buckets=3)
    running.release()

    assert in_use.value.code == "CHECKPOINT_IN_USE"
    assert str(unchanged) == "the checkpoint has 2 buckets already; nothing was done"
    assert not (tmp_path / "checkpoint/zset/rescalings").exists()


@for_each("buckets", [0, -1, 4097, "many", 2.5, True])
def test_a_number_that_is_none_is_refused(spark: SparkSession, tmp_path: Path, buckets: Any) -> None:
    with pytest.raises(OptionError, match="buckets") as refused:
        rescale(tmp_path / "checkpoint", buckets=buckets)

    assert refused.value.code == "OPTION_VALUE"


def appended(orders: Source, customers: Source) -> JoinedStream:
    return appends(orders.stream(), name="orders").join(appends(customers.stream(), name="customers"), on="customer_id")


@pytest.mark.long
def test_the_bytes_of_an_append_only_join_are_counted_on(orders: Source, customers: Source, run: Run, tmp_path: Path) -> None:
    orders.add(*(("i", n, n, "pen", 1) for n in range(20)))
    customers.add((1, "Ann", 1))
    before = run(appended(orders, customers), Collected()).lastProgress["join"]["buffered"]  # type: ignore[index]

    rescale(tmp_path / "checkpoint", buckets=5)
    orders.add(("i", 20, 20, "pen", 1))
    customers.add()
    sink = Collected()
    sink.epochs.append([])  # epoch 0 went to another sink
    after = run(appended(orders, customers), sink).lastProgress["join"]["buffered"]  # type: ignore[index]

    assert after["left_bytes"] * 20 == before["left_bytes"] * 21
    assert after["right_bytes"] == before["right_bytes"]
