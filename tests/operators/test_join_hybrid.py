"""A join with a budget: the same answers, rows that go to disk and come back as they were, and memory that stays small."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spill.duckdb_pages import DuckDBPages
from spill.file_pages import FilePages
from tests.built import built
from tests.epochs import Change, Epochs, delete, net, upsert
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, ResourceError, StateError
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.cold import hybrid_rows
from zset_join.state.rows.host_memory import UnusedMemory
from zset_join.zset import ZSet

ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "k": pa.string(), "text": pa.string()}),
    join_key=("k",),
    primary_key=("id",),
    mode="upsert",
)
CUSTOMERS = Relation(
    name="customers",
    schema=pa.schema({"k": pa.string(), "name": pa.string()}),
    join_key=("k",),
    primary_key=("k",),
    mode="upsert",
)
A_LONG_TEXT = "a text that is longer than twelve bytes"
STORY: list[tuple[list[Change], list[Change]]] = [
    (upsert((1, "a", A_LONG_TEXT), (2, "b", ""), (3, None, None)), upsert(("a", "Ada"), ("b", A_LONG_TEXT))),
    (upsert((1, "b", "moved")), []),
    ([], upsert(("b", "Bob"))),
    (delete((2, None, None)), upsert(("c", "Cy"))),
    (upsert((3, "c", "found")), delete(("a", None))),
    (upsert((4, "a", "alone")), delete(("b", None))),
]


@pytest.fixture(autouse=True)
def allocators_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out of the reported bytes what the allocators of this process keep, which other tests share."""
    monkeypatch.setattr(UnusedMemory, "correction", lambda *_, **__: 0)


def hybrid(how: str = "inner", **options: Any) -> HashJoin:
    """Return the join of orders and customers with nothing in memory between epochs, unless options change that."""
    return built(HashJoin, ORDERS, CUSTOMERS, how, **{"max_hot_bytes": 0, **options})


def many_orders(rows: int, *, first: int = 0, keys: int = 1000) -> ZSet:
    ids = np.arange(first, first + rows)
    return ZSet.of({"id": ids, "k": [f"customer {number % keys}" for number in ids], "text": [A_LONG_TEXT] * rows})


def many_customers(rows: int) -> ZSet:
    """Return customers, the first of `many_orders`."""
    return ZSet.of({"k": [f"customer {number}" for number in range(rows)], "name": [A_LONG_TEXT] * rows})


# ---------------------------------------------------------------- the budget


def test_memory_holds_no_more_than_the_budget_and_the_working_arrays() -> None:
    join = hybrid(max_hot_bytes=2_000_000)
    nobody = ZSet.empty(CUSTOMERS.schema)
    for epoch in range(40):
        join.absorb(Tick(epoch), [many_orders(5_000, first=5_000 * epoch), nobody])
    counts = join.statistics()

    assert counts["left_rows"] == 200_000
    assert counts["left_hot_rows"] + counts["left_cold_rows"] == 200_000
    assert 1_000_000 < counts["hot_bytes"] <= 2_000_000
    rows_and_index = join.resident_bytes() - join.working_bytes()
    assert rows_and_index - counts["left_cold_index_bytes"] < 2_000_000 * (1 + 1 / 16 + 1 / 2), "small budgets are spared"


@pytest.mark.parametrize(
    ("working_bytes", "least", "most"),
    [
        (0, 1_100_000, 2_000_000),
        (12 << 20, 1_100_000, 2_000_000),
        ((16 << 20) + 800_000, 400_000, 600_000),
        (1 << 30, 300_000, 400_000),
    ],
)
def test_working_arrays_take_room_from_rows_up_to_two_thirds_of_it(working_bytes: int, least: int, most: int) -> None:
    join = hybrid(max_hot_bytes=2_000_000)
    join.absorb(Tick(0), [many_orders(9_000), ZSet.empty(CUSTOMERS.schema)])
    state: Any = join._hybrid

    state.spill_to_budget(working_bytes)

    assert least < join.statistics()["hot_bytes"] < most


def test_memory_follows_when_working_arrays_take_room_from_rows() -> None:
    join = hybrid(max_hot_bytes=20_000_000)
    nobody = ZSet.empty(CUSTOMERS.schema)
    for epoch in range(14):
        join.absorb(Tick(epoch), [many_orders(20_000, first=20_000 * epoch), nobody])
    state: Any = join._hybrid
    before = join.resident_bytes() - join.working_bytes()

    state.spill_to_budget(state._limit.spared + 8_000_000)  # which leaves 12 MB for rows

    held = join.resident_bytes() - join.working_bytes()
    assert 15_000_000 < before < 20_000_000
    assert held < 12_000_000 * 17 / 16
    answer = join.answer(Tick(14), [ZSet.empty(ORDERS.schema), ZSet.of({"k": ["customer 7"], "name": ["Ada"]})])
    assert sum(len(chunk) for chunk in answer) == 280


def test_of_a_large_budget_less_than_half_is_freed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybrid_rows, "_MOST_SLACK_BYTES", 100_000)
    join = hybrid(max_hot_bytes=2_000_000)

    join.absorb(Tick(0), [many_orders(20_000), ZSet.empty(CUSTOMERS.schema)])

    assert 1_850_000 < join.statistics()["hot_bytes"] <= 1_900_000


def test_rows_that_every_epoch_looks_at_stay_while_others_can_go() -> None:
    join = hybrid(max_hot_bytes=2_000_000, hash_seed=1)  # by some seeds a filter takes a new key for one of its own
    busy, nobody = many_orders(8_000), ZSet.empty(CUSTOMERS.schema)

    for epoch in range(12):
        new = many_orders(1_000, first=100_000 + 1_000 * epoch)
        deltas = [ZSet.concat([busy, new], schema=busy.schema), nobody]
        list(join.answer(Tick(epoch), deltas))
        join.absorb(Tick(epoch), deltas)

    counts = join.statistics()
    assert (counts["left_fetched_rows"], counts["left_rows"]) == (0, 20_000)
    assert counts["left_cold_rows"] > 7_000
    assert counts["hot_bytes"] <= 2_000_000


def test_a_larger_epoch_finds_room_before_it_is_looked_up() -> None:
    join = hybrid(max_hot_bytes=40_000_000)
    nobody = ZSet.empty(CUSTOMERS.schema)
    for epoch in range(20):
        join.absorb(Tick(epoch), [many_orders(10_000, first=10_000 * epoch), nobody])
    before = join.statistics()["hot_bytes"]

    answer = join.answer(Tick(20), [many_orders(100_000, first=200_000), nobody])

    assert sum(len(chunk) for chunk in answer) == 0
    assert before > 28_000_000
    assert join.statistics()["hot_bytes"] <= 20_000_000
    assert join.resident_bytes() - join.working_bytes() < 20_000_000 * 17 / 16


def test_tables_do_not_double_where_there_is_no_room() -> None:
    join = hybrid(max_hot_bytes=99_000_000)  # of which the rows have 84 MB, and take them when both tables are about to double
    nobody = ZSet.empty(CUSTOMERS.schema)
    most = 0
    for epoch in range(75):
        ids = np.arange(10_000 * epoch, 10_000 * (epoch + 1))
        join.absorb(
            Tick(epoch), [ZSet.of({"id": ids, "k": [f"c{number}" for number in ids], "text": ["short"] * 10_000}), nobody]
        )
        most = max(most, join.resident_bytes() - join.working_bytes())

    assert join.statistics()["left_cold_rows"] > 0
    assert most < 84_000_000


def test_runs_stay_few_when_only_fetching_spills() -> None:
    join = hybrid(max_hot_bytes=1_000_000)
    random = np.random.default_rng(0)
    nobody = ZSet.empty(CUSTOMERS.schema)
    for epoch in range(20):
        join.absorb(Tick(epoch), [many_orders(5_000, first=5_000 * epoch), nobody])

    for epoch in range(20, 60):
        ids = random.permutation(100_000)[:2_000]
        again = ZSet.of({"id": ids, "k": [f"customer {n % 1000}" for n in ids], "text": [f"{epoch}"] * 2_000})
        join.absorb(Tick(epoch), [again, nobody])

    assert join._hybrid.cold_side(0)._rows.statistics()["runs"] <= 12  # type: ignore[union-attr]


def test_an_index_without_room_in_the_budget_leaves_the_process() -> None:
    joins = [hybrid(max_hot_bytes=budget) for budget in (100_000, 10_000_000)]
    for join in joins:
        for epoch in range(3):
            join.absorb(Tick(epoch), [many_orders(60_000, first=60_000 * epoch), ZSet.empty(CUSTOMERS.schema)])
    small, large = (join.resident_bytes() - join.working_bytes() for join in joins)
    index = [join.statistics()["left_cold_index_bytes"] for join in joins]

    assert min(index) > 300_000
    assert small < 2 * 100_000 + 1_700_000  # of which 1.6 MB are the records that may wait to be used again
    assert index[1] < large < 1.6 * 10_000_000


def test_what_is_read_and_not_changed_is_not_written_again() -> None:
    join = hybrid()
    epochs = Epochs(join)
    epochs.feed((), upsert(("a", "Ada")))
    epochs.feed(upsert((1, "a", "x")))
    counts = join.statistics()

    assert (counts["right_fetched_rows"], counts["right_spilled_rows"], counts["right_restored_rows"]) == (1, 2, 1)


def test_a_row_that_is_read_again_and_again_stays_in_memory() -> None:
    join = hybrid(max_hot_bytes=None, max_hot_keys=20)
    epochs = Epochs(join)
    epochs.feed((), upsert(*((f"k{number}", "x") for number in range(200))))
    for number in range(30):
        epochs.feed(upsert((1, "k7", f"busy {number}"), (10 + number, f"k{50 + number}", "once")))
    before = join.statistics()["right_fetched_rows"]

    epochs.feed(upsert((1, "k7", "busy once more")))

    assert join.statistics()["right_fetched_rows"] == before


def test_nothing_is_fetched_and_nothing_written_while_all_fits() -> None:
    join = hybrid(max_hot_bytes=1 << 30)
    Epochs(join).feed_all(STORY)
    counts = join.statistics()

    assert (counts["left_cold_rows"], counts["left_cold_disk_bytes"], counts["left_spilled_rows"]) == (0, 0, 0)


@pytest.mark.parametrize(("medium", "pages"), [("files", FilePages), ("duckdb", DuckDBPages)])
def test_an_epoch_of_many_keys_makes_one_bulk_fetch_per_lookup(
    medium: str, pages: type[FilePages | DuckDBPages], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    read = pages.read

    def counted(self: Any, runs: Any, page_runs: Any, *rest: Any, **options: Any) -> Any:
        fetched.append(len(page_runs))
        return read(self, runs, page_runs, *rest, **options)

    monkeypatch.setattr(pages, "read", counted)

    def questions(changed: int) -> int:
        join = hybrid("full", cold_store=medium)
        for epoch in range(2):
            deltas = [many_orders(2000, first=2000 * epoch), many_customers(1000)]
            list(join.answer(Tick(epoch), deltas))
            join.absorb(Tick(epoch), deltas)
        fetched.clear()
        list(join.answer(Tick(2), [many_orders(changed), many_customers(changed)]))
        requested = len(fetched)
        join.close()
        return requested

    # Per side: its rows by primary key, the rows of the keys that changed, the witnesses of matches; a fetch of many megabytes
    # comes in several parts.
    requested = [questions(changed) for changed in (3, 30, 900)]

    assert all(2 <= count <= 8 for count in requested)


# ---------------------------------------------------------------- snapshots


def test_restoring_respects_the_budget_on_the_way() -> None:
    whole = HashJoin(ORDERS, CUSTOMERS)
    whole.absorb(Tick(0), [many_orders(300_000), ZSet.empty(CUSTOMERS.schema)])
    join = hybrid(max_hot_bytes=4_000_000)

    join.restore(whole.snapshot())

    assert join.statistics()["left_rows"] == 300_000
    assert join.resident_bytes() - join.working_bytes() < 0.6 * (whole.resident_bytes() - whole.working_bytes())


def test_restoring_makes_no_room_in_files_for_rows_that_go_to_disk(tmp_path: Path) -> None:
    whole = HashJoin(ORDERS, CUSTOMERS)
    whole.absorb(Tick(0), [many_orders(300_000), ZSet.empty(CUSTOMERS.schema)])
    join = hybrid(max_hot_bytes=4_000_000, directory=str(tmp_path / "state"))

    join.restore(whole.snapshot())

    records = join._sides[0].arena
    assert records._rows.capacity < 0.6 * whole._sides[0].arena.record_bytes()
    join.close()


# ---------------------------------------------------------------- directories


def test_state_of_a_hybrid_join_is_refused_by_a_join_in_memory_and_the_reverse(tmp_path: Path) -> None:
    hybrid(directory=str(tmp_path)).close()

    with pytest.raises(StateError, match="STATE_FINGERPRINT"):
        HashJoin(ORDERS, CUSTOMERS, options=OperatorOptions(directory=str(tmp_path)))


def test_a_join_sees_that_another_process_has_changed_its_files(tmp_path: Path) -> None:
    kept = Epochs(hybrid(directory=str(tmp_path)))
    kept.feed(*STORY[0])
    assert kept.operator.is_current()  # type: ignore[attr-defined]

    for side in kept.operator._sides:  # type: ignore[attr-defined]
        side._release()  # another process has a lock of its own only once this one is released
    other = hybrid(directory=str(tmp_path))
    assert kept.operator.is_current()  # type: ignore[attr-defined]
    Epochs(other, first_epoch=1).feed(*STORY[1])

    assert other.is_current()
    assert not kept.operator.is_current()  # type: ignore[attr-defined]


def test_damaged_cold_rows_are_refused_then_and_afterwards(tmp_path: Path) -> None:
    join = hybrid(directory=str(tmp_path))
    epochs = Epochs(join)
    epochs.feed(*STORY[0])
    for pages in tmp_path.rglob("*.pages"):
        pages.write_bytes(b"\xff" * len(pages.read_bytes()))

    for _ in range(2):
        with pytest.raises(StateError):
            epochs.feed(*STORY[2])
    join.close()

    with pytest.raises(StateError, match="STATE_HALF_WRITTEN"):
        hybrid(directory=str(tmp_path))


def test_a_process_killed_while_rows_move_leaves_state_that_is_refused(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from tests.operators.test_join_hybrid import STORY, hybrid\n"
        "from tests.epochs import Epochs\n"
        "join = hybrid(directory=sys.argv[1])\n"
        "epochs = Epochs(join)\n"
        "epochs.feed(*STORY[0])\n"
        "join._hybrid.cold_side(0).hot.insert = lambda *found: os.kill(os.getpid(), signal.SIGKILL)\n"
        "epochs.feed(*STORY[2])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)

    with pytest.raises(StateError, match="STATE_HALF_WRITTEN"):
        hybrid(directory=str(tmp_path))
    assert ended.returncode == -9


def test_cold_files_of_a_join_in_memory_go_when_it_is_closed_or_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    joins = [hybrid() for _ in range(2)]
    for join in joins:
        Epochs(join).feed(*STORY[0])
    assert len(list(tmp_path.iterdir())) == 2

    joins.pop().close()
    del joins[:], join
    gc.collect()

    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- a disk that is full


def test_a_full_disk_lets_the_epoch_through_and_stops_the_next_one_before_anything_is_applied() -> None:
    join = hybrid()
    epochs = Epochs(join)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spill.run_store.RunStore.put_parts", _full)
        patch.setattr("spill.pair_store.PairStore.put", _full)
        epochs.feed(*STORY[0])
        with pytest.raises(ResourceError, match="COLD_STORE_IO"):
            epochs.feed(*STORY[1])
        assert join.statistics()["postponed_spills"] == 1

    answers = epochs.feed_all(STORY[1:])

    expected = Epochs(HashJoin(ORDERS, CUSTOMERS))
    assert answers == expected.feed_all(STORY)[1:]
    assert net(epochs.history) == net(expected.history)


def _full(*_: object) -> None:
    raise ResourceError("no space is left", code="COLD_STORE_IO")


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_hot_bytes": None}, "max_hot_bytes, max_hot_keys or both"),
        ({"max_hot_bytes": -1}, "max_hot_bytes was given -1"),
        ({"max_hot_keys": True}, "max_hot_keys was given True"),
        ({"max_hot_keys": 2.5}, "max_hot_keys was given 2.5"),
        ({"join_max_buffered_bytes": 5}, "are not both"),
    ],
)
def test_a_budget_that_is_none_is_refused_when_the_join_is_built(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        hybrid(**options)


def test_cold_rows_of_another_epoch_are_refused(tmp_path: Path) -> None:
    join = hybrid(directory=str(tmp_path))
    Epochs(join).feed(*STORY[0])
    kept = {path.name: path.read_bytes() for path in (tmp_path / "cold" / "left.rows").iterdir()}
    Epochs(join, first_epoch=1).feed(*STORY[1])
    join.close()
    (tmp_path / "cold" / "left.rows" / "store.json").write_bytes(kept["store.json"])
    for name, content in kept.items():
        (tmp_path / "cold" / "left.rows" / name).write_bytes(content)

    with pytest.raises(StateError, match="STATE_HALF_WRITTEN"):
        hybrid(directory=str(tmp_path))
