"""Several threads answer as one does, in memory and over a directory that every start opens with another number of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, OptionError
from zset_join.core.options import HotBudget
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.runners.common import parting
from zset_join.runners.common.bucketed import ROWS_APART, Bucketed, in_buckets
from zset_join.runners.common.exchange import MovedKeys
from zset_join.runners.common.workers import Workers
from zset_join.stages import StageOptions
from zset_join.state.rows.side_snapshot import snapshot_counts
from zset_join.zset import ZSet

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int32(), "total": pa.int64()})
CUSTOMERS = pa.schema({"customer": pa.int64(), "city": pa.string()})
KEYS = 300


@pytest.fixture
def parts_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the epochs of these tests for large ones, so that state in memory is parted behind the second of them."""
    monkeypatch.setattr(parting, "LARGE_ROWS", ROWS_APART)


def joined() -> View:
    orders, customers = changes("orders", ORDERS, keys="id"), changes("customers", CUSTOMERS, keys="customer")
    return orders.join(customers, "customer", how="left")


def grouped() -> View:
    return joined().groupBy("city").agg(F.count().alias("n"), F.sum("total").alias("t"))


def epochs(count: int, rows: int = 2 * ROWS_APART) -> Iterator[dict[str, ZSet]]:
    """Yield epochs that are worked on by several threads; most orders go to another customer each time."""
    rng = np.random.default_rng(7)
    for number in range(count):
        names = [f"city {city}" if city else None for city in rng.integers(0, 9, KEYS)]
        orders = {
            "id": rng.integers(0, rows, rows),
            "customer": pa.array(rng.integers(0, KEYS, rows), pa.int32(), mask=rng.random(rows) < 0.1),
            "total": rng.integers(0, 100, rows),
        }
        weights = np.where(rng.random(rows) < 0.1, -1, 1)
        yield {
            "orders": ZSet.of(pa.table(orders, schema=ORDERS), weights),
            "customers": ZSet.of(pa.table({"customer": np.arange(KEYS) + number, "city": names}, schema=CUSTOMERS)),
        }


def bag(rows: ZSet) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for row, weight in rows.to_pylist():
        counts[row] += weight
    return Counter({row: weight for row, weight in counts.items() if weight})


def are_parted(pipeline: Pipeline[Any]) -> set[bool]:
    """Return whether the stages of a pipeline in memory are in buckets."""
    memory = pipeline._memory
    assert memory is not None
    return {one.is_parted for one in memory.states.values() if isinstance(one, parting.Parting)}


@pytest.mark.usefixtures("parts_soon")
@pytest.mark.parametrize("view", [joined(), grouped()], ids=["join", "groups behind a join"])
def test_large_epochs_are_answered_as_by_one_thread(view: View) -> None:
    with Pipeline(view) as one, Pipeline(view, threads=2) as two, Pipeline(view, threads=3) as three:
        for epoch in epochs(4):
            emitted = bag(one.step(epoch))

            assert emitted == bag(two.step(epoch)) == bag(three.step(epoch))
            assert bag(one.contents()) == bag(two.contents()) == bag(three.contents())

        assert are_parted(three) == {True}


@pytest.mark.usefixtures("parts_soon")
def test_retractions_of_all_buckets_come_first() -> None:
    with Pipeline(joined(), threads=3) as pipeline:
        for epoch in epochs(3):
            weights = pipeline.step(epoch).weights

            assert (np.diff(np.sign(weights)) >= 0).all()


@pytest.mark.usefixtures("parts_soon")
def test_an_epoch_for_whose_copy_there_is_no_memory_is_folded_in_and_copied_later(monkeypatch: pytest.MonkeyPatch) -> None:
    restore, refused = Bucketed.restore, iter([True, False])

    def scarce(self: Bucketed, tables: Any) -> None:
        if next(refused):
            raise MemoryError
        restore(self, tables)

    monkeypatch.setattr(Bucketed, "restore", scarce)
    forms = []
    with Pipeline(joined(), threads=2) as two, Pipeline(joined()) as one:
        for epoch in epochs(4):
            assert bag(two.step(epoch)) == bag(one.step(epoch))
            forms += are_parted(two)

    assert (forms[1], forms[-1]) == (False, True)


def test_deletes_that_several_buckets_are_given_are_not_counted_in_a_snapshot() -> None:
    (stage,) = [planned.stage for planned in joined().plan().nodes]
    nothing = ZSet.empty(CUSTOMERS)
    row, moved, unknown = ({"id": [at], "customer": [to], "total": [0]} for at, to in ((1, 1), (1, 2), (9, None)))
    came, went, never = (ZSet.of(pa.table(one, schema=ORDERS), [sign]) for one, sign in ((row, 1), (moved, 1), (unknown, -1)))
    with closing(stage.build(StageOptions(), None)) as one:
        one.absorb(Tick(0), [came + never, nothing])
        with closing(in_buckets(stage, StageOptions(), None, Workers(2))) as two:
            two.restore(one.snapshot())
            for epoch, delta in enumerate((went, never, came), 1):
                two.absorb(Tick(epoch), [delta, nothing])

            assert snapshot_counts(one.snapshot()["left"])[:3] == snapshot_counts(two.snapshot()["left"])[:3] == (0, 1, 0)


def test_state_is_parted_for_large_epochs_and_put_together_for_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "LARGE_ROWS", ROWS_APART)
    forms = []
    with Pipeline(joined(), threads=2) as two, Pipeline(joined()) as one:
        for epoch in (*epochs(3), *epochs(8, rows=40)):
            assert bag(two.step(epoch)) == bag(one.step(epoch))
            forms += are_parted(two)

        assert bag(two.contents()) == bag(one.contents())
    assert forms == [False, *[True] * 6, *[False] * 4]


def newest() -> View:
    orders = changes("orders", ORDERS, keys="id")
    return orders.dedup(keys="customer", order_by=["total", "id"])


@pytest.mark.parametrize("view", [grouped, newest], ids=["groups", "dedup"])
@pytest.mark.parametrize("threads", [(2, 2, 2), (1, 3, 2)], ids=["the same number", "another number"])
def test_a_directory_goes_on_with_any_number_of_threads(
    tmp_path: Path, threads: tuple[int, ...], view: Callable[[], View]
) -> None:
    with Pipeline(view()) as plain:
        for number, given in zip(threads, epochs(3), strict=True):
            epoch = {name: given[name] for name in plain.sources}
            with Pipeline(view(), tmp_path / "p", threads=number) as lasting:
                assert bag(lasting.step(epoch)) == bag(plain.step(epoch))
                assert bag(lasting.contents()) == bag(plain.contents())


@pytest.mark.usefixtures("parts_soon")
def test_an_epoch_that_one_bucket_refuses_changes_none() -> None:
    *before, last = epochs(3)
    with Pipeline(joined(), threads=3) as pipeline, Pipeline(joined()) as plain:
        for epoch in before:
            assert bag(pipeline.step(epoch)) == bag(plain.step(epoch))
        assert are_parted(pipeline) == {True}
        bad = last["orders"]
        ids = bad.rows.column("id").to_numpy().tolist()
        ids[-1] = None  # the last row breaks the contract, in one bucket
        rows = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), *bad.rows.columns[1:]], schema=ORDERS)
        with pytest.raises(BadInputError) as refused:
            pipeline.step({**last, "orders": ZSet(rows, bad.weights)})

        assert refused.value.code == "NULL_PRIMARY_KEY"
        assert pipeline.epoch == 2
        assert bag(pipeline.step(last)) == bag(plain.step(last))


def test_explain_lists_the_stages_that_are_parted_and_why_others_are_not() -> None:
    orders = changes("orders", ORDERS, keys="id")
    with Pipeline(orders.groupBy().agg(F.sum("total").alias("t")), threads=2) as pipeline:
        text = pipeline.explanation()
    with Pipeline(orders.groupBy().agg(F.sum("total").alias("t"))) as pipeline:
        alone = pipeline.explanation()

    assert "Threads: 2; rows are parted by key in stage 0" in text
    assert "stage 1 stays in one bucket: it has no key" in text
    assert "Threads" not in alone


@pytest.mark.parametrize("threads", [0, 65, True, 1.5])
def test_a_number_of_threads_that_is_none_is_refused(threads: Any) -> None:
    with pytest.raises(OptionError) as refused:
        Pipeline(joined(), threads=threads)

    assert refused.value.code == "OPTION_VALUE"
    assert repr(threads) in str(refused.value)


def test_what_the_first_task_raises_is_raised_once_all_have_ended() -> None:
    ended = threading.Event()

    def fails(text: str) -> None:
        raise ValueError(text)

    def takes_long() -> None:
        time.sleep(0.05)
        ended.set()

    workers = Workers(3)
    with pytest.raises(ValueError, match="first"):
        workers.run([lambda: fails("first"), lambda: fails("second"), takes_long])
    workers.close()

    assert ended.is_set()


def test_an_interrupt_waits_for_the_other_tasks() -> None:
    begun, ended = threading.Event(), threading.Event()

    def interrupted() -> None:
        begun.wait(10)
        raise KeyboardInterrupt

    def takes_long() -> None:
        begun.set()
        time.sleep(0.05)
        ended.set()

    workers = Workers(2)
    with pytest.raises(KeyboardInterrupt):
        workers.run([interrupted, takes_long])
    workers.close()

    assert ended.is_set()


def test_an_interrupt_while_it_waits_for_the_other_tasks_waits_for_them_as_well() -> None:
    begun, ended = threading.Event(), threading.Event()

    def ends_soon() -> None:
        begun.wait(10)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    def takes_long() -> None:
        begun.set()
        time.sleep(0.5)
        ended.set()

    workers = Workers(2)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            workers.run([ends_soon, takes_long])
        has_ended = ended.is_set()
    finally:
        signal.signal(signal.SIGINT, before)
        workers.close()

    assert has_ended


def test_what_no_thread_takes_at_the_end_of_the_interpreter_is_done_by_the_caller() -> None:
    workers, ended = Workers(2), ThreadPoolExecutor(1)
    ended.shutdown()
    workers._pool = ended

    assert workers.run([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]


def test_where_rows_were_is_forgotten_once_following_them_costs_more() -> None:
    keys = MovedKeys(2, bits=4)
    hashes = np.arange(10, dtype=np.int64) << 28
    keys.note(hashes, np.zeros(10, np.int64))
    keys.note(hashes, np.ones(10, np.int64))

    assert keys.of(hashes).tolist() == [3] * 10
    assert keys.follow(0)  # ten keys in sixteen places
    keys.clear(10)
    keys.note(hashes, np.ones(10, np.int64))

    assert keys.of(hashes).tolist() == [2] * 10
    assert not keys.follow(1 << 17)
    assert keys.follow(1)


@pytest.mark.usefixtures("parts_soon")
def test_rows_that_move_often_are_noted_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = []
    note = Bucketed._note_rows
    monkeypatch.setattr(Bucketed, "_note_rows", lambda self, number: (noted.append(number), note(self, number)))
    monkeypatch.setattr(MovedKeys, "follow", lambda _, deletes: deletes > 0)
    with Pipeline(joined(), threads=2) as two, Pipeline(joined()) as one:
        for epoch in epochs(3):
            assert bag(two.step(epoch)) == bag(one.step(epoch))

    assert set(noted) == {0}


@pytest.mark.usefixtures("parts_soon")
def test_groups_of_all_buckets_share_one_budget_of_memory() -> None:
    orders = changes("orders", ORDERS, keys="id")
    view = orders.groupBy("customer").agg(F.count().alias("n"), F.sum("total").alias("t"))
    options = StageOptions(table_budget=HotBudget.of("hybrid", 60))
    with Pipeline(view, threads=3, options=options) as three, Pipeline(view) as one:
        for epoch in epochs(4):
            given = {"orders": epoch["orders"]}
            assert bag(three.step(given)) == bag(one.step(given))

        assert True in are_parted(three)
        counts = [counts for name, counts in three.statistics().items() if name.startswith("aggregate")]
        assert counts[0]["groups"] == len(one.contents())
        assert counts[0]["hot_groups"] <= 60 < counts[0]["cold_groups"]
