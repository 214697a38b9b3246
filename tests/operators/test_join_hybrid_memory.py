"""The process of a hybrid join stays within the budget, a delta and a tenth while rows come and go all the time, peaks included.

Run as a program it prints, per epoch: MB of the process after it, at the peak within it, and as the join says, beyond what the
process had before; and MB of the delta.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from zset_join import HashJoin, Relation, Tick, ZSet
from zset_join.state.unused_memory import UnusedMemory

Measured = npt.NDArray[np.float64]

BUDGET_MB = 100
LOADED, PER_EPOCH, CHANGED = 90, 10_000, 20
ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "k": pa.int64(), "price": pa.float64(), "word": pa.string()}),
    join_key=("k",),
    primary_key=("id",),
    mode="upsert",
)
CUSTOMERS = Relation(
    name="customers",
    schema=pa.schema({"k": pa.int64(), "credit": pa.int64()}),
    join_key=("k",),
    primary_key=("k",),
    mode="upsert",
)


def epochs(loaded: int, per_epoch: int, changed: int) -> Iterator[list[ZSet]]:
    """Yield new orders and customers, then changes of some of them, drawn uniformly."""
    random = np.random.default_rng(5)
    for epoch in range(loaded + changed):
        begin = epoch * per_epoch
        is_new = epoch < loaded
        ids = np.arange(begin, begin + per_epoch) if is_new else random.integers(0, loaded * per_epoch, per_epoch)
        keys = random.integers(0, loaded * per_epoch // 4, per_epoch)
        words = pa.array(["a word"] * 1000).take(pa.array(keys % 1000))
        few = np.arange(begin // 4, (begin + per_epoch) // 4) if is_new else keys[: per_epoch // 10]
        yield [
            ZSet.of(pa.record_batch([pa.array(ids), pa.array(keys), pa.array(keys / 3), words], schema=ORDERS.schema)),
            ZSet.of(pa.record_batch([pa.array(few), pa.array(few + epoch)], schema=CUSTOMERS.schema)),
        ]


def megabytes(name: str) -> float:
    """Return one size of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def run(join: HashJoin, loaded: int, per_epoch: int, changed: int) -> Iterator[list[float]]:
    """Run a join, and yield sizes after every epoch."""
    for number, deltas in enumerate(epochs(loaded, per_epoch, changed)):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        for chunk in join.answer(Tick(number), deltas):
            del chunk
        join.absorb(Tick(number), deltas)
        delta_mb = sum(delta.rows.nbytes + delta.weights.nbytes for delta in deltas) / (1 << 20)
        yield [megabytes("VmRSS"), megabytes("VmHWM"), join.resident_bytes() / (1 << 20), delta_mb]


def main() -> None:
    """Run a join to load the code, which is compiled code too, then measure another one like it."""
    list(
        run(HashJoin(ORDERS, CUSTOMERS, default_hash_join="hybrid", max_hot_bytes=BUDGET_MB << 20), LOADED, PER_EPOCH, CHANGED)
    )
    gc.collect()
    UnusedMemory().give_back(0)
    before = megabytes("VmRSS")
    join = HashJoin(ORDERS, CUSTOMERS, default_hash_join="hybrid", max_hot_bytes=BUDGET_MB << 20)
    for after, peak, said, delta_mb in run(join, LOADED, PER_EPOCH, CHANGED):
        sys.stdout.write(json.dumps([after - before, peak - before, said, delta_mb]) + "\n")
    counts = join.statistics()
    sys.stdout.write(json.dumps([counts["left_spilled_rows"], counts["left_fetched_rows"], counts["left_cold_rows"], 0]) + "\n")


@pytest.fixture(scope="module")
def measured() -> Measured:
    """Return what the program prints: a line per epoch, and at last how many rows were spilled, fetched and are on disk."""
    done = subprocess.run([sys.executable, "-m", __name__], check=True, capture_output=True, text=True)
    return np.array([json.loads(line) for line in done.stdout.splitlines()])


def test_a_join_that_spills_all_the_time_stays_within_its_budget(measured: Measured) -> None:
    resident, peak, _, delta = measured[:-1].T
    allowed = 1.1 * BUDGET_MB + delta.max()

    assert measured[-1][0] > 500_000, "rows were spilled"
    assert resident.max() <= allowed
    assert peak.max() <= allowed


def test_what_a_join_says_it_holds_is_within_a_tenth_of_what_the_process_holds(measured: Measured) -> None:
    resident, _, said, _ = measured[-1 - CHANGED : -1].T

    assert abs(np.mean(said / resident) - 1) < 0.1


if __name__ == "__main__":
    main()
