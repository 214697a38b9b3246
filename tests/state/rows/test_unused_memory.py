"""Memory that allocators keep is given back where it is much, and left to them where it is little."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from zset_join.state.rows import host_memory
from zset_join.state.rows.host_memory import UnusedMemory, release, resident_bytes

MB = 1 << 20


@dataclass
class Process:
    """What the host and the allocator report of a process, in bytes."""

    resident: int = 1000
    free: int = 0


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    """Return a process whose sizes the test sets, since those of a process that ran other tests depend on them."""
    process = Process()
    monkeypatch.setattr("zset_join.state.rows.host_memory.resident_bytes", lambda: process.resident)
    monkeypatch.setattr("zset_join.state.rows.host_memory._free_bytes", lambda: process.free)
    return process


@pytest.fixture(autouse=True)
def nobody_else_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what joins of other tests hold."""
    monkeypatch.setattr(UnusedMemory, "_held", {})
    monkeypatch.setattr(UnusedMemory, "_unsure", {})
    monkeypatch.setattr(UnusedMemory, "_found", 0)


def test_what_was_freed_is_given_back() -> None:
    memory = UnusedMemory()
    memory.give_back(0)
    arrays = [np.ones(1 << 13) for _ in range(800)]  # 50 MB in pieces that come from one heap
    last = arrays.pop()
    arrays.clear()
    before = resident_bytes()

    given = memory.give_back(8 * MB)

    assert given
    assert before - resident_bytes() > 30 * MB
    assert last.sum() == 1 << 13


def test_little_is_left_to_the_allocators() -> None:
    memory = UnusedMemory()
    memory.give_back(0)

    assert not memory.give_back(64 * MB)


def test_what_is_held_no_more_is_given_back_though_the_process_has_not_grown() -> None:
    memory = UnusedMemory()
    arrays = [np.ones(1 << 13) for _ in range(800)]
    last = arrays.pop()
    memory.give_back(0, held_bytes=50 * MB)
    arrays.clear()

    assert memory.give_back(8 * MB, held_bytes=0)
    assert last.sum() == 1 << 13


def test_what_an_epoch_held_meanwhile_is_not_taken_for_what_is_always_there(process: Process) -> None:
    memory = UnusedMemory()
    process.resident = 300
    memory.give_back(0)
    memory.remember()
    process.resident = 450
    assert memory.give_back(100)  # what is left is what the epoch holds
    process.resident = 420

    assert not memory.give_back(100)
    memory.recall()
    assert memory.give_back(100)


@pytest.mark.parametrize(
    ("grown", "given", "expected"),
    [
        pytest.param(30, {"held_bytes": 0}, 30, id="what the process had before is not kept"),
        pytest.param(30, {"held_bytes": 20}, 10, id="nor is what is held"),
        pytest.param(100, {"held_bytes": 0}, 40, id="no more than is free"),
        pytest.param(100, {"held_bytes": 0, "more_bytes": 20}, 60, id="pages that are not full"),
        pytest.param(100, {"held_bytes": 0, "more_bytes": 80}, 100, id="as far as they are there"),
        pytest.param(100, {"held_bytes": 130, "less_bytes": 50}, -30, id="files that nobody looked at"),
        pytest.param(100, {"held_bytes": 190, "less_bytes": 50}, -50, id="not more than they are"),
        pytest.param(100, {"held_bytes": 90, "less_bytes": 50}, 10, id="files that somebody looked at"),
        pytest.param(-1000, {"held_bytes": 0}, 0, id="a host that reports no resident size"),
    ],
)
def test_what_is_beyond_what_is_held_is_kept_by_allocators_as_far_as_it_is_free(
    process: Process, grown: int, given: dict[str, int], expected: int
) -> None:
    process.free = 40
    memory = UnusedMemory()
    process.resident += grown

    assert memory.correction(**given) == expected


def test_what_allocators_keep_is_shared_by_those_who_watch(process: Process) -> None:
    process.free = 300
    watching = [UnusedMemory() for _ in range(3)]
    process.resident += 120

    assert [memory.correction(10) for memory in watching] == [110 // 3, 100 // 3, 90 // 3]


def test_what_is_not_in_memory_is_taken_off_those_who_may_miss_it(process: Process) -> None:
    large, small = UnusedMemory(), UnusedMemory()
    process.resident += 20
    large.correction(100, less_bytes=90)

    assert small.correction(10, less_bytes=10) == -9  # of 110 that are held 90 are absent
    assert large.correction(100, less_bytes=90) == -81
    assert small.correction(10) == 0


def test_what_somebody_held_who_has_closed_is_held_by_nobody(process: Process) -> None:
    process.free = 300
    memory, other = UnusedMemory(), UnusedMemory()
    process.resident += 120
    other.give_back(1 << 40, held_bytes=50)
    assert memory.correction(0) == 70 // 2

    other.close()
    other.give_back(1 << 40, held_bytes=50)

    assert memory.correction(0) == 120


def test_where_the_allocator_reports_nothing_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zset_join.state.rows.host_memory._report", None)

    assert UnusedMemory().correction(0) == 0


def test_an_array_that_was_released_takes_no_memory_and_can_be_filled_again() -> None:
    array = np.ones(4 << 20)
    before = resident_bytes()

    release(array)

    assert before - resident_bytes() > 30 * MB
    array[:] = 2
    assert array.sum() == 8 << 20


def test_what_is_around_an_array_stays_when_it_is_released() -> None:
    array = np.ones(1 << 16)

    release(array[100:60_000])
    release(array[60_100:60_101])

    assert array[:100].sum() == 100
    assert array[60_000:].sum() == (1 << 16) - 60_000


def test_without_a_resident_size_no_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zset_join.state.rows.host_memory._STATM", Path("/nowhere"))

    assert not UnusedMemory().give_back(0)


def test_budgets_of_the_same_size_are_in_company_until_they_are_closed() -> None:
    of_three = [UnusedMemory(12_345_677) for _ in range(3)]
    other = UnusedMemory(12_345_678)

    assert [memory.shared_budgets() for memory in of_three] == [(3, 3 * 12_345_677)] * 3
    assert other.shared_budgets() == (1, 12_345_678)
    of_three[0].close()
    assert of_three[1].shared_budgets() == (2, 2 * 12_345_677)


def test_arrow_keeps_at_most_what_it_once_held_and_holds_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    process, pool = Process(), SimpleNamespace(max_memory=lambda: 100, bytes_allocated=lambda: 40)
    monkeypatch.setattr(host_memory, "resident_bytes", lambda: process.resident)
    monkeypatch.setattr(host_memory, "_report", lambda: SimpleNamespace(fordblks=7))
    monkeypatch.setattr(host_memory.pa, "default_memory_pool", lambda: pool)
    memory = UnusedMemory()

    process.resident += 1000

    assert memory.correction(0) == 67
