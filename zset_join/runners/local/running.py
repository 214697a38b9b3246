"""Run a pipeline over sources: poll them, take an epoch, keep their positions with it, and so on.

The law: after a stop at any moment, killed or not, starting again takes every row of every source exactly once. The position
of a source is committed with the epoch that took its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sources.source import Source

__all__ = ["run"]


def run(
    pipeline: Pipeline,
    sources: Mapping[str, Source],
    *,
    available_now: bool = False,
    most_rows: int = 100_000,
    trigger_seconds: float = 0.5,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Run epochs until `stop` is set.

    Args:
        pipeline: the pipeline.
        sources: by the names of its sources; they are opened at its positions, and closed at the end.
        available_now: stop as soon as no source has rows.
        most_rows: of one source in one epoch.
        trigger_seconds: how long to wait for rows before an epoch is taken without any, which lets time pass.
        stop: checked before every epoch.

    Returns:
        The number of epochs taken.

    Raises:
        PlanError: a source that the pipeline does not have.
        ZsetJoinError: raised by a source or an epoch; the pipeline keeps its position.
    """
    unknown = sorted(set(sources) - {source.name for source in pipeline.plan.sources})
    if unknown:
        raise PlanError(
            f"run() was given the sources {unknown}; the pipeline has {[source.name for source in pipeline.plan.sources]}.",
            code="UNKNOWN_SOURCE",
            names=unknown,
        )
    epochs = 0
    try:
        for name, source in sources.items():
            source.open(pipeline.positions.get(name))
        while not stop():
            rows, positions = _polled(sources, most_rows, trigger_seconds)
            if available_now and not rows:
                break
            pipeline.step(rows, positions=positions)
            epochs += 1
    finally:
        for source in sources.values():
            source.close()
    return epochs


def _polled(sources: Mapping[str, Source], most_rows: int, seconds: float) -> tuple[dict[str, pa.Table], dict[str, object]]:
    """Return the rows of every source that has some, and the positions behind them."""
    until = time.monotonic() + seconds
    rows: dict[str, pa.Table] = {}
    positions: dict[str, object] = {}
    for name, source in sources.items():
        # The first one may wait; every other is polled once.
        left = until - time.monotonic() if not rows else 0.0
        batch, position = source.poll(most_rows=most_rows, wait_seconds=max(left / max(1, len(sources)), 0.02))
        if batch.num_rows:
            rows[name], positions[name] = batch, position
    return rows, positions
