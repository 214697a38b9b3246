"""An aggregate over a join: the worked example of the streaming join it follows, and money that never gets lost."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tests.epochs import Epochs, upsert
from zset_join.aggregates import AggregateCall
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet

# CREATE MUTABLE STREAM left_mu(i int, k string, k1 string) PRIMARY KEY (k, k1), and the same on the right.
LEFT = Relation(
    name="left_mu",
    schema=pa.schema({"i": pa.int32(), "k": pa.string(), "k1": pa.string()}),
    join_key=("k",),
    primary_key=("k", "k1"),
    mode="upsert",
)
RIGHT = Relation(
    name="right_mu",
    schema=pa.schema({"ii": pa.int32(), "kk": pa.string(), "kk1": pa.string()}),
    join_key=("kk",),
    primary_key=("kk", "kk1"),
    mode="upsert",
)
CALLS = [
    AggregateCall("count"),
    *(AggregateCall(function, column) for column in ("i", "ii") for function in ("min", "max", "avg")),
]


class JoinThenAggregate:
    """SELECT count(), min(i), max(i), avg(i), min(ii), max(ii), avg(ii) FROM left_mu JOIN right_mu ON k = kk."""

    def __init__(self) -> None:
        self.join = HashJoin(LEFT, RIGHT)
        self.aggregate = Epochs(Aggregate(self.join.output, [], CALLS))
        self.joined = Epochs(self.join)

    def insert_left(self, *rows: tuple[int, str, str]) -> tuple[object, ...]:
        """Insert, and return the row of the aggregate."""
        self.aggregate.feed(self.joined.feed(upsert(*rows), []))
        return self.row()

    def insert_right(self, *rows: tuple[int, str, str]) -> tuple[object, ...]:
        """Insert, and return the row of the aggregate."""
        self.aggregate.feed(self.joined.feed([], upsert(*rows)))
        return self.row()

    def row(self) -> tuple[object, ...]:
        """Return the one row that the answers so far add up to."""
        ((row, weight),) = self.aggregate.sum().items()
        assert weight == 1
        return row


def test_the_aggregate_equals_the_historical_query_after_every_insert() -> None:
    query = JoinThenAggregate()

    assert query.insert_left((1, "a", "b")) == (0, None, None, None, None, None, None)
    assert query.insert_right((11, "a", "bb")) == (1, 1, 1, 1.0, 11, 11, 11.0)
    assert query.insert_left((2, "a", "b")) == (1, 2, 2, 2.0, 11, 11, 11.0)
    assert query.insert_right((22, "a", "bb")) == (1, 2, 2, 2.0, 22, 22, 22.0)


def test_the_update_of_one_row_passes_through_all_rows_it_meets() -> None:
    query = JoinThenAggregate()
    query.insert_left((1, "k1", "kk1"), (2, "k1", "kk2"), (3, "k1", "kk3"))

    assert query.insert_right((4, "k1", "kk4"), (5, "k1", "kk5")) == (6, 1, 3, 2.0, 4, 5, 4.5)
    assert query.insert_right((55, "k1", "kk5")) == (6, 1, 3, 2.0, 4, 55, 29.5)


# ---------------------------------------------------------------- internal consistency

TRANSFERS, ACCOUNTS, EPOCHS, LATEST = 20_000, 500, 40, 5
HALF = pa.schema({"id": pa.int64(), "account": pa.int64(), "cents": pa.int64()})
CREDITS = Relation(name="credits", schema=HALF, join_key=("id",), primary_key=("id",), mode="upsert")
DEBITS = Relation(name="debits", schema=HALF, join_key=("id",), primary_key=("id",), mode="upsert")
BOOKINGS = Relation(name="bookings", schema=pa.schema({"account": pa.int64(), "cents": pa.int64()}), mode="changelog")


def halves(*, accounts_seed: int, delays_seed: int) -> list[ZSet]:
    """Return one half of all transfers, epoch by epoch; each arrives up to four epochs late, at random."""
    cents = np.random.default_rng(7).integers(1, 1_000_000, TRANSFERS)
    accounts = np.random.default_rng(accounts_seed).integers(0, ACCOUNTS, TRANSFERS)
    delays = np.random.default_rng(delays_seed).integers(0, LATEST, TRANSFERS)
    epochs = np.arange(TRANSFERS) * (EPOCHS - LATEST) // TRANSFERS + delays
    whole = pa.RecordBatch.from_arrays([pa.array(np.arange(TRANSFERS)), pa.array(accounts), pa.array(cents)], schema=HALF)
    return [ZSet.of(whole.take(pa.array(np.flatnonzero(epochs == epoch)))) for epoch in range(EPOCHS)]


def bookings(joined: ZSet) -> ZSet:
    """Return both sides of every transfer whose halves have met: less here, more there."""
    accounts = [joined.rows.column(name) for name in ("account", "account_right")]
    cents = joined.rows.column("cents").to_numpy()
    columns = [pa.concat_arrays(accounts), pa.array(np.concatenate([-cents, cents]))]
    return ZSet(pa.RecordBatch.from_arrays(columns, schema=BOOKINGS.schema), np.concatenate([joined.weights, joined.weights]))


class Chain:
    """Credits JOIN debits, booked, summed by account, and all balances summed up."""

    def __init__(self) -> None:
        self.join = HashJoin(CREDITS, DEBITS)
        self.balances = Aggregate(BOOKINGS, ["account"], [AggregateCall("sum", "cents", name="balance")])
        self.total = Aggregate(self.balances.output, [], [AggregateCall("sum", "balance"), AggregateCall("count")])

    def run(self, epoch: int, credit: ZSet, debit: ZSet) -> list[tuple[object, ...]]:
        """Feed one epoch through all stages; return the reported totals, if any."""
        emitted: list[tuple[object, ...]] = []
        tick, deltas = Tick(epoch), [credit, debit]
        for stage in (self.join, self.balances, self.total):
            answer = ZSet.concat(stage.answer(tick, deltas), schema=stage.output.schema)
            stage.absorb(tick, deltas)
            deltas = [bookings(answer) if stage is self.join else answer]
            emitted = [row for row, weight in answer.to_pylist() if weight > 0]
        return emitted


def test_no_money_appears_or_vanishes_at_any_epoch() -> None:
    chain = Chain()
    arrivals = zip(halves(accounts_seed=1, delays_seed=2), halves(accounts_seed=3, delays_seed=4), strict=True)

    emitted = [row for epoch, (credit, debit) in enumerate(arrivals) for row in chain.run(epoch, credit, debit)]

    assert {total for total, _ in emitted} == {0}
    assert emitted[-1] == (0, ACCOUNTS)
    assert chain.join.statistics()["left_rows"] == chain.join.statistics()["right_rows"] == TRANSFERS
