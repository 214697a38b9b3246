"""Memory that allocators keep is given back where it is much, and left to them where it is little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zset_join.state.unused_memory import UnusedMemory, resident_bytes

MB = 1 << 20


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


def test_a_host_that_does_not_tell_is_never_asked_for_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zset_join.state.unused_memory._STATM", Path("/nowhere"))

    assert not UnusedMemory().give_back(0)
