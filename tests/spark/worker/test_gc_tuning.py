"""What a worker has loaded for good is omitted from later collections, and nothing else is."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from zset_join.runners.spark.worker import gc_tuning
from zset_join.runners.spark.worker.gc_tuning import Spared


class Knot:
    """An object that only a collection removes: it holds itself."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Knot.alive += 1

    def __del__(self) -> None:
        Knot.alive -= 1


@pytest.fixture(autouse=True)
def unspared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a test does to the collector of this process."""
    monkeypatch.setattr(Spared, "times", 0)
    yield
    gc.unfreeze()


def test_what_is_there_is_looked_at_no_more() -> None:
    Spared.loaded()

    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 10_000


def test_what_is_made_later_and_what_was_garbage_before_is_collected() -> None:
    Knot()
    Spared.loaded()
    Knot()

    gc.collect()

    assert Knot.alive == 0


def test_a_process_is_spared_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_tuning, "_LEAST_OBJECTS", -1)
    [Spared.loaded() for _ in range(100)]

    assert Spared.times == 8
