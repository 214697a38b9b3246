"""Is the total of all accounts 0 at every epoch, and at what rate? `python -m benchmarks.consistency [transfers] [epochs]`.

Transfers between accounts arrive as two halves, a credit and a debit, each up to four epochs late and out of order. The
halves are joined by transfer, booked on both accounts, summed by account, and all balances are summed up. Money that appears
or vanishes for a moment, as it does where a join or an aggregate shows half an epoch, makes a total other than 0.

Every epoch's total is checked; the rate counts both halves by the CPU seconds of all stages. One thread.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.report import machine_lines
from zset_join.aggregates import AggregateCall
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet

__all__ = ["Transfers", "run"]

ACCOUNTS, LATEST = 100_000, 5
HALF = pa.schema({"id": pa.int64(), "account": pa.int64(), "cents": pa.int64()})
CREDITS = Relation(name="credits", schema=HALF, join_key=("id",), primary_key=("id",), mode="upsert")
DEBITS = Relation(name="debits", schema=HALF, join_key=("id",), primary_key=("id",), mode="upsert")
BOOKINGS = Relation(name="bookings", schema=pa.schema({"account": pa.int64(), "cents": pa.int64()}), mode="changelog")


class Transfers:
    """One half of all transfers, epoch by epoch.

    Args:
        transfers: how many.
        epochs: in how many epochs they arrive, the late ones included.
        seed: of accounts and delays; amounts are those of any other half.
    """

    def __init__(self, transfers: int, epochs: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._cents = np.random.default_rng(7).integers(1, 1_000_000, transfers)
        self._accounts = random.integers(0, ACCOUNTS, transfers)
        arrivals = np.arange(transfers) * (epochs - LATEST + 1) // transfers + random.integers(0, LATEST, transfers)
        self._order: npt.NDArray[np.int64] = np.argsort(arrivals, kind="stable")
        self._bounds = np.searchsorted(arrivals[self._order], np.arange(epochs + 1))

    def epoch(self, number: int) -> ZSet:
        """Return the halves that arrive in an epoch."""
        chosen = self._order[self._bounds[number] : self._bounds[number + 1]]
        columns = [pa.array(chosen), pa.array(self._accounts[chosen]), pa.array(self._cents[chosen])]
        return ZSet.of(pa.RecordBatch.from_arrays(columns, schema=HALF))


def _bookings(joined: ZSet) -> ZSet:
    accounts = [joined.rows.column(name) for name in ("account", "account_right")]
    cents = joined.rows.column("cents").to_numpy()
    columns = [pa.concat_arrays(accounts), pa.array(np.concatenate([-cents, cents]))]
    rows = pa.RecordBatch.from_arrays(columns, schema=BOOKINGS.schema)
    return ZSet(rows, np.concatenate([joined.weights, joined.weights]))


def run(transfers: int, epochs: int) -> str:
    """Run all epochs and return what was seen.

    Raises:
        AssertionError: a total other than 0, or a transfer that was never booked.
    """
    pa.set_cpu_count(1)
    join = HashJoin(CREDITS, DEBITS)
    balances = Aggregate(BOOKINGS, ["account"], [AggregateCall("sum", "cents", name="balance")])
    total = Aggregate(balances.output, [], [AggregateCall("sum", "balance", name="total"), AggregateCall("count")])
    taken, given = Transfers(transfers, epochs, 1), Transfers(transfers, epochs, 2)
    emitted, cpu_seconds, booked = 0, 0.0, 0
    for epoch in range(epochs):
        tick, deltas = Tick(epoch), [taken.epoch(epoch), given.epoch(epoch)]
        begin = time.process_time()
        for stage in (join, balances, total):
            answer = ZSet.concat(stage.answer(tick, deltas), schema=stage.output.schema)
            stage.absorb(tick, deltas)
            booked += len(answer) if stage is join else 0
            deltas = [_bookings(answer) if stage is join else answer]
        cpu_seconds += time.process_time() - begin
        lines = [row for row, weight in answer.to_pylist() if weight > 0]
        assert all(row[0] in (0, None) for row in lines), f"epoch {epoch}: the total is {lines}"
        emitted += len(lines)
    assert booked == transfers, f"{booked} of {transfers} transfers were booked"
    rate = 2 * transfers / cpu_seconds
    return (
        f"{transfers:,} transfers in {epochs:,} epochs: the total was emitted {emitted} times and was 0 whenever it was; "
        f"{rate:,.0f} halves per CPU second through join and two aggregates"
    )


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:3]] or [10_000_000, 1_000]
    print("\n".join([*machine_lines(), run(*arguments)]))
