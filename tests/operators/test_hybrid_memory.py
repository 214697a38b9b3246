"""A process stays within the budget, a delta and a tenth while rows or groups come and go all the time, peaks included.

Run as a program, with the operator, how many epochs are loaded, their rows, how many change rows and the budget in MB, it
prints the sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.built import built
from tests.process_memory import Measured, measured_apart, print_sizes
from tests.sweeps import some_of
from zset_join import HashJoin, Relation, ZSet
from zset_join.aggregates import AggregateCall
from zset_join.core.epochs import Tick
from zset_join.core.options import HotBudget
from zset_join.expressions import left, right
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.upsert_table import Route
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.host_memory import CAN_REPORT

RUNS = [
    ("join", 90, 10_000, 20, 64),
    ("join", 18, 60_000, 8, 100),
    ("aggregate", 150, 10_000, 20, 100),
    ("aggregate", 20, 100_000, 6, 100),
    ("values", 100, 20_000, 20, 100),
    ("buckets", 90, 10_000, 20, 100),
    ("residual", 18, 60_000, 8, 100),
    ("route", 150, 10_000, 20, 64),
    ("deletes", 120, 10_000, 90, 64),
]
"""The operator, how many epochs are loaded, their rows, how many change rows, and the budget in MB."""
SMALL_RUNS = [
    ("join", 60, 10_000, 20, 9),
    ("values", 40, 20_000, 10, 20),
    ("aggregate", 90, 10_000, 20, 9),
    ("buckets", 60, 10_000, 20, 20),
    ("route", 60, 10_000, 20, 9),
]
"""The same, of budgets that leave no room for what an epoch needs beside the rows."""
FLOOR_MB = 60
LEAST_MB = 2
"""The reported and the real bytes may differ by that where nearly everything was just spilled."""
BUCKETS = 4
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
VERSIONED = Relation(
    name="versioned orders",
    schema=pa.schema({"id": pa.int64(), "k": pa.int64(), "at": pa.int64()}),
    join_key=("k",),
    primary_key=("id",),
    mode="upsert",
    sequence_by=("at",),
)
SALES = Relation(
    name="sales", schema=pa.schema({"shop": pa.int64(), "price": pa.int64(), "tax": pa.float64()}), mode="changelog"
)


def join_epochs(loaded: int, per_epoch: int, changed: int) -> Iterator[list[ZSet]]:
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


def versioned_epochs(loaded: int, per_epoch: int, changed: int, *, deletes: bool) -> Iterator[list[ZSet]]:
    """Yield new orders, then changes of some of them drawn uniformly, or deletes of all of them one after the other."""
    random = np.random.default_rng(5)
    for epoch in range(loaded + changed):
        begin, is_new = epoch % loaded * per_epoch, epoch < loaded
        in_turn = is_new or deletes
        ids = np.arange(begin, begin + per_epoch) if in_turn else random.integers(0, loaded * per_epoch, per_epoch)
        columns = [pa.array(ids), pa.array(random.integers(0, loaded * per_epoch // 4, per_epoch)), pa.array(ids * 0 + epoch)]
        weight = -1 if deletes and not is_new else 1
        yield [ZSet.of(pa.record_batch(columns, schema=VERSIONED.schema), np.full(per_epoch, weight))]


def aggregate_epochs(loaded: int, per_epoch: int, changed: int) -> Iterator[list[ZSet]]:
    """Yield sales in new shops, then in some of them, drawn uniformly."""
    random = np.random.default_rng(5)
    for epoch in range(loaded + changed):
        begin = epoch * per_epoch
        shops = np.arange(begin, begin + per_epoch) if epoch < loaded else random.integers(0, loaded * per_epoch, per_epoch)
        yield [ZSet.of(pa.record_batch([pa.array(shops), pa.array(shops % 7), pa.array(shops / 3)], schema=SALES.schema))]


def values_epochs(loaded: int, per_epoch: int, changed: int) -> Iterator[list[ZSet]]:
    """Yield sales that are all different, six in each shop, then in some shops, drawn uniformly."""
    random, shops_in_all = np.random.default_rng(5), loaded * per_epoch // 6
    for epoch in range(loaded + changed):
        begin = epoch * per_epoch
        is_new = epoch < loaded
        shops = np.arange(begin, begin + per_epoch) % shops_in_all if is_new else random.integers(0, shops_in_all, per_epoch)
        prices = random.integers(0, 1 << 40, per_epoch)
        yield [ZSet.of(pa.record_batch([pa.array(shops), pa.array(prices), pa.array(prices / 3)], schema=SALES.schema))]


class Buckets:
    """Joins of a part of the keys each, with an equal share of the budget, as the buckets of a query in one process."""

    def __init__(self, budget: int) -> None:
        self._joins = [
            HashJoin(ORDERS, CUSTOMERS, options=OperatorOptions(budget=HotBudget(max_hot_bytes=budget // BUCKETS)))
            for _ in range(BUCKETS)
        ]
        self._split: list[list[ZSet]] = []

    def answer(self, tick: Tick, deltas: list[ZSet]) -> Iterator[ZSet]:
        buckets = [delta.rows.column("k").to_numpy() % BUCKETS for delta in deltas]
        self._split = [
            [ZSet.of(delta.rows.filter(pa.array(of == bucket))) for delta, of in zip(deltas, buckets, strict=True)]
            for bucket in range(BUCKETS)
        ]
        for join, parts in zip(self._joins, self._split, strict=True):
            yield from join.answer(tick, parts)

    def absorb(self, tick: Tick, deltas: list[ZSet]) -> None:  # noqa: ARG002 - they were split for the answer
        for join, parts in zip(self._joins, self._split, strict=True):
            join.absorb(tick, parts)

    def resident_bytes(self) -> int:
        return sum(join.resident_bytes() for join in self._joins)

    def statistics(self) -> dict[str, int]:
        counts = [join.statistics() for join in self._joins]
        return {name: sum(count[name] for count in counts) for name in counts[0]}


def main(operator: str, loaded: int, per_epoch: int, changed: int, budget_mb: int) -> None:
    budget = budget_mb << 20
    if operator == "buckets":
        print_sizes(lambda: Buckets(budget), lambda: join_epochs(loaded, per_epoch, changed))
    elif operator in ("route", "deletes"):
        print_sizes(
            lambda: Route(VERSIONED, options=OperatorOptions(budget=HotBudget(max_hot_bytes=budget))),
            lambda: versioned_epochs(loaded, per_epoch, changed, deletes=operator == "deletes"),
        )
    elif operator in ("join", "residual"):
        options = {"how": "full", "residual": left("price") < right("credit")} if operator == "residual" else {}
        print_sizes(
            lambda: built(HashJoin, ORDERS, CUSTOMERS, max_hot_bytes=budget, **options),
            lambda: join_epochs(loaded, per_epoch, changed),
        )
    else:
        numbers = [AggregateCall("sum", "price"), AggregateCall("avg", "tax")]
        calls, epochs = (
            (numbers, aggregate_epochs) if operator == "aggregate" else ([AggregateCall("max", "price")], values_epochs)
        )
        print_sizes(
            lambda: Aggregate(SALES, ["shop"], calls, options=OperatorOptions(budget=HotBudget(max_hot_bytes=budget))),
            lambda: epochs(loaded, per_epoch, changed),
        )


def runs(of: list[tuple[Any, ...]], *, short: tuple[str, ...]) -> list[Any]:
    """Return runs as parameters, named by operator and budget."""
    return some_of({f"{operator} {budget}": ([operator, *sizes, budget],) for operator, *sizes, budget in of}, short=short)


@dataclass(frozen=True)
class Run:
    """What the program printed, and the budget it ran with in MB."""

    budget: int
    epochs: Measured
    spilled: float


def run_apart(*arguments: Any) -> Run:
    """Return what the program prints."""
    epochs, moved = measured_apart(__name__, *map(str, arguments))
    return Run(arguments[-1], epochs, moved[0])


def assert_reports_what_it_holds(run: Run) -> None:
    """Check the second half of the epochs, where the host can measure it."""
    if CAN_REPORT:
        resident, _, emitted, _ = run.epochs[len(run.epochs) // 2 :].T
        assert (np.abs(emitted - resident) < np.maximum(0.1 * resident, LEAST_MB)).all()


@pytest.mark.parametrize("run", runs(RUNS, short=("join 64",)))
def test_an_operator_that_spills_all_the_time_stays_within_its_budget_and_reports_what_it_holds(run: list[Any]) -> None:
    done = run_apart(*run)
    resident, peak, _, delta = done.epochs.T
    allowed = 1.1 * done.budget + delta.max()

    assert done.spilled > 500_000, "rows or groups were spilled"
    assert resident.max() <= allowed
    assert peak.max() <= allowed
    assert_reports_what_it_holds(done)


@pytest.mark.parametrize("run", runs(SMALL_RUNS, short=("values 20",)))
def test_with_a_small_budget_it_stays_within_budget_and_epoch_and_reports_what_it_holds(run: list[Any]) -> None:
    done = run_apart(*run)
    _, peak, _, delta = done.epochs.T

    assert done.spilled > 500_000, "rows or groups were spilled"
    assert peak.max() <= 1.1 * done.budget + delta.max() + FLOOR_MB
    assert_reports_what_it_holds(done)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
