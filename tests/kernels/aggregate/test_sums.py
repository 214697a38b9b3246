"""Sums, averages and variances are those of exact fractions, rounded once, whatever came and went.

Random rows of extreme numbers, with copies up to 2^60, are inserted and retracted. The laws of aggregates draw a dozen of
them; here are hundreds, so that sums pass through all their words.
"""

from __future__ import annotations

import math
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.shapes.aggregate import AggregateCall
from zset_join.testing.reference import row_identity
from zset_join.testing.reference_aggregate import Call, batch_aggregate
from zset_join.zset import ZSet

TINY, HUGE = 5e-324, 1.7976931348623157e308
MIXED = [0.1, -0.2, 1e-19, 3e21, TINY, -1e300, 1e300, 1e-30, 1e30, 2.0**-68, 2.0**72, 0.0, -0.0, -1e-300]
NEAR = [1.0, 3.0, 1e9, 1e9 + 1e-7, 1e9 - 1e-7, 1e15, 1e15 + 0.125, 2.0**53 - 1, 2.0**-67]
SPECIAL = [math.nan, math.inf, -math.inf, HUGE, -HUGE, TINY]
COLUMNS: dict[str, pa.DataType] = {
    "whole": pa.int64(),
    "mixed": pa.float64(),
    "small": pa.int64(),
    "narrow": pa.decimal128(18, 4),
    "wide": pa.decimal128(33, 6),
    "spread": pa.float64(),
    "near": pa.float64(),
    "special": pa.float64(),
    "single": pa.float32(),
}
SCHEMA = pa.schema([("k", pa.int64()), *COLUMNS.items()])
RELATION = Relation(name="t", schema=SCHEMA, mode="changelog")
VARIANCES = ("var_pop", "var_samp", "stddev", "stddev_pop")
CALLS = [
    *(("sum", name) for name in COLUMNS if name != "whole"),
    *(("avg", name) for name in COLUMNS),
    *((kind, name) for kind in VARIANCES for name in ("small", "spread", "near", "special", "single")),
]
ORACLE = {"stddev": "stddev_samp"}
Row = tuple[Any, ...]


def scale_of(kind: str, name: str) -> int | None:
    """Return the digits behind the point of a result."""
    if not pa.types.is_decimal(COLUMNS[name]):
        return None
    scale: int = COLUMNS[name].scale
    return scale if kind == "sum" else scale + 4


def drawn(random: Random, group: int) -> Row:
    """Return a row; the many copies of those of group 1 count for sums that hold them, all else of it is NULL."""
    values = (
        random.randrange(-(10**6), 10**6),
        Decimal(random.randrange(-(10**18) + 1, 10**18)).scaleb(-4),
        Decimal(random.randrange(-(10**30), 10**30)).scaleb(-6),
        random.choice(MIXED),
        random.choice(NEAR),
        random.choice(SPECIAL) if random.randrange(30) == 0 else None,
        random.choice((0.5, 2.0**127, -(2.0**-149), 0.10000000149011612)),
    )
    whole = random.choice((2**63 - 1, -(2**63), random.getrandbits(62), -1, None))
    return group, whole, random.choice(MIXED), *((None,) * len(values) if group else values)


def expected(live: dict[Row, int]) -> dict[int, Any]:
    """Return what the groups must show."""
    bag = [(dict(zip(SCHEMA.names, row, strict=True)), copies) for row, copies in live.items()]
    calls = [Call(ORACLE.get(kind, kind), (name,), None, scale_of(kind, name)) for kind, name in CALLS]
    return {row[0]: row for row in batch_aggregate(bag, ("k",), calls)}


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_sums_of_many_extreme_numbers_are_exact_and_what_is_gone_leaves_no_trace(seed: int, restores: bool) -> None:
    random, live, shown = Random(seed), dict[Row, int](), dict[int, Any]()
    calls = [AggregateCall(kind, (name,), name=f"{kind} of {name}") for kind, name in CALLS]
    aggregate = Aggregate(RELATION, ["k"], calls)
    for epoch, size in enumerate((1, 5, 150, 150, 60, 5)):
        gone = random.sample(sorted(live, key=repr), len(live) * (0, 0, 1, 1, 9, 10)[epoch] // 10)
        lines = [(row, -live.pop(row)) for row in gone]
        for _ in range(size):
            row = drawn(random, random.randrange(2))
            copies = random.choice((1, 2, 2**40, 2**52 + 1)) if row[0] else random.choice((1, 1, 2, 7))
            live[row] = live.get(row, 0) + copies
            lines.append((row, copies))
        if restores:
            aggregate.restore(aggregate.snapshot())
        delta = ZSet.from_rows([row for row, _ in lines], SCHEMA, weights=[weight for _, weight in lines])
        for chunk in aggregate.answer(Tick(epoch), [delta]):
            for row, weight in chunk.to_pylist():
                shown.pop(row[0], None)
                if weight > 0:
                    shown[row[0]] = row_identity(row)
        aggregate.absorb(Tick(epoch), [delta])
        assert shown == expected(live)
