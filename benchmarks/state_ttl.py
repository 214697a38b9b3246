"""What does `state_ttl` cost a join, beside the same join with retractions written by hand?

    python -m benchmarks.state_ttl [--epochs 24]

Two append-only sides, keys drawn from a million, one epoch per second, rows live for ten. In the same run:

- `grows`: the join without `state_ttl`; it retracts nothing, and its state grows for ever;
- `by hand`: the join without it, fed with the rows of ten epochs ago again, with weight -1;
- `state_ttl`: retracts them itself; also with `forget`, and with `refreshed_by="read"`.

Printed: rows of the input per CPU second, median over the epochs after the first twelve; the slowest of these epochs; bytes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.expiring import Expiring, ExpiringInput, TimeToLive
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
KEYS, LIFE_EPOCHS, WARM_UP, SECOND = 1_000_000, 10, 12, 1_000_000


def relation(name: str, mode: Any = "changelog") -> Relation:
    return Relation(name=name, schema=SCHEMA, join_key=("k",), mode=mode)


def plain() -> HashJoin:
    return HashJoin(relation("left"), relation("right"))


def expiring(**words: bool) -> Expiring:
    lives = TimeToLive(after=LIFE_EPOCHS * SECOND, **words)
    inputs = [
        ExpiringInput(relation=relation(name, "append"), key=("k",), key_types=(pa.int64(),), null_safe=(False,), ttl=lives)
        for name in ("left", "right")
    ]
    return Expiring(plain(), inputs)


def history(rows: int, epochs: int) -> list[list[ZSet]]:
    """Return the rows of every epoch, half of them for each side."""
    draw, half = np.random.default_rng(1), rows // 2
    made = []
    for epoch in range(epochs):
        sides = []
        for side in range(2):
            values = np.arange(half) + (2 * epoch + side) * half
            columns = [pa.array(draw.integers(0, KEYS, half)), pa.array(values)]
            sides.append(ZSet(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), np.ones(half, np.int64)))
        made.append(sides)
    return made


def by_hand(epochs: list[list[ZSet]]) -> list[list[ZSet]]:
    """Return the same epochs, each with what ended in it."""
    before = [[]] * LIFE_EPOCHS + epochs
    return [
        [ZSet.concat([one, ZSet(old.rows, -old.weights)], schema=SCHEMA) for one, old in zip(sides, gone, strict=True)]
        if gone
        else sides
        for sides, gone in zip(epochs, before, strict=False)
    ]


def measure(operator: Any, epochs: list[list[ZSet]]) -> tuple[list[float], int]:
    spent = []
    for epoch, deltas in enumerate(epochs):
        tick = Tick(epoch, processing_time_us=epoch * SECOND)
        started = time.process_time()
        for _ in operator.answer(tick, deltas):
            pass
        operator.absorb(tick, deltas)
        spent.append(time.process_time() - started)
    return spent[WARM_UP:], operator.resident_bytes()


def main() -> None:
    """Print a line per size and contestant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=24)
    count = parser.parse_args().epochs
    for rows in (1_000, 10_000, 100_000):
        given = history(rows, count)
        contestants: list[tuple[str, Any, list[list[ZSet]]]] = [
            ("grows", plain(), given),
            ("by hand", plain(), by_hand(given)),
            ("state_ttl", expiring(), given),
            ("state_ttl, forget", expiring(forgets=True), given),
            ("state_ttl, read", expiring(reads=True), given),
        ]
        for name, operator, epochs in contestants:
            spent, size = measure(operator, epochs)
            middle = statistics.median(spent)
            print(
                f"{rows:>7,} rows  {name:<18} {rows / middle:>10,.0f} rows per CPU second, slowest {max(spent) / middle:.1f} "
                f"times the median, {size / 1e6:.1f} MB"
            )
            operator.close()


if __name__ == "__main__":
    main()
