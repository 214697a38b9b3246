"""The checkpoint of a query on executors is compared with another query, while it runs and stopped."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import Run, join_of, names, upserts
from tests.spark.conftest import Collected, Source
from tests.spark.tools.test_rescaling import final_tables, first, late_and_new, moves_and_deletes
from zset_join import cli
from zset_join.checkpoint.reading import read_committed
from zset_join.core.errors import StateError
from zset_join.runners.spark.driver.executors_state import diff_of_executors
from zset_join.spark import JoinQuery

Rows = set[tuple[Any, ...]]


def counted(orders: Source, customers: Source, *, key: str = "name", least: int = 0, how: str = "inner") -> Any:
    """Return how many orders there are of each name, or item, from some order on."""
    joined = upserts(orders).join(names(customers), on="customer_id", how=how)
    return joined.where(f"order_id >= {least}").groupBy(key).agg(F.count("*").alias("n"), F.max("order_id").alias("last"))


def counted_now(orders: Source, customers: Source, *, key: str = "name", least: int = 0, how: str = "inner") -> Rows:
    """Return the same by Spark's own batch query over everything that came."""
    left, right = final_tables(orders, customers)
    joined = left.join(right, on="customer_id", how=how).where(f"order_id >= {least}")
    return {tuple(row) for row in joined.groupBy(key).agg(F.count("*"), F.max("order_id")).collect()}


def rows_of(delta: Any) -> Rows:
    return {tuple(row.values()) for row in delta.rows.to_pylist()}


@pytest.mark.parametrize("key", ["name", "item"])
def test_a_difference_is_that_of_two_batch_queries(
    orders: Source, customers: Source, run: Run, tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    view = partial(counted, orders, customers)
    first(orders, customers)
    moves_and_deletes(orders, customers)
    sink, location = Collected(), str(tmp_path / "checkpoint")
    query = run(view(), sink, wait=False, execution="executors", buckets=2)
    query.processAllAvailable()
    before, after = counted_now(orders, customers), counted_now(orders, customers, key=key, least=2)
    running = query.diff(view(key=key, least=2))
    query.stop()
    late_and_new(orders, customers)
    run(view(), sink, execution="executors", buckets=2)
    later = counted_now(orders, customers), counted_now(orders, customers, key=key, least=2)
    monkeypatch.setattr(cli, "_other_query", lambda *_: view(key=key, least=2).writeStream.planned)
    code = cli.main(["diff", location, "shop:view"])
    stopped = diff_of_executors(location, view(key=key, least=2).writeStream.planned)

    for diff, (old, new) in ((running, (before, after)), (stopped, later)):
        (found,) = diff.views.values()
        assert rows_of(found.removed) == (old - new if key == "name" else old)
        assert rows_of(found.added) == (new - old if key == "name" else new)
        assert "join-0" in diff.kept
        assert next(iter(diff.rebuilt)).startswith("aggregate")
    assert before != later[0]
    assert (code, running.epoch != stopped.epoch) == (1, True)
    assert str(stopped) in capsys.readouterr().out
    assert set((tmp_path / "checkpoint" / "zset" / "leases").glob("*")) == set()


def test_what_has_no_form_on_the_driver_is_refused(orders: Source, customers: Source, run: Run, tmp_path: Path) -> None:
    first(orders, customers)
    run(join_of(orders, customers, "inner"), Collected(), execution="executors")
    location = str(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "zset" / "other_mode.json").unlink()
    with pytest.raises(StateError, match="MOVE_UNKNOWN"):
        diff_of_executors(location, join_of(orders, customers, "left").writeStream.planned)

    run(
        upserts(orders).where("item <> 'item 3'").join(names(customers), on="customer_id"),
        Collected(),
        checkpointLocation=str(tmp_path / "other"),
        execution="executors",
    )
    with pytest.raises(StateError, match="MOVE_REFUSED"):
        diff_of_executors(str(tmp_path / "other"), join_of(orders, customers, "left").writeStream.planned)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Give a function that starts a query on executors which goes on until the end of the test."""
    started: list[JoinQuery] = []

    def one(view: Any, sink: Any, **options: Any) -> JoinQuery:
        places = {"checkpointLocation": str(tmp_path / "checkpoint"), "localStateDir": str(tmp_path / "local")}
        writer = view.writeStream.options(**places, execution="executors", buckets=2, **options).toSink(sink)
        started.append(writer.start())
        started[-1].processAllAvailable()
        return started[-1]

    yield one
    for query in started:
        query.stop()


def test_a_running_query_is_changed_and_goes_on(orders: Source, customers: Source, start: Any, tmp_path: Path) -> None:
    view = partial(counted, orders, customers)
    first(orders, customers)
    moves_and_deletes(orders, customers)
    sink = Collected()
    query = start(view(), sink)
    batches = query.lastProgress["batchId"] + 1
    held = histories(tmp_path)
    changed = query.evolve(view(least=2))
    kept = histories(tmp_path)
    between = set(sink.total()), counted_now(orders, customers, least=2)
    late_and_new(orders, customers)
    query.processAllAvailable()
    progress = query.lastProgress
    after = set(sink.total()), counted_now(orders, customers, least=2)
    query.undo()
    back = set(sink.total()), counted_now(orders, customers)
    query.stop()
    moves_and_deletes(orders, customers)
    start(view(), sink)

    assert changed.taken == batches
    assert between[0] == between[1] != back[1]
    assert after[0] == after[1] != between[1]
    assert back[0] == back[1]
    assert (progress["join"]["epoch"] - progress["join"]["batch"]) == 1
    assert set(sink.total()) == counted_now(orders, customers)
    assert set(sink.total().values()) == {1}
    assert {key: one for key, one in held.items() if not key.startswith("aggregate")} == {
        key: one for key, one in kept.items() if not key.startswith("aggregate")
    }
    assert {key for key in kept if key.startswith("aggregate")} == {"aggregate-1/0", "aggregate-1/1"}


def histories(place: Path) -> dict[str, Any]:
    """Return what the state of a checkpoint is made of."""
    committed = read_committed(str(place / "checkpoint"))
    assert committed is not None
    return dict(committed.histories)


def labelled(orders: Source, customers: Source, *, key: str) -> Any:
    """Return how many orders there are of each name, or item, under one name of the column."""
    joined = upserts(orders).join(names(customers), on="customer_id")
    return joined.select("order_id", F.col(key).alias("label")).groupBy("label").agg(F.count("*").alias("n"))


def labelled_now(orders: Source, customers: Source, *, key: str) -> Rows:
    """Return the same by Spark's own batch query over everything that came."""
    left, right = final_tables(orders, customers)
    return {tuple(row) for row in left.join(right, on="customer_id").groupBy(key).agg(F.count("*")).collect()}


def test_groups_by_another_key_lie_in_the_buckets_of_that_key(orders: Source, customers: Source, start: Any) -> None:
    view = partial(labelled, orders, customers)
    first(orders, customers)
    moves_and_deletes(orders, customers)
    sink = Collected()
    query = start(view(key="name"), sink)
    query.evolve(view(key="item"))
    between = set(sink.total()), labelled_now(orders, customers, key="item")
    late_and_new(orders, customers)
    query.processAllAvailable()
    after = set(sink.total()), labelled_now(orders, customers, key="item")
    query.stop()
    moves_and_deletes(orders, customers)
    start(view(key="item"), sink)

    assert between[0] == between[1] != after[1]
    assert after[0] == after[1]
    assert set(sink.total()) == labelled_now(orders, customers, key="item")
    assert set(sink.total().values()) == {1}
