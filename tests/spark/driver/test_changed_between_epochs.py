"""A change of a query on executors between two epochs: what an epoch commits meanwhile, and what fails behind the commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from zset_join.core.errors import StateError
from zset_join.runners.local import directory_plans
from zset_join.runners.spark.driver import changing_executors
from zset_join.runners.spark.driver.changing_executors import evolve_executors, undo_executors


class _Awaited:
    """A lock that an epoch holds, which commits before it is released."""

    def __init__(self, checkpoint: Any) -> None:
        self._checkpoint = checkpoint

    def __enter__(self) -> None:
        self._checkpoint.last = SimpleNamespace(epoch=6)

    def __exit__(self, *_: object) -> None:
        pass


def _runner(**changed: Any) -> Any:
    checkpoint = SimpleNamespace(
        last=SimpleNamespace(epoch=5), changed=SimpleNamespace(changes=1, epoch=5, undo_epochs=9), query_id="q"
    )
    options = SimpleNamespace(checkpoint_location="/cp", undo_epochs=9)
    return SimpleNamespace(
        **{"checkpoint": checkpoint, "options": options, "lock": threading.Lock(), "has_ended": False, **changed}
    )


def test_an_undo_that_waits_for_an_epoch_does_not_narrow_the_columns_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    widened: Any = SimpleNamespace(source="orders", dropped=(), is_widened=True, renamed={})
    monkeypatch.setattr(directory_plans, "columns_of_change", lambda _: (widened,))
    runner = _runner()
    runner.lock = _Awaited(runner.checkpoint)

    with pytest.raises(StateError, match="UNDO_COLUMNS"):
        undo_executors(runner, (None, None))  # type: ignore[arg-type]  # nothing is read of them


def test_a_query_has_ended_where_something_fails_behind_the_commit_of_its_change(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = _runner()

    class Changed:
        def __init__(self, **_: Any) -> None:
            pass

        @contextmanager
        def built(self, *_: Any, **__: Any) -> Iterator[Any]:
            evolution = SimpleNamespace(new_views=lambda _: [], origin=SimpleNamespace(plan=None))
            yield SimpleNamespace(commit=committed, evolution=evolution)
            raise OSError("the lease cannot be removed")

    def committed(*_: Any, **__: Any) -> None:
        runner.checkpoint.last = SimpleNamespace(epoch=6)

    monkeypatch.setattr(changing_executors, "ChangedCheckpoint", Changed)

    with pytest.raises(OSError, match="the lease"):
        evolve_executors(runner, None, runner)  # type: ignore[arg-type]  # nothing is read of them
    assert runner.has_ended
