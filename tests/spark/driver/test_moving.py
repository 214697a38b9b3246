"""A checkpoint that moves between driver and executors in the middle of a stream: the answers stay the same."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from faults.kills import KillAt
from faults.processes import Send, forked
from faults.watching import OperationList
from tests.spark.api.test_query import Run, join_of, names, upserts
from tests.spark.conftest import Collected, Source
from tests.spark.tools.test_rescaling import final_tables, first, late_and_new, moves_and_deletes
from tests.sweeps import some_of
from zset_join.checkpoint.bucket import BucketState
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.reading import (
    checkpoint_folder,
    plan_before,
    read_committed,
    stages_of,
    stored_description,
    stored_plan,
)
from zset_join.cli import main
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, StateError
from zset_join.core.options import QueryOptions
from zset_join.pipeline import Pipeline, appends
from zset_join.runners.any_mode import evolve_wherever, undo_wherever
from zset_join.runners.local.stopped import evolve_directory, undo_of_directory
from zset_join.runners.spark.api.other_queries import planned_writer
from zset_join.runners.spark.driver.choosing import stored_mode
from zset_join.runners.spark.driver.executors_state import diff_of_executors
from zset_join.runners.spark.driver.moving import _reason
from zset_join.runners.spark.driver.other_modes import OtherModes, has_other_mode, write_draft
from zset_join.runners.spark.planning.other_mode import OtherMode, read_other_mode, write_other_mode
from zset_join.spark import changes, move
from zset_join.stages import StageOptions
from zset_join.storage.operations import observe

MODES = ("executors", "driver", "executors")


def customers_first(orders: Source, customers: Source, how: str = "inner") -> Any:
    """Return the same join written the other way round: by themselves executors read the orders first, the driver last."""
    joined = names(customers).join(upserts(orders), on="customer_id", how=how)
    return joined.select("customer_id", "order_id", "item", "name")


def joined_now(orders: Source, customers: Source, how: str) -> dict[tuple[Any, ...], int]:
    """Return what Spark's own batch join makes of everything that arrived."""
    left, right = final_tables(orders, customers)
    rows = left.join(right, on="customer_id", how=how).select("customer_id", "order_id", "item", "name").collect()
    return {tuple(row): 1 for row in rows}


def test_the_answers_stay_those_of_sparks_batch_join_and_a_move_is_no_change_to_undo(
    orders: Source, customers: Source, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink, location = Collected(), str(tmp_path / "checkpoint")
    view = partial(customers_first, orders, customers)
    found, expected, plans = [], [], []

    for step, mode in zip((first, moves_and_deletes, late_and_new), MODES, strict=True):
        step(orders, customers)
        if mode != "executors" or found:
            assert main(["rescale", location, "--execution", mode, "--local-state-dir", str(tmp_path / "local")]) == 0
        if mode == "driver":
            changed = str(shutil.copytree(location, tmp_path / "changed"))  # before an epoch of the new mode
        run(view("full"), sink, execution=mode)
        found.append(sink.total())
        expected.append(joined_now(orders, customers, "full"))
        if mode == "driver":
            plans.append(stored_plan(location))
            with pytest.raises(StateError, match="NOTHING_TO_UNDO"):
                undo_of_directory(location)
    evolve_directory(changed, planned_writer(view("left")).planned)
    committed = read_committed(changed)

    assert found == expected
    assert min(map(len, expected)) > 3
    assert stored_mode(location) == "executors"
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == ["moved from executors to driver", "moved from driver to executors"]
    assert committed is not None
    assert committed.last is not None
    assert [plan_before(committed.files.folder, committed.last)] == plans


def test_groups_of_a_join_move_and_a_second_call_does_nothing(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    sink, location = Collected(), str(tmp_path / "checkpoint")

    def view() -> Any:
        return customers_first(orders, customers).groupBy("name").agg(F.count("*").alias("rows"), F.max("item").alias("last"))

    first(orders, customers)
    run(view(), sink, execution="driver")
    with pytest.raises(StateError, match=r'Start it with option."execution", "driver"') as other:
        run(view(), sink, execution="executors")
    reports = [move(location, execution="executors"), move(location, execution="executors")]
    moves_and_deletes(orders, customers)
    run(view(), sink, execution="executors")

    left, right = final_tables(orders, customers)
    groups = left.join(right, on="customer_id").groupBy("name").agg(F.count("*"), F.max("item"))
    assert sink.total() == {tuple(row): 1 for row in groups.collect()}
    assert [report.before for report in reports] == ["driver", "executors"]
    assert reports[0].rows > reports[1].rows == 0
    assert other.value.code == "EXECUTION_CHANGED"


@pytest.fixture
def stopped(orders: Source, customers: Source, run: Run, tmp_path: Path) -> Path:
    """Give the checkpoint of a query on executors that has run, with deleted keys and keys without a partner."""
    first(orders, customers)
    moves_and_deletes(orders, customers)
    run(join_of(orders, customers, "inner"), Collected())
    return tmp_path / "checkpoint"


def state_of(location: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of the state of a checkpoint, by the table, whatever order they are in."""
    committed = read_committed(str(location))
    assert committed is not None
    assert committed.last is not None
    checkpoint = Checkpoint(
        str(location),
        query_id=committed.files.query_id,
        buckets=committed.buckets,
        description=stored_description(str(location)) or {},
        local_state_dir=str(location.parent / "looked-at"),
        begins=False,
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for name, stage in stages_of(str(location)).items():
        context = checkpoint.stage(name, Tick(committed.last.epoch + 1, committed.last.processing_time_us))
        for bucket in range(committed.buckets):
            with BucketState(context, bucket, partial(stage.build, StageOptions())) as state:
                for table, rows in state.operator.snapshot().items():
                    found.setdefault(f"{name}/{table}", []).extend(rows.to_pylist())
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def moved(location: Path, execution: str, kill: Any, send: Send) -> None:
    with observe(kill):
        move(location, execution=execution, local_state_dir=str(location.parent / "local"))
    send(getattr(kill, "described", None))


@pytest.mark.parametrize("start", some_of(["executors", "driver"], short=["executors"]))
def test_a_move_that_is_killed_leaves_one_mode_or_the_other_whole(
    orders: Source, customers: Source, run: Run, tmp_path: Path, start: str
) -> None:
    first(orders, customers)
    moves_and_deletes(orders, customers)
    run(join_of(orders, customers, "inner"), Collected(), execution=start)
    stopped, target = tmp_path / "checkpoint", "driver" if start == "executors" else "executors"
    work, before = tmp_path / "work", state_of(stopped)
    shutil.copytree(stopped, work / "checkpoint")
    listed = forked(partial(moved, work / "checkpoint", target, OperationList(work)))
    after = state_of(work / "checkpoint")
    count = len(listed.messages[-1])
    outcomes = []

    for number in (0, count // 3, *range(count - 9, count)):
        shutil.rmtree(work)
        shutil.copytree(stopped, work / "checkpoint")
        killed = forked(partial(moved, work / "checkpoint", target, KillAt(work, number, "before")))
        mode = stored_mode(str(work / "checkpoint"))
        whole = state_of(work / "checkpoint") == (after if mode == target else before)
        move(work / "checkpoint", execution=target, local_state_dir=str(work / "local"))
        outcomes.append((killed.signal, whole, state_of(work / "checkpoint") == after, mode))

    assert listed.error == ""
    assert {outcome[:3] for outcome in outcomes} == {(signal.SIGKILL, True, True)}
    assert {outcome[3] for outcome in outcomes} == {"driver", "executors"}
    of = {start: before, target: after}
    assert len(of["driver"]["join-0/left"]) == len(of["executors"]["route-left/route"]) > 0
    assert len(of["executors"]["route-left/route"]) > len(of["executors"]["join/left"]) > 0


def test_a_baseline_moves_with_the_rest_and_need_not_be_given_again(
    spark: SparkSession, orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    old = spark.createDataFrame([("i", 9, 10, "old", 0)], orders.stream().schema)

    def view(baseline: Any, name: str = "name", people: Any = None) -> Any:
        based = changes(
            orders.stream(), name="orders", keys="order_id", sequence_by="ts", apply_as_deletes="op = 'd'", baseline=baseline
        )
        named = changes(customers.stream(), name="customers", keys=["customer_id"], baseline=people)
        return based.join(named, on="customer_id").select("order_id", "item", F.expr(name).alias("name"))

    sink, found = Collected(), []
    customers.add((10, "Ann", 1))
    run(view(old), sink)
    for mode, change in (("driver", ("u", 9, 10, "new", 1)), ("executors", ("d", 9, 10, "new", 2))):
        found.append(sink.total())
        move(tmp_path / "checkpoint", execution=mode)
        orders.add(change)
        run(view(old if mode == "executors" else None), sink, execution=mode)

    assert [*found, sink.total()] == [{(9, "old", "Ann"): 1}, {(9, "new", "Ann"): 1}, {}]
    location = str(tmp_path / "checkpoint")  # on executors
    with pytest.raises(StateError, match="BASELINE_TOO_LATE"):
        evolve_wherever(location, view(None, people=spark.createDataFrame([], customers.stream().schema)).writeStream)
    orders.add(("i", 8, 10, "last", 3))
    run(view(None), sink, execution="executors")
    for name, is_given in (("upper(name)", False), ("name", True), ("lower(name)", True), ("name", False)):
        evolve_wherever(location, view(old if is_given else None, name).writeStream)
        run(view(None, name), sink, execution="executors")
    undo_wherever(location, lambda: spark)
    run(view(None, "lower(name)"), sink, execution="executors")
    assert sink.total() == {(8, "last", "ann"): 1}


def refused(location: Path, **chosen: Any) -> str:
    with pytest.raises((StateError, OptionError)) as caught:
        move(location, **{"execution": "driver", **chosen})
    return caught.value.code


def test_what_cannot_be_moved_or_changed_in_place_is_refused_and_stays(
    stopped: Path, orders: Source, customers: Source, tmp_path: Path
) -> None:
    before, newest = state_of(stopped), read_committed(str(stopped))
    left_join = join_of(orders, customers, "left").writeStream.planned
    assert newest is not None
    assert newest.last is not None
    codes = [refused(tmp_path / "nothing"), refused(stopped, execution="both")]
    with pytest.raises(OptionError, match="NOT_FROM_HERE"):
        evolve_directory(stopped, left_join)
    done = stopped / "commits" / str(newest.last.epoch)
    done.rename(tmp_path / "done")
    codes.append(refused(stopped))
    (tmp_path / "done").rename(done)
    (stopped / "zset" / "other_mode.json").rename(tmp_path / "other")
    codes.append(refused(stopped))
    with pytest.raises(StateError, match="MOVE_UNKNOWN"):
        diff_of_executors(str(stopped), left_join)
    (tmp_path / "other").rename(stopped / "zset" / "other_mode.json")
    other = read_other_mode(checkpoint_folder(str(stopped)))
    assert other is not None
    changes_of_it: Any = (
        ({"refused": "no state like that"}, "no state"),
        ({"description": {"keeps_inputs": True}}, "retainInput"),
    )
    for changed, reason in changes_of_it:
        write_other_mode(checkpoint_folder(str(stopped)), replace(other, **changed))
        with pytest.raises(StateError, match=reason) as caught:
            move(stopped, execution="driver")
        codes.append(caught.value.code)

    assert codes == ["NO_CHECKPOINT", "ARGUMENT", "EPOCH_UNFINISHED", "MOVE_UNKNOWN", "MOVE_REFUSED", "MOVE_REFUSED"]
    assert state_of(stopped) == before
    assert stored_mode(str(stopped)) == "executors"


@pytest.mark.parametrize(
    ("last", "changed", "reason"),
    [
        (None, None, "no epoch is committed"),
        (SimpleNamespace(dues={}), SimpleNamespace(changes=1), "changed in place"),
        (SimpleNamespace(dues={"join": 1}), None, "wait for a time"),
    ],
)
def test_each_reason_that_the_last_epoch_shows(last: Any, changed: Any, reason: str) -> None:
    opened: Any = SimpleNamespace(last=last, changed=changed)
    other = OtherMode(of="", mode="executors", description={}, plan={})

    assert reason in str(_reason(opened, other))


def planned(view: Any, mode: str, tmp_path: Path) -> OtherMode:
    """Return the query in the other mode, without running it."""
    options = QueryOptions.from_options({"checkpointLocation": str(tmp_path / "cp")})
    writer = view.writeStream
    return OtherModes(mode, options, lambda: writer.placed, writer._here).draft()


def test_each_reason_that_the_plans_show_is_written_down(orders: Source, customers: Source, tmp_path: Path) -> None:
    people = names(customers)
    views = {
        "": join_of(orders, customers, "inner"),
        "Spark counts the sources of a query, and ": upserts(orders)
        .join(people, on="customer_id")
        .select("order_id", "customer_id", "item")
        .join(people, on="customer_id"),
    }

    for mode in ("driver", "executors"):
        found = [planned(view, mode, tmp_path).refused or "" for view in views.values()]
        assert [text[: len(reason)] if reason else text for text, reason in zip(found, views, strict=True)] == list(views)


def test_a_filter_of_sparks_own_over_upserts_moves(orders: Source, customers: Source, run: Run, tmp_path: Path) -> None:
    sink = Collected()
    kept = F.col("item") != "item 3"
    filtered = upserts(orders).where(kept).join(names(customers), on="customer_id")
    first(orders, customers)
    run(filtered, sink, execution="executors")

    with pytest.raises(StateError, match=r"zset-join rescale .* --execution driver") as started:
        run(filtered, sink, execution="driver")
    move(tmp_path / "checkpoint", execution="driver")
    moves_and_deletes(orders, customers)
    run(filtered, sink, execution="driver")

    left, right = final_tables(orders, customers)
    expected = left.where(kept).join(right, on="customer_id").select(*filtered.columns).collect()
    assert sink.total() == {tuple(row): 1 for row in expected} != {}
    assert started.value.code == "EXECUTION_CHANGED"


def test_the_counted_rows_of_a_filter_move(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    """A stage that passes rows on keeps their copies, so that a row is retracted that came before the move."""
    ledger = Source(spark, tmp_path / "ledger", pa.schema([("account", pa.int64()), ("n", pa.int32())]))
    sink = Collected()
    for mode, row in zip((*MODES, "driver"), ((1, 2), (1, -1), (2, 1), (1, -1)), strict=True):
        if sink.total():
            move(tmp_path / "checkpoint", execution=mode)
        ledger.add(row)
        run(changes(ledger.stream(), name="ledger", weight_column="n").where("account > 0"), sink, execution=mode)

    assert sink.total() == {(2,): 1}


def test_another_mode_does_not_count_where_the_query_will_be_described_again(tmp_path: Path) -> None:
    """A start over Spark Connect of a classic checkpoint writes another description, and needs another draft."""
    with Pipeline(appends("orders", {"id": pa.int64()}), tmp_path) as pipeline:
        pipeline.step({"orders": [{"id": 1}]})
    location = str(tmp_path)
    write_draft(location, OtherMode(of="", mode="executors", description={}, plan={}))

    assert has_other_mode(location)
    assert has_other_mode(location, stored_description(location))
    assert not has_other_mode(location, {"session": "connect"})
