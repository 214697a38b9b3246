"""Groups with a budget: the same answers, groups that go to disk and come back as they were, and an honest full disk."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from faults.histories import grouped_history
from tests.built import built
from tests.epochs import Change, Epochs, delete, delta_of, insert
from zset_join.aggregates import AggregateCall, hybrid_groups
from zset_join.aggregates.hybrid_groups import HybridGroups
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, ResourceError, StateError
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.shapes.operator_options import OperatorOptions

A_LONG_SHOP, A_LONG_NOTE = "a shop with more than twelve bytes", "a note with more than twelve bytes"
SALES = Relation(
    name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.float64(), "note": pa.string()}), mode="changelog"
)
CALLS = [
    AggregateCall("count"),
    AggregateCall("sum", "price"),
    AggregateCall("max", "note"),
    AggregateCall("collect_list", "price"),
]
STORY: list[list[Change]] = [
    insert((A_LONG_SHOP, 1.5, "x"), ("B", 1e300, A_LONG_NOTE), (None, math.inf, None)),
    insert((A_LONG_SHOP, -0.0, A_LONG_NOTE), ("B", 0.25, "x")),
    [*delete(("B", 1e300, A_LONG_NOTE)), *insert(("C", 2.0, "c"))],
    [*delete((None, math.inf, None)), *delete((A_LONG_SHOP, 1.5, "x"))],
    insert((None, 3.0, "again"), ("B", 0.25, "x"), (A_LONG_SHOP, 1.5, "x")),
]


def hybrid(**options: Any) -> Aggregate:
    """Return totals per shop with no group in memory between epochs, unless options change that."""
    return built(Aggregate, SALES, ["shop"], CALLS, **{"max_hot_bytes": 0, **options})


def test_groups_on_disk_cannot_be_read_between_an_answer_and_its_epoch() -> None:
    with pytest.raises(StateError, match="without default_hash_table") as caught:
        next(hybrid().held())

    assert caught.value.code == "GROUPS_ON_DISK"


def test_a_busy_group_stays_in_memory() -> None:
    totals = hybrid(max_hot_bytes=None, max_hot_keys=8)
    epochs = Epochs(totals)

    for number in range(20):
        epochs.feed(insert(("busy", 1.0, None), (f"once {number}", 1.0, None)))

    assert totals.statistics()["fetched_groups"] == 0
    assert totals.statistics()["cold_groups"] >= 12


def test_the_smallest_budget_in_bytes_that_holds_everything_spills_nothing() -> None:
    totals = hybrid(max_hot_bytes=1 << 20)

    Epochs(totals).feed(insert(*((f"shop {number}", 1.0, A_LONG_NOTE) for number in range(1_000))))

    assert totals.statistics()["spilled_groups"] == 0
    small = hybrid(max_hot_bytes=100_000)
    Epochs(small).feed(insert(*((f"shop {number}", 1.0, A_LONG_NOTE) for number in range(1_000))))
    assert 0 < small.statistics()["hot_groups"] < 1_000


def test_a_group_with_many_values_is_reckoned_larger_and_one_that_is_gone_is_none() -> None:
    totals = hybrid(max_hot_bytes=1 << 30)
    epochs = Epochs(totals)
    epochs.feed(insert(*(("A", float(number), A_LONG_NOTE) for number in range(100)), ("B", 1.0, "x"), ("C", 1.0, "x")))
    epochs.feed(delete(("B", 1.0, "x")))
    groups = totals._input.hybrid
    assert groups is not None

    gone, small, large = sorted(groups._sizes().tolist())

    assert gone == -1
    assert large > 5 * small
    assert groups._group_bytes() - 2 <= small + large <= groups._group_bytes()


def test_a_full_disk_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = hybrid()
    hybrid_groups = totals._input.hybrid
    assert hybrid_groups is not None

    def full(_: object) -> None:
        raise ResourceError("the disk is full", code="COLD_STORE_IO")

    with monkeypatch.context() as patched:
        patched.setattr(hybrid_groups._cold, "store", full)
        totals.absorb(Tick(0), [delta_of(SALES, STORY[0])])
        held = totals.statistics()
        with pytest.raises(ResourceError, match="the disk is full"):
            list(totals.answer(Tick(1), [delta_of(SALES, STORY[1])]))
    answer = [line for chunk in totals.answer(Tick(1), [delta_of(SALES, STORY[1])]) for line in chunk.to_pylist()]
    totals.absorb(Tick(1), [delta_of(SALES, STORY[1])])

    assert (held["hot_groups"], held["postponed_spills"]) == (3, 1)
    assert len(answer) == 4
    assert (totals.statistics()["hot_groups"], totals.statistics()["groups"]) == (0, 3)


@pytest.mark.parametrize("is_mapped", [False, True], ids=["in memory", "mapped"])
@pytest.mark.parametrize("seed", range(4))
def test_memory_that_starts_over_is_not_seen_in_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int, is_mapped: bool
) -> None:
    monkeypatch.setattr(HybridGroups, "_is_loose", _has_groups_of_even_epochs)
    monkeypatch.setattr(hybrid_groups, "_PIECE_BYTES", 1)  # every group is a piece of its own
    monkeypatch.setattr(hybrid_groups, "_FETCHED_BYTES", 1)
    history = grouped_history(seed=seed, epochs=12, max_hot_keys=4)
    totals = history.build_join(str(tmp_path) if is_mapped else None)
    shown: Counter[Any] = Counter()

    for epoch in range(len(history.epochs)):
        for chunk in totals.answer(history.tick(epoch), history.deltas(epoch)):
            for row, weight in chunk.to_pylist():
                shown[row] += weight
        totals.absorb(history.tick(epoch), history.deltas(epoch))
        assert {row: weight for row, weight in shown.items() if weight} == history.expected[epoch]
        assert totals.statistics()["hot_groups"] == 0 or epoch % 2 == 0
        if is_mapped and epoch % 3 == 0:
            totals.close()
            totals = history.build_join(str(tmp_path))

    assert totals.statistics()["fetched_groups"] > 0
    assert sum(history.expected[-1].values()) == totals.statistics()["groups"] > totals.statistics()["hot_groups"]


def test_memory_starts_over_when_what_is_dead_keeps_it_above_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = hybrid(max_hot_bytes=96 << 20)
    epochs, groups = Epochs(totals), totals._input.hybrid
    assert groups is not None
    monkeypatch.setattr(groups._limit, "foresee", lambda **_: None)
    groups._limit.rows, groups._limit.held = 1 << 30, 200_000
    held, emptied = [], []

    for epoch in range(12):  # values outgrow their blocks
        epochs.feed(insert(*((f"shop {number}", epoch + part / 8, "a note") for number in range(100) for part in range(8))))
        held.append(totals._input.state.state_bytes())
        emptied.append(totals.statistics()["hot_groups"] == 0)

    assert max(held) <= 200_000 * 33 // 32
    assert (emptied[0], any(emptied), emptied[-1]) == (False, True, False)
    assert (totals.statistics()["groups"], totals.statistics()["spilled_groups"]) == (100, 100 * sum(emptied))


def test_cold_groups_of_an_operator_in_memory_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    totals = hybrid()
    totals.absorb(Tick(0), [delta_of(SALES, STORY[0])])

    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) > 0
    totals.close()
    assert list(tmp_path.iterdir()) == []


def test_mapped_groups_go_on_with_those_on_disk_and_without_them_are_refused(tmp_path: Path) -> None:
    epochs = Epochs(hybrid(directory=str(tmp_path), max_hot_bytes=None, max_hot_keys=1))
    for changes in STORY[:3]:
        epochs.feed(changes)
    list(epochs.operator.answer(Tick(3), [delta_of(SALES, STORY[3])]))  # groups have moved, nothing is absorbed
    epochs.operator.close()
    again = hybrid(directory=str(tmp_path), max_hot_bytes=None, max_hot_keys=1)
    opened = again.statistics()["groups"], again.absorbed_epoch
    answer = [line for chunk in again.answer(Tick(3), [delta_of(SALES, STORY[3])]) for line in chunk.to_pylist()]
    again.close()

    assert opened == (4, 2)
    assert sorted(weight for _, weight in answer) == [-1, -1, 1]
    with pytest.raises(StateError, match="another aggregate") as in_memory:
        Aggregate(SALES, ["shop"], CALLS, options=OperatorOptions(directory=str(tmp_path)))
    shutil.rmtree(tmp_path / "cold")
    with pytest.raises(StateError, match="are at epoch -1") as without:
        hybrid(directory=str(tmp_path), max_hot_bytes=None, max_hot_keys=1)
    assert (in_memory.value.code, without.value.code) == ("STATE_FINGERPRINT", "STATE_HALF_WRITTEN")


def test_the_one_group_of_all_rows_takes_no_budget() -> None:
    with pytest.raises(OptionError, match="group by a column") as refused:
        built(Aggregate, SALES, [], CALLS, max_hot_bytes=0)

    assert refused.value.code == "OPTION_VALUE"


def _has_groups_of_even_epochs(groups: HybridGroups) -> bool:
    return groups._state.groups > 0 and groups._state.absorbed_epoch % 2 == 0
