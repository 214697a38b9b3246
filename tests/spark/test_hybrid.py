"""A join inside Spark whose rows are on disk between epochs: the same view, over restarts and lost files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Source
from tests.sweeps import for_each, some_of
from zset_join.core.errors import OptionError
from zset_join.spark import JoinedStream, JoinQuery, changes
from zset_join.tools.inspection import open_state

TINY = {"default_hash_join": "hybrid", "max_hot_bytes": 0}
HOW = "full"


def joined(orders: Source, customers: Source) -> JoinedStream:
    left = changes(
        orders.stream(),
        name="orders",
        keys=["order_id"],
        sequence_by="ts",
        apply_as_deletes="op = 'd'",
        except_column_list=["op", "ts"],
    )
    right = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts", except_column_list=["ts"])
    return left.join(right, on="customer_id", how=HOW)


def fill(orders: Source, customers: Source, *, first: int, epochs: int) -> None:
    """Add epochs in which orders come, move to another customer and go, and customers change their names."""
    for epoch in range(first, first + epochs):
        text = "a text that is longer than twelve bytes"
        new = [("u", 10 * epoch + number, 3 * epoch + number % 3, text, epoch) for number in range(6)]
        moved = [("u", 10 * (epoch - 1) + 1, 3 * epoch, None, epoch)] if epoch else []
        gone = [("d", 10 * (epoch - 1) + 2, None, None, epoch)] if epoch else []
        orders.add(*new, *moved, *gone)
        customers.add((3 * epoch, f"name {epoch}", epoch), (1, f"busy {epoch}", epoch))


def run_all(joined: JoinedStream, directory: Path, **options: Any) -> JoinQuery:
    """Run a join over everything its sources have, into a DuckDB view, and return the finished query."""
    writer = joined.writeStream.option("checkpointLocation", str(directory / "checkpoint"))
    writer = writer.option("localStateDir", str(directory / "local")).options(**options).trigger(availableNow=True)
    query = writer.toDuckDB(str(directory / "view.duckdb"), "joined").start()
    query.awaitTermination()
    return query


def states(query: JoinQuery) -> list[dict[str, Any]]:
    return [progress["join"]["state"] for progress in query.recentProgress if progress["join"] is not None]


def rebuilt(query: JoinQuery) -> int:
    return sum(progress["join"]["rebuilt_buckets"] for progress in query.recentProgress if progress["join"] is not None)


def test_explain_counts_the_route_among_what_shares_the_budget(
    orders: Source, customers: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = joined(orders, customers).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))

    writer.options(default_hash_join="hybrid", max_hot_keys=500, buckets=2).explain()

    printed = capsys.readouterr().out
    assert "State: of joins and routes at most 500 keys in memory, the rest on local disk\n" in printed
    assert "  each bucket of 2 stages: 125 keys\n" in printed


@pytest.mark.parametrize("options", some_of({"still hybrid": TINY, "in memory from now on": {}}, short=["still hybrid"]))
def test_the_view_is_the_batch_join_with_nothing_in_memory_over_a_restart_and_lost_or_unfit_local_state(
    orders: Source, customers: Source, tmp_path: Path, options: dict[str, Any]
) -> None:
    """State that is lost is rebuilt from a snapshot that holds the cold rows."""
    words = {"snapshotAfterBytes": 0, "retainInputLog": True}
    fill(orders, customers, first=0, epochs=3)
    run_all(joined(orders, customers), tmp_path, buckets=2, **words, **TINY)
    fill(orders, customers, first=3, epochs=2)
    before = run_all(joined(orders, customers), tmp_path, **words, **TINY)
    if options:
        shutil.rmtree(tmp_path / "local")
    fill(orders, customers, first=5, epochs=1)

    query = run_all(joined(orders, customers), tmp_path, **words, **options)

    outcome = query.verify()
    assert outcome.equal, outcome
    assert (rebuilt(before), rebuilt(query)) == (
        0,
        0 if options else 4,
    )  # the join and the route of the orders, in two buckets each
    last = states(before)[-1]
    assert last["left_hot_rows"] + last["left_cold_rows"] == last["left_rows"]  # hot: what the last epoch has requested
    assert last["left_cold_rows"] > 0
    assert last["left_cold_disk_bytes"] > 0
    route = before.lastProgress["join"]["routes"]["route-left"]  # of the orders, whose join key is not in their primary key
    assert route["route_hot_rows"] + route["route_cold_rows"] == route["route_rows"] > 0
    assert route["route_cold_rows"] > 0
    assert route["route_cold_tombstones"] > 0


@pytest.mark.parametrize(
    ("medium", "damaged"),
    some_of({"files": ("files", "left.rows/*.pages"), "duckdb": ("duckdb", "cold.duckdb")}, short=["duckdb"]),
)
def test_a_damaged_cold_file_is_noticed_and_the_bucket_rebuilt(
    orders: Source, customers: Source, tmp_path: Path, medium: str, damaged: str
) -> None:
    fill(orders, customers, first=0, epochs=2)
    run_all(joined(orders, customers), tmp_path, buckets=1, cold_store=medium, **TINY)
    with open_state(tmp_path / "checkpoint", local_state_dir=tmp_path / "local") as state:
        stores = {
            store for (store,) in state.sql("SELECT DISTINCT store FROM cold WHERE stage = 'join' AND pages > 0").fetchall()
        }
    assert stores == (set() if medium == "files" else {"left.rows", "left.keys", "right.rows"})
    cold = next((tmp_path / "local").rglob(f"join-0/state/cold/{damaged}"))
    cold.write_bytes(cold.read_bytes()[:-1] if medium == "files" else bytes(1 << 14))
    fill(orders, customers, first=2, epochs=1)

    query = run_all(joined(orders, customers), tmp_path, cold_store=medium, **TINY)

    assert query.verify().equal
    assert rebuilt(query) == 1
    assert query.lastProgress["join"]["cold_store"] == medium
    assert states(query)[-1]["left_cold_rows"] > 0


@for_each(
    ("options", "named"),
    [
        ({"max_hot_bytes": "1000"}, "max_hot_bytes was given '1000'"),
        ({"default_hash_join": "hybrid"}, "max_hot_bytes, max_hot_keys or both"),
        ({**TINY, "join_max_buffered_bytes": 77}, "are not both"),
    ],
)
def test_a_budget_that_is_none_is_refused_before_anything_runs(
    orders: Source, customers: Source, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(OptionError, match=named):
        run_all(joined(orders, customers), tmp_path, **options)
