"""Memory that allocators keep is given back where it is much, and left to them where it is little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zset_join.state.unused_memory import CAN_TELL, UnusedMemory, let_go, resident_bytes

MB = 1 << 20
needs_telling = pytest.mark.skipif(not CAN_TELL, reason="the allocator of this host does not tell how much it keeps free")


@pytest.fixture(autouse=True)
def nobody_else_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what joins of other tests hold, and what other tests have freed."""
    UnusedMemory().give_back(0)
    monkeypatch.setattr(UnusedMemory, "_held", {})
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


@needs_telling
def test_what_allocators_keep_is_told_and_what_is_held_is_not() -> None:
    memory = UnusedMemory()
    memory.give_back(0)
    before = memory.kept_bytes(0)
    arrays = [np.ones(1 << 13) for _ in range(800)]
    last = arrays.pop()
    held = memory.kept_bytes(50 * MB)
    arrays.clear()

    kept = memory.kept_bytes(0)

    assert kept - before > 30 * MB
    assert held - before < 10 * MB
    assert last.sum() == 1 << 13


@needs_telling
def test_what_allocators_keep_is_shared_by_those_who_watch() -> None:
    memory = UnusedMemory()
    memory.give_back(0)
    arrays = [np.ones(1 << 13) for _ in range(800)]
    last = arrays.pop()
    arrays.clear()
    alone = memory.kept_bytes(0)

    others = [UnusedMemory() for _ in range(3)]

    assert len(others) == 3
    assert memory.kept_bytes(0) < alone / 2
    assert last.sum() == 1 << 13


@needs_telling
def test_what_somebody_held_who_has_closed_is_held_by_nobody() -> None:
    memory, other = UnusedMemory(), UnusedMemory()
    memory.give_back(0)
    arrays = [np.ones(1 << 13) for _ in range(800)]
    last = arrays.pop()
    arrays.clear()
    other.give_back(1 << 40, held_bytes=50 * MB)
    told = memory.kept_bytes(0)

    other.close()
    other.give_back(1 << 40, held_bytes=50 * MB)

    assert memory.kept_bytes(0) - told > 30 * MB
    assert last.sum() == 1 << 13


def test_what_the_process_has_for_another_reason_is_not_what_allocators_keep() -> None:
    memory = UnusedMemory()
    memory.give_back(0)
    before = memory.kept_bytes(0)
    output = np.ones(8 << 20)  # a mapping of its own, which is no free piece of a heap

    assert memory.kept_bytes(0) - before < 16 * MB
    assert output.nbytes == 64 * MB


def test_where_the_allocator_tells_nothing_nothing_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zset_join.state.unused_memory._tell", None)

    assert UnusedMemory().kept_bytes(0) == 0


def test_an_array_that_was_let_go_takes_no_memory_and_can_be_filled_again() -> None:
    array = np.ones(4 << 20)
    before = resident_bytes()

    let_go(array)

    assert before - resident_bytes() > 30 * MB
    array[:] = 2
    assert array.sum() == 8 << 20


def test_what_is_around_an_array_stays_when_it_is_let_go() -> None:
    array = np.ones(1 << 16)

    let_go(array[100:60_000])
    let_go(array[60_100:60_101])

    assert array[:100].sum() == 100
    assert array[60_000:].sum() == (1 << 16) - 60_000


def test_a_host_that_does_not_tell_is_never_asked_for_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zset_join.state.unused_memory._STATM", Path("/nowhere"))

    assert not UnusedMemory().give_back(0)
