"""A pipeline with a lookup join whose disk fails somewhere: nothing is lost, nothing doubled, and no call is made twice.

Every file operation of an epoch may be the one that fails, before or after it was done, as if the process had died there. The
pipeline is opened again and given the same epoch. The outside changes meanwhile, so an answer that was not taken from the
journal would show.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from zset_join.core.errors import ZsetJoinError
from zset_join.lookup import Lookup
from zset_join.pipeline import Pipeline, changes
from zset_join.stages.stage import StageOptions
from zset_join.storage.operations import Operation, observe
from zset_join.testing.lookups import FakeClock, ScriptedSource
from zset_join.zset import ZSet

ORDERS = {"o": pa.int64(), "who": pa.int64()}
SCHEMA = pa.schema({"id": pa.int64(), "at": pa.int64()})


class _Dying:
    """Let the n-th operation on a file of the checkpoint fail."""

    def __init__(self, after: int, *, done: bool) -> None:
        self._left, self._done = after, done
        self.has_failed = False

    def __call__(self, _operation: Operation, act: Callable[[], Any]) -> Any:
        if self.has_failed:
            raise OSError("the process is dead")
        self._left -= 1
        if self._left == 0:
            self.has_failed = True
            if self._done:
                act()
            raise OSError("the process dies here")
        return act()


def _pipeline(directory: str, source: ScriptedSource, clock: FakeClock) -> Pipeline:
    hint = Lookup(
        async_=False,
        retry_predicate="lookup_miss",
        retry_strategy="fixed_delay",
        fixed_delay="10s",
        max_attempts=2,
        park="epochs",
    )
    view = changes("orders", ORDERS, keys="o").lookup_join(source, on=[("who", "id")], how="left", hint=hint)
    return Pipeline(view, directory, options=StageOptions(more={"lookup_clock": clock}))


@given(data=st.data())
def test_an_epoch_that_died_anywhere_is_answered_once_and_fetches_once(data: st.DataObject) -> None:
    clock = FakeClock()
    source = ScriptedSource("table", SCHEMA, clock=clock)
    for second in range(0, 200, 2):  # the table changes every two seconds
        for key in (1, 2):
            source.put({"id": key, "at": second}, at=second, until=second + 2)
    emitted: dict[Any, int] = {}
    with tempfile.TemporaryDirectory() as directory:
        pipeline = _pipeline(directory, source, clock)
        for epoch in range(data.draw(st.integers(1, 4))):
            rows = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=3))
            came = [{"o": order, "who": who} for order, who in rows]
            dying = _Dying(data.draw(st.integers(1, 60)), done=data.draw(st.booleans()))
            time_us = clock.now_us()
            before = len(source.calls)
            answer: ZSet | None = None
            try:
                with observe(dying):
                    answer = pipeline.step({"orders": came}, processing_time=time_us, epoch=epoch)
            except (OSError, ZsetJoinError):
                assert dying.has_failed
            first = source.calls[before:]
            if answer is None:
                journaled = any("/fetched/" in name for name in _files(directory))
                clock.sleep(2.0)
                pipeline.close()
                pipeline = _pipeline(directory, source, clock)
                answer = pipeline.step({"orders": came}, processing_time=time_us, epoch=epoch)
                again = source.calls[before + len(first) :]
                assert not (journaled and again), "a call was made although its answer was journaled"
            for row, weight in answer.to_pylist():
                emitted[row] = emitted.get(row, 0) + weight
            clock.sleep(data.draw(st.sampled_from([1.0, 4.0, 11.0])))
        held = {row: weight for row, weight in emitted.items() if weight}
        assert all(weight == 1 for weight in held.values())
        shown = [tuple(row.values()) for row in pipeline.view().to_pylist()]
        assert sorted(shown, key=repr) == sorted(held, key=repr)
        assert len({row[0] for row in held}) == len(held)
        pipeline.close()


def _files(directory: str) -> list[str]:
    return [path.as_posix() for path in Path(directory).rglob("*.arrow")]
