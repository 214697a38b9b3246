"""The process of an aggregate with a budget stays near it while groups come and go all the time.

Run as a program, with how many epochs are loaded, their groups and how many change groups, it prints the sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from tests.process_memory import Measured, measured_apart, print_sizes
from zset_join import Relation, ZSet
from zset_join.aggregates import AggregateCall
from zset_join.operators.aggregate import Aggregate
from zset_join.state.unused_memory import CAN_TELL

BUDGET_MB = 100
EPOCHS = {"small": (150, 10_000, 20), "large": (20, 100_000, 6)}
"""How many epochs are loaded, their groups, and how many change groups."""
SALES = Relation(
    name="sales", schema=pa.schema({"shop": pa.int64(), "price": pa.int64(), "tax": pa.float64()}), mode="changelog"
)


def epochs(loaded: int, per_epoch: int, changed: int) -> Iterator[list[ZSet]]:
    """Yield sales in new shops, then in some of them, drawn uniformly."""
    random = np.random.default_rng(5)
    for epoch in range(loaded + changed):
        begin = epoch * per_epoch
        shops = np.arange(begin, begin + per_epoch) if epoch < loaded else random.integers(0, loaded * per_epoch, per_epoch)
        yield [ZSet.of(pa.record_batch([pa.array(shops), pa.array(shops % 7), pa.array(shops / 3)], schema=SALES.schema))]


def main(loaded: int, per_epoch: int, changed: int) -> None:
    """Print the sizes."""
    calls = [AggregateCall("sum", "price"), AggregateCall("avg", "tax")]
    print_sizes(
        lambda: Aggregate(SALES, ["shop"], calls, default_hash_table="hybrid", max_hot_bytes=BUDGET_MB << 20),
        lambda: epochs(loaded, per_epoch, changed),
    )


@pytest.fixture(scope="module", params=EPOCHS)
def measured(request: pytest.FixtureRequest) -> tuple[Measured, list[float]]:
    """Return what the program prints."""
    return measured_apart(__name__, *map(str, EPOCHS[request.param]))


def test_an_aggregate_that_spills_all_the_time_stays_within_its_budget(measured: tuple[Measured, list[float]]) -> None:
    resident, peak, _, delta = measured[0].T

    assert measured[1][0] > 500_000, "groups were spilled"
    assert resident.max() <= 1.1 * (BUDGET_MB + delta.max())
    assert peak.max() <= 1.1 * (BUDGET_MB + delta.max())


@pytest.mark.skipif(not CAN_TELL, reason="the allocator of this host does not tell how much it keeps free")
def test_what_an_aggregate_says_it_holds_is_within_a_tenth_of_what_the_process_holds(
    measured: tuple[Measured, list[float]],
) -> None:
    resident, _, said, _ = measured[0][len(measured[0]) // 2 :].T

    assert np.abs(said / resident - 1).max() < 0.1


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
