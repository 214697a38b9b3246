"""What does a route cost whose keys are mostly on disk, and what do deleted keys? `python -m benchmarks.hybrid_routes`.

**Routes.** Upserts of orders by primary key, with a sequence; the join key of an order changes each time. A route that has all
keys in memory and one with a budget of a tenth of their bytes answer the same epochs in turns, and must send as many rows.
Keys are drawn uniformly or by Zipf's law (exponent 1.1), or all of them fit the budget. As many epochs warm up as are measured.

**Deleted keys.** A join on the primary key, whose rows all come, all go, and half of them come again. The budget is that of
rows and tombstones. Reported are the size of the process beyond what it had before, and the join's own count.

Seed 7. Cost: two minutes. Results: `results/hybrid_routes.txt`.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.machine import describe_machine, versions
from zset_join.core.epochs import Tick
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Route
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.host_memory import resident_bytes
from zset_join.zset import ZSet

__all__ = ["main"]

SEED = 7
MB = 1 << 20
RESULTS = Path(__file__).resolve().parent / "results" / "hybrid_routes.txt"
LOADED_AT_ONCE = 100_000
Ids = npt.NDArray[np.int64]
Operator = Route | HashJoin

SCHEMA = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.float64(), "at": pa.int64()})
ORDERS = Relation(name="orders", schema=SCHEMA, join_key=("customer",), primary_key=("id",), sequence_by=("at",), mode="upsert")
BY_ID = Relation(name="orders", schema=SCHEMA, join_key=("id",), primary_key=("id",), sequence_by=("at",), mode="upsert")
CASES = (("zipf", 10_000, 80), ("zipf", 100_000, 16), ("uniform", 10_000, 80), ("uniform", 100_000, 16))
"""How keys are drawn, changes per epoch, and epochs that are measured."""


class Changes:
    """Draw the changes of some keys."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._random = np.random.default_rng(SEED)
        self._shuffled = self._random.permutation(keys)
        cumulated = np.cumsum(1.0 / np.arange(1, keys + 1) ** 1.1)
        self._cumulated = cumulated / cumulated[-1]
        self._sequence = 0

    def load(self) -> Iterator[ZSet]:
        """Yield all keys, one part after the other."""
        for begin in range(0, self._keys, LOADED_AT_ONCE):
            yield self.of(np.arange(begin, min(self._keys, begin + LOADED_AT_ONCE)))

    def drawn(self, how: str, count: int) -> ZSet:
        """Return changes of keys drawn uniformly or by Zipf's law."""
        if how == "zipf":
            return self.of(self._shuffled[np.searchsorted(self._cumulated, self._random.random(count))])
        return self.of(self._random.integers(0, self._keys, count))

    def of(self, ids: Ids, weight: int = 1) -> ZSet:
        """Return upserts, or deletes, of some keys."""
        self._sequence += 1
        customers = self._random.integers(0, self._keys // 3, len(ids))
        columns = [ids, customers, customers / 7, np.full(len(ids), self._sequence)]
        return ZSet.of(pa.record_batch(columns, schema=SCHEMA), np.full(len(ids), weight))


def step(operator: Operator, epoch: int, deltas: Sequence[ZSet]) -> tuple[float, int]:
    """Answer and absorb an epoch; return CPU seconds and the rows of the answer."""
    begin = time.process_time()
    rows = sum(len(chunk) for chunk in operator.answer(Tick(epoch), deltas))
    operator.absorb(Tick(epoch), deltas)
    return time.process_time() - begin, rows


def warm_up() -> None:
    """Compile, or load what was compiled."""
    for operator in (Route(ORDERS, options=OperatorOptions(budget=HotBudget(max_hot_bytes=0))), HashJoin(BY_ID, BY_ID)):
        for epoch in range(2):
            step(operator, epoch, [Changes(10).of(np.arange(10)) for _ in operator.inputs])


def in_turns(keys: int, budget: int, how: str, count: int, epochs: int) -> str:
    """Return a line of the report: a route in memory and one with a budget over the same epochs."""
    changes = Changes(keys)
    routes = Route(ORDERS), Route(ORDERS, options=OperatorOptions(budget=HotBudget(max_hot_bytes=budget)))
    epoch = 0
    for delta in changes.load():
        for route in routes:
            step(route, epoch, [delta])
        epoch += 1
    seconds: list[tuple[float, float]] = []
    for _ in range(2 * epochs):
        delta = changes.drawn(how, count)
        (one, sent), (other, sent_too) = (step(route, epoch, [delta]) for route in routes)
        if sent != sent_too:
            raise SystemExit(f"{how} {count}: the routes sent {sent} and {sent_too} rows")
        seconds.append((one, other))
        epoch += 1
    measured = seconds[epochs:]
    in_memory, hybrid = (sum(each) for each in zip(*measured, strict=True))
    rates = [count * epochs / each / 1000 for each in (in_memory, hybrid)]
    median = statistics.median(one / other for one, other in measured)
    sizes = [route.resident_bytes() / MB for route in routes]
    for route in routes:
        route.close()
    return (
        f"| {how} | {count} | {keys:,} | {budget // MB} | {rates[0]:.0f} | {rates[1]:.0f} | {100 * in_memory / hybrid:.0f} % "
        f"| {100 * median:.0f} % | {sizes[0]:.0f} | {sizes[1]:.0f} |"
    )


def deleted(keys: int, budget: int | None) -> Iterator[str]:
    """Yield lines of the report: all rows arrive, go, and half of them come again."""
    changes, count = Changes(keys), 20_000
    warm_up()
    other = Relation(name="prices", schema=pa.schema({"id": pa.int64()}), join_key=("id",), primary_key=("id",), mode="upsert")
    nothing = ZSet.empty(other.schema)
    gc.collect()
    before = resident_bytes()
    options = OperatorOptions(budget=None if budget is None else HotBudget(max_hot_bytes=budget))
    join = HashJoin(BY_ID, other, options=options)
    parts: dict[str, Callable[[Ids], ZSet]] = {
        "come": changes.of,
        "go": lambda ids: changes.of(ids, -1),
        "come again": changes.of,
    }
    epoch = 0
    for name, made in parts.items():
        ids = np.arange(keys) if name != "come again" else changes._random.permutation(keys)[: keys // 2]
        seconds = 0.0
        for begin in range(0, len(ids), count):
            seconds += step(join, epoch, [made(ids[begin : begin + count]), nothing])[0]
            epoch += 1
        resident, emitted = (resident_bytes() - before) / MB, join.resident_bytes() / MB
        limit = "none" if budget is None else f"{budget // MB}"
        yield f"| {name} | {len(ids):,} | {limit} | {len(ids) / seconds / 1000:.0f} | {resident:.0f} | {emitted:.0f} |"
    join.close()


def report(keys: int) -> Iterator[str]:
    """Yield the lines of the report, measuring on the way."""
    yield json.dumps({**describe_machine(), **versions(), "keys": keys})
    warm_up()
    yield from _heading(
        "keys", "changes per epoch", "of keys", "budget MB", "k/s in memory", "k/s hybrid", "speed", "median epoch", "MB", "MB"
    )
    budget = keys * 80 // 10
    for how, count, epochs in CASES:
        yield in_turns(keys, budget, how, count, epochs)
    for count in (10_000, 100_000):
        yield in_turns(keys // 4, keys * 120, "uniform", count, 16)
    yield from _heading("rows", "how many", "budget MB", "k per CPU second", "resident MB", "counted MB")
    for limit in (64 * MB, 0):
        arguments = [sys.executable, "-m", "benchmarks.hybrid_routes", "--deleted", f"{keys // 4}", "--budget", f"{limit}"]
        yield subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.rstrip()


def _heading(*names: str) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results, those of the default size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=8_000_000)
    parser.add_argument("--deleted", type=int, help="of these keys, only what deleting them takes, in this process")
    parser.add_argument("--budget", type=int, default=64 * MB, help="bytes, with --deleted; 0: all in memory")
    given = parser.parse_args(arguments)
    if given.deleted:
        print("\n".join(deleted(given.deleted, given.budget or None)))
        return 0
    kept = []
    for line in report(given.keys):
        print(line, flush=True)
        kept.append(line)
    if given.keys == parser.get_default("keys"):
        RESULTS.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
