"""Cost of durable epochs, of opening a bucket, and of recovery.

One bucket, orders and customers, 100,000 changes per epoch, both ways on the same epochs in one process, by turns:

- *kept*: the operator over mapped files answers and absorbs; nothing is written for a crash.
- *durable*: what the Spark runner does around the same operator. Take the bucket's lock, check its stamp, read the log of the
  epoch before and fold it, answer, write the log of this epoch, wait for the disk, commit.

Wall-clock time, because waiting for the disk is what it is about; the fastest, the median and the slowest of all epochs are
printed. *Opening* is entering a bucket whose local state is warm and has nothing to fold, in the worker that had it last and in
another one. *Recovery* is entering it after its local state was wiped, from a snapshot: rows per second of one core.

Inside Spark an epoch of this size takes about fifteen times as long, so there the same cost is a small share.

`python -m benchmarks.durability` runs it alone.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.measure import run_apart
from benchmarks.report import Goal
from benchmarks.workloads import RIGHT, Epoch, OrdersCustomers
from zset_join.checkpoint.bucket import BucketState, close_kept_operators
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.core.epochs import Tick
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["DURABILITY_LABEL", "Durability", "durability_goals", "durability_lines", "measure_durability"]

DURABILITY_LABEL = "durability"
SCALE = 250_000
EPOCH_CHANGES = 100_000
EPOCHS = 12
WARM_UP_EPOCHS = 2
OPENINGS = 100
RECOVERIES = 5
_KEY = "join/0"


@dataclass(frozen=True, kw_only=True)
class Durability:
    """The results; times are wall-clock, each as (minimum, median, maximum)."""

    state_rows: int
    kept_ms: tuple[float, float, float]
    durable_ms: tuple[float, float, float]
    reopen_ms: tuple[float, float, float]
    open_ms: tuple[float, float, float]
    recovery_rows_per_second: tuple[float, float, float]


def measure_durability() -> Durability:
    """Measure in a process of its own.

    Raises:
        CellError: that process failed.
    """
    found = json.loads(run_apart("benchmarks.durability", "--here"))
    return Durability(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


def durability_lines(found: Durability) -> list[str]:
    """Return the printed table."""
    lines = ["", f"durability, one bucket of {found.state_rows:,} rows, {EPOCH_CHANGES:,} changes per epoch, wall clock"]
    for name, unit, values in (
        ("an epoch, state kept only", "ms", found.kept_ms),
        ("an epoch, durable", "ms", found.durable_ms),
        ("opening, in the same worker", "ms", found.reopen_ms),
        ("opening, in another worker", "ms", found.open_ms),
        ("recovery from a snapshot", "rows/s", found.recovery_rows_per_second),
    ):
        low, middle, high = (f"{value:,.0f}" if value > 1000 else f"{value:.2f}" for value in values)
        lines.append(f"{name:<28} min {low:>12}  median {middle:>12}  max {high:>12}  {unit}")
    return lines


def durability_goals(found: Durability) -> list[Goal]:
    """Return the goals that the measurement decides."""
    return [
        Goal(
            sentence="throughput of a durable epoch, times that of one that is only kept",
            measured=found.kept_ms[1] / found.durable_ms[1],
            bound=0.75,
        ),
        Goal(
            sentence="ms to open a warm bucket in another worker (median)",
            measured=found.open_ms[1],
            bound=5.0,
            at_least=False,
        ),
        Goal(
            sentence="million rows per second recovered from a snapshot (median)",
            measured=found.recovery_rows_per_second[1] / 1e6,
            bound=1.0,
        ),
    ]


class _OneBucket:
    """A query of one bucket, driven the way the Spark runner drives it."""

    def __init__(self, place: Path, workload: OrdersCustomers) -> None:
        self._workload = workload
        self._local = place / "local"
        location = str(place / "checkpoint")
        self._owner = Ownership.claim(checkpoint_folder(location), "benchmark")
        self._checkpoint = Checkpoint(
            location,
            query_id="benchmark",
            buckets=1,
            description={},
            local_state_dir=str(self._local),
            retain_input_log=True,
            owner=self._owner,
        )

    def _build(self, directory: str | None) -> DurableOperator:
        return HashJoin(*self._workload.relations, options=OperatorOptions(directory=directory))

    def enter(self, *, snapshot: bool = False) -> BucketState:
        """Return the bucket before the next epoch."""
        epoch = 0 if self._checkpoint.last is None else self._checkpoint.last.epoch + 1
        context = self._checkpoint.stage("join", Tick(epoch))
        return BucketState(replace(context, snapshot_buckets=frozenset([0] if snapshot else [])), 0, self._build)

    def run(self, deltas: Sequence[ZSet], *, snapshot: bool = False) -> None:
        """Answer an epoch and commit it."""
        with self.enter(snapshot=snapshot) as state:
            tick = state.context.tick
            answer = list(state.operator.answer(tick, deltas))
            log = state.log(deltas)
        del answer
        histories = dict(self._checkpoint.before(tick.epoch))
        history = histories.get(_KEY, BucketHistory())
        if state.snapshot is not None:
            history = history.with_snapshot(state.snapshot)
        if log is not None:
            history = history.with_log(log)
        record = CommitRecord(
            query_id="benchmark", epoch=tick.epoch, processing_time_us=tick.processing_time_us, histories={_KEY: history}
        )
        self._checkpoint.commit(replace(record, progress={}))

    def forget_local_state(self) -> None:
        """Lose what the host keeps."""
        shutil.rmtree(self._local, ignore_errors=True)

    def close(self) -> None:
        """Release the checkpoint."""
        self._owner.release()


def _load(workload: OrdersCustomers) -> list[tuple[ZSet, ZSet]]:
    """Return the first rows as epochs."""
    loads = []
    for side in (0, 1):
        for rows in workload.initial(side):
            nothing = ZSet.empty(workload.relations[1 - side].schema)
            loads.append((nothing, ZSet.of(rows)) if side == RIGHT else (ZSet.of(rows), nothing))
    return loads


def _measure_here() -> Durability:
    workload = OrdersCustomers(SCALE)
    epochs = workload.epochs(WARM_UP_EPOCHS + EPOCHS, EPOCH_CHANGES)
    with tempfile.TemporaryDirectory(prefix="zset_join-durability-") as name:
        place = Path(name)
        kept_ms, durable_ms = _by_turns(workload, epochs, place)
        reopen_ms, open_ms, recovered = _open_and_recover(workload, place / "recovery")
    return Durability(
        state_rows=workload.state_rows,
        kept_ms=_spread(kept_ms),
        durable_ms=_spread(durable_ms),
        reopen_ms=_spread(reopen_ms),
        open_ms=_spread(open_ms),
        recovery_rows_per_second=_spread(recovered),
    )


def _by_turns(workload: OrdersCustomers, epochs: Sequence[Epoch], place: Path) -> tuple[list[float], list[float]]:
    (place / "kept").mkdir()
    kept = HashJoin(*workload.relations, options=OperatorOptions(directory=str(place / "kept")))
    durable = _OneBucket(place, workload)
    for number, deltas in enumerate(_load(workload)):
        kept.absorb(Tick(number), deltas)
        durable.run(deltas)
    kept_ms, durable_ms = [], []
    for number, epoch in enumerate(epochs, start=kept.absorbed_epoch + 1):
        started = time.perf_counter()
        answer = list(kept.answer(Tick(number), epoch.deltas))
        kept.absorb(Tick(number), epoch.deltas)
        del answer
        middle = time.perf_counter()
        durable.run(epoch.deltas)
        durable_ms.append((time.perf_counter() - middle) * 1000)
        kept_ms.append((middle - started) * 1000)
    kept.close()
    durable.close()
    return kept_ms[WARM_UP_EPOCHS:], durable_ms[WARM_UP_EPOCHS:]


def _open_and_recover(workload: OrdersCustomers, place: Path) -> tuple[list[float], list[float], list[float]]:
    place.mkdir()
    bucket = _OneBucket(place, workload)
    for deltas in _load(workload):
        bucket.run(deltas)
    bucket.run([ZSet.empty(relation.schema) for relation in workload.relations], snapshot=True)
    reopen_ms, open_ms = [], []
    with bucket.enter():
        pass
    for _ in range(OPENINGS):
        started = time.perf_counter()
        with bucket.enter():
            reopen_ms.append((time.perf_counter() - started) * 1000)
        close_kept_operators()
        started = time.perf_counter()
        with bucket.enter():
            open_ms.append((time.perf_counter() - started) * 1000)
    recovered = []
    for _ in range(RECOVERIES):
        close_kept_operators()
        bucket.forget_local_state()
        started = time.perf_counter()
        with bucket.enter():
            recovered.append(workload.state_rows / (time.perf_counter() - started))
    bucket.close()
    return reopen_ms, open_ms, recovered


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)


if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:
        print(json.dumps(asdict(_measure_here())))
    else:
        outcome = measure_durability()
        print("\n".join([*durability_lines(outcome), "", *(goal.line() for goal in durability_goals(outcome))]))
